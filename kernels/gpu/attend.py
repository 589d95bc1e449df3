"""Decode attention over packed keys and values, split over the sequence; K and V are never materialised.

A part (the keys, or the values) is three segments one behind the other: sinks (exact), packed blocks, tail
(exact). Keys and values may be cut at different places, packed along different axes, of different widths.
Sources: Flash-Decoding for the split and its merge; Rabe and Staats (arXiv 2112.05682) for the sums.
"""

import triton
import triton.language as tl

from .codec import bfloat16_bits, to_float32
from .parts import head_of, load_tile, operand

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def tile_scores(q, k, mask_ptr, mask_stride, first, total, inside, scaling, softcap, N: tl.constexpr):
    """Scores [M, N] in units of log 2, -inf outside the sequence."""
    scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scaling
    if softcap is not None:  # softcap · tanh(scores / softcap)
        scores = softcap * (1 - 2 / (tl.exp2(scores * (2 * LOG2_E / softcap)) + 1))
    position = (first + tl.arange(0, N))[None, :]
    valid = (position >= 0) & (position < total)
    if mask_ptr is not None:
        scores += tl.load(mask_ptr + position.to(tl.int64) * mask_stride, inside & valid, other=0.0)
    return tl.where(valid, scores * LOG2_E, float("-inf"))


@triton.jit
def add_tile(acc, denominator, maximum, scores, v, OPERAND: tl.constexpr):
    """Fold a tile into the running (acc, denominator, maximum) of a softmax."""
    highest = tl.maximum(maximum, tl.max(scores, axis=1))
    against = tl.where(highest == float("-inf"), 0.0, highest)  # nothing seen yet that is not masked
    weights = tl.exp2(scores - against[:, None])
    keep = tl.exp2(maximum - against)
    acc = tl.dot(operand(weights, OPERAND), v, acc * keep[:, None], input_precision="ieee")
    return acc, denominator * keep + tl.sum(weights, axis=1), highest


_PART = ("sink_b", "sink_h", "sink_t", "tail_b", "tail_h", "tail_t", "packed_b", "packed_h", "packed_r")
_PART += ("scale_b", "scale_h", "scale_r", "scale_c", "g_b", "sinks", "packed", "tails")
# Every number that moves with the length: none of them may make a variant of its own. (Triton specialises
# what stands in a tuple whatever it is told, which is why they stand alone.)
_FREE = ["heads", "groups", "rows", "splits", "per_split", "total", "origin", "packed_from", "packed_to"]
_FREE += ["q_b", "q_h", "q_t", "mask_b", "mask_h", "mask_t", "mask_n", "scaling", "softcap"]
_FREE += [f"{part}_{name}" for part in "kv" for name in _PART]


