"""From what a block holds to the scale it shares, and back from the stored scale to a float32.

Sources: OCP MX v1.0, sections 5.3 (E8M0) and 6.3 (the scale); NVIDIA's NVFP4; KIVI (arXiv 2402.02750).
"""

import triton
import triton.language as tl

from .codec import (
    NAN_BITS,
    NAN_ONLY,
    decode_float,
    encode_float,
    float_bits,
    from_bits,
    power_of_two,
)

E8M0, E4M3, FLOAT16_ZERO, FLOAT32 = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2), tl.constexpr(3)
"""What a scale is stored as: MX, NVFP4, aintN, and the single-scale schemes."""

FLOOR, EVEN, RCEIL, CEIL = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2), tl.constexpr(3)
"""How an E8M0 exponent follows from a block's amax."""

FLOAT16_MAX = tl.constexpr(65504.0)
FLOAT16_NAN = tl.constexpr(0x7E00)


@triton.jit
def ceil_log2(bits):
    """⌈log2 x⌉ of non-negative float32 given by its bits; anything up to 2^-127 gives -127."""
    field, mantissa = bits >> 23, bits & 0x7FFFFF
    least = tl.where(field > 0, 0, 1 << 22)
    return field - 127 + (mantissa > least).to(tl.int32)


@triton.jit
def e8m0_exponent(
    amax_bits, RULE: tl.constexpr, EMAX: tl.constexpr, MANTISSA: tl.constexpr, MAX: tl.constexpr
):
    """Shared exponent (int32 in [-127, 127]) of a block's amax, given by its float32 bits."""
    if RULE == RCEIL:
        exponent = ceil_log2(float_bits(tl.math.div_rn(from_bits(amax_bits), MAX)))
    elif RULE == CEIL:
        exponent = ceil_log2(amax_bits) - EMAX
    elif RULE == EVEN:
        # A subnormal amax has its leading one at bit 22, one place lower than its exponent field says.
        half = tl.where(amax_bits < 1 << 23, (1 << (22 - MANTISSA)) >> 1, 1 << (22 - MANTISSA))
        exponent = ((amax_bits + half) >> 23) - 127 - EMAX
    else:
        exponent = (amax_bits >> 23) - 127 - EMAX
    return tl.minimum(tl.maximum(exponent, -127), 127)


@triton.jit
def e4m3_value(byte):
    """Values of E4M3 scale bytes (int32)."""
    return decode_float(byte, -6, 3, 8, NAN_ONLY)


@triton.jit
def e4m3_byte(amax_bits, g, MAX: tl.constexpr):
    """NVFP4's scale byte (int32): E4M3((amax / MAX) / g)."""
    return encode_float(tl.math.div_rn(tl.math.div_rn(from_bits(amax_bits), MAX), g), -6, 3, 8, 448.0, 0x7F)


@triton.jit
def zero_point(low, high, MAX: tl.constexpr):
    """aintN's float16 scale and zero of a block that spans low to high (low > high: nothing finite)."""
    empty = low > high
    low, high = tl.where(empty, 0.0, low), tl.where(empty, 0.0, high)
    zero = tl.minimum(tl.maximum(low, -FLOAT16_MAX), FLOAT16_MAX).to(tl.float16)
    scale = tl.minimum(tl.math.div_rn(high - low, MAX), FLOAT16_MAX).to(tl.float16)
    return tl.where(scale == 0, tl.full([], 1.0, tl.float16), scale), zero


@triton.jit
def stored_scale(raw, SCALE: tl.constexpr):
    """Stored scales as float32, NaN where their block is broken."""
    if SCALE == E8M0:
        byte = raw.to(tl.int32)
        return from_bits(tl.where(byte == 255, NAN_BITS, float_bits(power_of_two(byte - 127))))
    elif SCALE == E4M3:
        return e4m3_value(raw.to(tl.int32))
    else:
        return raw.to(tl.float32)
