"""What a launch of a Triton kernel is made of, and the constants by which kernels know formats."""

from __future__ import annotations

import logging
import os
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from mxviz.formats import Kind, ScaleFormat, ScaleRule, Specials

# The numbers of kernels/gpu/codec.py and scales.py, which are read without importing Triton.
KINDS = {Kind.FLOAT: 0, Kind.SIGNED: 1, Kind.UNSIGNED: 2}
SPECIALS = {Specials.NONE: 0, Specials.NAN: 1, Specials.IEEE: 2}
SCALES = {ScaleFormat.E8M0: 0, ScaleFormat.E4M3: 1, ScaleFormat.FLOAT16_ZERO: 2, ScaleFormat.FLOAT32: 3}
RULES = {ScaleRule.FLOOR: 0, ScaleRule.EVEN: 1, ScaleRule.RCEIL: 2, ScaleRule.CEIL: 3}


def interpreted() -> bool:
    """Return whether Triton runs kernels on CPU tensors, step by step (set before Triton is imported)."""
    return os.environ.get("TRITON_INTERPRET", "0") == "1"


def raw(t: Tensor) -> Tensor:
    """bfloat16 as its bits: Triton's interpreter cannot compute with it, and the kernels need not."""
    return t.view(torch.int16) if t.dtype is torch.bfloat16 else t


@cache
def announce() -> None:
    """Say once why the first use is slow."""
    logging.getLogger("mxviz").warning(
        "Triton compiles mxviz's GPU kernels at their first use: some seconds each, then they are cached"
    )


class Plan(NamedTuple):
    """One launch of one kernel: what `kernel[grid](*arguments, **constants)` is given."""

    kernel: str
    grid: tuple[int, ...]
    arguments: tuple
    constants: dict
    warps: int = 4

    @property
    def options(self) -> dict:
        """Options of the compiler. Fusing a product and a sum would round once where the reference rounds
        twice; only attention, which promises no bytes, may."""
        return {"enable_fp_fusion": self.kernel == "attend", "num_warps": self.warps}

    def run(self, device: Tensor) -> None:
        from mxviz.kernels.gpu import KERNELS

        if not interpreted():
            announce()
        with torch.cuda.device_of(device):
            KERNELS[self.kernel][self.grid](*self.arguments, **self.constants, **self.options)
