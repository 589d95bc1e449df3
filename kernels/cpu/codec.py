"""Numbers to codes and back, by blocks along a row or by columns."""

from __future__ import annotations

import numpy as np

from mxviz.kernels.cpu._base import (
    EXPONENT,
    I32,
    MAGNITUDE,
    Kind,
    Plan,
    Scale,
    bits_of,
    device,
    f32,
    float_of,
    round_magnitude,
    u8,
)

_FLT_MAX = np.float32(3.4028234663852886e38)


@device
def _format(plan):
    """The numbers of a format as an encoder wants them."""
    mask, top = I32((1 << plan[Plan.BITS]) - 1), I32(1 << (plan[Plan.BITS] - 1))
    # A negative number sets the sign bit of a float; an integer's code is turned to its two's complement.
    flip, add = (I32(-1), I32(1)) if plan[Plan.KIND] == Kind.SIGNED else (I32(0), top)
    mantissa, emin_bits, max_bits = (
        I32(plan[Plan.MANTISSA]),
        I32(plan[Plan.EMIN_BITS]),
        I32(plan[Plan.MAX_BITS]),
    )
    return mantissa, emin_bits, max_bits, I32(plan[Plan.NONFINITE]), mask, flip, add


@device
def _code(scaled, divisor, form):
    """The code of x over its divisor, float or signed integer; 0 where the scale is broken."""
    mantissa, emin_bits, max_bits, nonfinite, mask, flip, add = form
    bits = bits_of(scaled)
    magnitude = I32(bits & MAGNITUDE)
    code, _ = round_magnitude(magnitude, mantissa, emin_bits, max_bits)
    negative = I32(I32(I32(code ^ flip) + add) & mask)
    code = negative if bits < I32(0) else code
    code = code if magnitude < EXPONENT else nonfinite
    return np.uint8(I32(0) if divisor < np.float32(0.0) else code)


@device
def _finite_code(scaled, form):
    """The code of a finite number in a float format."""
    mantissa, emin_bits, max_bits, _, _, _, top = form
    bits = bits_of(scaled)
    code, _ = round_magnitude(I32(bits & MAGNITUDE), mantissa, emin_bits, max_bits)
    return np.uint8(I32(code | I32(I32(bits >> I32(31)) & top)))


@device
def _unsigned_code(x, divisor, offset, top):
    """The code of (x - offset) / divisor, held between 0 and top; 0 where the scale is broken."""
    scaled = np.float32(np.float32(x - offset) / divisor)
    finite = I32(bits_of(scaled) & MAGNITUDE) < EXPONENT and divisor > np.float32(0.0)
    capped = min(max(scaled, np.float32(0.0)), top)
    steps = bits_of(np.float32(capped + np.float32(2.0**23)))  # the number's steps, rounded to nearest even
    return np.uint8(steps & I32(255)) if finite else np.uint8(0)


