"""Attention over one split of packed keys and values: online softmax over tiles, nothing unpacked to memory.

Source: the split form of FlashAttention (arXiv 2307.08691): each split of the tokens keeps its own maximum,
sum and weighted values, and a merge brings them to one softmax (`mxviz.kernels.cpu.job`).
"""

from __future__ import annotations

import math
from enum import IntEnum
from functools import partial

import numpy as np
from numba import njit

from mxviz.kernels.cpu._base import EXPONENT, I32, MAGNITUDE, bits_of, device, f32, float_of, u8
from mxviz.kernels.cpu.steps import fill_steps, score_steps, steps_shift, weigh_steps
from mxviz.kernels.cpu.tiles import Held, fill, segment_end

# Sums in any order, fused products: attention promises a tolerance, not bytes.
_loose = partial(njit, error_model="numpy", fastmath={"reassoc", "contract", "nsz"})

ROWS = 32
"""Query rows (heads of a group × queries) that share one decoded tile."""

TILE = 128  # tokens of a tile at most
TILE_NUMBERS = 8192  # numbers of a tile at most, so that it stays in the first-level cache
_LOG2_E, _LN2_HIGH, _LN2_LOW = np.float32(1.44269504), np.float32(0.693359375), np.float32(-2.12194440e-4)
_ROUND = np.float32(1.5 * 2**23)
_LOWEST = I32(0x807FFFFF - 2**32)  # -infinity in that order


class Mask(IntEnum):
    """What a mask is made of."""

    NONE = 0
    ADDED = 1
    BOOLEAN = 2


@device
def _exp(x):
    """e**x of x ≤ 0 to 2e-7, in operations that become vectors; 0 below the normal numbers; NaN stays."""
    x = np.float32(-87.5) if x < np.float32(-87.5) else x
    shifted = np.float32(np.float32(x * _LOG2_E) + _ROUND)  # its low bits hold the nearest whole number
    n = np.float32(shifted - _ROUND)
    r = x - n * _LN2_HIGH - n * _LN2_LOW
    p = np.float32(1.9875691500e-4)
    p = p * r + np.float32(1.3981999507e-3)
    p = p * r + np.float32(8.3334519073e-3)
    p = p * r + np.float32(4.1665795894e-2)
    p = p * r + np.float32(1.6666665459e-1)
    p = p * r + np.float32(5.0000001201e-1)
    p = p * r * r + r + np.float32(1.0)
    whole = I32(bits_of(shifted) - bits_of(_ROUND))
    value = p * float_of(I32(I32(max(whole, I32(-126)) + I32(127)) << I32(23)))
    return np.float32(0.0) if x <= np.float32(-87.0) else np.float32(value)


@_loose
def _scores(query, keys, n, dim, out):
    """Products of a query with n keys (float32 addresses); four keys at a time share the query's loads."""
    q = f32(query)
    for t in range(0, n - 3, 4):
        k0, k1 = f32(keys + 4 * t * dim), f32(keys + 4 * (t + 1) * dim)
        k2, k3 = f32(keys + 4 * (t + 2) * dim), f32(keys + 4 * (t + 3) * dim)
        s0 = s1 = s2 = s3 = np.float32(0.0)
        for i in range(dim):
            s0 += q[i] * k0[i]
            s1 += q[i] * k1[i]
            s2 += q[i] * k2[i]
            s3 += q[i] * k3[i]
        out[t], out[t + 1], out[t + 2], out[t + 3] = s0, s1, s2, s3
    for t in range(n - n % 4, n):
        k0 = f32(keys + 4 * t * dim)
        s0 = np.float32(0.0)
        for i in range(dim):
            s0 += q[i] * k0[i]
        out[t] = s0


@_loose
def _weigh(weights, values, n, dim, out):
    """Add n values (float32 address) to out by weight, four at a time."""
    for t in range(0, n - 3, 4):
        v0, v1 = f32(values + 4 * t * dim), f32(values + 4 * (t + 1) * dim)
        v2, v3 = f32(values + 4 * (t + 2) * dim), f32(values + 4 * (t + 3) * dim)
        w0, w1, w2, w3 = weights[t], weights[t + 1], weights[t + 2], weights[t + 3]
        for i in range(dim):
            out[i] += w0 * v0[i] + w1 * v1[i] + w2 * v2[i] + w3 * v3[i]
    for t in range(n - n % 4, n):
        v0, w0 = f32(values + 4 * t * dim), weights[t]
        for i in range(dim):
            out[i] += w0 * v0[i]


