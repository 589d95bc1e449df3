"""Scores and weighted sums straight from packed codes: bytes become floats in registers, never in memory."""

from __future__ import annotations

from mxviz.kernels.cpu._base import Kind, Plan, Scale, device, f32, u8
from mxviz.kernels.cpu.lanes import LANES, fetch_ahead, make_dots, make_steps, make_weigh
from mxviz.kernels.cpu.pack import unpack_row
from mxviz.kernels.cpu.tiles import Held, is_small, read_tile, to_steps

TOGETHER = 4
"""Query rows that share one decoded key or value."""

_fp4_steps, _int4_steps = make_steps(True), make_steps(False)
_dots1, _dots2, _dots3, _dots4 = (make_dots(rows) for rows in (1, 2, 3, 4))
_pair1, _pair2, _pair3, _pair4 = (make_weigh(rows, 2) for rows in (1, 2, 3, 4))
_one1, _one2, _one3, _one4 = (make_weigh(rows, 1) for rows in (1, 2, 3, 4))


@device
def steps_shift(held, plan):
    """How many vectors share a scale, as a power of two, where `fill_steps` can do a part's packed tokens;
    -1 where it cannot."""
    dim, block, kind = held[Held.DIM], plan[Plan.BLOCK], plan[Plan.SCALE]
    if held[Held.ALONG_TOKENS] or not is_small(plan) or kind == Scale.FLOAT16_ZERO or dim % LANES:
        return -1
    if held[Held.PACKED_T] * 8 != dim * plan[Plan.BITS]:
        return -1
    if kind == Scale.FLOAT32:
        return 62 if held[Held.SCALE_D] == 0 else -1
    blocks = dim // block
    if dim % block or block % LANES or (blocks > 1 and held[Held.SCALE_T] != blocks * held[Held.SCALE_D]):
        return -1
    shift = 0
    while LANES << shift < block:
        shift += 1
    return shift


@device
def fill_steps(held, plan, place, begin, end, scratch):
    """Write packed tokens as steps (signed bytes) and divisors a step to the first two addresses of scratch.

    Returns how many divisors a token has.
    """
    dim, bits = held[Held.DIM], plan[Plan.BITS]
    blocks = 1 if plan[Plan.SCALE] == Scale.FLOAT32 else dim // plan[Plan.BLOCK]
    rows = end - begin
    packed = held[Held.PACKED] + place[0] * held[Held.PACKED_B] + place[1] * held[Held.PACKED_H]
    source, done = packed + begin * held[Held.PACKED_T], 0
    fetch_ahead(source + rows * held[Held.PACKED_T], rows * held[Held.PACKED_T])  # the next tile
    if bits == 4:
        done = rows * dim // 64
        if plan[Plan.KIND] == Kind.FLOAT:
            _fp4_steps(source, done, scratch[0])
        else:
            _int4_steps(source, done, scratch[0])
    if rows * dim > 64 * done:
        rest = u8(scratch[0] + 64 * done)
        unpack_row(u8(source + 32 * done), rows * dim - 64 * done, bits, rest)
        to_steps(rest, rows * dim - 64 * done, plan)
    step = held[Held.SCALE_T] if blocks == 1 else held[Held.SCALE_D]
    at = begin * held[Held.SCALE_T]
    read_tile(held, plan, place, at, step, rows * blocks, True, f32(scratch[1]), f32(scratch[2]))
    return blocks


@device
def _dots(rows, query, stride, steps, scales, vectors, blocks, shift, n, out, out_stride):
    if rows == 4:
        _dots4(query, stride, steps, scales, vectors, blocks, shift, n, out, out_stride)
    elif rows == 3:
        _dots3(query, stride, steps, scales, vectors, blocks, shift, n, out, out_stride)
    elif rows == 2:
        _dots2(query, stride, steps, scales, vectors, blocks, shift, n, out, out_stride)
    else:
        _dots1(query, stride, steps, scales, vectors, blocks, shift, n, out, out_stride)


@device
def _weigh(rows, pair, weights, stride, steps, width, scales, blocks, second, n, out, out_stride):
    if pair and rows == 4:
        _pair4(weights, stride, steps, width, scales, blocks, second, n, out, out_stride)
    elif pair and rows == 3:
        _pair3(weights, stride, steps, width, scales, blocks, second, n, out, out_stride)
    elif pair and rows == 2:
        _pair2(weights, stride, steps, width, scales, blocks, second, n, out, out_stride)
    elif pair:
        _pair1(weights, stride, steps, width, scales, blocks, second, n, out, out_stride)
    elif rows == 4:
        _one4(weights, stride, steps, width, scales, blocks, second, n, out, out_stride)
    elif rows == 3:
        _one3(weights, stride, steps, width, scales, blocks, second, n, out, out_stride)
    elif rows == 2:
        _one2(weights, stride, steps, width, scales, blocks, second, n, out, out_stride)
    else:
        _one1(weights, stride, steps, width, scales, blocks, second, n, out, out_stride)


@device
def score_steps(queries, count, steps, scales, blocks, shift, n, dim, out, out_stride):
    """Products of `count` query rows with n keys.

    Args:
        queries: address of float32 `[count, dim]`, dim a multiple of LANES.
        steps, scales: addresses of signed bytes `[n, dim]` and float32 `[n, blocks]`; 2**shift · LANES
            channels share a scale.
        out: address of float32 rows, `out_stride` bytes apart.
    """
    for r0 in range(0, count, TOGETHER):
        _dots(
            min(TOGETHER, count - r0), queries + 4 * r0 * dim, 4 * dim, steps, scales, dim // LANES, blocks,
            shift, n, out + r0 * out_stride, out_stride,
        )  # fmt: skip


@device
def weigh_steps(weights, stride, count, steps, scales, blocks, shift, n, width, out, out_stride):
    """Add n values to the sums of `count` rows, by weight.

    Args:
        weights: address of float32 rows, `stride` bytes apart.
        steps, scales, blocks, shift: as in `score_steps`, `[n, width]` and `[n, blocks]`.
        out: address of float32 rows `[width]`, `out_stride` bytes apart.
    """
    for r0 in range(0, count, TOGETHER):
        rows = min(TOGETHER, count - r0)
        for c in range(0, width, 2 * LANES):
            pair = width - c >= 2 * LANES
            first, second = (c // LANES) >> shift, (c // LANES + 1) >> shift
            _weigh(
                rows, pair, weights + r0 * stride, stride, steps + c, width, scales + 4 * first, blocks,
                second - first, n, out + r0 * out_stride + 4 * c, out_stride,
            )  # fmt: skip
