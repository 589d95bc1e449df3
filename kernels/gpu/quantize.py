"""Quantize rows to packed codes and shared scales, and back. One kernel each, whatever the scheme.

Tensors are seen as rows [outer, middle, rows, n] with any strides; blocks run and codes pack along n.
A program takes ROWS rows and WIDTH elements of each. Single-scale schemes bring their scale along.
"""

import triton
import triton.language as tl

from .codec import (
    ABS_MASK,
    FLOAT,
    FLT_MAX,
    INF_BITS,
    bfloat16_bits,
    decode_element,
    encode_float,
    encode_integer,
    float_bits,
    power_of_two,
    to_float32,
)
from .scales import (
    E4M3,
    E8M0,
    FLOAT16_NAN,
    FLOAT16_ZERO,
    e4m3_byte,
    e4m3_value,
    e8m0_exponent,
    stored_scale,
    zero_point,
)
from .tiles import aligned, load_words, pack_words, spread, unpack_words

_SIZES = ["middles", "rows", "n", "row_bytes"]
_OUTER = [f"{name}_stride_{dim}" for name in ("x", "packed", "scale", "g") for dim in ("o", "m")]


@triton.jit
def tile_of(middles, rows, n, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """Where this program works: outer, middle, first row, first element, all 64-bit."""
    pid = tl.program_id(0).to(tl.int64)
    wide, high = tl.cdiv(n, WIDTH), tl.cdiv(rows, ROWS)
    across, pid = pid % wide, pid // wide
    down, pid = pid % high, pid // high
    return pid // middles, pid % middles, down * ROWS, across * WIDTH


@triton.jit(do_not_specialize=_SIZES + _OUTER)
def quantize_kernel(
    x_ptr,  # float32, float16, or bfloat16 as int16: [outer, middle, rows, n]
    packed_ptr,  # uint8 [outer, middle, rows, row_bytes]
    scale_ptr,  # out: [outer, middle, rows, blocks] uint8 or (float16 as) int16; in, single-scale: float32
    extra_ptr,  # out, FLOAT16_ZERO: zeros like scales; in, single-scale: uint8, 1 where the scale is broken
    g_ptr,  # E4M3: float32, read at [outer, middle, row]
    middles,
    rows,
    n,
    row_bytes,
    x_stride_o,
    x_stride_m,
    x_stride_r,
    x_stride_n,
    packed_stride_o,
    packed_stride_m,
    packed_stride_r,
    packed_stride_n,
    scale_stride_o,
    scale_stride_m,
    scale_stride_r,
    scale_stride_n,
    g_stride_o,
    g_stride_m,
    g_stride_r,
    BFLOAT16: tl.constexpr,
    X_ALIGN: tl.constexpr,  # X_ALIGN and PACKED_ALIGN divide outer strides, the next three a size each:
    PACKED_ALIGN: tl.constexpr,  # 16 lets a thread read and write several elements at once
    ROWS_ALIGN: tl.constexpr,
    N_ALIGN: tl.constexpr,
    BYTES_ALIGN: tl.constexpr,
    KIND: tl.constexpr,
    EMAX: tl.constexpr,
    EMIN: tl.constexpr,
    MANTISSA: tl.constexpr,
    BITS: tl.constexpr,
    MAX: tl.constexpr,
    LOW: tl.constexpr,
    PER_ONE: tl.constexpr,
    NAN_CODE: tl.constexpr,
    SCALE: tl.constexpr,
    RULE: tl.constexpr,
    BLOCK: tl.constexpr,
    COUNT: tl.constexpr,  # codes in the smallest group that fills whole bytes
    BYTES: tl.constexpr,  # bytes of that group
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Read a tile once; write its codes, and its scales unless they were given."""
    BLOCKS: tl.constexpr = WIDTH // BLOCK
    rows, n, row_bytes = aligned(rows, ROWS_ALIGN), aligned(n, N_ALIGN), aligned(row_bytes, BYTES_ALIGN)
    outer, middle, first_row, first = tile_of(middles, rows, n, ROWS, WIDTH)
    row = (first_row + tl.arange(0, ROWS))[:, None]
    col = (first + tl.arange(0, WIDTH))[None, :]
    inside = (row < rows) & (col < n)
    start = tl.multiple_of(outer * x_stride_o + middle * x_stride_m, X_ALIGN)
    x = to_float32(tl.load(x_ptr + start + row * x_stride_r + col * x_stride_n, inside, other=0), BFLOAT16)

    block = (first // BLOCK + tl.arange(0, BLOCKS))[None, :]
    scale_at = (
        outer * scale_stride_o + middle * scale_stride_m + row * scale_stride_r + block * scale_stride_n
    )
    has_block = (row < rows) & (block * BLOCK < n)
    magnitude = tl.reshape(float_bits(x) & ABS_MASK, (ROWS, BLOCKS, BLOCK))
    amax_bits = tl.max(magnitude, axis=2)
    broken = amax_bits >= INF_BITS
    if SCALE == E8M0:
        exponent = e8m0_exponent(amax_bits, RULE, EMAX, MANTISSA, MAX)
        tl.store(scale_ptr + scale_at, tl.where(broken, 255, exponent + 127).to(tl.uint8), has_block)
        # Times 2^-E rounds like a division by 2^E: both are the nearest float32 to the same number.
        scaled = x * spread(power_of_two(-exponent), ROWS, WIDTH, BLOCK)
    else:
        if SCALE == E4M3:
            g = tl.load(
                g_ptr + outer * g_stride_o + middle * g_stride_m + row * g_stride_r, row < rows, other=1.0
            )
            byte = e4m3_byte(amax_bits, g, MAX)
            tl.store(scale_ptr + scale_at, tl.where(broken, 0x7F, byte).to(tl.uint8), has_block)
            divisor, offset = e4m3_value(byte) * g, 0.0
        elif SCALE == FLOAT16_ZERO:
            counted = inside & ((float_bits(x) & ABS_MASK) < INF_BITS)
            low = tl.min(tl.reshape(tl.where(counted, x, float("inf")), (ROWS, BLOCKS, BLOCK)), axis=2)
            high = tl.max(tl.reshape(tl.where(counted, x, float("-inf")), (ROWS, BLOCKS, BLOCK)), axis=2)
            scale, zero = zero_point(low, high, MAX)
            scale_bits = tl.where(broken, FLOAT16_NAN, scale.to(tl.int16, bitcast=True)).to(tl.int16)
            tl.store(scale_ptr + scale_at, scale_bits, has_block)
            tl.store(extra_ptr + scale_at, zero.to(tl.int16, bitcast=True), has_block)
            divisor, offset = scale.to(tl.float32), spread(zero.to(tl.float32), ROWS, WIDTH, BLOCK)
        else:
            divisor, offset = tl.load(scale_ptr + scale_at, has_block, other=1.0), 0.0
            broken = tl.load(extra_ptr + scale_at, has_block, other=0) != 0
        divisor = spread(divisor, ROWS, WIDTH, BLOCK)
        if SCALE == FLOAT16_ZERO:
            scaled = tl.math.div_rn(x - offset, divisor)
        else:
            scaled = tl.where(divisor == 0, x * 0.0, tl.math.div_rn(x, divisor))

    if KIND == FLOAT:
        codes = encode_float(scaled, EMIN, MANTISSA, BITS, MAX, NAN_CODE)
    else:
        codes = encode_integer(scaled, BITS, MAX, LOW, PER_ONE)
    whole = inside & (spread(broken.to(tl.int32), ROWS, WIDTH, BLOCK) == 0)
    words = pack_words(tl.where(whole, codes, 0), ROWS, WIDTH, BITS, COUNT)
    at = (first // COUNT + tl.arange(0, WIDTH // COUNT))[None, :] * BYTES
    packed_ptr += tl.multiple_of(outer * packed_stride_o + middle * packed_stride_m, PACKED_ALIGN)
    for byte in tl.static_range(BYTES):
        inside_row = (row < rows) & (at + byte < row_bytes)
        to = packed_ptr + row * packed_stride_r + (at + byte) * packed_stride_n
        tl.store(to, ((words >> (8 * byte)) & 0xFF).to(tl.uint8), inside_row)


@triton.jit(do_not_specialize=_SIZES + _OUTER)
def dequantize_kernel(
    x_ptr,  # out: float32, float16, or bfloat16 as int16: [outer, middle, rows, n]
    packed_ptr,  # uint8 [outer, middle, rows, row_bytes]
    scale_ptr,  # [outer, middle, rows, blocks]
    zero_ptr,  # FLOAT16_ZERO: float16, like scales
    g_ptr,  # E4M3: float32, read at [outer, middle, row]
    middles,
    rows,
    n,
    row_bytes,
    x_stride_o,
    x_stride_m,
    x_stride_r,
    x_stride_n,
    packed_stride_o,
    packed_stride_m,
    packed_stride_r,
    packed_stride_n,
    scale_stride_o,
    scale_stride_m,
    scale_stride_r,
    scale_stride_n,
    g_stride_o,
    g_stride_m,
    g_stride_r,
    BFLOAT16: tl.constexpr,
    X_ALIGN: tl.constexpr,
    PACKED_ALIGN: tl.constexpr,
    ROWS_ALIGN: tl.constexpr,
    N_ALIGN: tl.constexpr,
    BYTES_ALIGN: tl.constexpr,
    KIND: tl.constexpr,
    EMIN: tl.constexpr,
    MANTISSA: tl.constexpr,
    BITS: tl.constexpr,
    SPECIALS: tl.constexpr,
    STEP: tl.constexpr,
    SCALE: tl.constexpr,
    BLOCK: tl.constexpr,
    COUNT: tl.constexpr,
    BYTES: tl.constexpr,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Write the values that a tile of codes and its scales stand for, held at ±FLT_MAX."""
    rows, n, row_bytes = aligned(rows, ROWS_ALIGN), aligned(n, N_ALIGN), aligned(row_bytes, BYTES_ALIGN)
    outer, middle, first_row, first = tile_of(middles, rows, n, ROWS, WIDTH)
    row = (first_row + tl.arange(0, ROWS))[:, None]
    col = (first + tl.arange(0, WIDTH))[None, :]
    packed_ptr += tl.multiple_of(outer * packed_stride_o + middle * packed_stride_m, PACKED_ALIGN)
    row_ptr = packed_ptr + row * packed_stride_r
    words = load_words(row_ptr, packed_stride_n, first // COUNT, row < rows, row_bytes, WIDTH // COUNT, BYTES)
    codes = unpack_words(words, ROWS, WIDTH, BITS, COUNT)
    value = decode_element(codes, KIND, EMIN, MANTISSA, BITS, SPECIALS, STEP)

    block = (first // BLOCK + tl.arange(0, WIDTH // BLOCK))[None, :]
    scale_at = (
        outer * scale_stride_o + middle * scale_stride_m + row * scale_stride_r + block * scale_stride_n
    )
    has_block = (row < rows) & (block * BLOCK < n)
    scale = stored_scale(tl.load(scale_ptr + scale_at, has_block, other=0), SCALE)
    if SCALE == E4M3:
        scale *= tl.load(
            g_ptr + outer * g_stride_o + middle * g_stride_m + row * g_stride_r, row < rows, other=1.0
        )
    value *= spread(scale, ROWS, WIDTH, BLOCK)
    if SCALE == FLOAT16_ZERO:
        zero = tl.load(zero_ptr + scale_at, has_block, other=0).to(tl.float32)
        value += spread(zero, ROWS, WIDTH, BLOCK)
    value = tl.where(value > FLT_MAX, FLT_MAX, tl.where(value < -FLT_MAX, -FLT_MAX, value))

    x_ptr += tl.multiple_of(outer * x_stride_o + middle * x_stride_m, X_ALIGN)
    to = x_ptr + row * x_stride_r + col * x_stride_n
    if BFLOAT16:
        tl.store(to, bfloat16_bits(value), (row < rows) & (col < n))
    else:
        tl.store(to, value.to(x_ptr.dtype.element_ty), (row < rows) & (col < n))