@_loose
def _weights(scores, n, top):
    """Turn n scores into e**(score - top), in place; return their sum."""
    total = np.float32(0.0)
    for t in range(n):
        scores[t] = _exp(scores[t] - top)
        total += scores[t]
    return total


@device
def _masked(scores, n, mask, kind, stride, softcap):
    """Cap and mask n scores in place; return the largest."""
    if softcap > 0.0:
        for t in range(n):
            scores[t] = np.float32(softcap * math.tanh(scores[t] / softcap))
    if kind == Mask.ADDED:
        added = f32(mask)
        for t in range(n):
            scores[t] += added[t * stride]
    elif kind == Mask.BOOLEAN:
        kept = u8(mask)
        for t in range(n):
            scores[t] = scores[t] if kept[t * stride] else np.float32(-np.inf)
    top = _LOWEST  # the largest of floats, in integers of the same order, becomes vectors; a NaN is left out
    for t in range(n):
        bits = bits_of(scores[t])
        key = I32(bits ^ I32(I32(bits >> I32(31)) & MAGNITUDE))
        top = max(top, key if I32(bits & MAGNITUDE) <= EXPONENT else _LOWEST)
    return float_of(I32(top ^ I32(I32(top >> I32(31)) & MAGNITUDE)))


@device
def _score_tile(key, plan, shift, place, t0, t1, queries, row, count, scratch, numbers, scores):
    """Scores of `count` query rows, from `row` on, with the keys of tokens t0 … t1 - 1."""
    start, dim = 0, key[Held.DIM]
    for segment in range(3):
        end = segment_end(key, segment)
        a, b = max(t0, start), min(t1, end)
        if a < b and segment == 1 and shift >= 0:
            blocks = fill_steps(key, plan, place, a - start, b - start, scratch)
            score_steps(
                queries[1] + 4 * row * dim, count, scratch[0], scratch[1], blocks, shift, b - a, dim,
                scores + 4 * (a - t0), 4 * TILE,
            )  # fmt: skip
        elif a < b:
            fill(key, plan, segment, place, a - start, b - start, scratch, numbers)
            source = queries[1] if segment == 1 else queries[0]
            for r in range(count):
                _scores(
                    source + 4 * (row + r) * dim, numbers, b - a, dim, f32(scores + 4 * (r * TILE + a - t0))
                )
        start = end


@device
def _weigh_tile(value, plan, shift, place, t0, t1, apart, count, scratch, numbers, scores, weighted):
    """Add the values of tokens t0 … t1 - 1 by weight, those of the packed part apart where that is asked."""
    start, width = 0, value[Held.DIM]
    for segment in range(3):
        end = segment_end(value, segment)
        a, b = max(t0, start), min(t1, end)
        side = width if segment == 1 and apart == 2 else 0
        if a < b and segment == 1 and shift >= 0:
            blocks = fill_steps(value, plan, place, a - start, b - start, scratch)
            weigh_steps(
                scores + 4 * (a - t0), 4 * TILE, count, scratch[0], scratch[1], blocks, shift, b - a, width,
                weighted + 4 * side, 4 * apart * width,
            )  # fmt: skip
        elif a < b:
            fill(value, plan, segment, place, a - start, b - start, scratch, numbers)
            for r in range(count):
                weights = f32(scores + 4 * (r * TILE + a - t0))
                _weigh(weights, numbers, b - a, width, f32(weighted + 4 * (r * apart * width + side)))
        start = end


