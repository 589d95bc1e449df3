"""Numba kernels as a backend: tensors to addresses and strides, schemes to numbers, work to threads."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

import numpy as np
import torch
from torch import Tensor

from mxviz import _scales as reference_scales
from mxviz import quantize as reference
from mxviz.backends import _numba_host as host
from mxviz.formats import SCHEMES, ElementFormat, Kind, Reach, ScaleFormat, Scheme, Specials
from mxviz.quantize import MXBlocks, packed_bytes

_WIDTHS = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
_CHUNK = 64  # tokens over which one thread measures the channels of `@channel`


def missing() -> str | None:
    """Return None where the kernels can run, else one line that says why not."""
    if find_spec("numba") is None:
        return "numba is not installed; install mxviz[cpu]"
    import numba

    return "NUMBA_DISABLE_JIT is set" if numba.config.DISABLE_JIT else None


def supports(device_type: str) -> bool:
    """Tensors in the CPU's memory alone."""
    return device_type == "cpu"


def threads() -> int:
    """Return how many threads a large call uses: torch's own number."""
    return torch.get_num_threads()


@cache
def _kernels() -> ModuleType:
    """The kernels; they are imported once the compiled code has its folder."""
    host.set_cache_folder()
    for name in ("scales", "quantize", "dequantize"):
        import_module(f"mxviz.kernels.cpu.{name}")
    return import_module("mxviz.kernels.cpu")


class _Plan:
    """A scheme as the numbers the kernels take, and where they lie."""

    def __init__(self, scheme: Scheme) -> None:
        from mxviz.kernels.cpu._base import Kind as Kinds
        from mxviz.kernels.cpu._base import Plan, Rule, Scale

        element = scheme.element
        numbers = {
            Plan.KIND: Kinds[element.kind.name],
            Plan.BITS: element.bits,
            Plan.MANTISSA: element.mantissa_bits,
            Plan.EMIN_BITS: (element.emin + 127) << 23,
            Plan.MAX_BITS: _bits(element.max_normal),
            Plan.STEP_BITS: _bits(element.min_subnormal),
            Plan.EMAX: element.emax,
            Plan.NONFINITE: element.nan_code or 0,
            Plan.LAST_FINITE: _last_finite(element),
            Plan.INFINITE: _last_finite(element) + 1 if element.specials is Specials.IEEE else -1,
            Plan.SCALE: Scale[scheme.scale.name],
            Plan.RULE: Rule[scheme.rule.name],
            Plan.BLOCK: scheme.block if scheme.is_blocked else 1,
        }
        self.scheme = scheme
        self.array = np.array([numbers[field] for field in Plan], np.int64)


def _bits(number: float) -> int:
    return int(np.float32(number).view(np.int32))


def _last_finite(element: ElementFormat) -> int:
    """The largest magnitude code that is a finite number."""
    return element.values.index(element.max_normal) if element.kind is Kind.FLOAT else 255


_plans: dict[int, _Plan] = {}


def _plan(scheme: Scheme) -> _Plan:
    """The numbers of a scheme, kept by identity: hashing a scheme takes longer than a small call."""
    plan = _plans.get(id(scheme))
    if plan is None or plan.scheme is not scheme:
        if len(_plans) > 256:
            _plans.clear()
        plan = _plans[id(scheme)] = _Plan(scheme)
    return plan


def _four(x: Tensor) -> Tensor:
    """`x` as [batch, heads, tokens, dim]; a view wherever that is possible."""
    if x.dim() == 4:
        return x
    return x.flatten(0, -4) if x.dim() > 4 else x.reshape((1,) * (4 - x.dim()) + tuple(x.shape))


def _dense(x: Tensor) -> Tensor:
    """`_four` with a contiguous inner dimension."""
    x = _four(x)
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def _address(x: Tensor | None) -> int:
    return 0 if x is None else x.data_ptr()


def _along(shape: torch.Size, axis: int, size: int) -> list[int]:
    """`shape` with another size along an axis."""
    changed = list(shape)
    changed[axis] = size
    return changed


