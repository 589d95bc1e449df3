"""Quantize and pack in one pass over memory, along channels or along tokens."""

from __future__ import annotations

import numpy as np

from mxviz.kernels.cpu._base import Kind, Plan, Scale, f32, float_of, i64, kernel, u8, widen
from mxviz.kernels.cpu.codec import count_beyond, encode_blocks, encode_columns
from mxviz.kernels.cpu.pack import pack_columns, pack_row
from mxviz.kernels.cpu.scales import block_amax, block_range, column_amax, column_range, store_scales

TILE = 1024
"""Numbers a row tile holds: its scratch stays in the first-level cache. A multiple of every block size."""

COLUMNS = 256
"""Channels a column tile spans."""

ROWS = 32
"""Tokens a column tile spans where blocks do not say it."""


@kernel
def quantize_rows(
    x, width, xb, xh, xt, heads, tokens, dim, room, packed, scales, zeros, given, gb, gh, gt, gd, beyond,
    plan, first, last,
):  # fmt: skip
    """Quantize with blocks along head_dim. A unit is a tile of rows of one (batch, head), or part of a row.

    Addresses and strides (in elements) of x `[batch, heads, tokens, dim]`, inner dimension contiguous.
    packed, scales and zeros have contiguous rows, `room` of them for a (batch, head), the first `tokens` of
    which are written. given: NVFP4's global scale, or the divisor of a
    single-scale scheme, float32, with strides for batch, head, token and channel. beyond: an int64 that
    counts elements of blocks that are clipped, or 0; for one thread.
    """
    bits, block, blocked = plan[Plan.BITS], plan[Plan.BLOCK], plan[Plan.SCALE] != Scale.FLOAT32
    ranged, size = plan[Plan.KIND] == Kind.UNSIGNED, 2 if width else 4
    columns = min(dim, TILE)
    rows = TILE // columns
    row_tiles, column_tiles = (tokens + rows - 1) // rows, (dim + columns - 1) // columns
    row_bytes, row_blocks = (dim * bits + 7) // 8, (dim + block - 1) // block
    wide, codes = np.empty(TILE if width else 0, np.float32), np.zeros(TILE + 4, np.uint8)
    divisor, offset = np.zeros(TILE, np.float32), np.zeros(TILE, np.float32)
    amax, low, high = np.zeros(TILE, np.int32), np.zeros(TILE, np.int32), np.zeros(TILE, np.int32)
    for unit in range(first, last):
        outer, tile = divmod(unit, row_tiles * column_tiles)
        batch, head = divmod(outer, heads)
        t0, c0 = tile // column_tiles * rows, tile % column_tiles * columns
        count, n = min(rows, tokens - t0), min(columns, dim - c0)
        whole = xt == dim and n == dim and dim % block == 0 and dim * bits % 8 == 0
        together = count if whole else 1  # rows that need no care about their ends are worked on as one
        for t in range(t0, t0 + count, together):
            span, row = n * together, outer * room + t
            source = x + size * (batch * xb + head * xh + t * xt + c0)
            if width:
                widen(source, width, span, wide)
                source = np.int64(wide.ctypes.data)
            factors = given + 4 * (batch * gb + head * gh + t * gt + c0 * gd)
            if blocked:
                block_amax(source, span, block, amax)
                if ranged:
                    block_range(source, span, block, low, high)
                g = f32(factors)[0] if plan[Plan.SCALE] == Scale.E4M3 else np.float32(1.0)
                blocks, at = (span + block - 1) // block, row * row_blocks + c0 // block
                store_scales(amax, low, high, blocks, plan, g, scales, zeros, at, divisor, offset)
                encode_blocks(source, divisor, offset, span, block, plan, codes.ctypes.data)
                if beyond:
                    most = float_of(np.int32(plan[Plan.MAX_BITS]))
                    i64(beyond)[0] += count_beyond(source, divisor, span, block, most)
            elif gd:
                for r in range(together):
                    row_divisor = f32(factors + 4 * r * gt)
                    encode_columns(
                        source + 4 * r * n, row_divisor, offset, n, plan, codes.ctypes.data + r * n
                    )
            else:
                for r in range(together):
                    divisor[r] = f32(factors + 4 * r * gt)[0]
                encode_blocks(source, divisor, offset, span, n, plan, codes.ctypes.data)
            codes[span : span + 4] = 0
            pack_row(codes, span, bits, u8(packed + row * row_bytes + c0 * bits // 8))


@kernel
def quantize_columns(
    x, width, xb, xh, xt, heads, tokens, dim, packed, scales, zeros, given, gb, gh, gt, gd, plan, first, last
):
    """Quantize with blocks along the tokens. A unit is a block of tokens by up to COLUMNS channels.

    Arguments as in `quantize_rows`; packed is `[batch, heads, bytes, dim]`, scales
    `[batch, heads, blocks, dim]`.
    """
    bits, blocked = plan[Plan.BITS], plan[Plan.SCALE] != Scale.FLOAT32
    ranged, size = plan[Plan.KIND] == Kind.UNSIGNED, 2 if width else 4
    rows = plan[Plan.BLOCK] if blocked else ROWS
    columns = min(dim, COLUMNS)
    row_tiles, column_tiles = (tokens + rows - 1) // rows, (dim + columns - 1) // columns
    packed_rows = (tokens * bits + 7) // 8
    wide = np.empty(rows * columns if width else 0, np.float32)
    divisor, offset = np.zeros(columns, np.float32), np.zeros(columns, np.float32)
    amax, low, high = np.zeros(columns, np.int32), np.zeros(columns, np.int32), np.zeros(columns, np.int32)
    codes = np.zeros(rows * columns, np.uint8)
    for unit in range(first, last):
        outer, tile = divmod(unit, row_tiles * column_tiles)
        batch, head = divmod(outer, heads)
        block, c0 = tile // column_tiles, tile % column_tiles * columns
        t0 = block * rows
        count, n = min(rows, tokens - t0), min(columns, dim - c0)
        source, stride = x + size * (batch * xb + head * xh + t0 * xt + c0), xt
        if width:
            for r in range(count):
                widen(source + size * r * xt, width, n, wide[r * n :])
            source, stride = np.int64(wide.ctypes.data), n
        factors = given + 4 * (batch * gb + head * gh + t0 * gt + c0 * gd)
        if blocked:
            column_amax(source, stride, count, n, amax)
            if ranged:
                column_range(source, stride, count, n, low, high)
            g = f32(factors)[0] if plan[Plan.SCALE] == Scale.E4M3 else np.float32(1.0)
            at = (outer * row_tiles + block) * dim + c0
            store_scales(amax, low, high, n, plan, g, scales, zeros, at, divisor, offset)
        for r in range(count):
            row, target = source + 4 * r * stride, codes.ctypes.data + r * n
            row_divisor = f32(factors + 4 * r * gt)
            if blocked:
                encode_columns(row, divisor, offset, n, plan, target)
            elif gd:
                encode_columns(row, row_divisor, offset, n, plan, target)
            else:
                encode_blocks(row, row_divisor, offset, n, n, plan, target)
        codes[count * n : min(count + 3, rows) * n] = 0
        out = packed + (outer * packed_rows + t0 * bits // 8) * dim + c0
        pack_columns(codes, n, count, n, bits, u8(out), dim)
