"""Scores and weighted sums straight from packed codes: bytes become floats in registers, never in memory."""

from __future__ import annotations

from mxviz.kernels.cpu._base import device, f32
from mxviz.kernels.cpu.lanes import LANES, make_dots, make_weigh, sum_eights

TOGETHER = 4
"""Query rows that share one decoded key or value."""

_CHUNK = 32  # keys whose partial sums are held at once
PARTIAL = TOGETHER * _CHUNK * 8 + 8
"""Floats of scratch that `score_steps` wants."""

_dots1, _dots2, _dots3, _dots4 = (make_dots(rows) for rows in (1, 2, 3, 4))
_pair1, _pair2, _pair3, _pair4 = (make_weigh(rows, 2) for rows in (1, 2, 3, 4))
_one1, _one2, _one3, _one4 = (make_weigh(rows, 1) for rows in (1, 2, 3, 4))


@device
def _dots(rows, query, stride, steps, scales, vectors, shift, out, out_stride):
    if rows == 4:
        _dots4(query, stride, steps, scales, vectors, shift, out, out_stride)
    elif rows == 3:
        _dots3(query, stride, steps, scales, vectors, shift, out, out_stride)
    elif rows == 2:
        _dots2(query, stride, steps, scales, vectors, shift, out, out_stride)
    else:
        _dots1(query, stride, steps, scales, vectors, shift, out, out_stride)


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
def score_steps(queries, count, steps, scales, blocks, shift, n, dim, partial, out, out_stride):
    """Products of `count` query rows with n keys.

    Args:
        queries: address of float32 `[count, dim]`, dim a multiple of LANES.
        steps, scales: addresses of signed bytes `[n, dim]` and float32 `[n, blocks]`; 2**shift · LANES
            channels share a scale.
        partial: address of PARTIAL floats of scratch.
        out: address of float32 rows, `out_stride` bytes apart.
    """
    for r0 in range(0, count, TOGETHER):
        rows = min(TOGETHER, count - r0)
        for t0 in range(0, n, _CHUNK):
            m = min(_CHUNK, n - t0)
            for t in range(m):
                _dots(
                    rows, queries + 4 * r0 * dim, 4 * dim, steps + (t0 + t) * dim,
                    scales + 4 * (t0 + t) * blocks, dim // LANES, shift, partial + 32 * t, 32 * _CHUNK,
                )  # fmt: skip
            for r in range(rows):
                row, target = partial + 32 * _CHUNK * r, out + (r0 + r) * out_stride + 4 * t0
                for t in range(0, m - 7, 8):
                    sum_eights(row + 32 * t, target + 4 * t)
                rest = m % 8
                if rest:
                    spare = partial + 32 * _CHUNK * TOGETHER
                    sum_eights(row + 32 * (m - rest), spare)
                    for t in range(rest):
                        f32(target)[m - rest + t] = f32(spare)[t]


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
