"""An independent quantizer in NumPy, written from the numeric contract alone; it imports nothing of mxviz.

It works differently on purpose: elements are looked up in a sorted grid with float64 midpoints, exponents
come from frexp, bytes from packbits. Slow, and readable beside the contract.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

F32, F64 = np.float32, np.float64
FLT_MAX = np.finfo(F32).max


class Element(NamedTuple):
    bits: int
    mantissa: int
    emax: int
    grid: np.ndarray  # float64; float elements: magnitudes by code; integers: values ascending from `low`
    is_float: bool
    nan: int | None = None
    low: int = 0


def _float_grid(exponent_bits: int, mantissa_bits: int, top_codes_missing: int) -> np.ndarray:
    bias = 2 ** (exponent_bits - 1) - 1
    steps = 2**mantissa_bits
    values = [m / steps * 2.0 ** (1 - bias) for m in range(steps)]
    for field in range(1, 2**exponent_bits):
        values += [(1 + m / steps) * 2.0 ** (field - bias) for m in range(steps)]
    return np.array(values[: len(values) - top_codes_missing])


ELEMENTS = {
    "fp8_e4m3": Element(8, 3, 8, _float_grid(4, 3, 1), True, 0x7F),
    "fp8_e5m2": Element(8, 2, 15, _float_grid(5, 2, 4), True, 0x7F),
    "fp6_e2m3": Element(6, 3, 2, _float_grid(2, 3, 0), True),
    "fp6_e3m2": Element(6, 2, 4, _float_grid(3, 2, 0), True),
    "fp4": Element(4, 1, 2, _float_grid(2, 1, 0), True),
    "int8": Element(8, 6, 0, np.arange(-127, 128) / 64, False, low=-127),
    "int4": Element(4, 2, 0, np.arange(-7, 8) / 4, False, low=-7),
    "uint4": Element(4, 0, 0, np.arange(16.0), False),
    "uint2": Element(2, 0, 0, np.arange(4.0), False),
}


class Result(NamedTuple):
    packed: np.ndarray
    scales: np.ndarray
    x_hat: np.ndarray
    clipped: np.ndarray
    flushed: np.ndarray
    global_scale: np.ndarray | None = None
    zeros: np.ndarray | None = None


def quantize(x: np.ndarray, text: str) -> Result:
    """Quantize float32 x under a scheme's string, such as `mxfp4:axis=token,scale=rceil`."""
    name, _, tail = text.partition(":")
    options = {"axis": "channel", "scale": "floor", "block": "16" if name == "nvfp4" else "32"}
    options.update(item.split("=") for item in tail.split(",") if item)
    x = np.asarray(x, F32)
    with np.errstate(all="ignore"):
        if "@" in name:
            return _single(x, *name.split("@"))
        return _blocked(x, name, options)


def encode(y: np.ndarray, element: Element) -> np.ndarray:
    """Codes of finite float32 y: nearest, ties to even, saturating."""
    y = y.astype(F64)
    magnitude = np.abs(y) if element.is_float else y
    middles = (element.grid[:-1] + element.grid[1:]) / 2
    index = np.searchsorted(middles, magnitude, side="left")
    odd = (index + element.low) % 2 == 1
    is_tie = magnitude == middles[np.minimum(index, len(middles) - 1)]
    index = index + (is_tie & odd & (index < len(middles)))
    if element.is_float:
        return (index + np.where(np.signbit(y), 1 << (element.bits - 1), 0)).astype(np.uint8)
    return ((index + element.low) % (1 << element.bits)).astype(np.uint8)


