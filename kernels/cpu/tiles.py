"""Tiles of keys or values as float32 in the first-level cache, from wherever the tokens are held."""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from mxviz.kernels.cpu._base import I32, Kind, Plan, Scale, device, f32, float_of, u8, widen
from mxviz.kernels.cpu.codec import decode_blocks, decode_columns
from mxviz.kernels.cpu.dequantize import read_scales
from mxviz.kernels.cpu.pack import unpack_columns_row, unpack_row


class Held(IntEnum):
    """Where an int64 array holds which address, stride (in elements) or size of the keys or the values."""

    SINK = 0  # exact first tokens: address, width, strides, how many
    SINK_WIDTH = 1
    SINK_B = 2
    SINK_H = 3
    SINK_T = 4
    SINKS = 5
    TAIL = 6  # exact last tokens, in the same order
    TAIL_WIDTH = 7
    TAIL_B = 8
    TAIL_H = 9
    TAIL_T = 10
    TAILS = 11
    PACKED = 12
    PACKED_B = 13
    PACKED_H = 14
    PACKED_T = 15
    TOKENS = 16  # packed tokens
    SCALES = 17
    ZEROS = 18
    SCALE_B = 19
    SCALE_H = 20
    SCALE_T = 21
    SCALE_D = 22
    GLOBAL = 23  # NVFP4's global scale, and its batch stride
    GLOBAL_B = 24
    DIM = 25
    ALONG_TOKENS = 26


@device
def segment_end(held, segment):
    """The token behind the sinks (0), the packed part (1) or the tail (2)."""
    end = held[Held.SINKS]
    if segment > 0:
        end += held[Held.TOKENS]
    return end + held[Held.TAILS] if segment == 2 else end


@device
def fill(held, plan, segment, place, begin, end, scratch, out):
    """Write tokens begin … end - 1 of one segment, counted from its start, as float32 rows to an address.

    place is (batch, head). scratch is (codes, divisors, offsets), each as long as a tile (codes by four more);
    offsets are 0 at first and serve this part alone.
    """
    batch, head = place
    codes, divisor, offset = scratch
    if segment == 1 and held[Held.ALONG_TOKENS]:
        _fill_columns(held, plan, batch, head, begin, end, codes, divisor, offset, out)
    elif segment == 1:
        _fill_rows(held, plan, batch, head, begin, end, codes, divisor, offset, out)
    else:
        _fill_exact(held, Held.SINK if segment == 0 else Held.TAIL, batch, head, begin, end, out)


@device
def _fill_exact(held, at, batch, head, begin, end, out):
    dim, width = held[Held.DIM], held[at + 1]
    start = held[at] + (2 if width else 4) * (batch * held[at + 2] + head * held[at + 3])
    for t in range(begin, end):
        source, target = start + (2 if width else 4) * t * held[at + 4], f32(out + 4 * (t - begin) * dim)
        if width:
            widen(source, width, dim, target)
        else:
            row = f32(source)
            for i in range(dim):
                target[i] = row[i]


@device
def _is_small(plan):
    """Whether the values are whole multiples of the smallest one that fit in a byte."""
    return plan[Plan.KIND] != Kind.FLOAT or plan[Plan.BITS] - plan[Plan.MANTISSA] == 3


@device
def _steps(codes, n, plan):
    """Turn codes into the number of steps they stand for, signed bytes, in place; 32 or more at a time.

    A float with two exponent bits has three slopes: 1 up to twice its smallest normal number, then 2, then 4.
    """
    half = 1 << (plan[Plan.BITS] - 1)
    is_float = plan[Plan.KIND] == Kind.FLOAT
    sign = np.uint8(0 if plan[Plan.KIND] == Kind.UNSIGNED else half)
    mask = np.uint8(half - 1 if is_float else 2 * half - 1)
    first = np.uint8(2 << plan[Plan.MANTISSA] if is_float else 255)
    second = np.uint8(3 << plan[Plan.MANTISSA] if is_float else 255)
    flip, add = np.uint8(255 if is_float else 0), np.uint8(1 if is_float else 256 - 2 * half & 255)
    for i in range(n):
        code = codes[i]
        magnitude = np.uint8(code & mask)
        above = np.uint8(max(magnitude, first) - first)
        higher = np.uint8(max(magnitude, second) - second)
        steps = np.uint8(np.uint8(magnitude + above) + np.uint8(higher + higher))
        negative = np.uint8(np.uint8(steps ^ flip) + add)
        codes[i] = negative if np.uint8(code & sign) != np.uint8(0) else steps


