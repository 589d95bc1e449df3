"""Record the runs that ship in assets/gallery: `python -m benchmarks.make_gallery [NAME …]`.

Each file is a capture made by the engine on this machine; its header says what ran. Qwen2.5-Coder needs its
Q4_K_M GGUF file: give its path in MXVIZ_QWEN_GGUF.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from typing import NamedTuple

from mxviz._paths import ASSETS
from mxviz.engine import Settings, run
from mxviz.models import load


class Run(NamedTuple):
    """One recorded run: the model that is loaded, what it is called, and the settings."""

    model: str
    title: str
    settings: Settings


RUNS = {
    "smollm2-sky": Run(
        "smollm2",
        "SmolLM2-135M-Instruct",
        Settings("Why is the sky blue?", recipe="mxfp4", max_new_tokens=64, store_dtype="bfloat16"),
    ),
    "qwen-code": Run(
        os.environ.get("MXVIZ_QWEN_GGUF", ""),
        "Qwen2.5-Coder-0.5B-Instruct",
        Settings(
            "Explain why one outlier ruins a ruler that is shared by many.",
            recipe="k=mxfp4:axis=token;v=mxfp4",
            max_new_tokens=112,
            store_dtype="bfloat16",
        ),
    ),
}


def main(names: list[str]) -> None:
    """Record the named runs, or all of them."""
    for name in names or list(RUNS):
        model, title, settings = RUNS[name]
        capture = run(
            load(model), settings, on_progress=lambda p: print(f"\r{p.stage} {p.step}/{p.total}", end="")
        )
        path = ASSETS / "gallery" / f"{name}.safetensors"
        # Queries and keys before RoPE of every layer would triple the file; the pages that ship need neither.
        capture = replace(capture, model=title, queries={}, keys_pre_rope={})
        capture.save(path)
        path.chmod(0o644)
        print(f"\r{path.name}: {capture.tokens_held} tokens, {path.stat().st_size / 2**20:.1f} MiB")


if __name__ == "__main__":
    main(sys.argv[1:])
