"""The reference as a backend: always there, on every device, and what the others are measured by."""

from __future__ import annotations

import torch
from torch import Tensor

from mxviz import quantize as _reference
from mxviz.formats import Scheme
from mxviz.quantize import MXBlocks


def missing() -> str | None:
    """Return None: plain torch is always there."""
    return None


def supports(device_type: str) -> bool:
    """Every device torch has."""
    return True


def quantize(x: Tensor, scheme: Scheme, axis: int, frozen: Tensor | None) -> MXBlocks:
    """See `mxviz.quantize.quantize`."""
    return _reference.quantize(x, scheme, axis, frozen=frozen)


def dequantize(blocks: MXBlocks, dtype: torch.dtype) -> Tensor:
    """See `mxviz.quantize.MXBlocks.dequantize`."""
    return blocks.dequantize(dtype)
