"""The Triton kernels as a backend: torch tensors in and out.

Only what spans a whole tensor is left to torch (the amax behind a single scale, and NVFP4's global scale);
everything else is one kernel, told by constants what an element and a scale are.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mxviz._codec import _GROUPS, packed_bytes
from mxviz._scales import reach_dims, set_global_scale, single_scale
from mxviz.backends._gpu_attend import attend, plan_attend
from mxviz.backends._gpu_plan import KINDS, RULES, SCALES, SPECIALS, Plan, interpreted, raw
from mxviz.formats import Kind, Reach, ScaleFormat, Scheme
from mxviz.quantize import MXBlocks

__all__ = [
    "Plan",
    "attend",
    "dequantize",
    "interpreted",
    "missing",
    "plan_attend",
    "plan_dequantize",
    "plan_quantize",
    "quantize",
    "supports",
]

_STORED = {
    ScaleFormat.E8M0: torch.uint8,
    ScaleFormat.E4M3: torch.uint8,
    ScaleFormat.FLOAT16_ZERO: torch.float16,
}
_TILE = 2048  # elements a program takes
_WIDEST = 128  # elements of a row a program takes


def missing() -> str | None:
    """Return None where Triton and a GPU (or its interpreter) are here, else one line that says why not."""
    try:
        import triton  # noqa: F401
    except Exception as error:  # a broken build raises what it likes
        return f"Triton cannot be imported ({type(error).__name__}: {error})".splitlines()[0]
    if interpreted() or torch.cuda.is_available():
        return None
    return "Triton is here, but torch finds no GPU (a driver, or a torch built for the GPU, is missing)"


def supports(device_type: str) -> bool:
    """Tensors on a GPU; on the CPU only where Triton's interpreter was asked for."""
    return device_type == "cuda" or (device_type == "cpu" and interpreted())


def quantize(x: Tensor, scheme: Scheme, axis: int, frozen: Tensor | None) -> MXBlocks:
    """See `mxviz.quantize.quantize`."""
    blocks, plan = plan_quantize(x, scheme, axis, frozen)
    if x.numel():
        plan.run(x)
    return blocks


def dequantize(blocks: MXBlocks, dtype: torch.dtype) -> Tensor:
    """See `mxviz.quantize.MXBlocks.dequantize`."""
    x, plan = plan_dequantize(blocks, dtype)
    if x.numel():
        plan.run(x)
    return x


