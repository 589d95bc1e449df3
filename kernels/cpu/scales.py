"""From amax to a stored scale and a divisor, block by block (OCP MX v1.0, section 6.3)."""

from __future__ import annotations

import numpy as np

from mxviz.kernels.cpu._base import (
    BROKEN,
    EXPONENT,
    I32,
    MAGNITUDE,
    Plan,
    Rule,
    Scale,
    bits_of,
    device,
    f32,
    float_of,
    half_of,
    half_value,
    i32,
    kernel,
    round_magnitude,
    u8,
    u16,
    widen,
)
from mxviz.kernels.cpu.lanes import LANES, block_tops

_LOWEST, _HIGHEST = I32(-(2**31)), I32(2**31 - 1)
_HALF_MAX = np.float32(65504.0)


@device
def block_amax(source, n, block, amax):
    """Largest |x| of each block of a row, as bits; a NaN or an infinity gives EXPONENT or more."""
    if block % LANES == 0 and n % block == 0:
        block_tops(source, block // LANES, n // block, np.int64(amax.ctypes.data))
        return
    for b in range((n + block - 1) // block):
        bits, top = i32(source + 4 * b * block), I32(0)
        for i in range(min(block, n - b * block)):
            top = max(top, I32(bits[i] & MAGNITUDE))
        amax[b] = top


@device
def column_amax(source, stride, rows, n, amax):
    """Largest |x| of each of n columns over rows, as bits."""
    amax[:n] = 0
    for r in range(rows):
        bits = i32(source + 4 * r * stride)
        for i in range(n):
            amax[i] = max(amax[i], I32(bits[i] & MAGNITUDE))


@device
def _ordered(bits):
    """Map float bits to integers of the same order, and back."""
    return I32(bits ^ I32(I32(bits >> I32(31)) & MAGNITUDE))


@device
def block_range(source, n, block, low, high):
    """Smallest and largest finite number of each block of a row, as ordered integers."""
    for b in range((n + block - 1) // block):
        bits, least, most = i32(source + 4 * b * block), _HIGHEST, _LOWEST
        for i in range(min(block, n - b * block)):
            finite = I32(bits[i] & MAGNITUDE) < EXPONENT
            key = _ordered(bits[i])
            least = min(least, key if finite else _HIGHEST)
            most = max(most, key if finite else _LOWEST)
        low[b], high[b] = least, most


@device
def column_range(source, stride, rows, n, low, high):
    """Smallest and largest finite number of each of n columns, as ordered integers."""
    low[:n] = _HIGHEST
    high[:n] = _LOWEST
    for r in range(rows):
        bits = i32(source + 4 * r * stride)
        for i in range(n):
            finite = I32(bits[i] & MAGNITUDE) < EXPONENT
            key = _ordered(bits[i])
            low[i] = min(low[i], key if finite else _HIGHEST)
            high[i] = max(high[i], key if finite else _LOWEST)


@device
def _ceil_exponent(bits):
    """Biased ⌈log2 x⌉ of non-negative float32 bits; anything up to 2**-127 gives 0."""
    field, mantissa = I32(bits >> I32(23)), I32(bits & I32(0x7FFFFF))
    threshold = I32(0) if field > I32(0) else I32(1 << 22)
    return I32(field + I32(1)) if mantissa > threshold else field


@device
def _e8m0(amax, count, plan, stored, divisor):
    rule, emax, mantissa = plan[Plan.RULE], I32(plan[Plan.EMAX]), I32(plan[Plan.MANTISSA] & 15)
    max_normal = float_of(I32(plan[Plan.MAX_BITS]))
    for b in range(count):
        bits = amax[b]
        if rule == Rule.RCEIL:
            field = _ceil_exponent(bits_of(np.float32(float_of(bits) / max_normal)))
        elif rule == Rule.CEIL:
            field = I32(_ceil_exponent(bits) - emax)
        elif rule == Rule.EVEN:
            step = I32(I32(1 << 22) >> mantissa)
            field = I32(I32(I32(bits + (step if bits >= I32(1 << 23) else step >> 1)) >> I32(23)) - emax)
        else:
            field = I32(I32(bits >> I32(23)) - emax)
        field = min(max(field, I32(0)), I32(254))
        broken = bits >= EXPONENT
        stored[b] = np.uint8(255 if broken else field)
        divisor[b] = BROKEN if broken else power_of_two(I32(I32(254) - field))  # 1/scale, exact


@device
def power_of_two(field):
    """2**(field - 127) for a biased exponent from 0 (subnormal) to 254."""
    return float_of(I32(field << I32(23)) if field > I32(0) else I32(1 << 22))


@device
def _e4m3(amax, count, plan, g, stored, divisor):
    max_normal = float_of(I32(plan[Plan.MAX_BITS]))
    for b in range(count):
        wanted = np.float32(np.float32(float_of(amax[b]) / max_normal) / g)
        magnitude = I32(bits_of(wanted) & MAGNITUDE)
        code, value = round_magnitude(magnitude, I32(3), I32(121 << 23), I32(0x43E00000))
        lost = magnitude >= EXPONENT  # g is NaN, or far too small for this block
        broken = amax[b] >= EXPONENT
        stored[b] = np.uint8(0x7F if lost or broken else code)
        product = np.float32(value * g)
        product = np.float32(np.inf) if product == np.float32(0.0) else product  # every x becomes a signed 0
        product = np.float32(np.nan) if lost else product
        divisor[b] = BROKEN if broken else product


@device
def _zero_point(amax, low, high, count, plan, stored, zeros, divisor, offset):
    levels = float_of(I32(plan[Plan.MAX_BITS]))
    for b in range(count):
        empty = low[b] > high[b]
        none = np.float32(0.0)
        least = none if empty else np.float32(float_of(_ordered(low[b])) + none)  # adding 0 turns -0 into 0
        most = none if empty else np.float32(float_of(_ordered(high[b])) + none)
        zero = half_of(min(max(least, -_HALF_MAX), _HALF_MAX))
        step = half_of(min(np.float32(np.float32(most - least) / levels), _HALF_MAX))
        step = I32(0x3C00) if step == I32(0) else step
        broken = amax[b] >= EXPONENT
        stored[b] = np.uint16(0x7E00 if broken else step)
        zeros[b] = np.uint16(zero)
        divisor[b] = BROKEN if broken else half_value(step)
        offset[b] = half_value(zero)


@device
def store_scales(amax, low, high, count, plan, g, scales, zeros, at, divisor, offset):
    """Store the scales of `count` blocks from index `at` on; leave their divisors (and zero points).

    Under E8M0 these are factors: a product with a power of two is the quotient, rounded alike, and quicker.
    """
    if plan[Plan.SCALE] == Scale.E8M0:
        _e8m0(amax, count, plan, u8(scales + at), divisor)
    elif plan[Plan.SCALE] == Scale.E4M3:
        _e4m3(amax, count, plan, g, u8(scales + at), divisor)
    else:
        stored, offsets = u16(scales + 2 * at), u16(zeros + 2 * at)
        _zero_point(amax, low, high, count, plan, stored, offsets, divisor, offset)


@kernel
def amax_rows(x, width, xb, xh, xt, heads, tokens, dim, finite_only, amax, first, last):
    """Largest |x| of each row (batch, head, token) as float32 bits; non-finite ones left out on demand."""
    wide = np.empty(dim if width else 0, np.float32)
    ceiling = EXPONENT if finite_only else _HIGHEST
    size = 2 if width else 4
    out = i32(amax)
    for row in range(first, last):
        o, t = divmod(row, tokens)
        source = x + size * ((o // heads) * xb + (o % heads) * xh + t * xt)
        if width:
            widen(source, width, dim, wide)
            source = np.int64(wide.ctypes.data)
        bits = i32(source)
        top = I32(0)
        for i in range(dim):
            magnitude = I32(bits[i] & MAGNITUDE)
            top = max(top, magnitude if magnitude < ceiling else I32(0))
        out[row] = top


@kernel
def amax_columns(x, width, xb, xh, xt, heads, tokens, dim, chunk, amax, first, last):
    """Largest |x| of each channel over a chunk of tokens, as float32 bits; unit: (batch, head, chunk)."""
    wide = np.empty(dim if width else 0, np.float32)
    size = 2 if width else 4
    chunks = (tokens + chunk - 1) // chunk
    for unit in range(first, last):
        o, part = divmod(unit, chunks)
        out = i32(amax + 4 * unit * dim)
        for i in range(dim):
            out[i] = I32(0)
        for t in range(part * chunk, min(tokens, (part + 1) * chunk)):
            source = x + size * ((o // heads) * xb + (o % heads) * xh + t * xt)
            if width:
                widen(source, width, dim, wide)
                source = np.int64(wide.ctypes.data)
            bits = i32(source)
            for i in range(dim):
                out[i] = max(out[i], I32(bits[i] & MAGNITUDE))


@kernel
def single_scales(amax, outer, parts, inner, max_normal, frozen, constant, stored, divisor):
    """Scales that span more than a block, from partial amax `[outer, parts, inner]` (float32 bits).

    frozen: address of scales set earlier, or 0. constant: whether the scale is 1 (`@one`).
    """
    measured, given = i32(amax), f32(frozen)
    scales, divisors = f32(stored), f32(divisor)
    for o in range(outer):
        for i in range(inner):
            top = I32(0)
            for p in range(parts):
                top = max(top, measured[(o * parts + p) * inner + i])
            at = o * inner + i
            scale = np.float32(float_of(top) / np.float32(max_normal))
            scale = np.float32(1.0) if scale == np.float32(0.0) or constant else scale
            if frozen and not constant:
                scale = given[at]
            scales[at] = np.float32(np.nan) if top >= EXPONENT else scale
            inverse = np.float32(np.inf) if scale == np.float32(0.0) else scale  # every x becomes a signed 0
            divisors[at] = BROKEN if top >= EXPONENT else inverse