@triton.jit(do_not_specialize=_FREE)
def attend_kernel(
    q_ptr,  # [batch, kv_heads · groups, queries, DIM of keys]
    mask_ptr,  # float32, added to the scores, [batch, kv_heads · groups, queries, tokens]; or None
    acc_ptr,  # out, float32: [batch, kv_heads, splits, rows, DIM of values], rows = queries · groups
    sums_ptr,  # out, float32: [batch, kv_heads, splits, rows, 2]: denominator and maximum
    k_ptrs,  # sinks, tail, packed, scales, zeros, global scale; any address for what is not there
    v_ptrs,
    scaling,
    softcap,  # or None
    heads,  # kv_heads
    groups,
    rows,
    splits,
    per_split,  # tiles
    total,  # tokens
    origin,  # first token of the first tile
    packed_from,  # tiles that are packed through and through, in both parts
    packed_to,
    q_b,  # strides from here on: of batch, head, token, row, column; sizes of a part behind its strides
    q_h,
    q_t,
    mask_b,
    mask_h,
    mask_t,
    mask_n,
    k_sink_b,
    k_sink_h,
    k_sink_t,
    k_tail_b,
    k_tail_h,
    k_tail_t,
    k_packed_b,
    k_packed_h,
    k_packed_r,
    k_scale_b,
    k_scale_h,
    k_scale_r,
    k_scale_c,
    k_g_b,
    k_sinks,
    k_packed,
    k_tails,
    v_sink_b,
    v_sink_h,
    v_sink_t,
    v_tail_b,
    v_tail_h,
    v_tail_t,
    v_packed_b,
    v_packed_h,
    v_packed_r,
    v_scale_b,
    v_scale_h,
    v_scale_r,
    v_scale_c,
    v_g_b,
    v_sinks,
    v_packed,
    v_tails,
    K_FORMAT: tl.constexpr,
    V_FORMAT: tl.constexpr,
    ALIGN: tl.constexpr,
    BFLOAT16: tl.constexpr,  # exact tensors arrive as int16 bits
    OPERAND: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
):
    """One head, M query rows, the tiles of one split: partial sums of its softmax."""
    pid = tl.program_id(0).to(tl.int64)
    split, pid = pid % splits, pid // splits
    high = tl.cdiv(rows, M)
    first_row, pid = pid % high * M, pid // high
    head, batch = pid % heads, pid // heads

    row = first_row + tl.arange(0, M)
    query, q_head = row // groups, head * groups + row % groups
    inside = (row < rows)[:, None]
    q_at = (batch * q_b + q_head * q_h + query * q_t)[:, None]
    channel = tl.arange(0, K_FORMAT[12])[None, :]
    q = tl.load(q_ptr + q_at + channel, inside & (channel < K_FORMAT[11]), other=0)
    q = operand(to_float32(q, BFLOAT16), OPERAND)
    if mask_ptr is not None:
        mask_ptr = mask_ptr + (batch * mask_b + q_head * mask_h + query * mask_t)[:, None]
    k_sizes = (k_sinks, k_packed, k_tails)
    k_strides = (
        k_sink_b,
        k_sink_h,
        k_sink_t,
        k_tail_b,
        k_tail_h,
        k_tail_t,
        k_packed_b,
        k_packed_h,
        k_packed_r,
        k_scale_b,
        k_scale_h,
        k_scale_r,
        k_scale_c,
        k_g_b,
    )
    k_exact, k_blocks, k_steps = head_of(k_ptrs, k_strides, batch, head, ALIGN)
    v_sizes = (v_sinks, v_packed, v_tails)
    v_strides = (
        v_sink_b,
        v_sink_h,
        v_sink_t,
        v_tail_b,
        v_tail_h,
        v_tail_t,
        v_packed_b,
        v_packed_h,
        v_packed_r,
        v_scale_b,
        v_scale_h,
        v_scale_r,
        v_scale_c,
        v_g_b,
    )
    v_exact, v_blocks, v_steps = head_of(v_ptrs, v_strides, batch, head, ALIGN)

    start = (split * per_split).to(tl.int32)
    stop = tl.minimum(start + per_split, tl.cdiv(total - origin, N))
    packed_from, packed_to = tl.maximum(packed_from, start), tl.minimum(packed_to, stop)
    packed_to = tl.maximum(packed_to, packed_from)
    WIDE: tl.constexpr = V_FORMAT[12]
    acc = tl.zeros((M, WIDE), tl.float32)
    denominator = tl.zeros((M,), tl.float32)
    maximum = tl.full((M,), float("-inf"), tl.float32)
    for tile in range(packed_from, packed_to):
        first = origin + tile * N
        k = load_tile(k_exact, k_blocks, k_steps, k_sizes, first, K_FORMAT, N, False, BFLOAT16, OPERAND)
        scores = tile_scores(q, k, mask_ptr, mask_n, first, total, inside, scaling, softcap, N)
        v = load_tile(v_exact, v_blocks, v_steps, v_sizes, first, V_FORMAT, N, False, BFLOAT16, OPERAND)
        acc, denominator, maximum = add_tile(acc, denominator, maximum, scores, v, OPERAND)
    # Few tiles come this way; loading them ahead would only take shared memory from the others.
    for edge in tl.range(start, stop - (packed_to - packed_from), num_stages=1):
        first = origin + tl.where(edge < packed_from, edge, edge + packed_to - packed_from) * N
        k = load_tile(k_exact, k_blocks, k_steps, k_sizes, first, K_FORMAT, N, True, BFLOAT16, OPERAND)
        scores = tile_scores(q, k, mask_ptr, mask_n, first, total, inside, scaling, softcap, N)
        v = load_tile(v_exact, v_blocks, v_steps, v_sizes, first, V_FORMAT, N, True, BFLOAT16, OPERAND)
        acc, denominator, maximum = add_tile(acc, denominator, maximum, scores, v, OPERAND)

    out = ((batch * heads + head) * splits + split) * rows + row
    channel = tl.arange(0, WIDE)[None, :]
    tl.store(acc_ptr + out[:, None] * V_FORMAT[11] + channel, acc, inside & (channel < V_FORMAT[11]))
    tl.store(sums_ptr + out * 2, denominator, row < rows)
    tl.store(sums_ptr + out * 2 + 1, maximum, row < rows)


