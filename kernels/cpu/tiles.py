"""Tiles of keys or values as float32 in the first-level cache, from wherever the tokens are held."""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from mxviz.kernels.cpu._base import I32, Kind, Plan, Scale, device, f32, float_of, i8, u8, widen
from mxviz.kernels.cpu.dequantize import read_scales
from mxviz.kernels.cpu.pack import unpack_columns, unpack_row


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

    place is (batch, head). scratch is the addresses of codes, divisors and offsets, as long as a tile each
    (codes by 4 more). Arrays would be counted at each call.
    """
    if segment == 1 and held[Held.ALONG_TOKENS]:
        _fill_columns(held, plan, place, begin, end, scratch, out)
    elif segment == 1:
        _fill_rows(held, plan, place, begin, end, scratch, out)
    else:
        _fill_exact(held, Held.SINK if segment == 0 else Held.TAIL, place, begin, end, out)


@device
def _fill_exact(held, at, place, begin, end, out):
    dim, width = held[Held.DIM], held[at + 1]
    start = held[at] + (2 if width else 4) * (place[0] * held[at + 2] + place[1] * held[at + 3])
    for t in range(begin, end):
        source, target = start + (2 if width else 4) * t * held[at + 4], f32(out + 4 * (t - begin) * dim)
        if width:
            widen(source, width, dim, target)
        else:
            row = f32(source)
            for i in range(dim):
                target[i] = row[i]


@device
def is_small(plan):
    """Whether the values are whole multiples of the smallest one that fit in a byte."""
    return plan[Plan.KIND] != Kind.FLOAT or plan[Plan.BITS] - plan[Plan.MANTISSA] == 3


@device
def to_steps(codes, n, plan):
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
def _reading(plan):
    """What places a float code in a float32: shift, bias, first normal code, 2**emin, sign, last finite."""
    shift, emin = I32(23 - plan[Plan.MANTISSA]), I32(plan[Plan.EMIN_BITS])
    normal, half = I32(1 << plan[Plan.MANTISSA]), I32(1 << (plan[Plan.BITS] - 1))
    return (
        I32(shift & I32(31)),
        I32(emin - I32(1 << 23)),
        normal,
        float_of(emin),
        half,
        I32(plan[Plan.LAST_FINITE]),
    )


@device
def _value(code, reading):
    """The value of a float code, NaN if not finite. A subnormal one gets a leading one and loses it."""
    shift, bias, normal, smallest, half, last = reading
    magnitude = I32(code & I32(half - I32(1)))
    is_small = magnitude < normal
    bits = I32(I32(magnitude << shift) + bias)
    bits = I32(bits + I32(1 << 23)) if is_small else bits
    value = np.float32(float_of(bits) - (smallest if is_small else np.float32(0.0)))
    value = np.float32(np.nan) if magnitude > last else value
    return -value if code >= half else value


@device
def _scale_steps(codes, divisor, n, block, target):
    """Values of n signed bytes, a divisor a block. Each its own function, or LLVM gives up on vectors."""
    for b in range((n + block - 1) // block):
        steps, out, scale = i8(codes + b * block), f32(target + 4 * b * block), divisor[b]
        for i in range(min(block, n - b * block)):
            out[i] = np.float32(np.float32(steps[i]) * scale)


@device
def _shift_steps(codes, divisor, offset, n, block, target):
    """As `_scale_steps`, with zero points."""
    for b in range((n + block - 1) // block):
        steps, out, scale = i8(codes + b * block), f32(target + 4 * b * block), divisor[b]
        shift = offset[b]
        for i in range(min(block, n - b * block)):
            out[i] = np.float32(np.float32(np.float32(steps[i]) * scale) + shift)


@device
def _scale_floats(codes, divisor, n, block, plan, target):
    """Values of n float codes, a divisor a block."""
    reading = _reading(plan)
    for b in range((n + block - 1) // block):
        code, out, scale = u8(codes + b * block), f32(target + 4 * b * block), divisor[b]
        for i in range(min(block, n - b * block)):
            out[i] = np.float32(_value(I32(code[i]), reading) * scale)


@device
def _scale_blocks(codes, divisor, offset, n, block, plan, small, target):
    """Values of n codes (steps where small), a divisor and a zero point a block."""
    if not small:
        _scale_floats(codes, divisor, n, block, plan, target)
    elif plan[Plan.SCALE] == Scale.FLOAT16_ZERO:
        _shift_steps(codes, divisor, offset, n, block, target)
    else:
        _scale_steps(codes, divisor, n, block, target)


@device
def _scale_columns(codes, divisor, offset, rows, n, plan, small, target):
    """Values of rows of n codes (steps where small), a divisor and a zero point a column."""
    reading, shifted = _reading(plan), plan[Plan.SCALE] == Scale.FLOAT16_ZERO
    for r in range(rows):
        out, steps, code = f32(target + 4 * r * n), i8(codes + r * n), u8(codes + r * n)
        if not small:
            for i in range(n):
                out[i] = np.float32(_value(I32(code[i]), reading) * divisor[i])
        elif shifted:
            for i in range(n):
                out[i] = np.float32(np.float32(np.float32(steps[i]) * divisor[i]) + offset[i])
        else:
            for i in range(n):
                out[i] = np.float32(np.float32(steps[i]) * divisor[i])


@device
def read_tile(held, plan, place, at, step, count, small, divisor, offset):
    """Read scales (and zero points); where codes become steps, the divisor is that of a step."""
    kind = plan[Plan.SCALE]
    g = f32(held[Held.GLOBAL])[place[0] * held[Held.GLOBAL_B]] if kind == Scale.E4M3 else np.float32(1.0)
    at += place[0] * held[Held.SCALE_B] + place[1] * held[Held.SCALE_H]
    read_scales(held[Held.SCALES], held[Held.ZEROS], at, step, count, kind, g, divisor, offset)
    if small:
        size = float_of(I32(plan[Plan.STEP_BITS]))
        for i in range(count):
            divisor[i] *= size


@device
def _fill_rows(held, plan, place, begin, end, scratch, out):
    """Codes packed along head_dim; rows that need no care about their ends are worked on as one."""
    codes, divisor, offset = u8(scratch[0]), f32(scratch[1]), f32(scratch[2])
    dim, bits, kind, small = held[Held.DIM], plan[Plan.BITS], plan[Plan.SCALE], is_small(plan)
    by_channel = kind == Scale.FLOAT32 and held[Held.SCALE_D] != 0
    block = dim if kind == Scale.FLOAT32 else plan[Plan.BLOCK]
    row_bytes, row_blocks = (dim * bits + 7) // 8, (dim + block - 1) // block
    step = held[Held.SCALE_T] if row_blocks == 1 else held[Held.SCALE_D]
    dense = held[Held.PACKED_T] == row_bytes and dim * bits % 8 == 0
    whole = dense and dim % block == 0 and (by_channel or held[Held.SCALE_T] == row_blocks * step)
    rows = end - begin if whole else 1
    packed = held[Held.PACKED] + place[0] * held[Held.PACKED_B] + place[1] * held[Held.PACKED_H]
    if by_channel:
        read_tile(held, plan, place, 0, 1, dim, small, divisor, offset)
    for t in range(begin, end, rows):
        target = out + 4 * (t - begin) * dim
        unpack_row(u8(packed + t * held[Held.PACKED_T]), rows * dim, bits, codes)
        if small:
            to_steps(codes, rows * dim, plan)
        if by_channel:
            _scale_columns(scratch[0], divisor, offset, rows, dim, plan, small, target)
        else:
            read_tile(
                held, plan, place, t * held[Held.SCALE_T], step, rows * row_blocks, small, divisor, offset
            )  # fmt: skip
            _scale_blocks(scratch[0], divisor, offset, rows * dim, block, plan, small, target)


@device
def _fill_columns(held, plan, place, begin, end, scratch, out):
    """Codes packed along the tokens: a row of scales serves a block of rows."""
    codes, divisor, offset = u8(scratch[0]), f32(scratch[1]), f32(scratch[2])
    dim, block, small = held[Held.DIM], plan[Plan.BLOCK], is_small(plan)
    packed = held[Held.PACKED] + place[0] * held[Held.PACKED_B] + place[1] * held[Held.PACKED_H]
    unpack_columns(u8(packed), held[Held.PACKED_T], begin, end, dim, plan[Plan.BITS], codes)
    if small:
        to_steps(codes, (end - begin) * dim, plan)
    t = begin
    while t < end:
        number = t // block
        rows, at = min(end, (number + 1) * block) - t, number * held[Held.SCALE_T]
        read_tile(held, plan, place, at, held[Held.SCALE_D], dim, small, divisor, offset)
        source, target = scratch[0] + (t - begin) * dim, out + 4 * (t - begin) * dim
        _scale_columns(source, divisor, offset, rows, dim, plan, small, target)
        t += rows