@device
def _signed(code):
    """A byte as a signed number."""
    return np.float32(I32(I32(I32(code) ^ I32(128)) - I32(128)))


@device
def _scaled_blocks(codes, divisor, offset, n, block, plan, target):
    """What `decode_blocks` gives, a few times faster where the values are small whole steps."""
    if not _is_small(plan):
        decode_blocks(codes.ctypes.data, divisor, offset, n, block, plan, target)
        return
    _steps(codes, n, plan)
    step = float_of(I32(plan[Plan.STEP_BITS]))
    for b in range((n + block - 1) // block):
        code, out, size = (
            u8(codes.ctypes.data + b * block),
            f32(target + 4 * b * block),
            min(block, n - b * block),
        )
        scale, shift = divisor[b] * step, offset[b]
        for i in range(size):
            out[i] = _signed(code[i]) * scale + shift


@device
def _scaled_columns(codes, divisor, offset, n, plan, target):
    if not _is_small(plan):
        decode_columns(codes.ctypes.data, divisor, offset, n, plan, target)
        return
    _steps(codes, n, plan)
    out, step = f32(target), float_of(I32(plan[Plan.STEP_BITS]))
    for i in range(n):
        out[i] = _signed(codes[i]) * (divisor[i] * step) + offset[i]


@device
def _fill_rows(held, plan, batch, head, begin, end, codes, divisor, offset, out):
    dim, bits, kind, block = held[Held.DIM], plan[Plan.BITS], plan[Plan.SCALE], plan[Plan.BLOCK]
    by_channel = kind == Scale.FLOAT32 and held[Held.SCALE_D] != 0
    block = dim if kind == Scale.FLOAT32 else block
    row_bytes, row_blocks = (dim * bits + 7) // 8, (dim + block - 1) // block
    step = held[Held.SCALE_T] if row_blocks == 1 else held[Held.SCALE_D]
    dense = held[Held.PACKED_T] == row_bytes and held[Held.SCALE_T] == row_blocks * step and not by_channel
    whole = dense and dim % block == 0 and dim * bits % 8 == 0
    together = end - begin if whole else 1
    packed = held[Held.PACKED] + batch * held[Held.PACKED_B] + head * held[Held.PACKED_H]
    first = batch * held[Held.SCALE_B] + head * held[Held.SCALE_H]
    g = f32(held[Held.GLOBAL])[batch * held[Held.GLOBAL_B]] if kind == Scale.E4M3 else np.float32(1.0)
    for t in range(begin, end, together):
        span, target = dim * together, out + 4 * (t - begin) * dim
        unpack_row(u8(packed + t * held[Held.PACKED_T]), span, bits, codes)
        at = first + t * held[Held.SCALE_T]
        if by_channel:
            _scaled_columns(codes, f32(held[Held.SCALES] + 4 * at), offset, span, plan, target)
        else:
            blocks = (span + block - 1) // block
            read_scales(held[Held.SCALES], held[Held.ZEROS], at, step, blocks, kind, g, divisor, offset)
            _scaled_blocks(codes, divisor, offset, span, block, plan, target)


@device
def _fill_columns(held, plan, batch, head, begin, end, codes, divisor, offset, out):
    """Blocks run along the tokens: a row of scales serves a block of rows."""
    dim, bits, kind, block = held[Held.DIM], plan[Plan.BITS], plan[Plan.SCALE], plan[Plan.BLOCK]
    packed = held[Held.PACKED] + batch * held[Held.PACKED_B] + head * held[Held.PACKED_H]
    first = batch * held[Held.SCALE_B] + head * held[Held.SCALE_H]
    g = f32(held[Held.GLOBAL])[batch * held[Held.GLOBAL_B]] if kind == Scale.E4M3 else np.float32(1.0)
    for t in range(begin, end):
        number, within = divmod(t, block)
        if t == begin or within == 0:
            at, step = first + number * held[Held.SCALE_T], held[Held.SCALE_D]
            read_scales(held[Held.SCALES], held[Held.ZEROS], at, step, dim, kind, g, divisor, offset)
        base = packed + number * block * bits // 8 * held[Held.PACKED_T]
        unpack_columns_row(u8(base), held[Held.PACKED_T], within, dim, bits, codes)
        _scaled_columns(codes, divisor, offset, dim, plan, out + 4 * (t - begin) * dim)
