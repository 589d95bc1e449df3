"""A scheme as the numbers the CPU kernels take, and the kernels themselves."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib import import_module
from types import ModuleType

import numpy as np
import torch
from torch import Tensor

from mxviz.backends import _numba_host as host
from mxviz.formats import ElementFormat, Kind, Scheme, Specials

WIDTHS = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
"""The kernels' word for a dtype."""


def address(x: Tensor | None) -> int:
    """Where a tensor lies, 0 for None."""
    return 0 if x is None else x.data_ptr()


def buffer(shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
    """Memory for a kernel to write. It follows neither torch's default device nor its default dtype."""
    return torch.empty(shape, dtype=dtype, device="cpu")


@cache
def kernels() -> ModuleType:
    """The kernels; they are imported once the compiled code has its folder."""
    host.set_cache_folder()
    for name in ("scales", "quantize", "dequantize", "attend", "job", "append", "team"):
        import_module(f"mxviz.kernels.cpu.{name}")
    return import_module("mxviz.kernels.cpu")


class Plan:
    """A scheme as the numbers the kernels take, and where they lie."""

    def __init__(self, scheme: Scheme) -> None:
        base = kernels()._base
        element, fields = scheme.element, base.Plan
        numbers = {
            fields.KIND: base.Kind[element.kind.name],
            fields.BITS: element.bits,
            fields.MANTISSA: element.mantissa_bits,
            fields.EMIN_BITS: (element.emin + 127) << 23,
            fields.MAX_BITS: _bits(element.max_normal),
            fields.STEP_BITS: _bits(element.min_subnormal),
            fields.EMAX: element.emax,
            fields.NONFINITE: element.nan_code or 0,
            fields.LAST_FINITE: _last_finite(element),
            fields.INFINITE: _last_finite(element) + 1 if element.specials is Specials.IEEE else -1,
            fields.SCALE: base.Scale[scheme.scale.name],
            fields.RULE: base.Rule[scheme.rule.name],
            fields.BLOCK: scheme.block if scheme.is_blocked else 1,
        }
        self.scheme = scheme
        self.array = np.array([numbers[field] for field in fields], np.int64)
        self.address = self.array.ctypes.data


def _bits(number: float) -> int:
    return int(np.float32(number).view(np.int32))


def _last_finite(element: ElementFormat) -> int:
    """The largest magnitude code that is a finite number."""
    return element.values.index(element.max_normal) if element.kind is Kind.FLOAT else 255


_plans: dict[int, Plan] = {}


def plan_of(scheme: Scheme) -> Plan:
    """The numbers of a scheme, kept by identity: hashing a scheme takes longer than a small call."""
    plan = _plans.get(id(scheme))
    if plan is None or plan.scheme is not scheme:
        if len(_plans) > 256:
            _plans.clear()
        plan = _plans[id(scheme)] = Plan(scheme)
    return plan
