"""Tokens of a part (the keys, or the values) of a cache: exact sinks, packed blocks, an exact tail.

FORMAT, here and in attend.py, is a tuple of constants: 0 kind, 1 EMIN, 2 mantissa bits, 3 bits, 4 specials,
5 step of the element; 6 what a scale is; 7 elements of a block; 8 codes and 9 bytes of the smallest group
that fills whole bytes; 10 whether blocks run along tokens; 11 width of a row, 12 the power of two that holds
it; 13 whether anything is packed. Positions have 32 bits, every product with a stride 64.
"""

import triton
import triton.language as tl

from .codec import decode_element, to_float32
from .scales import E4M3, FLOAT16_ZERO, stored_scale
from .tiles import aligned, load_words, spread, unpack_words

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

    ptrs: packed, scales, zeros and global scale of one head; strides: a packed row's, a scale's row and
    column. Along tokens, first is a multiple of the block.
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
        scale_at = block.to(tl.int64) * scale_stride_r + channel * scale_stride_c
        inside = inside & (block >= 0) & (block * BLOCK < tokens)
    else:
        row = (first + tl.arange(0, N))[:, None]
        inside = (row >= 0) & (row < tokens)
        row_bytes: tl.constexpr = (DIM * BITS + 7) // 8
        long_row = row.to(tl.int64)
        words = load_words(
            packed_ptr + long_row * packed_stride, 1, 0, inside, row_bytes, WIDTH // COUNT, BYTES
        )
        block = tl.arange(0, WIDTH // BLOCK)[None, :].to(tl.int64)
        scale_at = long_row * scale_stride_r + block * scale_stride_c
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
    return to_float32(tl.load(ptr + row.to(tl.int64) * stride + channel, inside, other=0), BFLOAT16)


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