@device
def encode_blocks(source, divisor, offset, n, block, plan, codes):
    """Codes of n float32 at an address, to an address; each block has its divisor (and zero point), or under
    E8M0 its factor."""
    form, top = _format(plan), float_of(I32(plan[Plan.MAX_BITS]))
    for b in range((n + block - 1) // block):
        x, out, size = f32(source + 4 * b * block), u8(codes + b * block), min(block, n - b * block)
        scale, shift = divisor[b], offset[b]
        if plan[Plan.KIND] == Kind.UNSIGNED:
            for i in range(size):
                out[i] = _unsigned_code(x[i], scale, shift, top)
        elif plan[Plan.SCALE] == Scale.E8M0 and plan[Plan.KIND] == Kind.FLOAT:
            if scale > np.float32(0.0):  # then all x are finite, and so are the products
                for i in range(size):
                    out[i] = _finite_code(np.float32(x[i] * scale), form)
            else:
                out[:size] = 0
        elif plan[Plan.SCALE] == Scale.E8M0:
            for i in range(size):
                out[i] = _code(np.float32(x[i] * scale), scale, form)
        else:
            for i in range(size):
                out[i] = _code(np.float32(x[i] / scale), scale, form)


@device
def count_beyond(source, divisor, n, block, most):
    """How many of n float32 at an address are finite and, over the divisor of their block, beyond `most`."""
    count = 0
    for b in range((n + block - 1) // block):
        x, scale = f32(source + 4 * b * block), divisor[b]
        for i in range(min(block, n - b * block)):
            scaled, finite = np.float32(x[i] / scale), I32(bits_of(x[i]) & MAGNITUDE) < EXPONENT
            count += 1 if finite and scale > np.float32(0.0) and abs(scaled) > most else 0
    return count


@device
def encode_columns(source, divisor, offset, n, plan, codes):
    """Codes of n float32 at an address, to an address; each number has its own divisor (and zero point), or
    under E8M0 its factor."""
    form, top = _format(plan), float_of(I32(plan[Plan.MAX_BITS]))
    x, out = f32(source), u8(codes)
    if plan[Plan.KIND] == Kind.UNSIGNED:
        for i in range(n):
            out[i] = _unsigned_code(x[i], divisor[i], offset[i], top)
    elif plan[Plan.SCALE] == Scale.E8M0:
        for i in range(n):
            out[i] = _code(np.float32(x[i] * divisor[i]), divisor[i], form)
    else:
        for i in range(n):
            out[i] = _code(np.float32(x[i] / divisor[i]), divisor[i], form)


@device
def _reading(plan):
    """The numbers of a float format as a decoder wants them."""
    lowest = I32((plan[Plan.EMIN_BITS] >> 23) - plan[Plan.MANTISSA])  # biased exponent of the smallest step
    half, last, infinite = (
        I32(1 << (plan[Plan.BITS] - 1)),
        I32(plan[Plan.LAST_FINITE]),
        I32(plan[Plan.INFINITE]),
    )
    return I32(plan[Plan.MANTISSA] & 7), half, lowest, last, infinite, last < I32(half - I32(1))


@device
def _float_value(code, reading):
    """The value of a float code, read as steps of 2**(above + lowest), the leading one included."""
    mantissa, half, lowest, last, infinite, has_specials = reading
    magnitude, sign = I32(code & I32(half - I32(1))), I32(-(2**31)) if code >= half else I32(0)
    above = max(I32(I32(magnitude >> mantissa) - I32(1)), I32(0))
    steps = np.float32(I32(magnitude - I32(above << mantissa)))
    value = np.float32(steps * float_of(I32(I32(I32(above + lowest) << I32(23)) | sign)))
    if has_specials:
        value = np.float32(np.nan) if magnitude > last else value
        value = float_of(I32(EXPONENT | sign)) if magnitude == infinite else value
    return value


@device
def _integer_value(code, half, step):
    return np.float32(np.float32(I32(I32(code ^ half) - half)) * step)


@device
def decode_blocks(codes, divisor, offset, n, block, plan, target):
    """Values of n codes at an address times their block's divisor (plus its zero point), to an address."""
    reading, step = _reading(plan), float_of(I32(plan[Plan.STEP_BITS]))
    half = reading[1] if plan[Plan.KIND] == Kind.SIGNED else I32(0)
    for b in range((n + block - 1) // block):
        code, out, size = u8(codes + b * block), f32(target + 4 * b * block), min(block, n - b * block)
        scale, shift = divisor[b], offset[b]
        if plan[Plan.KIND] == Kind.FLOAT:
            for i in range(size):
                out[i] = _held(np.float32(_float_value(I32(code[i]), reading) * scale))
        else:
            for i in range(size):
                value = _integer_value(I32(code[i]), half, step)
                out[i] = _held(np.float32(np.float32(value * scale) + shift))


@device
def decode_columns(codes, divisor, offset, n, plan, target):
    """As `decode_blocks`, each code with its own divisor (and zero point)."""
    reading, step = _reading(plan), float_of(I32(plan[Plan.STEP_BITS]))
    half = reading[1] if plan[Plan.KIND] == Kind.SIGNED else I32(0)
    code, out = u8(codes), f32(target)
    if plan[Plan.KIND] == Kind.FLOAT:
        for i in range(n):
            out[i] = _held(np.float32(_float_value(I32(code[i]), reading) * divisor[i]))
    else:
        for i in range(n):
            value = _integer_value(I32(code[i]), half, step)
            out[i] = _held(np.float32(np.float32(value * divisor[i]) + offset[i]))


@device
def _held(x):
    """±FLT_MAX at most; a NaN stays."""
    x = _FLT_MAX if x > _FLT_MAX else x
    return -_FLT_MAX if x < -_FLT_MAX else x