def plan_quantize(x: Tensor, scheme: Scheme, axis: int, frozen: Tensor | None) -> tuple[MXBlocks, Plan]:
    """Return empty blocks and the launch that fills them."""
    element = scheme.element
    global_scale = zeros = None
    packed = _empty_like(x, axis, packed_bytes(x.shape[axis], element.bits), torch.uint8)
    if scheme.is_blocked:
        scales = _empty_like(x, axis, -(-x.shape[axis] // scheme.block), _STORED[scheme.scale])
        stored = extra = scales
        if scheme.scale is ScaleFormat.E4M3:
            global_scale = set_global_scale(x, frozen)
        elif scheme.scale is ScaleFormat.FLOAT16_ZERO:
            zeros = extra = torch.empty_like(scales)
    else:
        scales, stored, extra = _single_scale(x, scheme, frozen)
    plan = _plan(
        "quantize",
        (x, packed, _as_bits(stored), _as_bits(extra), global_scale),
        scheme,
        axis,
        EMAX=element.emax,
        MAX=element.max_normal,
        LOW=0.0 if element.kind is Kind.UNSIGNED else -element.max_normal,
        PER_ONE=1.0 / element.min_subnormal,
        NAN_CODE=element.nan_code or 0,
        RULE=RULES[scheme.rule],
    )
    return MXBlocks(packed, scales, scheme, x.shape, axis, global_scale, zeros), plan


def plan_dequantize(blocks: MXBlocks, dtype: torch.dtype) -> tuple[Tensor, Plan]:
    """Return an empty tensor and the launch that fills it."""
    scheme = blocks.scheme
    x = torch.empty(blocks.shape, dtype=dtype, device=blocks.packed.device)
    plan = _plan(
        "dequantize",
        (
            x,
            blocks.packed,
            blocks.scales if scheme.is_blocked else blocks.scales.expand(x.shape),
            blocks.zeros,
            blocks.global_scale,
        ),
        scheme,
        blocks.axis,
        SPECIALS=SPECIALS[scheme.element.specials],
        STEP=scheme.element.min_subnormal,
    )
    return x, plan


def _empty_like(x: Tensor, axis: int, size: int, dtype: torch.dtype) -> Tensor:
    shape = list(x.shape)
    shape[axis] = size
    return torch.empty(shape, dtype=dtype, device=x.device)


def _single_scale(x: Tensor, scheme: Scheme, frozen: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """The scale as stored; and for every element, as the kernel reads it, its divisor and whether broken."""
    dims = reach_dims(scheme.reach, x.dim())
    broken = (~x.isfinite()).sum(dims, keepdim=True) > 0
    if scheme.reach is Reach.ONE and scheme.element.nan_code is not None:
        broken = torch.zeros_like(broken)  # the element holds its own NaN, so the constant scale stays
    scales = single_scale(x, scheme, dims, broken, frozen)
    return scales.stored, scales.divisor.float().expand(x.shape), broken.to(torch.uint8).expand(x.shape)


def _plan(kernel: str, tensors: tuple[Tensor | None, ...], scheme: Scheme, axis: int, **constants) -> Plan:
    """Plan a kernel over x, packed, scales, zeros (or what is broken) and NVFP4's global scale."""
    x, *rest, g = tensors
    g = None if g is None else g.expand(x.shape)
    bfloat16 = x.dtype is torch.bfloat16
    views = [None if t is None else _rows(t, axis) for t in (raw(x), *rest, g)]
    tile = _tile(scheme, views[0], views[2])
    outer, middle, rows, n = views[0].shape
    tiles = outer * middle * -(-rows // tile["ROWS"]) * -(-n // tile["WIDTH"])
    element = scheme.element
    arguments = (
        *views,
        *(middle, rows, n, views[1].shape[-1]),
        *(stride for view in views[:3] for stride in view.stride()),
        *((0, 0, 0) if g is None else views[4].stride()[:3]),
    )
    return Plan(
        kernel,
        (tiles,),
        arguments,
        dict(
            BFLOAT16=bfloat16,
            **_alignment(views[0], views[1]),
            KIND=KINDS[element.kind],
            EMIN=element.emin,
            MANTISSA=element.mantissa_bits,
            BITS=element.bits,
            SCALE=SCALES[scheme.scale],
            **tile,
            **constants,
        ),
    )


def _rows(t: Tensor, axis: int) -> Tensor:
    """View as [outer, middle, rows, n] with n along axis. More than four dimensions are merged outside n
    (contiguous tensors stay views)."""
    if axis < -3 and t.dim() > 4:
        t, axis = t.flatten(t.dim() + axis + 1), -2
    if t.dim() > 4:
        t = t.flatten(0, t.dim() - 4)
    return t.movedim(axis, -1)[(None,) * (4 - t.dim())]


def _as_bits(t: Tensor) -> Tensor:
    """float16 as its bits, so that a NaN has the same ones everywhere."""
    return t.view(torch.int16) if t.dtype is torch.float16 else t


def _tile(scheme: Scheme, x: Tensor, scales: Tensor) -> dict[str, int]:
    """Sizes of a program's tile. Along the sequence the width is one block, so that no length recompiles."""
    count, width = _GROUPS[scheme.element.bits]
    along_rows = x.stride(-1) == 1
    block = scheme.block if scheme.is_blocked else 32
    wide = min(_WIDEST, 1 << (x.shape[-1] - 1).bit_length()) if along_rows else block
    wide = max(wide, block)
    if not scheme.is_blocked:
        block = 1 if scales.stride(-1) else wide  # one scale an element, or one for them all
    return {"COUNT": count, "BYTES": width, "BLOCK": block, "WIDTH": wide, "ROWS": _TILE // wide}


def _alignment(x: Tensor, packed: Tensor) -> dict[str, int]:
    """What divides outer strides and sizes along memory: 16 (wide access) or 1, so few variants compile."""

    def by_16(*numbers: int) -> int:
        return 16 if all(number % 16 == 0 for number in numbers) else 1

    return {
        "X_ALIGN": by_16(*x.stride()[:2]),
        "PACKED_ALIGN": by_16(*packed.stride()[:2]),
        "ROWS_ALIGN": by_16(x.shape[2]) if x.stride(2) == 1 else 1,
        "N_ALIGN": by_16(x.shape[3]) if x.stride(3) == 1 else 1,
        "BYTES_ALIGN": by_16(packed.shape[3]) if packed.stride(3) == 1 else 1,
    }
