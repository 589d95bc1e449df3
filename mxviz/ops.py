"""Quantize and dequantize on whichever backend fits: check, pick, and say which was picked."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from types import ModuleType

import torch
from torch import Tensor

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
    kind = torch.device(device).type
    if backend == "auto":
        return next(b for b in BACKENDS if why_missing(b) is None and _load(b).supports(kind))
    if backend not in BACKENDS:
        raise ValueError(f"unknown backend {backend!r}; expected one of: auto, {', '.join(BACKENDS)}")
    reason = why_missing(backend)
    if reason is None and not _load(backend).supports(kind):
        reason = f"it does not run on tensors on {kind}"
    if reason is not None:
        raise ValueError(f"backend {backend} cannot run here: {reason}; use backend auto or reference")
    return backend


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


def dequantize(blocks: MXBlocks, dtype: torch.dtype = torch.float32, *, backend: str = "auto") -> Tensor:
    """Return the values packed blocks stand for, the same on every backend."""
    return _load(pick(backend, blocks.packed.device)).dequantize(blocks, dtype)
