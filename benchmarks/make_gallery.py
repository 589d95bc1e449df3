"""Record the runs that ship in assets/gallery: `python -m benchmarks.make_gallery [--layers] [NAME …]`.

Each file is a capture made by the engine on this machine; its header says what ran. Qwen2.5-Coder needs its
Q4_K_M GGUF file: give its path in MXVIZ_QWEN_GGUF. `planted` needs no model at all. With `--layers` nothing
is run anew: the short runs that are here are only measured layer by layer, over the text they hold.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from mxviz._engine_layers import suggested, taken_apart
from mxviz._paths import ASSETS
from mxviz.analysis import race_schemes
from mxviz.capture import PARTS, Capture
from mxviz.engine import Settings, measure, run
from mxviz.formats import Recipe
from mxviz.models import load
from mxviz.tensors import as_capture

EFFECTS = (
    *("mxfp4", "k=mxfp4:axis=token;v=mxfp4", "nvfp4", "k=aint4:axis=token;v=aint4", "mxfp6_e2m3"),
    *("mxfp8_e4m3", "mxint8", "int4@tensor", "fp4@tensor", "int8@tensor", "fp8_e4m3@tensor"),
)
"""Recipes whose effect every run carries; short runs carry that of every scheme."""

KEYS_BY_TOKEN = "k=mxfp4:axis=token;v=mxfp4"


class Run(NamedTuple):
    """One recorded run: the model that is loaded, what it is called, and the settings."""

    model: str
    title: str
    settings: Settings
    every_scheme: bool = True
    """Whether to measure the effect of every scheme, and layer by layer, or of `EFFECTS` alone."""


def _text(name: str, task: str) -> str:
    return (ASSETS / "text" / name).read_text(encoding="utf-8").strip() + "\n\n" + task


RUNS = {
    "smollm2-chat": Run(
        "smollm2",
        "SmolLM2-135M-Instruct",
        Settings(
            "Tell a story about a ladybug who wants to measure a skyscraper.",
            recipe=KEYS_BY_TOKEN,
            max_new_tokens=64,
            store_dtype="bfloat16",
            query_layers=(0, 10, 19, 28),
        ),
    ),
    "smollm2-long": Run(
        "smollm2",
        "SmolLM2-135M-Instruct",
        Settings(
            _text("harbour.txt", "What did the clerk do to the log, and why did it fail?"),
            recipe=KEYS_BY_TOKEN,
            max_new_tokens=64,
            store_dtype="bfloat16",
            layers=tuple(range(0, 30, 3)),
            query_layers=(0, 15),
        ),
        every_scheme=False,
    ),
    "qwen-code": Run(
        os.environ.get("MXVIZ_QWEN_GGUF", ""),
        "Qwen2.5-Coder-0.5B-Instruct",
        Settings(
            "Explain why one outlier ruins a ruler that is shared by many.",
            recipe=KEYS_BY_TOKEN,
            max_new_tokens=112,
            store_dtype="bfloat16",
            query_layers=(0, 8, 16, 23),
        ),
    ),
    "qwen-long": Run(
        os.environ.get("MXVIZ_QWEN_GGUF", ""),
        "Qwen2.5-Coder-0.5B-Instruct",
        Settings(
            _text("kitchen.txt", "What is this text about?"),
            recipe=KEYS_BY_TOKEN,
            max_new_tokens=32,
            store_dtype="bfloat16",
            layers=tuple(range(2, 24, 3)),
            query_layers=(8,),
        ),
        every_scheme=False,
    ),
}


def planted() -> Capture:
    """Return standard normal numbers, 256 tokens × 128 channels, with 600 added to channel 7."""
    x = np.random.default_rng(7).standard_normal((256, 128), dtype=np.float32)
    x[:, 7] += 600
    made = as_capture(x, "one planted channel", "mxfp4", "int8@tensor")
    return replace(
        made, notes=("made by NumPy: standard normal numbers (seed 7), 600 added to channel 7", *made.notes)
    )


def record(made: Run) -> Capture:
    """Run the model, then measure the effect of further recipes over the same text."""
    loaded = load(made.model)
    capture = run(loaded, made.settings, on_progress=lambda p: _say(f"{p.stage} {p.step}/{p.total}"))
    recipes = [Recipe.parse(text) for text in EFFECTS]
    if made.every_scheme:
        recipes += [Recipe(scheme, scheme) for scheme in race_schemes()]
    queries = capture.queries
    capture = replace(capture, effect=capture.effect | effects(loaded, capture.token_ids, recipes))
    return replace(
        by_layer(loaded, capture) if made.every_scheme else capture,
        model=made.title,
        # Of a long text, keys before RoPE of every layer would be too much.
        keys_pre_rope=capture.keys_pre_rope if made.every_scheme else _of(capture.keys_pre_rope, queries),
    )


def by_layer(loaded, capture: Capture) -> Capture:
    """Return a capture that also carries what its recipe and its baseline do in each layer alone, keys and
    values apart, and the recipes that this suggests; see `mxviz._engine_layers.recorded`."""
    layers, effect = int(capture.shape["layers"]), dict(capture.effect)
    for whole in map(Recipe.parse, (capture.recipe, capture.baseline)):
        alone = list(taken_apart(whole, layers))
        effect |= effects(loaded, capture.token_ids, [recipe for *_, recipe in alone])
        kl = {part: np.full(layers, np.nan) for part in PARTS}
        for part, layer, recipe in alone:
            nats = effect[str(recipe)]["kl"].double()
            kl[part][layer] = float(nats[nats.isfinite()].mean())
        effect |= effects(loaded, capture.token_ids, suggested(whole, kl).values())
    return replace(capture, effect=effect)


def effects(loaded, ids: tuple[int, ...], recipes: Iterable[Recipe]) -> dict[str, dict[str, torch.Tensor]]:
    """Return canonical recipe string → `kl`, `top1` and `nll`, teacher-forced; see `mxviz.engine.measure`."""
    lanes = {"exact": Recipe.parse("none")} | {str(recipe): recipe for recipe in recipes}
    said = lambda done: _say(f"effect of {len(lanes)} recipes: {done} passes done")  # noqa: E731
    tables = measure(loaded.model, ids, lanes, said=said).tables
    return {lane: {name: x.clone() for name, x in tables[lane].items()} for lane in lanes if lane != "exact"}


def _of(tensors: dict[int, torch.Tensor], layers: Iterable[int]) -> dict[int, torch.Tensor]:
    return {layer: x for layer, x in tensors.items() if layer in set(layers)}


def _say(text: str) -> None:
    print(f"\r\033[K{text}", end="", flush=True)


def main(arguments: list[str]) -> None:
    """Record the named runs, or all of them; with `--layers` measure those that are here layer by layer."""
    names = [name for name in arguments if name != "--layers"]
    if "--layers" in arguments:
        for name in names or [name for name, made in RUNS.items() if made.every_scheme]:
            _save(name, by_layer(load(RUNS[name].model), Capture.load(_path(name))))
        return
    for name in names or ["planted", *RUNS]:
        _save(name, planted() if name == "planted" else record(RUNS[name]))


def _path(name: str) -> Path:
    return ASSETS / "gallery" / f"{name}.safetensors"


def _save(name: str, capture: Capture) -> None:
    path = _path(name)
    capture.save(path)
    path.chmod(0o644)
    _say(f"{path.name}: {capture.tokens_held} tokens, {path.stat().st_size / 2**20:.1f} MiB\n")


if __name__ == "__main__":
    main(sys.argv[1:])
