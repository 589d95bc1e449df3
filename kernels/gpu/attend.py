"""Decode attention over packed keys and values, split over the sequence; K and V are never materialised.

A part (the keys, or the values) is three segments one behind the other: sinks (exact), packed blocks, tail
(exact). Keys and values may be cut at different places, packed along different axes, of different widths.
Sources: Flash-Decoding for the split and its merge; Rabe and Staats (arXiv 2112.05682) for the sums.
"""

import triton
import triton.language as tl

from .codec import bfloat16_bits, decode_element, to_float32
from .scales import E4M3, FLOAT16_ZERO, stored_scale
from .tiles import aligned, load_words, spread, unpack_words

LOG2_E = tl.constexpr(1.4426950408889634)
FLOAT32_OPERAND, FLOAT16_OPERAND, BFLOAT16_OPERAND = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
"""What a tensor core is fed with; float32 is multiplied without one."""


@triton.jit
def operand(x, OPERAND: tl.constexpr):
    if OPERAND == FLOAT16_OPERAND:
        return x.to(tl.float16)
    elif OPERAND == BFLOAT16_OPERAND:
        return x.to(tl.bfloat16)
    else:
        return x


@triton.jit
def load_packed(ptrs, strides, first, tokens, FORMAT: tl.constexpr, N: tl.constexpr):
    """Values (float32) of packed tokens first … first + N - 1, zero outside 0 … tokens - 1: [N, WIDE].

    ptrs: packed, scales, zeros and global scale of one head; strides: of a packed row, of scale rows and columns.
    Along tokens, first is a multiple of the block.
    """
    KIND: tl.constexpr = FORMAT[0]
    BITS: tl.constexpr = FORMAT[3]
    SCALE: tl.constexpr = FORMAT[6]
    BLOCK: tl.constexpr = FORMAT[7]
    COUNT: tl.constexpr = FORMAT[8]
    BYTES: tl.constexpr = FORMAT[9]
    ALONG_TOKENS: tl.constexpr = FORMAT[10]
    DIM: tl.constexpr = FORMAT[11]
    WIDE: tl.constexpr = FORMAT[12]
    packed_ptr, scale_ptr, zero_ptr, g_ptr = ptrs
    packed_stride, scale_stride_r, scale_stride_c = strides
    # A tile's rows do not share blocks: they are tokens, or channels where blocks run along tokens.
    ROWS: tl.constexpr = WIDE if ALONG_TOKENS else N
    WIDTH: tl.constexpr = N if ALONG_TOKENS else WIDE
    if ALONG_TOKENS:
        channel = tl.arange(0, WIDE)[:, None].to(tl.int64)
        inside = channel < DIM
        row_bytes = tokens * BITS // 8
        words = load_words(
            packed_ptr + channel, packed_stride, first // COUNT, inside, row_bytes, WIDTH // COUNT, BYTES
        )
        block = (first // BLOCK + tl.arange(0, WIDTH // BLOCK))[None, :]
        scale_at = block * scale_stride_r + channel * scale_stride_c
        inside = inside & (block >= 0) & (block * BLOCK < tokens)
    else:
        row = (first + tl.arange(0, N))[:, None]
        inside = (row >= 0) & (row < tokens)
        row_bytes: tl.constexpr = (DIM * BITS + 7) // 8
        words = load_words(packed_ptr + row * packed_stride, 1, 0, inside, row_bytes, WIDTH // COUNT, BYTES)
        block = tl.arange(0, WIDTH // BLOCK)[None, :].to(tl.int64)
        scale_at = row * scale_stride_r + block * scale_stride_c
        inside = inside & (block * BLOCK < DIM)
    codes = unpack_words(words, ROWS, WIDTH, BITS, COUNT)
    value = decode_element(codes, KIND, FORMAT[1], FORMAT[2], BITS, FORMAT[4], FORMAT[5])
    scale = stored_scale(tl.load(scale_ptr + scale_at, inside, other=0), SCALE)
    if SCALE == E4M3:
        scale *= tl.load(g_ptr)
    value *= spread(scale, ROWS, WIDTH, BLOCK)
    if SCALE == FLOAT16_ZERO:
        value += spread(tl.load(zero_ptr + scale_at, inside, other=0).to(tl.float32), ROWS, WIDTH, BLOCK)
    return tl.trans(value) if ALONG_TOKENS else value


@triton.jit
def load_exact(ptr, stride, first, tokens, FORMAT: tl.constexpr, N: tl.constexpr, BFLOAT16: tl.constexpr):
    """Exact tokens first … first + N - 1 as float32, zero outside 0 … tokens - 1: [N, WIDE]."""
    row = (first + tl.arange(0, N))[:, None]
    channel = tl.arange(0, FORMAT[12])[None, :]
    inside = (row >= 0) & (row < tokens) & (channel < FORMAT[11])
    return to_float32(tl.load(ptr + row * stride + channel, inside, other=0), BFLOAT16)


@triton.jit
def head_of(part, strides, batch, head, ALIGN: tl.constexpr):
    """Addresses and strides of one head of a part: exact, packed with scales and zeros, its global scale."""
    sink_ptr, tail_ptr, packed_ptr, scale_ptr, zero_ptr, g_ptr = part
    sink_b, sink_h, sink_t, tail_b, tail_h, tail_t, packed_b, packed_h, packed_r, s_b, s_h, s_r, s_c, g_b = (
        strides
    )
    sink_ptr += tl.multiple_of(batch * sink_b + head * sink_h, ALIGN)
    tail_ptr += tl.multiple_of(batch * tail_b + head * tail_h, ALIGN)
    packed_ptr += tl.multiple_of(batch * packed_b + head * packed_h, ALIGN)
    scale_at = batch * s_b + head * s_h
    exact = (sink_ptr, tail_ptr, aligned(sink_t, ALIGN), aligned(tail_t, ALIGN))
    strides = (aligned(packed_r, ALIGN), s_r, s_c)
    return exact, (packed_ptr, scale_ptr + scale_at, zero_ptr + scale_at, g_ptr + batch * g_b), strides


@triton.jit
def load_tile(
    exact, ptrs, strides, sizes, first, FORMAT: tl.constexpr, N: tl.constexpr,
    MIXED: tl.constexpr, BFLOAT16: tl.constexpr, OPERAND: tl.constexpr,
):  # fmt: skip
    """Tokens first … first + N - 1 of one head, as operands [N, WIDE]; MIXED: some of them may be exact."""
    sinks, packed, tails = sizes
    WIDE: tl.constexpr = FORMAT[12]
    if FORMAT[13]:
        x = load_packed(ptrs, strides, first - sinks, packed, FORMAT, N)
    else:
        x = tl.zeros((N, WIDE), tl.float32)
    if MIXED:
        sink_ptr, tail_ptr, sink_stride, tail_stride = exact
        x += load_exact(sink_ptr, sink_stride, first, sinks, FORMAT, N, BFLOAT16)
        x += load_exact(tail_ptr, tail_stride, first - sinks - packed, tails, FORMAT, N, BFLOAT16)
    return operand(x, OPERAND)


@triton.jit
def tile_scores(q, k, mask_ptr, mask_stride, first, total, inside, scaling, softcap, N: tl.constexpr):
    """Scores [M, N] in units of log 2, -inf outside the sequence."""
    scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scaling
    if softcap is not None:  # softcap · tanh(scores / softcap)
        scores = softcap * (1 - 2 / (tl.exp2(scores * (2 * LOG2_E / softcap)) + 1))
    position = (first + tl.arange(0, N))[None, :]
    valid = (position >= 0) & (position < total)
    if mask_ptr is not None:
        scores += tl.load(mask_ptr + position * mask_stride, inside & valid, other=0.0)
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


_PLACES = ["q_strides", "mask_strides", "sizes", "k_sizes", "v_sizes", "k_strides", "v_strides"]


@triton.jit(do_not_specialize=[*_PLACES, "scaling", "softcap"])
def attend_kernel(
    q_ptr,  # [batch, kv_heads · groups, queries, DIM of keys]
    mask_ptr,  # float32, added to the scores, [batch, kv_heads · groups, queries, tokens]; or None
    acc_ptr,  # out, float32: [batch, kv_heads, splits, rows, DIM of values], rows = queries · groups
    sums_ptr,  # out, float32: [batch, kv_heads, splits, rows, 2]: denominator and maximum
    k_ptrs,  # sinks, tail, packed, scales, zeros, global scale; any address for what is not there
    v_ptrs,
    q_strides,  # batch, head, query
    mask_strides,  # batch, head, query, token
    sizes,  # kv_heads, groups, rows, splits, tiles of a split, total, origin, packed tiles from and to
    k_sizes,  # sinks, packed, tail
    v_sizes,
    k_strides,  # sinks, tail and packed: batch, head, row each; scales: batch, head, row, column; g: batch
    v_strides,
    scaling,
    softcap,  # or None
    K_FORMAT: tl.constexpr,
    V_FORMAT: tl.constexpr,
    ALIGN: tl.constexpr,
    BFLOAT16: tl.constexpr,  # exact tensors arrive as int16 bits
    OPERAND: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
):
    """One head, M query rows, the tiles of one split: partial sums of its softmax."""
    heads, groups, rows, splits, per_split, total, origin, packed_from, packed_to = sizes
    pid = tl.program_id(0).to(tl.int64)
    split, pid = pid % splits, pid // splits
    high = tl.cdiv(rows, M)
    first_row, pid = pid % high * M, pid // high
    head, batch = pid % heads, pid // heads

    row = first_row + tl.arange(0, M)
    query, q_head = row // groups, head * groups + row % groups
    inside = (row < rows)[:, None]
    q_b, q_h, q_t = q_strides
    q_at = (batch * q_b + q_head * q_h + query * q_t)[:, None]
    channel = tl.arange(0, K_FORMAT[12])[None, :]
    q = tl.load(q_ptr + q_at + channel, inside & (channel < K_FORMAT[11]), other=0)
    q = operand(to_float32(q, BFLOAT16), OPERAND)
    m_b, m_h, m_t, m_n = mask_strides
    if mask_ptr is not None:
        mask_ptr = mask_ptr + (batch * m_b + q_head * m_h + query * m_t)[:, None]
    k_exact, k_packed, k_rows = head_of(k_ptrs, k_strides, batch, head, ALIGN)
    v_exact, v_packed, v_rows = head_of(v_ptrs, v_strides, batch, head, ALIGN)

    start = split * per_split
    stop = tl.minimum(start + per_split, tl.cdiv(total - origin, N))
    packed_from, packed_to = tl.maximum(packed_from, start), tl.minimum(packed_to, stop)
    packed_to = tl.maximum(packed_to, packed_from)
    WIDE: tl.constexpr = V_FORMAT[12]
    acc = tl.zeros((M, WIDE), tl.float32)
    denominator = tl.zeros((M,), tl.float32)
    maximum = tl.full((M,), float("-inf"), tl.float32)
    for tile in range(packed_from, packed_to):
        first = origin + tile * N
        k = load_tile(k_exact, k_packed, k_rows, k_sizes, first, K_FORMAT, N, False, BFLOAT16, OPERAND)
        scores = tile_scores(q, k, mask_ptr, m_n, first, total, inside, scaling, softcap, N)
        v = load_tile(v_exact, v_packed, v_rows, v_sizes, first, V_FORMAT, N, False, BFLOAT16, OPERAND)
        acc, denominator, maximum = add_tile(acc, denominator, maximum, scores, v, OPERAND)
    # Few tiles come this way; loading them ahead would only take shared memory from the others.
    for edge in tl.range(start, stop - (packed_to - packed_from), num_stages=1):
        first = origin + tl.where(edge < packed_from, edge, edge + packed_to - packed_from) * N
        k = load_tile(k_exact, k_packed, k_rows, k_sizes, first, K_FORMAT, N, True, BFLOAT16, OPERAND)
        scores = tile_scores(q, k, mask_ptr, m_n, first, total, inside, scaling, softcap, N)
        v = load_tile(v_exact, v_packed, v_rows, v_sizes, first, V_FORMAT, N, True, BFLOAT16, OPERAND)
        acc, denominator, maximum = add_tile(acc, denominator, maximum, scores, v, OPERAND)

    out = ((batch * heads + head) * splits + split) * rows + row
    channel = tl.arange(0, WIDE)[None, :]
    tl.store(acc_ptr + out[:, None] * V_FORMAT[11] + channel, acc, inside & (channel < V_FORMAT[11]))
    tl.store(sums_ptr + out * 2, denominator, row < rows)
    tl.store(sums_ptr + out * 2 + 1, maximum, row < rows)


@triton.jit(do_not_specialize=["sizes", "out_strides"])
def merge_kernel(
    out_ptr,  # [batch, kv_heads · groups, queries, DIM]
    acc_ptr,  # see attend_kernel
    sums_ptr,
    sink_ptr,  # learned sinks, float32 [kv_heads · groups]: logits that take weight and give nothing; or None
    sizes,  # kv_heads, groups, rows, splits
    out_strides,  # batch, head, query
    DIM: tl.constexpr,
    WIDE: tl.constexpr,
    BFLOAT16: tl.constexpr,
    SPLITS: tl.constexpr,
):
    """Put the splits of one query row together, SPLITS at a time."""
    heads, groups, rows, splits = sizes
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
    out_b, out_h, out_t = out_strides
    to = out_ptr + batch * out_b + q_head * out_h + row // groups * out_t + channel
    if BFLOAT16:
        tl.store(to, bfloat16_bits(acc), channel < DIM)
    else:
        tl.store(to, acc.to(out_ptr.dtype.element_ty), channel < DIM)
