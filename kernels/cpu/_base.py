"""What every kernel builds on: memory by address, bit casts, and a format written as numbers.

Numba widens int32 arithmetic to int64, which halves the vectors. Every integer step is therefore cast back
with `I32`, from which LLVM sees that 32 bits are enough.
"""

from __future__ import annotations

from enum import IntEnum
from functools import partial

import numpy as np
from llvmlite import ir
from numba import carray, njit, types
from numba.core import cgutils
from numba.extending import intrinsic

# error_model: a division by zero is IEEE's, not an exception, or loops would not vectorise. No fastmath: the
# bytes have to equal the reference's.
kernel = partial(njit, nogil=True, cache=True, error_model="numpy")
device = partial(njit, error_model="numpy")

I32 = np.int32
MAGNITUDE = I32(0x7FFFFFFF)
EXPONENT = I32(0x7F800000)
BROKEN = np.float32(-1.0)
"""Divisor of elements whose scale is NaN: their codes are 0. No true divisor is negative."""


class Plan(IntEnum):
    """Where an int64 array holds which number of a scheme. Names are those of `ElementFormat`."""

    KIND = 0
    BITS = 1
    MANTISSA = 2
    EMIN_BITS = 3  # 2**emin as float32 bits
    MAX_BITS = 4  # max_normal as float32 bits
    EMAX = 5
    NONFINITE = 6  # the code of NaN and infinities
    LAST_FINITE = 7  # largest magnitude code that is finite
    INFINITE = 8  # magnitude code of infinity, or -1
    SCALE = 9
    RULE = 10
    BLOCK = 11  # 1 for single-scale schemes
    STEP_BITS = 12  # min_subnormal as float32 bits


class Scale(IntEnum):
    """What a shared scale is; the names of `ScaleFormat`."""

    E8M0 = 0
    E4M3 = 1
    FLOAT32 = 2
    FLOAT16_ZERO = 3


class Rule(IntEnum):
    """How an E8M0 exponent follows from amax; the names of `ScaleRule`."""

    FLOOR = 0
    EVEN = 1
    RCEIL = 2
    CEIL = 3


class Kind(IntEnum):
    """How codes are read; the names of `mxviz.formats.Kind`."""

    FLOAT = 0
    SIGNED = 1
    UNSIGNED = 2


class Width(IntEnum):
    """What floating-point numbers in memory are."""

    FLOAT32 = 0
    BFLOAT16 = 1
    FLOAT16 = 2


@intrinsic
def _pointer(typingctx, address):
    def codegen(context, builder, signature, args):
        return builder.inttoptr(args[0], cgutils.voidptr_t)

    return types.voidptr(address), codegen


@intrinsic
def bits_of(typingctx, number):
    """The bits of a float32 as int32."""

    def codegen(context, builder, signature, args):
        return builder.bitcast(args[0], context.get_value_type(types.int32))

    return types.int32(types.float32), codegen


@intrinsic
def float_of(typingctx, bits):
    """The float32 that 32 bits stand for."""

    def codegen(context, builder, signature, args):
        return builder.bitcast(args[0], context.get_value_type(types.float32))

    return types.float32(types.int32), codegen


@intrinsic
def fetch_add(typingctx, address, amount):
    """Add to the int64 at an address and return what it was before, as one step for all threads."""

    def codegen(context, builder, signature, args):
        pointer = builder.inttoptr(args[0], ir.IntType(64).as_pointer())
        return builder.atomic_rmw("add", pointer, args[1], "seq_cst")

    return types.int64(types.int64, types.int64), codegen


@intrinsic
def address_of(typingctx, pointer):
    """A pointer of C as a number."""

    def codegen(context, builder, signature, args):
        return builder.ptrtoint(args[0], ir.IntType(64))

    return types.int64(types.voidptr), codegen


_ENDLESS = 1 << 40  # the length numba wants; nothing checks against it


@device
def f32(address):
    return carray(_pointer(address), (_ENDLESS,), np.float32)


@device
def i64(address):
    return carray(_pointer(address), (_ENDLESS,), np.int64)


@device
def i32(address):
    return carray(_pointer(address), (_ENDLESS,), np.int32)


@device
def u16(address):
    return carray(_pointer(address), (_ENDLESS,), np.uint16)


@device
def u8(address):
    return carray(_pointer(address), (_ENDLESS,), np.uint8)


@device
def i8(address):
    return carray(_pointer(address), (_ENDLESS,), np.int8)


@device
def widen(source, width, n, out):
    """Read n bfloat16 or float16 numbers at an address into float32."""
    narrow = u16(source)
    if width == Width.BFLOAT16:
        for i in range(n):
            out[i] = float_of(I32(I32(narrow[i]) << I32(16)))
        return
    for i in range(n):
        out[i] = half_value(I32(narrow[i]))


@device
def half_value(half):
    """float32 of float16 bits (int32), subnormals, infinities and NaNs included."""
    magnitude = I32(half & I32(0x7FFF))
    normal = float_of(I32(I32(magnitude << I32(13)) + I32(112 << 23)))
    subnormal = np.float32(magnitude) * np.float32(2.0**-24)
    value = normal if magnitude >= I32(0x400) else subnormal
    value = float_of(I32(bits_of(normal) + I32(112 << 23))) if magnitude >= I32(0x7C00) else value
    return -value if half >= I32(0x8000) else value


@device
def round_magnitude(magnitude, mantissa, emin_bits, max_bits):
    """Round |x|, given as bits, to a float format: (code without sign, the float32 added and its sum).

    Adding 2**(exponent + 23 - mantissa) leaves the steps, rounded to nearest even, in the sum's low bits. A
    carry out of the mantissa lands in the exponent field, as it does in IEEE encodings.
    """
    capped = min(magnitude, max_bits)
    field = max(I32(capped & EXPONENT), emin_bits)
    shift = I32(mantissa & I32(31))
    magic = I32(field + I32(I32(I32(23) - shift) << I32(23)))
    total = np.float32(float_of(capped) + float_of(magic))
    steps = I32(bits_of(total) - magic)
    code = I32(I32(I32(I32(field - emin_bits) >> I32(23)) << shift) + steps)
    return code, np.float32(total - float_of(magic))


@device
def half_of(x):
    """float16 bits (int32) of a float32 within ±65504, nearest, ties to even."""
    bits = bits_of(x)
    code, _ = round_magnitude(I32(bits & MAGNITUDE), I32(10), I32(113 << 23), I32(0x477FE000))
    return I32(code + I32(0x8000)) if bits < I32(0) else code