@device
def _soften(scores, n, highest, top, weight, weighted, width):
    """Turn n scores of a row into weights under the maximum so far; return that and the sum so far."""
    highest = max(top, highest)
    if highest == -np.inf:  # nothing but masked tokens yet, or broken ones, which break the row
        for t in range(n):
            if scores[t] == scores[t]:
                scores[t] = np.float32(0.0)
            else:
                weight = scores[t]
        return top, weight
    if highest > top:
        shrink = np.float32(0.0) if top == -np.inf else _exp(np.float32(top - highest))
        for i in range(width):
            weighted[i] *= shrink
        weight *= shrink
    return highest, np.float32(weight + _weights(scores, n, highest))


@device
def attend_split(
    query, turned, group, queries, key, key_plan, value, value_plan, mask, mask_kind, mask_strides, softcap,
    apart, place, outer, r0, count, begin, stop, tile, scratch, acc, sums,
):  # fmt: skip
    """Attend with `count` query rows of one (batch, KV head), from row r0 on, to the tokens begin … stop - 1.

    Args:
        query, turned: addresses of the float32 rows, scaled; turned is what packed keys are scored with.
        key, value: arrays that `Held` describes, with their plans.
        mask: address of `[batch, heads · group, queries, tokens]` with its strides in elements.
        apart: 2 where values of the packed part are summed apart from the exact ones, else 1.
        place: (batch, KV head); outer is their number among all.
        tile: tokens that are decoded at once.
        scratch: addresses of codes, divisors, offsets, numbers, scores, sums and maxima.
        acc, sums: addresses of the rows' sums of this split, `apart · value dim` floats and then maximum and
            weight, with the bytes from one row to the next.
    """
    wide = apart * value[Held.DIM]
    key_shift, value_shift = steps_shift(key, key_plan), steps_shift(value, value_plan)
    codes, divisors, offsets, numbers, scores, weighted, tops = scratch
    decoding = (codes, divisors, offsets)
    sums_of, top, weight = f32(weighted), f32(tops), f32(tops + 4 * ROWS)
    for i in range(count * wide):
        sums_of[i] = np.float32(0.0)
    for r in range(count):
        top[r], weight[r] = np.float32(-np.inf), np.float32(0.0)
    mb, mh, mq, mk = mask_strides
    for t0 in range(begin, stop, tile):
        t1 = min(t0 + tile, stop)
        _score_tile(
            key, key_plan, key_shift, place, t0, t1, (query, turned), 0, count, decoding, numbers, scores,
        )  # fmt: skip
        for r in range(count):
            inner, position = divmod(r0 + r, queries)
            at = place[0] * mb + (place[1] * group + inner) * mh + position * mq + t0 * mk
            at = mask + (1 if mask_kind == Mask.BOOLEAN else 4) * at
            row_scores, row_sums = f32(scores + 4 * r * TILE), f32(weighted + 4 * r * wide)
            highest = _masked(row_scores, t1 - t0, at, mask_kind, mk, softcap)
            top[r], weight[r] = _soften(row_scores, t1 - t0, highest, top[r], weight[r], row_sums, wide)
        _weigh_tile(
            value, value_plan, value_shift, place, t0, t1, apart, count, decoding, numbers, scores, weighted,
        )  # fmt: skip
    for r in range(count):
        out, both = f32(acc[0] + r * acc[1]), f32(sums[0] + r * sums[1])
        for i in range(wide):
            out[i] = sums_of[r * wide + i]
        both[0], both[1] = top[r], weight[r]


@device
def merge_row(acc, sums, splits, width, logit, target):
    """Bring the splits of one query row to one softmax; write `width` floats.

    acc, sums: addresses of `[splits, width]` and `[splits, 2]`. logit: takes weight and gives nothing.
    """
    both = f32(sums)
    top = logit
    for s in range(splits):
        top = max(top, both[2 * s])
    total = np.float32(0.0) if logit == -np.inf else _exp(logit - top)
    for i in range(width):
        target[i] = np.float32(0.0)
    for s in range(splits):
        if both[2 * s] == -np.inf and both[2 * s + 1] == both[2 * s + 1]:
            continue
        factor = _exp(both[2 * s] - top)
        total += factor * both[2 * s + 1]
        part = f32(acc + 4 * s * width)
        for i in range(width):
            target[i] += factor * part[i]
    total = np.float32(1.0) if total == np.float32(0.0) else total  # every token was masked: the row is 0
    for i in range(width):
        target[i] /= total