@triton.jit(do_not_specialize=["heads", "groups", "rows", "splits", "out_b", "out_h", "out_t"])
def merge_kernel(
    out_ptr,  # [batch, kv_heads · groups, queries, DIM]
    acc_ptr,  # see attend_kernel
    sums_ptr,
    sink_ptr,  # learned sinks, float32 [kv_heads · groups]: logits that take weight and give nothing; or None
    heads,
    groups,
    rows,
    splits,
    out_b,
    out_h,
    out_t,
    DIM: tl.constexpr,
    WIDE: tl.constexpr,
    BFLOAT16: tl.constexpr,
    SPLITS: tl.constexpr,
):
    """Put the splits of one query row together, SPLITS at a time."""
    pid = tl.program_id(0).to(tl.int64)
    row, pid = pid % rows, pid // rows
    head, batch = pid % heads, pid // heads
    q_head = head * groups + row % groups
    first = (batch * heads + head) * splits
    each = tl.arange(0, SPLITS)
    channel = tl.arange(0, WIDE)
    highest = tl.full((SPLITS,), float("-inf"), tl.float32)
    for start in range(0, splits, SPLITS):
        at = (first + start + each) * rows + row
        maxima = tl.load(sums_ptr + at * 2 + 1, start + each < splits, other=float("-inf"))
        highest = tl.maximum(highest, maxima)
    maximum = tl.max(highest, axis=0)
    if sink_ptr is not None:
        sink = tl.load(sink_ptr + q_head) * LOG2_E
        maximum = tl.maximum(maximum, sink)
    against = tl.where(maximum == float("-inf"), 0.0, maximum)  # a row that is masked everywhere gives zeros
    acc = tl.zeros((WIDE,), tl.float32)
    denominator = 0.0
    for start in range(0, splits, SPLITS):
        at = (first + start + each) * rows + row
        there = start + each < splits
        weights = tl.exp2(tl.load(sums_ptr + at * 2 + 1, there, other=float("-inf")) - against)
        denominator += tl.sum(weights * tl.load(sums_ptr + at * 2, there, other=0.0), axis=0)
        parts = tl.load(
            acc_ptr + at[:, None] * DIM + channel[None, :],
            there[:, None] & (channel < DIM)[None, :],
            other=0.0,
        )
        acc += tl.sum(weights[:, None] * parts, axis=0)
    if sink_ptr is not None:
        denominator += tl.exp2(sink - against)
    acc = acc / tl.where(denominator == 0, 1.0, denominator)
    to = out_ptr + batch * out_b + q_head * out_h + row // groups * out_t + channel
    if BFLOAT16:
        tl.store(to, bfloat16_bits(acc), channel < DIM)
    else:
        tl.store(to, acc.to(out_ptr.dtype.element_ty), channel < DIM)
