"""Tiles of rows: widths, packed codes and the spreading of a scale over its block."""

import triton
import triton.language as tl


@triton.jit
def aligned(size, ALIGN: tl.constexpr):
    """The same size, written so that the compiler sees ALIGN divides it (then masks split by ALIGN)."""
    return size // ALIGN * ALIGN


@triton.jit
def spread(scale, ROWS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Repeat [ROWS, WIDTH // BLOCK] over the elements of each block: [ROWS, WIDTH]."""
    BLOCKS: tl.constexpr = WIDTH // BLOCK
    return tl.reshape(tl.broadcast_to(tl.expand_dims(scale, 2), (ROWS, BLOCKS, BLOCK)), (ROWS, WIDTH))


@triton.jit
def pack_words(codes, ROWS: tl.constexpr, WIDTH: tl.constexpr, BITS: tl.constexpr, COUNT: tl.constexpr):
    """Put each COUNT codes of [ROWS, WIDTH] into one word, low bits first: [ROWS, WIDTH // COUNT]."""
    shifts = BITS * tl.arange(0, COUNT)
    return tl.sum(tl.reshape(codes, (ROWS, WIDTH // COUNT, COUNT)) << shifts[None, None, :], axis=2)


@triton.jit
def unpack_words(words, ROWS: tl.constexpr, WIDTH: tl.constexpr, BITS: tl.constexpr, COUNT: tl.constexpr):
    """The codes (int32) of words [ROWS, WIDTH // COUNT], in order: [ROWS, WIDTH]."""
    MASK: tl.constexpr = (1 << BITS) - 1
    if COUNT == 1:
        return words
    elif COUNT == 2:
        return tl.interleave(words & MASK, (words >> BITS) & MASK)
    else:
        even = tl.interleave(words & MASK, (words >> (2 * BITS)) & MASK)
        odd = tl.interleave((words >> BITS) & MASK, (words >> (3 * BITS)) & MASK)
        return tl.interleave(even, odd)


@triton.jit
def load_words(ptr, byte_stride, first, rows_mask, row_bytes, GROUPS: tl.constexpr, BYTES: tl.constexpr):
    """Load whole groups of codes as words (int32): [ROWS, GROUPS].

    ptr: addresses [ROWS, 1] of each row's first byte; first: the first group, possibly negative; row_bytes:
    bytes of a row; BYTES: bytes of a group. What lies outside the row or rows_mask [ROWS, 1] reads as zero.
    """
    at = (first + tl.arange(0, GROUPS))[None, :] * BYTES
    rows_mask = rows_mask & (at >= 0)
    words = tl.load(ptr + at.to(tl.int64) * byte_stride, rows_mask & (at < row_bytes), other=0).to(tl.int32)
    for byte in tl.static_range(1, BYTES):
        more = tl.load(
            ptr + (at + byte).to(tl.int64) * byte_stride, rows_mask & (at + byte < row_bytes), other=0
        )
        words |= more.to(tl.int32) << (8 * byte)
    return words
