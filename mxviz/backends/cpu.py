"""Numba kernels as a backend: tensors to addresses and strides, schemes to numbers, work to threads."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec

import numpy as np
import torch
from torch import Tensor

from mxviz import _scales as reference_scales
from mxviz import quantize as reference
from mxviz.backends import Part
from mxviz.backends import _numba_host as host
from mxviz.backends._cpu_attend import attend
from mxviz.backends._cpu_plan import WIDTHS, Plan, address, buffer, kernels, plan_of
from mxviz.formats import SCHEMES, Reach, ScaleFormat, Scheme
from mxviz.quantize import MXBlocks, packed_bytes

__all__ = ["attend", "dequantize", "is_compiled", "missing", "quantize", "supports", "threads", "warm_up"]

READS_HELD = True
"""`attend` takes a `HeldPart` as it is."""

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


def _four(x: Tensor) -> Tensor:
    """`x` as [batch, heads, tokens, dim]; a view wherever that is possible."""
    if x.dim() == 4:
        return x
    return x.flatten(0, -4) if x.dim() > 4 else x.reshape((1,) * (4 - x.dim()) + tuple(x.shape))


def _dense(x: Tensor) -> Tensor:
    """`_four` with a contiguous inner dimension."""
    x = _four(x)
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def _along(shape: torch.Size, axis: int, size: int) -> list[int]:
    """`shape` with another size along an axis."""
    changed = list(shape)
    changed[axis] = size
    return changed


def _units(plan: Plan, axis: int, shape: torch.Size) -> int:
    """Tiles that the kernels along an axis work through."""
    batch, heads, tokens, dim = shape
    sizes = kernels().quantize
    columns = min(dim, sizes.TILE if axis == -1 else sizes.COLUMNS)
    block = plan.scheme.block if plan.scheme.is_blocked else sizes.ROWS
    rows = sizes.TILE // columns if axis == -1 else block
    return batch * heads * -(-tokens // rows) * -(-dim // columns)


def quantize(x: Tensor, scheme: Scheme, axis: int, frozen: Tensor | None) -> MXBlocks:
    """See `mxviz.quantize.quantize`; along a dimension before the tokens, which no cache does, it is that."""
    if axis < -2 or x.numel() == 0:
        return reference.quantize(x, scheme, axis, frozen=frozen)
    plan, shape = plan_of(scheme), x.shape
    x = _dense(x.detach())
    _, heads, tokens, dim = x.shape
    source = (x.data_ptr(), WIDTHS[x.dtype], *x.stride()[:3], heads, tokens, dim)
    packed = buffer(_along(shape, axis, packed_bytes(shape[axis], scheme.element.bits)), torch.uint8)
    zeros = given = divisor = None
    if scheme.is_blocked:
        blocks = _along(shape, axis, -(-shape[axis] // scheme.block))
        with_zeros = scheme.scale is ScaleFormat.FLOAT16_ZERO
        scales = buffer(blocks, torch.float16 if with_zeros else torch.uint8)
        zeros = buffer(blocks, torch.float16) if with_zeros else None
        if scheme.scale is ScaleFormat.E4M3:
            divisor = given = _global_scale(source, shape) if frozen is None else frozen
    else:
        scales, divisor = _single_scales(source, scheme, shape, frozen)
    spread = None if divisor is None else _four(divisor.expand(shape))
    strides = (0, 0, 0, 0) if spread is None else spread.stride()
    target = (packed.data_ptr(), scales.data_ptr(), address(zeros), address(spread), *strides)
    both = kernels().quantize
    teams, by_rows = kernels().team, axis == -1
    kernel = both.quantize_rows if by_rows else both.quantize_columns
    team = teams.quantize_rows_team if by_rows else teams.quantize_columns_team
    arguments = (*source, tokens, *target, 0) if by_rows else (*source, *target)
    host.spread(kernel, (*arguments, plan.array), _units(plan, axis, x.shape), x.numel(), team)
    return MXBlocks(packed, scales, scheme, shape, axis, given, zeros)


def row_writer(
    scheme: Scheme, packed: Tensor, scales: Tensor, zeros: Tensor | None, frozen: Tensor | None
) -> Callable[[Tensor, int, int], int]:
    """See `mxviz.ops.row_writer`."""
    return _RowWriter(plan_of(scheme), packed, scales, zeros, frozen)


class _RowWriter:
    """Writes rows of buffers; what it hands the kernel is kept, for from step to step little changes."""

    def __init__(
        self, plan: Plan, packed: Tensor, scales: Tensor, zeros: Tensor | None, frozen: Tensor | None
    ) -> None:
        self.plan, self.came, self.frozen = plan, None, frozen
        self.packed, self.packed_bytes = packed.data_ptr(), packed.shape[3]
        self.scales, self.scale_bytes = scales.data_ptr(), scales.shape[3] * scales.element_size()
        self.zeros = address(zeros)
        modules = kernels()
        self.kernel, self.rows_kernel = modules.append.append_rows, modules.quantize.quantize_rows
        self.job = np.zeros(len(modules.append.Append), np.int64)
        self.job_at = self.job.ctypes.data
        self.job[8], self.job[12] = packed.shape[2], plan.address
        self.job[14:16] = address(frozen), 0 if frozen is None else frozen.expand(packed.shape).stride(0)

    def __call__(self, x: Tensor, row: int, scale_row: int) -> int:
        x = x if x.stride(-1) == 1 else x.contiguous()
        job, came = self.job, (x.shape, x.stride(), x.dtype)
        if came != self.came:
            batch, heads, tokens, dim = x.shape
            job[1:8] = WIDTHS[x.dtype], *x.stride()[:3], heads, tokens, dim
            job[13] = _units(self.plan, -1, x.shape)
            self.came = came
        job[0], job[9] = x.data_ptr(), self.packed + row * self.packed_bytes
        job[10] = self.scales + scale_row * self.scale_bytes
        job[11] = self.zeros and self.zeros + scale_row * self.scale_bytes
        if self.frozen is not None:
            job[16] = 0
            self.kernel(self.job_at)
            return int(job[16])
        if x.numel() < _SMALL:
            self.kernel(self.job_at)
            return 0
        arguments = (*job[:12].tolist(), 0, 0, 0, 0, 0, 0, self.plan.array)
        host.spread(self.rows_kernel, arguments, int(job[13]), x.numel(), kernels().team.quantize_rows_team)
        return 0


_SMALL = 1 << 16  # numbers that one thread packs sooner than another one wakes


def _row_amax(source: tuple, shape: torch.Size, finite_only: bool) -> Tensor:
    """Bits of the largest |x| of each row, int32 [batch, heads, tokens]."""
    heads, tokens, dim = source[5:]
    rows = shape.numel() // dim
    amax = buffer((rows,), torch.int32)
    host.spread(kernels().scales.amax_rows, (*source, finite_only, amax.data_ptr()), rows, rows * dim)
    return amax.view(-1, heads, tokens)


def _global_scale(source: tuple, shape: torch.Size) -> Tensor:
    """NVFP4's g = A/2688, A the largest finite magnitude of a sequence; 1 where that would be 0."""
    amax = _row_amax(source, shape, True).amax((1, 2)).view(torch.float32)
    g = reference_scales.over(amax, reference_scales.NVFP4_RANGE)
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
        ones = buffer(kept).fill_(1.0)
        return ones, ones
    if scheme.reach is Reach.CHANNEL and len(shape) > 1:
        outer, parts, inner = shape.numel() // (tokens * dim), -(-tokens // _CHUNK), dim
        amax = buffer((outer, parts, inner), torch.int32)
        arguments = (*source, _CHUNK, amax.data_ptr())
        host.spread(kernels().scales.amax_columns, arguments, outer * parts, shape.numel())
    else:
        amax = _row_amax(source, shape, False)
        outer, inner = torch.Size(kept).numel(), 1
        parts = amax.numel() // outer
    stored, divisor = buffer(kept), buffer(kept)
    frozen = None if frozen is None else frozen.float().expand(kept).contiguous()
    kernels().scales.single_scales(
        amax.data_ptr(), outer, parts, inner, scheme.element.max_normal, address(frozen), constant,
        stored.data_ptr(), divisor.data_ptr(),
    )  # fmt: skip
    return stored, divisor


