"""Every code of every element, every midpoint and one ulp to each side, against ml_dtypes."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch

from mxviz._codec import encode_float, encode_integer, lookup, pack, unpack
from mxviz._scales import decode_scale
from mxviz.formats import ELEMENTS, SCHEMES, ElementFormat, Kind, Specials

TYPES = {
    "fp8_e4m3": ml_dtypes.float8_e4m3fn,
    "fp8_e5m2": ml_dtypes.float8_e5m2,
    "fp6_e2m3": ml_dtypes.float6_e2m3fn,
    "fp6_e3m2": ml_dtypes.float6_e3m2fn,
    "fp4": ml_dtypes.float4_e2m1fn,
}
INTEGERS = [e for e in ELEMENTS.values() if e.kind is not Kind.FLOAT]


def counted(what: str, number: int) -> None:
    print(f"{what}: {number} values tried, 0 mismatches")


def all_codes(element: ElementFormat) -> torch.Tensor:
    return torch.arange(1 << element.bits, dtype=torch.uint8)


def theirs(x: np.ndarray, name: str) -> np.ndarray:
    """ml_dtypes' codes of float32 x."""
    return x.astype(TYPES[name]).view(np.uint8)


@pytest.mark.parametrize("name", TYPES)
def test_every_code_decodes_to_ml_dtypes_value(name: str) -> None:
    codes = all_codes(ELEMENTS[name])
    right = codes.numpy().view(TYPES[name]).astype(np.float32)
    mine = lookup(ELEMENTS[name], codes).numpy()
    np.testing.assert_array_equal(mine, right)
    finite = ~np.isnan(right)
    np.testing.assert_array_equal(np.signbit(mine[finite]), np.signbit(right[finite]))
    counted(f"{name} decode", len(codes))


@pytest.mark.parametrize("name", TYPES)
def test_every_finite_code_encodes_to_itself(name: str) -> None:
    element, codes = ELEMENTS[name], all_codes(ELEMENTS[name])
    values = lookup(element, codes)
    finite = values.isfinite()
    assert torch.equal(encode_float(values, element)[finite], codes[finite])
    special = {Specials.NONE: 0, Specials.NAN: 2, Specials.IEEE: 8}[element.specials]
    assert int((~finite).sum()) == special
    counted(f"{name} re-encode", int(finite.sum()))


@pytest.mark.parametrize("name", TYPES)
def test_every_midpoint_and_one_ulp_to_each_side_rounds_as_ml_dtypes_does(name: str) -> None:
    element = ELEMENTS[name]
    ticks = np.array(element.ticks, np.float64)
    middles = ((ticks[:-1] + ticks[1:]) / 2).astype(np.float32)
    assert (middles.astype(np.float64) == (ticks[:-1] + ticks[1:]) / 2).all()  # exact in float32
    assert len(ticks) == 2 * sum(v >= 0 for v in ticks) - 1  # both signs are in
    around = [middles, np.nextafter(middles, np.float32(-np.inf)), np.nextafter(middles, np.float32(np.inf))]
    around += [ticks.astype(np.float32) * np.float32(f) for f in (1, 1 - 2**-20, 1 + 2**-20)]
    x = np.concatenate(around)
    x = x[np.abs(x) <= element.max_normal]
    mine = encode_float(torch.from_numpy(x), element).numpy()
    np.testing.assert_array_equal(mine, theirs(x, name))
    counted(f"{name} midpoints", len(x))


@pytest.mark.parametrize("name", TYPES)
def test_a_million_random_bit_patterns_round_as_ml_dtypes_does(name: str) -> None:
    element = ELEMENTS[name]
    g = torch.Generator().manual_seed(1)
    # exponents from far below the smallest subnormal to the largest value
    exponent = torch.randint(
        element.emin - element.mantissa_bits - 4, element.emax + 1, (1 << 20,), generator=g
    )
    x = torch.ldexp(1 + torch.rand(1 << 20, generator=g), exponent) * torch.randn(1 << 20, generator=g).sign()
    x = x[x.abs() <= element.max_normal]
    np.testing.assert_array_equal(encode_float(x, element).numpy(), theirs(x.numpy(), name))
    assert len(x) > 1 << 19
    counted(f"{name} random", len(x))


@pytest.mark.parametrize("name", TYPES)
def test_beyond_the_largest_value_we_saturate_where_ml_dtypes_may_overflow(name: str) -> None:
    """OFP8's saturating conversion; ml_dtypes goes to NaN or infinity from half a step beyond the end."""
    element = ELEMENTS[name]
    top, step = element.max_normal, 2.0 ** (element.emax - element.mantissa_bits)
    just_beyond = np.float32(
        [top + step / 4, top + step / 2, top + step / 2 + step / 64, top + step, 2 * top]
    )
    x = np.concatenate([just_beyond, np.float32([1e10, 3.4e38])])
    code = element.values.index(top)
    sign = 1 << (element.bits - 1)
    assert encode_float(torch.from_numpy(x), element).tolist() == [code] * len(x)
    assert encode_float(torch.from_numpy(-x), element).tolist() == [code + sign] * len(x)
    overflowed = ~np.isfinite(x.astype(TYPES[name]).astype(np.float32))
    assert overflowed.any() == (element.specials is not Specials.NONE)
    np.testing.assert_array_equal(theirs(x, name)[~overflowed], code)


