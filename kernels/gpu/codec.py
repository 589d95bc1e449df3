"""One number at a time: round to an element format, decode it, powers of two, bfloat16 by its bits.

Everything is done on float32 and its bits. Casts to float8 and bfloat16 are left alone: Triton's
interpreter rounds the first wrongly and stores the second as an integer.
Sources: OCP MX v1.0, sections 5.3 and 6.3; OFP8 v1.0 for rounding and saturation.
"""

import triton
import triton.language as tl

FLOAT, SIGNED, UNSIGNED = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
"""Kinds of element: what its bits mean."""

FINITE, NAN_ONLY, IEEE = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
"""Which codes of a float element are special: none, all ones is NaN, or the top exponent as in IEEE."""

ABS_MASK = tl.constexpr(0x7FFFFFFF)
INF_BITS = tl.constexpr(0x7F800000)
NAN_BITS = tl.constexpr(0x7FC00000)
FLT_MAX = tl.constexpr(3.4028234663852886e38)


@triton.jit
def float_bits(x):
    return x.to(tl.int32, bitcast=True)


@triton.jit
def from_bits(bits):
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def power_of_two(exponent):
    """2^E as float32 for E in [-127, 127]; 2^-127 is subnormal."""
    return from_bits(tl.where(exponent > -127, (exponent + 127) << 23, 1 << 22))


@triton.jit
def to_float32(x, BFLOAT16: tl.constexpr):
    """Loaded values as float32; bfloat16 arrives as int16 bits, the upper half of a float32."""
    if BFLOAT16:
        return from_bits(x.to(tl.int32) << 16)
    else:
        return x.to(tl.float32)


@triton.jit
def bfloat16_bits(x):
    """Round float32 to bfloat16, nearest, ties to even; return its bits as int16."""
    bits = float_bits(x)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return tl.where((bits & ABS_MASK) > INF_BITS, 0x7FC0, rounded).to(tl.int16)


@triton.jit
def encode_float(
    x,
    EMIN: tl.constexpr,
    MANTISSA: tl.constexpr,
    BITS: tl.constexpr,
    MAX: tl.constexpr,
    NAN_CODE: tl.constexpr,
):
    """Codes (int32) of float32 x: nearest, ties to even, saturating; not finite gives NAN_CODE."""
    bits = float_bits(x)
    finite = (bits & ABS_MASK) < INF_BITS
    magnitude = tl.minimum(from_bits(tl.where(finite, bits & ABS_MASK, 0)), MAX)
    exponent = tl.maximum((float_bits(magnitude) >> 23) - 127, EMIN)
    # The product is exact, and at 2^23 float32 has steps of one, so the addition rounds to whole steps.
    whole = magnitude * power_of_two(MANTISSA - exponent) + 8388608.0
    # A carry out of the mantissa lands in the exponent field, as it does in IEEE encodings.
    code = ((exponent - EMIN) << MANTISSA) + (float_bits(whole) - 0x4B000000)
    code += ((bits >> 31) & 1) << (BITS - 1)
    return tl.where(finite, code, NAN_CODE)


@triton.jit
def encode_integer(x, BITS: tl.constexpr, MAX: tl.constexpr, LOW: tl.constexpr, PER_ONE: tl.constexpr):
    """Codes (int32) of float32 x in steps of 1/PER_ONE: nearest, ties to even, held at LOW and MAX."""
    finite = (float_bits(x) & ABS_MASK) < INF_BITS
    held = tl.minimum(tl.maximum(tl.where(finite, x, 0.0), LOW), MAX)
    # 1.5 * 2^23 keeps negative sums in the same binade; the low bits are two's complement.
    whole = held * PER_ONE + 12582912.0
    return float_bits(whole) & ((1 << BITS) - 1)


@triton.jit
def decode_float(
    code, EMIN: tl.constexpr, MANTISSA: tl.constexpr, BITS: tl.constexpr, SPECIALS: tl.constexpr
):
    """Values (float32) of float codes (int32): the code's fields, shifted into those of a float32."""
    TOP: tl.constexpr = (1 << (BITS - 1)) - 1
    magnitude = code & TOP
    # Read there, subnormals stay subnormal; one exact product sets the bias right (1 - EMIN against 127).
    value = from_bits(magnitude << (23 - MANTISSA)) * (2.0 ** (126 + EMIN))
    bits = float_bits(value)
    if SPECIALS == NAN_ONLY:
        bits = tl.where(magnitude == TOP, NAN_BITS, bits)
    if SPECIALS == IEEE:
        first = TOP - (1 << MANTISSA) + 1  # the code of infinity
        bits = tl.where(magnitude == first, INF_BITS, tl.where(magnitude > first, NAN_BITS, bits))
    return from_bits(bits | ((code >> (BITS - 1)) << 31))


@triton.jit
def decode_integer(code, KIND: tl.constexpr, BITS: tl.constexpr, STEP: tl.constexpr):
    """Values (float32) of integer codes (int32)."""
    if KIND == SIGNED:
        code = (code << (32 - BITS)) >> (32 - BITS)
    return code.to(tl.float32) * STEP


@triton.jit
def decode_element(
    code,
    KIND: tl.constexpr,
    EMIN: tl.constexpr,
    MANTISSA: tl.constexpr,
    BITS: tl.constexpr,
    SPECIALS: tl.constexpr,
    STEP: tl.constexpr,
):
    """Values (float32) of codes (int32) of any element."""
    if KIND == FLOAT:
        return decode_float(code, EMIN, MANTISSA, BITS, SPECIALS)
    else:
        return decode_integer(code, KIND, BITS, STEP)