def decode(codes: np.ndarray, element: Element) -> np.ndarray:
    """Values of codes, float32; the never-produced most negative integer included."""
    codes = codes.astype(np.int64)
    if not element.is_float:
        half, step = 1 << (element.bits - 1), element.grid[1] - element.grid[0]
        signed = np.where((element.low < 0) & (codes >= half), codes - 2 * half, codes)
        return (signed * step).astype(F32)
    sign, magnitude = codes >> (element.bits - 1), codes % (1 << (element.bits - 1))
    beyond = magnitude >= len(element.grid)
    value = np.where(beyond, np.nan, element.grid[np.where(beyond, 0, magnitude)])
    return np.where(sign == 1, -value, value).astype(F32)


def pack(codes: np.ndarray, bits: int) -> np.ndarray:
    """Codes of the last axis as one little-endian bit stream a row."""
    stream = (codes[..., None] >> np.arange(bits, dtype=np.uint8)) & 1
    return np.packbits(stream.reshape(*codes.shape[:-1], -1), axis=-1, bitorder="little")


def exponent(amax: np.ndarray, element: Element, rule: str) -> np.ndarray:
    """The shared exponent of float32 amax, clamped to [-127, 127]."""
    a = amax.astype(F64)
    if rule == "rceil":
        e = _ceil_log2((amax / F32(element.grid[-1])).astype(F64))
    elif rule == "ceil":
        e = _ceil_log2(a) - element.emax
    else:
        if rule == "even":
            a = a + np.where(a > 0, np.ldexp(1.0, _floor_log2(a) - element.mantissa - 1), 0)
        e = _floor_log2(a) - element.emax
    return np.clip(e, -127, 127)


def _floor_log2(a: np.ndarray) -> np.ndarray:
    return np.where(a > 0, np.frexp(a)[1] - 1, -1000)


def _ceil_log2(a: np.ndarray) -> np.ndarray:
    mantissa, e = np.frexp(a)
    return np.where(a > 0, np.where(mantissa == 0.5, e - 1, e), -1000)


def _finite_amax(x: np.ndarray, axis: int | tuple[int, ...]) -> np.ndarray:
    return np.max(np.where(np.isfinite(x), np.abs(x), 0), axis=axis, keepdims=True, initial=0).astype(F32)


def _blocked(x: np.ndarray, name: str, options: dict[str, str]) -> Result:
    axis = {"channel": -1, "token": -2}[options["axis"]]
    rows, size = np.moveaxis(x, axis, -1), int(options["block"])
    g = _nvfp4_global(x) if name == "nvfp4" else None
    parts = []
    for start in range(0, rows.shape[-1], size):
        block = rows[..., start : start + size]
        broken = ~np.isfinite(block).all(-1, keepdims=True)
        if name == "nvfp4":
            parts.append(_nvfp4_block(block, np.moveaxis(g, axis, -1), broken))
        elif name.startswith("aint"):
            parts.append(_zero_point_block(block, ELEMENTS["u" + name[1:]], broken))
        else:
            parts.append(_mx_block(block, ELEMENTS[_mx_element(name)], options["scale"], broken))
    codes, scales, zeros, x_hat, clipped = (
        None if column[0] is None else np.concatenate(column, -1) for column in zip(*parts, strict=True)
    )
    bits = {"nvfp4": 4, "aint4": 4, "aint2": 2}.get(name) or ELEMENTS[_mx_element(name)].bits

    def back(t: np.ndarray | None) -> np.ndarray | None:
        return None if t is None else np.moveaxis(t, -1, axis)

    x_hat = back(x_hat)
    return Result(
        back(pack(codes, bits)), back(scales), x_hat, back(clipped), (x != 0) & (x_hat == 0), g, back(zeros)
    )


def _mx_element(name: str) -> str:
    return name.removeprefix("mx")


def _held(v: np.ndarray) -> np.ndarray:
    """A decode beyond float32 is held at ±FLT_MAX; NaN stays."""
    return np.clip(v.astype(F64), -FLT_MAX, FLT_MAX).astype(F32)