@pytest.mark.parametrize("name", TYPES)
def test_what_is_not_finite(name: str) -> None:
    element = ELEMENTS[name]
    x = torch.tensor([float("nan"), float("inf"), -float("inf")])
    codes = encode_float(x, element).tolist()
    assert codes == [element.nan_code or 0] * 3
    if element.nan_code is not None:
        assert np.isnan(np.uint8([element.nan_code]).view(TYPES[name]).astype(np.float32)).all()


def test_limits_are_ml_dtypes_limits() -> None:
    for name, dtype in TYPES.items():
        info, element = ml_dtypes.finfo(dtype), ELEMENTS[name]
        assert element.max_normal == float(info.max)
        assert element.min_subnormal == float(info.smallest_subnormal)
        assert element.emin == int(info.minexp)
        assert element.emax == int(info.maxexp) - 1
        assert (element.bits, element.mantissa_bits) == (info.bits, info.nmant)


def test_every_e8m0_byte_is_ml_dtypes_scale() -> None:
    stored = torch.arange(256, dtype=torch.uint8)
    right = stored.numpy().view(ml_dtypes.float8_e8m0fnu).astype(np.float32)
    mine = decode_scale(stored, SCHEMES["mxfp4"]).numpy()
    np.testing.assert_array_equal(mine, right)
    assert mine[0] == 2.0**-127 and mine[127] == 1 and mine[254] == 2.0**127 and np.isnan(mine[255])
    counted("E8M0 bytes", 256)


def test_every_e4m3_scale_byte() -> None:
    stored = torch.arange(256, dtype=torch.uint8)
    right = stored.numpy().view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    np.testing.assert_array_equal(decode_scale(stored, SCHEMES["nvfp4"]).numpy(), right)


@pytest.mark.parametrize("element", INTEGERS, ids=lambda e: e.name)
def test_integers_are_plain_arithmetic(element: ElementFormat) -> None:
    step, n = element.min_subnormal, element.bits
    codes = all_codes(element)
    plain = codes.numpy().astype(np.int64)
    if element.kind is Kind.SIGNED:
        plain = np.where(plain >= 1 << (n - 1), plain - (1 << n), plain)
    np.testing.assert_array_equal(lookup(element, codes).numpy(), (plain * step).astype(np.float32))
    produced = plain != (-(1 << (n - 1)) if element.kind is Kind.SIGNED else -1)
    assert torch.equal(encode_integer(lookup(element, codes), element)[produced], codes[produced])

    top = plain.max()
    low = -top if element.kind is Kind.SIGNED else 0
    halves = np.arange(4 * low - 8, 4 * top + 9) / 4 * step  # quarters: ties, both sides, beyond the ends
    x = np.concatenate([halves, np.nextafter(np.float32(halves), np.float32(np.inf))]).astype(np.float32)
    right = np.clip(np.rint(x.astype(np.float64) / step), low, top).astype(np.int64)
    mine = encode_integer(torch.from_numpy(x), element).numpy()
    np.testing.assert_array_equal(mine, (right & ((1 << n) - 1)).astype(np.uint8))
    counted(f"{element.name} rounding", len(x))


@pytest.mark.parametrize("element", [e for e in INTEGERS if e.kind is Kind.SIGNED], ids=lambda e: e.name)
def test_the_most_negative_integer_decodes_and_is_never_produced(element: ElementFormat) -> None:
    lowest = 1 << (element.bits - 1)
    assert element.values[lowest] == -lowest * element.min_subnormal
    x = torch.tensor([-1e30, -lowest * element.min_subnormal, -element.max_normal])
    assert encode_integer(x, element).tolist() == [lowest + 1] * 3


@pytest.mark.parametrize("bits", [2, 4, 6, 8])
def test_packing_is_one_little_endian_bit_stream_a_row(bits: int) -> None:
    for n in range(1, 68):
        codes = torch.randint(0, 1 << bits, (3, n), dtype=torch.uint8)
        packed = pack(codes, bits)
        assert packed.shape == (3, -(-n * bits // 8))
        assert torch.equal(unpack(packed, bits, n), codes)
        for row, written in zip(codes.tolist(), packed.tolist(), strict=True):
            stream = sum(code << (bits * i) for i, code in enumerate(row))
            assert bytes(written) == stream.to_bytes(len(written), "little")