def dequantize(blocks: MXBlocks, dtype: torch.dtype) -> Tensor:
    """See `mxviz.quantize.MXBlocks.dequantize`; packed and scales may be views of bigger buffers."""
    shape, axis, scheme = blocks.shape, blocks.axis, blocks.scheme
    out = buffer(shape)
    if axis < -2 or out.numel() == 0:
        return blocks.dequantize(dtype)
    plan, packed = plan_of(scheme), _dense(blocks.packed)
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
        packed.data_ptr(), *packed.stride()[:3], scales.data_ptr(), address(zeros), *scales.stride(),
        address(given), 0 if given is None else given.stride(0), heads, tokens, dim, out.data_ptr(),
        plan.array,
    )  # fmt: skip
    both = kernels().dequantize
    kernel = both.dequantize_rows if axis == -1 else both.dequantize_columns
    teams = kernels().team
    team = teams.dequantize_rows_team if axis == -1 else teams.dequantize_columns_team
    host.spread(kernel, arguments, _units(plan, axis, target.shape), out.numel(), team)
    return out if dtype is torch.float32 else out.to(dtype)


def warm_up() -> None:
    """Compile, or read from the disk, what a page with default settings needs; call it in a thread."""
    sample = buffer((1, 1, 64, 64)).zero_()
    for name, axis in (("mxfp4", -1), ("int4@tensor", -1), ("int4@channel", -1), ("mxfp4", -2)):
        blocks = quantize(sample, SCHEMES[name], axis, None)
        dequantize(blocks, torch.float32)
    part = Part(None, blocks, None)
    attend(sample[:, :, :1], part, part, scaling=1.0)
    host.note_compiled()


def is_compiled() -> bool:
    """Whether an earlier `warm_up` has left compiled kernels on the disk."""
    return host.is_compiled()
