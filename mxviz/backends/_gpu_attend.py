"""Decode attention on the GPU backend: what is launched for a query and two packed parts."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from mxviz._codec import _GROUPS
from mxviz.backends import Part
from mxviz.backends import _gpu_plan as planning
from mxviz.backends._gpu_plan import Plan
from mxviz.formats import Axis
from mxviz.quantize import MXBlocks

_TOKENS = 32  # of a tile; twice as many spill registers on some targets
_TILE = 4096  # elements of a tile of keys or values that four warps hold in registers
_ROWS = (16, 32)  # query rows of a tile; a tensor core wants 16
_SPLITS = 16  # splits that a merge reads at once
_OPERANDS = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}


class _Part(NamedTuple):
    """A part as the kernel takes it; `sizes` are tokens: sinks, packed, tail."""

    pointers: tuple
    strides: tuple[int, ...]
    sizes: tuple[int, int, int]
    format: tuple
    along_tokens: bool

    @property
    def total(self) -> int:
        return sum(self.sizes)


def attend(
    query: Tensor,
    key: Part,
    value: Part,
    *,
    scaling: float,
    mask: Tensor | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """See `mxviz.ops.attend`."""
    out, plans = plan_attend(query, key, value, scaling=scaling, mask=mask, softcap=softcap, sinks=sinks)
    for plan in plans:
        plan.run(query)
    return out if value.rotation is None else (out @ value.rotation.mT.to(out)).to(query.dtype)


def plan_attend(
    query: Tensor, key: Part, value: Part, *, scaling, mask=None, softcap=None, sinks=None
) -> tuple[Tensor, tuple[Plan, Plan]]:
    """Return an empty output and the two launches, attend and merge, that fill it."""
    batch, q_heads, queries, _ = query.shape
    turned = key.rotation is not None or value.rotation is not None
    exact = torch.float32 if turned else query.dtype  # a rotated number needs more bits than it came with
    q = _turned(query.to(exact), key.rotation)
    q = q if q.stride(-1) == 1 else q.contiguous()
    k, v = _part(key, q), _part(value, q)
    heads = key.shape[1]
    _check(query, k, v, heads, mask)
    groups, total = q_heads // heads, k.total
    rows = queries * groups
    m = next((n for n in _ROWS if n >= rows), _ROWS[-1])
    n = _tile_tokens(k, v)
    origin, packed_from, packed_to, tiles = _tiles(k, v, n)
    workers = batch * heads * -(-rows // m)
    per_split = -(-tiles // max(1, min(tiles, -(-_programs(query.device) // workers))))
    splits = max(1, -(-tiles // max(1, per_split)))
    device = query.device
    acc = torch.empty(batch, heads, splits, rows, v.format[11], device=device, dtype=torch.float32)
    sums = torch.empty(batch, heads, splits, rows, 2, device=device, dtype=torch.float32)
    out_dtype = torch.float32 if value.rotation is not None else query.dtype
    out = torch.empty(batch, q_heads, queries, v.format[11], device=device, dtype=out_dtype)
    if mask is not None:
        mask = _additive(mask).expand(batch, q_heads, queries, total)
    first = Plan(
        "attend",
        (workers * splits,),
        (
            planning.raw(q), mask, acc, sums, k.pointers, v.pointers,
            float(scaling), float(softcap) if softcap else None,
            heads, groups, rows, splits, max(1, per_split), total, origin, packed_from, packed_to,
            *q.stride()[:3], *((0, 0, 0, 0) if mask is None else mask.stride()),
            *k.strides, *k.sizes, *v.strides, *v.sizes,
        ),
        {
            "K_FORMAT": k.format,
            "V_FORMAT": v.format,
            "ALIGN": 16 if all(s % 16 == 0 for part in (k, v) for s in part.strides[:9]) else 1,
            "BFLOAT16": q.dtype is torch.bfloat16,
            "OPERAND": _operand(query),
            "M": m,
            "N": n,
        },
        4 if n * max(k.format[12], v.format[12]) <= _TILE and q.dtype is not torch.float32 else 8,
    )  # fmt: skip
    second = Plan(
        "merge",
        (batch * heads * rows,),
        (
            planning.raw(out), acc, sums, None if sinks is None else sinks.float().contiguous(),
            heads, groups, rows, splits, *out.stride()[:3],
        ),
        {
            "DIM": v.format[11],
            "WIDE": v.format[12],
            "BFLOAT16": out_dtype is torch.bfloat16,
            "SPLITS": _SPLITS,
        },
    )  # fmt: skip
    return out, (first, second)


def _check(query: Tensor, k: _Part, v: _Part, heads: int, mask: Tensor | None) -> None:
    if k.total != v.total:
        raise ValueError(f"{k.total} keys and {v.total} values came; expected one value for each key")
    if query.shape[1] % heads:
        raise ValueError(f"{query.shape[1]} query heads came; expected a multiple of the {heads} KV heads")
    if mask is not None and mask.shape[-1] != k.total:
        raise ValueError(f"a mask over {mask.shape[-1]} tokens came; expected one over the {k.total} held")
    if k.along_tokens and v.along_tokens and (k.sizes[0] - v.sizes[0]) % _tile_tokens(k, v):
        raise ValueError(
            f"blocks along tokens start behind {k.sizes[0]} sinks of the keys, {v.sizes[0]} of the values; "
            "expected as many of both"
        )


def _tile_tokens(k: _Part, v: _Part) -> int:
    """Tokens of a tile: whole blocks of both parts."""
    return max([_TOKENS, *(p.format[7] for p in (k, v) if p.along_tokens)])


def _tiles(k: _Part, v: _Part, n: int) -> tuple[int, int, int, int]:
    """Return the first tile's first token (tiles meet block edges, so it can be negative), the range of tiles
    that are packed through and through in both parts, and how many tiles there are."""
    lead = (v if v.along_tokens and not k.along_tokens else k).sizes[0]
    origin = lead - -(-lead // n) * n
    start = max(k.sizes[0], v.sizes[0])
    stop = min(p.sizes[0] + p.sizes[1] for p in (k, v))
    packed_from = -(-(start - origin) // n)
    packed_to = max(packed_from, (stop - origin) // n) if k.sizes[1] and v.sizes[1] else packed_from
    return origin, packed_from, packed_to, -(-(k.total - origin) // n)


def _part(part: Part, q: Tensor) -> _Part:
    """Pointers, strides and constants of a part; q stands in for what the part does not have."""
    blocks: MXBlocks | None = part.blocks if part.blocks is not None and part.blocks.shape[-2] else None
    exact = [
        None if t is None or not t.shape[-2] else _dense(_turned(t.to(q.dtype), part.rotation))
        for t in (part.sink, part.tail)
    ]
    dim = part.shape[-1]
    packed = scales = q
    zeros = g = None
    scale_strides = (0, 0, 0, 0)
    if blocks is not None:
        packed, scales, zeros, g = _dense(blocks.packed), blocks.scales, blocks.zeros, blocks.global_scale
        if blocks.scheme.is_blocked:
            zeros = zeros if zeros is None or zeros.stride() == scales.stride() else zeros.contiguous()
            scales = scales if zeros is None or zeros.stride() == scales.stride() else scales.contiguous()
        else:
            scales = scales.expand(*blocks.shape[:-1], scales.shape[-1])
        scale_strides = _strides(scales)
    strides = (
        *(s for t in exact for s in ((0, 0, 0) if t is None else _strides(t)[:3])),
        *((0, 0, 0) if blocks is None else _strides(packed)[:3]),
        *scale_strides,
        0 if g is None else g.stride(0),
    )
    optional = (scales if t is None else t for t in (zeros, g))
    pointers = (*(planning.raw(q if t is None else t) for t in exact), packed, scales, *optional)
    along = blocks is not None and blocks.axis == Axis.TOKEN.dim
    sizes = tuple(0 if t is None else t.shape[-2] for t in (exact[0], blocks, exact[1]))
    return _Part(pointers, strides, sizes, _format(blocks, dim, along), along)


def _format(blocks: MXBlocks | None, dim: int, along_tokens: bool) -> tuple:
    """The constants of `kernels/gpu/attend.py`, in its order."""
    wide = max(16, 1 << (dim - 1).bit_length())
    if blocks is None:
        return (*(0,) * 7, 1, 1, 1, False, dim, wide, False)
    scheme, element = blocks.scheme, blocks.scheme.element
    if scheme.is_blocked:
        block = scheme.block
        wide = wide if along_tokens else max(wide, block)
    else:
        block = 1 if blocks.scales.shape[-1] > 1 else wide
    return (
        planning.KINDS[element.kind],
        element.emin,
        element.mantissa_bits,
        element.bits,
        planning.SPECIALS[element.specials],
        element.min_subnormal,
        planning.SCALES[scheme.scale],
        block,
        *_GROUPS[element.bits],
        along_tokens,
        dim,
        wide,
        True,
    )


def _dense(t: Tensor) -> Tensor:
    return t if t.stride(-1) == 1 or t.shape[-1] == 1 else t.contiguous()


def _strides(t: Tensor) -> tuple[int, ...]:
    """Strides, with 0 where a dimension has one index and its stride means nothing."""
    return tuple(0 if size == 1 else stride for size, stride in zip(t.shape, t.stride(), strict=True))


def _turned(x: Tensor, rotation: Tensor | None) -> Tensor:
    return x if rotation is None else x @ rotation.to(x)


def _additive(mask: Tensor) -> Tensor:
    if mask.dtype is torch.bool:
        zero = torch.zeros((), dtype=torch.float32, device=mask.device)
        return torch.where(mask, zero, -torch.inf)
    return mask.float()


def _operand(query: Tensor) -> int:
    """What the tensor cores are fed with: the query's dtype where they take it."""
    if planning.interpreted():
        return _OPERANDS[torch.float32]  # the interpreter multiplies bfloat16 wrongly
    if query.dtype is torch.bfloat16 and query.is_cuda and not _has_bfloat16(query.device):
        return _OPERANDS[torch.float32]
    return _OPERANDS[query.dtype]


@cache
def _has_bfloat16(device: torch.device) -> bool:
    return torch.version.hip is not None or torch.cuda.get_device_capability(device) >= (8, 0)


@cache
def _programs(device: torch.device) -> int:
    """How many programs to split the work into: some for each multiprocessor."""
    if device.type != "cuda":
        return 4
    return 2 * torch.cuda.get_device_properties(device).multi_processor_count
