"""Unpack and dequantize, along channels (`dequantize_rows`) or tokens (`dequantize_columns`)."""

from __future__ import annotations

import numpy as np

from mxviz.kernels.cpu._base import I32, Plan, Scale, device, f32, float_of, half_value, kernel, u8, u16
from mxviz.kernels.cpu.codec import decode, unpack_columns_row, unpack_row
from mxviz.kernels.cpu.quantize import COLUMNS, ROWS, TILE
from mxviz.kernels.cpu.scales import power_of_two


@device
def scale_value(scales, at, kind, g):
    """The float32 that the stored scale at index `at` stands for; g is NVFP4's global scale."""
    if kind == Scale.E8M0:
        byte = I32(u8(scales)[at])
        return np.float32(np.nan) if byte == I32(255) else power_of_two(byte)
    if kind == Scale.E4M3:
        byte = I32(u8(scales)[at])
        magnitude = I32(byte & I32(127))
        normal = float_of(I32(I32(magnitude << I32(20)) + I32(120 << 23)))
        value = normal if magnitude > I32(7) else np.float32(magnitude) * np.float32(2.0**-9)
        value = np.float32(np.nan) if magnitude == I32(127) else value
        return np.float32((-value if byte > I32(127) else value) * g)
    if kind == Scale.FLOAT32:
        return f32(scales)[at]
    return half_value(I32(u16(scales)[at]))


@device
def spread_scales(scales, zeros, begin, stride, n, block, kind, g, divisor, offset):
    """Divisors and offsets of n neighbours: the scale at `begin`, then one `stride` further every block."""
    for b in range((n + block - 1) // block):
        scale = scale_value(scales, begin + b * stride, kind, g)
        shift = half_value(I32(u16(zeros)[begin + b * stride])) if kind == Scale.FLOAT16_ZERO else np.float32(0.0)
        for i in range(b * block, min(n, (b + 1) * block)):
            divisor[i] = scale
            offset[i] = shift


@kernel
def dequantize_rows(
    packed, pb, ph, pt, scales, zeros, sb, sh, st, sd, given, gb, heads, tokens, dim, out, plan, first, last
):
    """Write float32 `[batch, heads, tokens, dim]` of codes packed along head_dim. A unit is a row, or part of it.

    packed `[batch, heads, tokens, bytes]`, inner dimension contiguous, and scales (and zeros) come with strides
    in elements; sd is the step from block to block, or from channel to channel where no block is. given: NVFP4's
    global scale, with its batch stride.
    """
    bits, kind = plan[Plan.BITS], plan[Plan.SCALE]
    columns = min(dim, TILE)
    tiles = (dim + columns - 1) // columns
    block = plan[Plan.BLOCK] if kind != Scale.FLOAT32 or sd else columns
    divisor, offset = np.zeros(columns, np.float32), np.zeros(columns, np.float32)
    codes = np.zeros(columns + 4, np.uint8)
    for unit in range(first, last):
        row, tile = divmod(unit, tiles)
        outer, t = divmod(row, tokens)
        batch, head = divmod(outer, heads)
        c0 = tile * columns
        n = min(columns, dim - c0)
        g = f32(given)[batch * gb] if kind == Scale.E4M3 else np.float32(1.0)
        begin = batch * sb + head * sh + t * st + c0 // block * sd
        spread_scales(scales, zeros, begin, sd, n, block, kind, g, divisor, offset)
        unpack_row(u8(packed + batch * pb + head * ph + t * pt + c0 * bits // 8), n, bits, codes)
        decode(codes, divisor, offset, n, plan, f32(out + 4 * (row * dim + c0)))


@kernel
def dequantize_columns(
    packed, pb, ph, pt, scales, zeros, sb, sh, st, sd, given, gb, heads, tokens, dim, out, plan, first, last
):
    """Write float32 `[batch, heads, tokens, dim]` of codes packed along the tokens. A unit is a block of tokens.

    Arguments as in `dequantize_rows`; packed is `[batch, heads, bytes, dim]`, st the step from block to block
    (from token to token where no block is), sd that from channel to channel.
    """
    bits, kind = plan[Plan.BITS], plan[Plan.SCALE]
    blocked = kind != Scale.FLOAT32
    rows = plan[Plan.BLOCK] if blocked else ROWS
    columns = min(dim, COLUMNS)
    row_tiles, column_tiles = (tokens + rows - 1) // rows, (dim + columns - 1) // columns
    divisor, offset = np.zeros(columns, np.float32), np.zeros(columns, np.float32)
    codes = np.zeros(columns, np.uint8)
    for unit in range(first, last):
        outer, tile = divmod(unit, row_tiles * column_tiles)
        batch, head = divmod(outer, heads)
        block, c0 = tile // column_tiles, tile % column_tiles * columns
        t0, n = block * rows, min(columns, dim - c0)
        g = f32(given)[batch * gb] if kind == Scale.E4M3 else np.float32(1.0)
        base = packed + batch * pb + head * ph + t0 * bits // 8 * pt + c0
        for r in range(min(rows, tokens - t0)):
            if r == 0 or (not blocked and st):
                begin = batch * sb + head * sh + (block if blocked else t0 + r) * st + c0 * sd
                spread_scales(scales, zeros, begin, sd, n, 1 if sd else n, kind, g, divisor, offset)
            unpack_columns_row(u8(base), pt, r, n, bits, codes)
            decode(codes, divisor, offset, n, plan, f32(out + 4 * ((outer * tokens + t0 + r) * dim + c0)))
