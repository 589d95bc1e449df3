"""Models: the catalogue, and loading from the built-in wheel, the hub, a folder or a GGUF file.

Weights are read from safetensors or GGUF alone, and no code that comes with a model is ever run.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch

from mxviz import _models_builtin as builtin
from mxviz import _models_sources as sources
from mxviz._models_catalogue import CATALOGUE, DEFAULT, Entry
from mxviz._models_text import Batch, Encoded, TextStream, encode, encode_batch, token_texts
from mxviz._schemes import quoted

__all__ = [
    "CATALOGUE",
    "DEFAULT",
    "Available",
    "Batch",
    "Encoded",
    "Entry",
    "Loaded",
    "TextStream",
    "available",
    "encode",
    "encode_batch",
    "is_ready",
    "load",
    "token_texts",
]


@dataclass(frozen=True, eq=False)
class Loaded:
    """A model that is ready to run, and what is known about it.

    Args:
        model: a causal language model, in evaluation mode.
        tokenizer: its tokenizer.
        name: what was asked for.
        revision: the hub commit it came from, where it did.
        device: where its weights are, such as `cpu` or `cuda`.
        dtype: of its weights.
        context_length: tokens it can hold, None where its config does not say.
        notes: what a reader should know.
        lock: held by the one run that uses the model.
    """

    model: Any
    tokenizer: Any
    name: str
    revision: str | None
    device: str
    dtype: torch.dtype
    context_length: int | None
    notes: tuple[str, ...] = ()
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)


class Available(NamedTuple):
    """One row of `mxviz models`: the name, what it is, whether it is here, how to get it if not."""

    name: str
    what: str
    present: bool
    how: str


_LOADING = (
    threading.Lock()
)  # one load at a time: two would need twice the memory, and log settings are global


def load(
    name: str,
    *,
    revision: str | None = None,
    device: str = "auto",
    dtype: str | torch.dtype | None = None,
) -> Loaded:
    """Load a model by catalogue name, hub id, folder or .gguf file.

    Args:
        name: a name of `CATALOGUE`, a hub id `owner/name`, a folder with config.json and safetensors, or the
            path of a .gguf file.
        revision: branch, tag or commit of a hub id.
        device: `auto` (cuda where there is one, else cpu) or a torch device.
        dtype: `float32`, `bfloat16` or `float16`; None means float32 on cpu and bfloat16 elsewhere.

    Raises:
        ValueError: one line for whatever stands in the way: unknown name, no network, gated or missing
            repository, damaged file, unknown architecture, pickled weights, missing device.
    """
    name = str(name).strip()
    where = _device(device)
    kind = _dtype(dtype, where)
    source = _source(name)
    if revision is not None and source != "hub":
        raise ValueError(
            f"revision {quoted(revision)} applies to hub ids alone; {quoted(name)} is a {source}"
        )
    with _LOADING, sources.quiet():
        found = _FROM[source](name, kind, revision)
    model = found.model.to(where).eval()
    return Loaded(
        model=model,
        tokenizer=found.tokenizer,
        name=name,
        revision=found.revision,
        device=str(where),
        dtype=kind,
        context_length=sources.context_length(model.config, found.tokenizer),
        notes=found.notes,
    )


def available() -> list[Available]:
    """List the catalogue: what is here, and how to get the rest."""
    rows = []
    for name, entry in CATALOGUE.items():
        if entry.source == "wheel":
            here, how = builtin.find() is not None, builtin.HOW_TO_GET
        else:
            here, how = (
                sources.is_on_disk(name),
                f"fetched from the hub on first use: mxviz run --model {name}",
            )
        rows.append(
            Available(name, f"{entry.title}: {entry.note} ({entry.licence})", here, "" if here else how)
        )
    return rows


def is_ready(name: str) -> bool:
    """Return whether loading takes seconds: converted, on disk, or already fetched."""
    try:
        source = _source(str(name).strip())
    except ValueError:
        return False
    if source == "built-in model":
        return builtin.kept_copy() is not None
    return source != "hub" or sources.is_on_disk(name)


def _source(name: str) -> str:
    """Return which kind of thing a name is; a catalogue name wins over a path of the same name."""
    if name in CATALOGUE and CATALOGUE[name].source == "wheel":
        return "built-in model"
    path = Path(name).expanduser()
    if name and path.is_dir():
        return "folder"
    if name and (path.is_file() or path.suffix.lower() == ".gguf"):
        return "file"
    if sources.is_hub_id(name):
        return "hub"
    raise ValueError(
        f"unknown model {quoted(name)}: not in the catalogue ({', '.join(CATALOGUE)}), no file or folder of "
        "that name, and not a hub id (owner/name)"
    )


def _from_hub(name: str, dtype: torch.dtype, revision: str | None) -> sources.Found:
    return sources.from_hub(name, dtype, revision, known=CATALOGUE)


_FROM = {
    "built-in model": lambda name, dtype, revision: builtin.load(dtype),
    "folder": lambda name, dtype, revision: sources.from_folder(Path(name).expanduser(), dtype),
    "file": lambda name, dtype, revision: sources.from_gguf(Path(name).expanduser(), dtype),
    "hub": _from_hub,
}

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def _dtype(dtype: str | torch.dtype | None, device: torch.device) -> torch.dtype:
    if dtype is None:
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    found = dtype if isinstance(dtype, torch.dtype) else _DTYPES.get(dtype)
    if found not in _DTYPES.values():
        raise ValueError(f"unknown dtype {quoted(dtype)}; expected one of: {', '.join(_DTYPES)}")
    return found


def _device(device: str) -> torch.device:
    if str(device) == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        found = torch.device(device)
        torch.empty(1, device=found)
    except (RuntimeError, AssertionError) as error:  # torch without CUDA asserts
        reason = sources.first_line(error)
        raise ValueError(f"device {quoted(device)} cannot be used here ({reason}); use auto or cpu") from None
    if found.type == "meta":
        raise ValueError("device 'meta' holds no numbers; use auto, cpu or cuda")
    return found