def _units(plan: _Plan, axis: int, shape: torch.Size) -> int:
    """Tiles that the kernels along an axis work through."""
    batch, heads, tokens, dim = shape
    sizes = _kernels().quantize
    columns = min(dim, sizes.TILE if axis == -1 else sizes.COLUMNS)
    block = plan.scheme.block if plan.scheme.is_blocked else sizes.ROWS
    rows = sizes.TILE // columns if axis == -1 else block
    return batch * heads * -(-tokens // rows) * -(-dim // columns)


def quantize(x: Tensor, scheme: Scheme, axis: int, frozen: Tensor | None) -> MXBlocks:
    """See `mxviz.quantize.quantize`; along a dimension before the tokens, which no cache does, it is that."""
    if axis < -2 or x.numel() == 0:
        return reference.quantize(x, scheme, axis, frozen=frozen)
    kernels, plan, shape = _kernels().quantize, _plan(scheme), x.shape
    x = _dense(x.detach())
    _, heads, tokens, dim = x.shape
    source = (x.data_ptr(), _WIDTHS[x.dtype], *x.stride()[:3], heads, tokens, dim)
    packed = torch.empty(
        _along(shape, axis, packed_bytes(shape[axis], scheme.element.bits)), dtype=torch.uint8
    )
    zeros = given = divisor = None
    if scheme.is_blocked:
        blocks = _along(shape, axis, -(-shape[axis] // scheme.block))
        with_zeros = scheme.scale is ScaleFormat.FLOAT16_ZERO
        scales = torch.empty(blocks, dtype=torch.float16 if with_zeros else torch.uint8)
        zeros = torch.empty_like(scales) if with_zeros else None
        if scheme.scale is ScaleFormat.E4M3:
            divisor = given = _global_scale(source, shape) if frozen is None else frozen
    else:
        scales, divisor = _single_scales(source, scheme, shape, frozen)
    spread = None if divisor is None else _four(divisor.expand(shape))
    strides = (0, 0, 0, 0) if spread is None else spread.stride()
    arguments = (
        *source,
        packed.data_ptr(),
        scales.data_ptr(),
        _address(zeros),
        _address(spread),
        *strides,
        plan.array,
    )
    kernel = kernels.quantize_rows if axis == -1 else kernels.quantize_columns
    host.spread(kernel, arguments, _units(plan, axis, x.shape), x.numel())
    return MXBlocks(packed, scales, scheme, shape, axis, given, zeros)


def _row_amax(source: tuple, shape: torch.Size, finite_only: bool) -> Tensor:
    """Bits of the largest |x| of each row, int32 [batch, heads, tokens]."""
    heads, tokens, dim = source[5:]
    rows = shape.numel() // dim
    amax = torch.empty(rows, dtype=torch.int32)
    host.spread(_kernels().scales.amax_rows, (*source, finite_only, amax.data_ptr()), rows, rows * dim)
    return amax.view(-1, heads, tokens)


def _global_scale(source: tuple, shape: torch.Size) -> Tensor:
    """NVFP4's g = A/2688, A the largest finite magnitude of a sequence; 1 where that would be 0."""
    amax = _row_amax(source, shape, True).amax((1, 2)).view(torch.float32)
    g = amax / torch.full((), reference_scales.NVFP4_RANGE)
    return torch.where(g == 0, 1.0, g).view(*shape[:-3], *(1,) * min(3, len(shape)))


def _single_scales(
    source: tuple, scheme: Scheme, shape: torch.Size, frozen: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Scales of a single-scale scheme as stored (NaN where broken), and as the kernels want them."""
    heads, tokens, dim = source[5:]
    dims = reference_scales.reach_dims(scheme.reach, len(shape))
    kept = [1 if d - len(shape) in dims else n for d, n in enumerate(shape)]
    constant = scheme.reach is Reach.ONE
    if constant and scheme.element.nan_code is not None:  # the element holds its own NaN
        ones = torch.ones(kept)
        return ones, ones
    if scheme.reach is Reach.CHANNEL and len(shape) > 1:
        outer, parts, inner = shape.numel() // (tokens * dim), -(-tokens // _CHUNK), dim
        amax = torch.empty(outer, parts, inner, dtype=torch.int32)
        arguments = (*source, _CHUNK, amax.data_ptr())
        host.spread(_kernels().scales.amax_columns, arguments, outer * parts, shape.numel())
    else:
        amax = _row_amax(source, shape, False)
        outer, inner = torch.Size(kept).numel(), 1
        parts = amax.numel() // outer
    stored, divisor = torch.empty(kept), torch.empty(kept)
    frozen = None if frozen is None else frozen.float().expand(kept).contiguous()
    _kernels().scales.single_scales(
        amax.data_ptr(), outer, parts, inner, scheme.element.max_normal, _address(frozen), constant,
        stored.data_ptr(), divisor.data_ptr(),
    )  # fmt: skip
    return stored, divisor


def dequantize(blocks: MXBlocks, dtype: torch.dtype) -> Tensor:
    """See `mxviz.quantize.MXBlocks.dequantize`; packed and scales may be views of bigger buffers."""
    shape, axis, scheme = blocks.shape, blocks.axis, blocks.scheme
    out = torch.empty(shape)
    if axis < -2 or out.numel() == 0:
        return blocks.dequantize(dtype)
    plan, packed = _plan(scheme), _dense(blocks.packed)
    scales, zeros, given = blocks.scales, blocks.zeros, blocks.global_scale
    scales = _four(scales) if scheme.is_blocked else _four(scales.expand(shape))
    if scales.stride(-1) > 1:
        scales = scales.contiguous()
    if zeros is not None:
        zeros = _four(zeros)
        if zeros.stride() != scales.stride():
            zeros, scales = zeros.contiguous(), scales.contiguous()
    given = None if given is None else _four(given.expand(*shape[:-3], *given.shape[-3:]))
    target = _four(out)
    _, heads, tokens, dim = target.shape
    arguments = (
        packed.data_ptr(), *packed.stride()[:3], scales.data_ptr(), _address(zeros), *scales.stride(),
        _address(given), 0 if given is None else given.stride(0), heads, tokens, dim, out.data_ptr(),
        plan.array,
    )  # fmt: skip
    kernels = _kernels().dequantize
    kernel = kernels.dequantize_rows if axis == -1 else kernels.dequantize_columns
    host.spread(kernel, arguments, _units(plan, axis, target.shape), out.numel())
    return out if dtype is torch.float32 else out.to(dtype)


def warm_up() -> None:
    """Compile, or read from the disk, what a page with default settings needs; call it in a thread."""
    sample = torch.zeros(1, 1, 64, 64)
    for name, axis in (("mxfp4", -1), ("mxfp4", -2), ("int4@tensor", -1), ("int4@channel", -1)):
        dequantize(quantize(sample, SCHEMES[name], axis, None), torch.float32)
