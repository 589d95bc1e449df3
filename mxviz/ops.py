"""Quantize, dequantize and attend on whichever backend fits: check, pick, and say which was picked."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from types import ModuleType

import torch
from torch import Tensor

from mxviz.backends import HeldPart, Part, part_of
from mxviz.formats import Scheme
from mxviz.quantize import MXBlocks, checked_axis

BACKENDS = ("gpu", "cpu", "reference")
"""Backends in the order `auto` prefers them."""


@cache
def _load(name: str) -> ModuleType:
    return import_module(f"mxviz.backends.{name}")


@cache
def why_missing(name: str) -> str | None:
    """Return None where a backend can run here, else one line that says why not.

    A backend that fails to import, for whatever reason its library has, counts as missing.
    """
    try:
        return _load(name).missing()
    except Exception as error:  # a broken driver or build raises what it likes; the page must still open
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'}"


def pick(backend: str = "auto", device: str | torch.device = "cpu") -> str:
    """Return the name of the backend that will run on a device.

    Args:
        backend: `auto`, or one of `BACKENDS` by name.
        device: where the tensors are.

    Raises:
        ValueError: for an unknown backend, or one that is asked for by name and cannot run here.
    """
    kind = device.type if isinstance(device, torch.device) else torch.device(device).type
    if backend == "auto":
        return _best(kind, bool(_postponed))
    if backend not in BACKENDS:
        raise ValueError(f"unknown backend {backend!r}; expected one of: auto, {', '.join(BACKENDS)}")
    reason = why_missing(backend)
    if reason is None and not _load(backend).supports(kind):
        reason = f"it does not run on tensors on {kind}"
    if reason is not None:
        raise ValueError(f"backend {backend} cannot run here: {reason}; use backend auto or reference")
    return backend


@cache
def _best(kind: str, postponed: bool) -> str:
    """What `auto` takes on a kind of device; kept, for a cache asks several times a layer and step."""
    fits = (b for b in BACKENDS if not (postponed and b in _postponed) and why_missing(b) is None)
    return next(b for b in fits if _load(b).supports(kind))


def quantize(
    x: Tensor,
    scheme: Scheme | str,
    axis: int | None = None,
    *,
    frozen: Tensor | None = None,
    backend: str = "auto",
) -> MXBlocks:
    """Quantize a tensor; same arguments, bytes and errors as `mxviz.quantize.quantize` on every backend."""
    scheme = Scheme.parse(scheme) if isinstance(scheme, str) else scheme
    axis = checked_axis(x, scheme, axis)
    return _load(pick(backend, x.device)).quantize(x, scheme, axis, frozen)


def row_writer(
    scheme: Scheme,
    packed: Tensor,
    scales: Tensor,
    zeros: Tensor | None,
    frozen: Tensor | None = None,
    *,
    backend: str = "auto",
) -> Callable[[Tensor, int, int], int | Tensor]:
    """Return what quantizes tokens straight into the rows of a cache's buffers: the bytes `quantize` gives.

    Args:
        scheme: one whose blocks run along channels and whose scales are all of a block.
        packed, scales, zeros: contiguous buffers `[batch, kv_heads, rows, width]`.
        frozen: NVFP4's global scale `[batch, 1, 1, 1]`.
        backend: `auto`, or one of `BACKENDS` by name.

    Returns:
        `write(x, row, scale_row)`: writes x `[batch, kv_heads, tokens, head_dim]` to the rows from `row` on,
        its scales and zeros to those from `scale_row` on; returns how many elements are clipped where a
        scale is frozen, else 0.
    """
    chosen = _load(pick(backend, packed.device))
    if hasattr(chosen, "row_writer"):
        return chosen.row_writer(scheme, packed, scales, zeros, frozen)

    def write(x: Tensor, row: int, scale_row: int) -> int | Tensor:
        blocks = chosen.quantize(x, scheme, -1, frozen)
        pairs = ((packed, row, blocks.packed), (scales, scale_row, blocks.scales))
        for buffer, first, made in (*pairs, (zeros, scale_row, blocks.zeros)):
            if buffer is not None:
                buffer.narrow(2, first, made.shape[2]).copy_(made)
        return 0 if frozen is None else blocks.clipped_mask(x).sum()

    return write


def dequantize(blocks: MXBlocks, dtype: torch.dtype = torch.float32, *, backend: str = "auto") -> Tensor:
    """Return the values packed blocks stand for, the same on every backend."""
    return _load(pick(backend, blocks.packed.device)).dequantize(blocks, dtype)


def unpack(part: Part | HeldPart, dtype: torch.dtype, *, backend: str = "auto") -> Tensor:
    """Return the tensor `[batch, kv_heads, tokens, head_dim]` that a part stands for."""
    return part_of(part).unpacked(dtype, lambda blocks, to: dequantize(blocks, to, backend=backend))


def attend(
    query: Tensor,
    key: Part | HeldPart,
    value: Part | HeldPart,
    *,
    scaling: float,
    mask: Tensor | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """Attend over packed keys and values; the `cpu` and `gpu` backends do not unpack them to memory.

    Args:
        query: `[batch, heads, queries, head_dim]`; heads is a multiple of the parts' kv_heads.
        key, value: `Part`s of equal length in tokens; each may have its own width, scheme and axis.
        scaling: factor on the scores.
        mask: bool (True attends) or a number added to the scores, `[batch, 1 or heads, queries, tokens]`.
        softcap: scores become softcap · tanh(scores / softcap).
        sinks: learned logits `[heads]` that take weight and give nothing.
        backend: `auto`, or one of `BACKENDS` by name.

    Returns:
        `[batch, heads, queries, width of value]`, in the query's dtype; 0 where all tokens are masked.
        Backends agree to a tolerance, not to the bit.

    Raises:
        ValueError: where lengths or heads do not fit each other, or for a backend that cannot run here.
    """
    chosen = _load(pick(backend, query.device))
    if not getattr(chosen, "READS_HELD", False):
        key, value = part_of(key), part_of(value)
    return chosen.attend(query, key, value, scaling=scaling, mask=mask, softcap=softcap, sinks=sinks)


_postponed: set[str] = set()


def postpone() -> None:
    """Let `auto` pass over the CPU kernels until `warm_up` is done: same bytes, nobody waits for Numba."""
    _postponed.add("cpu")


def warm_up() -> None:
    """Compile the CPU kernels, or read them from the disk; call it in a thread or process of its own."""
    try:
        if why_missing("cpu") is None:
            _load("cpu").warm_up()
    finally:
        _postponed.discard("cpu")


def is_compiled() -> bool:
    """Whether a `warm_up` would find the CPU kernels on the disk, or find that they cannot run here."""
    return why_missing("cpu") is not None or _load("cpu").is_compiled()
