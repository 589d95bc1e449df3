"""Unpack and dequantize, along channels (`dequantize_rows`) or tokens (`dequantize_columns`)."""

from __future__ import annotations

import numpy as np

from mxviz.kernels.cpu._base import I32, Plan, Scale, device, f32, float_of, half_value, kernel, u8, u16
from mxviz.kernels.cpu.codec import decode_blocks, decode_columns
from mxviz.kernels.cpu.pack import unpack_columns, unpack_row
from mxviz.kernels.cpu.quantize import COLUMNS, ROWS, TILE
from mxviz.kernels.cpu.scales import power_of_two


@device
def _e8m0_value(byte):
    return np.float32(np.nan) if byte == I32(255) else power_of_two(byte)


@device
def _e4m3_value(byte, g):
    """NVFP4's scale: an E4M3 byte times the tensor's global scale."""
    magnitude = I32(byte & I32(127))
    normal = float_of(I32(I32(magnitude << I32(20)) + I32(120 << 23)))
    value = normal if magnitude > I32(7) else np.float32(np.float32(magnitude) * np.float32(2.0**-9))
    value = np.float32(np.nan) if magnitude == I32(127) else value
    return np.float32((-value if byte > I32(127) else value) * g)


@device
def read_scales(scales, zeros, begin, stride, count, kind, g, divisor, offset):
    """Divisors (and zero points) of `count` blocks or columns, from index `begin` on, `stride` apart."""
    if kind == Scale.E8M0 and stride == 1:  # neighbours, which become vectors
        stored = u8(scales + begin)
        for b in range(count):
            divisor[b] = _e8m0_value(I32(stored[b]))
    elif kind == Scale.E4M3 and stride == 1:
        stored = u8(scales + begin)
        for b in range(count):
            divisor[b] = _e4m3_value(I32(stored[b]), g)
    elif kind == Scale.E8M0 or kind == Scale.E4M3:
        stored = u8(scales + begin)
        for b in range(count):
            byte = I32(stored[b * stride])
            divisor[b] = _e8m0_value(byte) if kind == Scale.E8M0 else _e4m3_value(byte, g)
    elif kind == Scale.FLOAT32:
        given = f32(scales + 4 * begin)
        for b in range(count):
            divisor[b] = given[b * stride]
    else:
        halves, zero_points = u16(scales + 2 * begin), u16(zeros + 2 * begin)
        for b in range(count):
            divisor[b] = half_value(I32(halves[b * stride]))
            offset[b] = half_value(I32(zero_points[b * stride]))


@kernel
def dequantize_rows(
    packed, pb, ph, pt, scales, zeros, sb, sh, st, sd, given, gb, heads, tokens, dim, out, plan, first, last
):
    """Write float32 `[batch, heads, tokens, dim]` of codes packed along head_dim.

    A unit is a tile of rows of one (batch, head), or part of a row. packed `[batch, heads, tokens, bytes]`,
    inner dimension contiguous, and scales (and zeros) have strides in elements; sd is the step from block
    to block, or where no block is from channel to channel (0 or 1). given: NVFP4's global scale, by batch.
    """
    bits, kind = plan[Plan.BITS], plan[Plan.SCALE]
    columns = min(dim, TILE)
    rows = TILE // columns
    row_tiles, column_tiles = (tokens + rows - 1) // rows, (dim + columns - 1) // columns
    block = plan[Plan.BLOCK] if kind != Scale.FLOAT32 else columns
    row_bytes, row_blocks = (dim * bits + 7) // 8, (dim + block - 1) // block
    by_channel = kind == Scale.FLOAT32 and sd != 0
    step = st if row_blocks == 1 else sd  # from one block to the next, rows one after the other
    dense = pt == row_bytes and st == row_blocks * step and not by_channel
    whole = dense and column_tiles == 1 and dim % block == 0 and dim * bits % 8 == 0
    divisor, offset = np.zeros(TILE, np.float32), np.zeros(TILE, np.float32)
    codes = np.zeros(TILE + 4, np.uint8)
    for unit in range(first, last):
        outer, tile = divmod(unit, row_tiles * column_tiles)
        batch, head = divmod(outer, heads)
        t0, c0 = tile // column_tiles * rows, tile % column_tiles * columns
        count, n = min(rows, tokens - t0), min(columns, dim - c0)
        together = count if whole else 1  # rows that need no care about their ends are worked on as one
        g = f32(given)[batch * gb] if kind == Scale.E4M3 else np.float32(1.0)
        for t in range(t0, t0 + count, together):
            span, target = n * together, out + 4 * ((outer * tokens + t) * dim + c0)
            unpack_row(u8(packed + batch * pb + head * ph + t * pt + c0 * bits // 8), span, bits, codes)
            begin = batch * sb + head * sh + t * st
            if by_channel:
                row_divisor = f32(scales + 4 * (begin + c0))
                decode_columns(codes.ctypes.data, row_divisor, offset, n, plan, target)
            else:
                begin += c0 // block * sd
                blocks = (span + block - 1) // block
                read_scales(scales, zeros, begin, step, blocks, kind, g, divisor, offset)
                decode_blocks(codes.ctypes.data, divisor, offset, span, block, plan, target)


@kernel
def dequantize_columns(
    packed, pb, ph, pt, scales, zeros, sb, sh, st, sd, given, gb, heads, tokens, dim, out, plan, first, last
):
    """Write float32 `[batch, heads, tokens, dim]` of codes packed along the tokens.

    A unit is a block of tokens. Arguments as in `dequantize_rows`; packed is `[batch, heads, bytes, dim]`; st
    is the step from block to block (from token to token where no block is), sd that from channel to channel.
    """
    bits, kind = plan[Plan.BITS], plan[Plan.SCALE]
    blocked = kind != Scale.FLOAT32
    rows = plan[Plan.BLOCK] if blocked else ROWS
    columns = min(dim, COLUMNS)
    row_tiles, column_tiles = (tokens + rows - 1) // rows, (dim + columns - 1) // columns
    divisor, offset = np.zeros(columns, np.float32), np.zeros(columns, np.float32)
    codes = np.zeros(rows * columns, np.uint8)
    for unit in range(first, last):
        outer, tile = divmod(unit, row_tiles * column_tiles)
        batch, head = divmod(outer, heads)
        block, c0 = tile // column_tiles, tile % column_tiles * columns
        t0, n = block * rows, min(columns, dim - c0)
        g = f32(given)[batch * gb] if kind == Scale.E4M3 else np.float32(1.0)
        base = packed + batch * pb + head * ph + t0 * bits // 8 * pt + c0
        count = min(rows, tokens - t0)
        unpack_columns(u8(base), pt, 0, count, n, bits, codes)
        for r in range(count):
            if r == 0 or (not blocked and st):
                begin = batch * sb + head * sh + (block if blocked else t0 + r) * st + c0 * sd
                read_scales(scales, zeros, begin, sd, n if sd else 1, kind, g, divisor, offset)
            target = out + 4 * ((outer * tokens + t0 + r) * dim + c0)
            if sd:
                decode_columns(codes.ctypes.data + r * n, divisor, offset, n, plan, target)
            else:
                decode_blocks(codes.ctypes.data + r * n, divisor, offset, n, n, plan, target)