def _mx_block(block: np.ndarray, element: Element, rule: str, broken: np.ndarray) -> tuple:
    e = exponent(_finite_amax(block, -1), element, rule)
    scale = np.ldexp(F32(1), e).astype(F32)
    codes = np.where(broken, 0, encode(np.where(broken, 0, block) / scale, element)).astype(np.uint8)
    x_hat = _held(np.where(broken, np.nan, decode(codes, element).astype(F64) * scale))
    beyond = np.abs(block.astype(F64)) > element.grid[-1] * scale.astype(F64)
    return codes, np.where(broken, 255, e + 127).astype(np.uint8), None, x_hat, beyond & ~broken


def _nvfp4_global(x: np.ndarray) -> np.ndarray:
    g = _finite_amax(x, tuple(range(-min(3, x.ndim), 0))) / F32(2688)
    return np.where(g == 0, F32(1), g)


def _nvfp4_block(block: np.ndarray, g: np.ndarray, broken: np.ndarray) -> tuple:
    e4m3, fp4 = ELEMENTS["fp8_e4m3"], ELEMENTS["fp4"]
    s = encode((_finite_amax(block, -1) / F32(6)) / g, e4m3)
    sg = decode(s, e4m3) * g
    y = np.where(sg == 0, np.copysign(F32(0), block), np.where(broken, 0, block) / sg)
    codes = np.where(broken, 0, encode(y.astype(F32), fp4)).astype(np.uint8)
    x_hat = _held(np.where(broken, np.nan, decode(codes, fp4).astype(F64) * sg))
    clipped = (np.abs(y) > 6) & ~broken
    return codes, np.where(broken, 0x7F, s).astype(np.uint8), None, x_hat, clipped


def _zero_point_block(block: np.ndarray, element: Element, broken: np.ndarray) -> tuple:
    finite = np.isfinite(block)
    low = np.min(np.where(finite, block, np.inf), -1, keepdims=True)
    high = np.max(np.where(finite, block, -np.inf), -1, keepdims=True)
    none = low > high
    low, high = np.where(none, F32(0), low) + F32(0), np.where(none, F32(0), high)  # a minimum of -0 is 0
    top = F32(element.grid[-1])
    s = np.minimum((high - low) / top, F32(65504)).astype(np.float16)
    s = np.where(s == 0, np.float16(1), s)
    z = np.clip(low, -65504, 65504).astype(np.float16)
    y = (np.where(broken, 0, block) - z.astype(F32)) / s.astype(F32)
    codes = np.where(broken, 0, encode(y, element)).astype(np.uint8)
    x_hat = np.where(broken, np.nan, decode(codes, element) * s.astype(F32) + z.astype(F32)).astype(F32)
    return codes, np.where(broken, np.float16(np.nan), s), z, x_hat, np.zeros(block.shape, bool)


def _single(x: np.ndarray, element_name: str, reach: str) -> Result:
    element = ELEMENTS[element_name]
    wanted = {"head": (-2, -1), "token": (-1,), "channel": (-2,)}.get(reach, (-3, -2, -1))
    axes = tuple(a for a in wanted if a >= -x.ndim) or (-1,)
    amax = _finite_amax(x, axes)
    s = amax / F32(element.grid[-1])
    s = np.ones_like(amax) if reach == "one" else np.where(s == 0, F32(1), s)
    finite = np.isfinite(x)
    broken = ~finite.all(axes, keepdims=True)
    if reach == "one" and element.nan is not None:
        broken = np.zeros_like(broken)  # the element holds its own NaN
    codes = np.where(finite, encode(np.where(finite, x, 0) / s, element), element.nan or 0)
    codes = np.where(broken, 0, codes).astype(np.uint8)
    x_hat = _held(np.where(broken, np.nan, decode(codes, element).astype(F64) * s))
    limit = element.grid[-1] if reach == "one" else amax
    clipped = finite & ~broken & (np.abs(x) > limit)
    scales = np.where(broken, F32(np.nan), s)
    return Result(pack(codes, element.bits), scales, x_hat, clipped, (x != 0) & (x_hat == 0))
