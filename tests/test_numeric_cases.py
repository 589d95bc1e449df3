"""Cases from public reports and named corner cases, with exact bytes and values."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from mxviz import metrics
from mxviz.formats import FLT_MAX
from mxviz.quantize import MXBlocks, quantize

INF, NAN = float("inf"), float("nan")


def block_of(*values: float, size: int = 32) -> torch.Tensor:
    """One row: the values, then zeros up to a whole block."""
    return torch.tensor([*values] + [0.0] * (size - len(values)))


def first(blocks: MXBlocks, count: int) -> list[float]:
    return blocks.dequantize().flatten()[:count].tolist()


N1 = block_of(957.0, 960.0, 902.4, 832.0, 291.7882, -124.8256)


def test_n1_floor_clips_the_block_maximum() -> None:
    blocks = quantize(N1, "mxfp8_e4m3")
    assert blocks.scales.tolist() == [128]
    assert first(blocks, 3) == [896.0, 896.0, 896.0]
    assert blocks.clipped_mask(N1).tolist() == [True] * 3 + [False] * 29
    assert blocks.clipped(N1) == 3 / 32


def test_n1_rceil_does_not() -> None:
    blocks = quantize(N1, "mxfp8_e4m3:scale=rceil")
    assert blocks.scales.tolist() == [129]
    assert first(blocks, 3) == [960.0, 960.0, 896.0]
    assert blocks.clipped(N1) == 0


@pytest.mark.parametrize(
    ("amax", "rule", "byte", "decoded"),
    [
        (2.7, "floor", 126, 3.0),
        (5.5, "floor", 127, 6.0),
        (1.2, "floor", 125, 1.0),
        (7.5, "floor", 127, 6.0),
        (7.5, "rceil", 128, 8.0),
    ],
)
def test_n1_mxfp4_block_maximum(amax: float, rule: str, byte: int, decoded: float) -> None:
    blocks = quantize(block_of(amax), f"mxfp4:scale={rule}")
    assert blocks.scales.tolist() == [byte]
    assert first(blocks, 1) == [decoded]
    assert rule in blocks.scheme.describe()


@pytest.mark.parametrize(
    ("amax", "floor_even_rceil_ceil"),
    [(5.5, (127, 127, 127, 128)), (6.5, (127, 127, 128, 128)), (7.0, (127, 128, 128, 128))],
)
def test_the_contracts_table_of_scale_rules(amax: float, floor_even_rceil_ceil: tuple[int, ...]) -> None:
    for rule, byte in zip(("floor", "even", "rceil", "ceil"), floor_even_rceil_ceil, strict=True):
        assert quantize(block_of(amax), f"mxfp4:scale={rule}").scales.tolist() == [byte], rule


@pytest.mark.parametrize(
    ("scheme", "amax", "byte"),
    [  # even: half a unit of the last place carries into the next binade, or just does not
        ("mxint8", 1.9921875, 128),
        ("mxint8", float(np.nextafter(np.float32(1.9921875), np.float32(0))), 127),
        ("mxint4", 1.875, 128),
        ("mxint4", float(np.nextafter(np.float32(1.875), np.float32(0))), 127),
        ("mxfp8_e4m3", 480.0, 127),
        ("mxfp8_e4m3", 496.0, 128),
        ("mxfp8_e5m2", 57344.0, 127),
        ("mxfp8_e5m2", 61440.0, 128),
        ("mxfp6_e2m3", 7.75, 128),
        ("mxfp6_e3m2", 30.0, 128),
    ],
)
def test_even_adds_half_a_unit_of_the_elements_last_place(scheme: str, amax: float, byte: int) -> None:
    assert quantize(block_of(amax), f"{scheme}:scale=even").scales.tolist() == [byte]


@pytest.mark.parametrize(("scheme", "half"), [("mxint8", 1 << 16), ("mxint4", 1 << 20)])
def test_even_at_the_end_of_float32s_normal_numbers(scheme: str, half: int) -> None:
    """Half a unit of an element in [2^-127, 2^-126), a subnormal float32, is half as many steps."""
    carries = {(1 << 23) - (half >> 1): 1, (2 << 23) - half: 2}  # bits of amax: byte
    for bits, byte in carries.items():
        for below in (0, 1):
            amax = torch.tensor([bits - below], dtype=torch.int32).view(torch.float32)
            blocks = quantize(amax.expand(1, 32), f"{scheme}:scale=even")
            assert blocks.scales.tolist() == [[byte - below]], (bits, below)


TIES = {0.25: 0.0, 0.75: 1.0, 1.25: 1.0, 1.75: 2.0, 2.5: 2.0, 3.5: 4.0, 5.0: 4.0}


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_n2_ties_go_to_even(sign: float) -> None:
    blocks = quantize(block_of(6.0, *(sign * t for t in TIES)), "mxfp4")
    assert blocks.scales.tolist() == [127]
    decoded = blocks.dequantize()[1 : 1 + len(TIES)]
    assert decoded.tolist() == [sign * v for v in TIES.values()]
    assert torch.signbit(decoded).tolist() == [sign < 0] * len(TIES)  # -0.25 becomes -0


def test_n2_one_ulp_past_a_tie() -> None:
    assert first(quantize(block_of(6.0, 0.25000006, 5.0000005), "mxfp4"), 3) == [6.0, 0.5, 6.0]
    assert first(quantize(block_of(448.0, 4.25), "mxfp8_e4m3"), 2) == [448.0, 4.0]


def test_n3_saturation() -> None:
    x = torch.tensor([448.0, 464.0, 465.0, 1000.0, -1000.0, NAN])
    decoded = quantize(x, "fp8_e4m3@one").dequantize()
    assert decoded[:5].tolist() == [448.0, 448.0, 448.0, 448.0, -448.0]
    assert decoded[5].isnan()
    assert quantize(x, "fp8_e4m3@one").clipped(x) == 4 / 5
    for value in (464.0, 465.0, -1000.0):  # under a shared scale of 1, set by nothing larger than 511
        in_block = first(quantize(block_of(max(-511.0, value)), "mxfp8_e4m3"), 1)
        assert in_block == [math.copysign(448.0, value)]


@pytest.mark.parametrize(
    "scheme", ["mxfp4", "mxfp8_e5m2", "mxint8", "nvfp4", "aint4", "int4@tensor", "fp4@one"]
)
def test_n4_an_all_zero_tensor(scheme: str) -> None:
    x = torch.zeros(2, 8, 64)
    blocks = quantize(x, scheme)
    assert torch.equal(blocks.dequantize(), x)
    if blocks.scales.dtype == torch.uint8:
        assert (blocks.scales == 0).all()
    assert metrics.sqnr_db(x, blocks.dequantize()) is None
    assert blocks.clipped(x) == 0
    assert math.isnan(blocks.flushed(x))  # a share of nothing


@pytest.mark.parametrize("scheme", ["mxfp4", "mxfp8_e4m3", "nvfp4", "aint2", "int8@tensor"])
def test_n4_one_zero_block_in_a_small_tensor(scheme: str) -> None:
    x = torch.linspace(-0.06, 0.06, 128).reshape(2, 64)
    x[1, :32] = 0
    blocks = quantize(x, scheme)
    assert not blocks.dequantize().isnan().any()
    assert (blocks.dequantize()[1, :32] == 0).all()
    assert blocks.scales.dtype != torch.uint8 or not (blocks.scales == 0xFF).any()
    assert metrics.sqnr_db(x, blocks.dequantize()) > 8


def test_n5_nvfp4s_global_scale() -> None:
    assert first(quantize(block_of(5376.0, size=16), "nvfp4"), 2) == [5376.0, 0.0]
    blocks = quantize(torch.tensor([-10.0] + [1.0] * 15), "nvfp4")
    assert blocks.global_scale.item() == np.float32(10) / np.float32(2688)
    assert first(blocks, 1) == [-10.0]
    np.testing.assert_allclose(first(blocks, 16)[1:], 0.8333, atol=5e-5)


def test_n5_blocks_below_the_smallest_scale_are_flushed() -> None:
    x = torch.zeros(3, 16)
    x[:, 0] = torch.tensor([2688.0, 0.005, 0.006])
    blocks = quantize(x, "nvfp4")
    assert blocks.scales.flatten().tolist() == [0x7E, 0, 1]
    assert blocks.dequantize()[:, 0].tolist() == [2688.0, 0.0, 0.005859375]
    assert blocks.flushed_mask(x)[:, 0].tolist() == [False, True, False]
    assert blocks.flushed(x) == 1 / 3
    assert blocks.clipped(x) == 0
    assert not blocks.dequantize().isnan().any()


def test_n5_the_flush_limit() -> None:
    limit = 2688.0 / 458752
    above = float(np.nextafter(np.float32(limit), np.float32(1)))
    for amax, flushed in ((limit, True), (above, False)):
        x = torch.stack([block_of(2688.0, size=16), block_of(amax, size=16)])
        assert bool(quantize(x, "nvfp4").flushed_mask(x)[1, 0]) is flushed


def test_n6_rows_never_share_a_block() -> None:
    x = torch.stack([torch.full((40,), 100.0), torch.full((40,), 0.01)])
    blocks = quantize(x, "mxfp4")
    assert blocks.scales.shape == (2, 2)
    assert torch.equal(blocks.dequantize()[1], torch.full((40,), 0.01171875))


@pytest.mark.parametrize("scheme", ["mxfp4", "mxfp6_e3m2", "nvfp4", "aint4", "int4@tensor", "mxfp8_e4m3"])
def test_n6_33_elements_in_33_out_and_padding_in_no_statistic(scheme: str) -> None:
    x = torch.linspace(5, 6, 33)
    blocks = quantize(x, scheme)
    assert blocks.dequantize().shape == (33,)
    assert blocks.clipped_mask(x).shape == blocks.flushed_mask(x).shape == (33,)
    assert blocks.flushed(x) == 0
    alone = quantize(x[32:], scheme) if blocks.scheme.is_blocked and scheme != "nvfp4" else None
    if alone is not None:
        size = blocks.scheme.block
        assert torch.equal(alone.scales, blocks.scales[33 // size :])
        assert torch.equal(alone.dequantize(), blocks.dequantize()[32:])


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
@pytest.mark.parametrize(
    ("scheme", "byte"),
    [("mxfp4", 255), ("mxint8:axis=token", 255), ("nvfp4:block=32", 0x7F), ("aint4", None)],
)
def test_n8_only_the_block_that_holds_it_is_nan(bad: float, scheme: str, byte: int | None) -> None:
    clean = torch.randn(128, 128)
    x = clean.clone()
    x[10, 70] = bad  # along channels block 2 of row 10, along tokens block 0 of channel 70
    blocks = quantize(x, scheme)
    broken = torch.zeros(128, 128, dtype=torch.bool)
    if "token" in scheme:
        broken[:32, 70] = True
    else:
        broken[10, 64:96] = True
    assert torch.equal(blocks.dequantize().isnan(), broken)
    same = quantize(torch.where(broken, 0.0, clean), scheme)
    assert torch.equal(blocks.dequantize()[~broken], same.dequantize()[~broken])
    if byte is not None:
        assert int((blocks.scales == byte).sum()) == 1
    sums = metrics.error_sums(x, metrics.round_trip(x[None], scheme)._replace(blocks=None))
    assert sums.not_finite == 32
    assert math.isfinite(metrics.error_stats(sums)["sqnr_db"])


def test_n8_one_scale_for_all_breaks_all_it_reaches() -> None:
    x = torch.randn(2, 4, 8)
    x[0, 1, 2] = NAN
    assert quantize(x, "int4@tensor").dequantize().isnan().all()
    assert quantize(x, "int4@head").dequantize().isnan().flatten(1).all(1).tolist() == [True, False]
    assert int(quantize(x, "fp4@token").dequantize().isnan().sum()) == 8
    assert int(quantize(x, "fp4@channel").dequantize().isnan().sum()) == 4
    assert int(quantize(x, "fp8_e5m2@one").dequantize().isnan().sum()) == 1


@pytest.mark.parametrize(
    ("x", "scheme", "byte", "decoded"),
    [
        (1e-38, "mxfp4", 0, 8.816e-39),
        (1e-38, "mxfp8_e4m3", 0, 1.0286e-38),
        (3.4e38, "mxfp4", 252, 2.552e38),
        (3.4e38, "mxfp4:scale=ceil", 253, FLT_MAX),
        (1e-45, "mxfp4", 0, 0.0),
        (-FLT_MAX, "mxfp4:scale=even", 253, -FLT_MAX),
        (FLT_MAX, "mxint8", 254, 1.984375 * 2.0**127),
        (FLT_MAX, "mxint8:scale=ceil", 254, 1.984375 * 2.0**127),
    ],
)
def test_n10_e8m0s_ends(x: float, scheme: str, byte: int, decoded: float) -> None:
    blocks = quantize(block_of(x), scheme)
    assert blocks.scales.tolist() == [byte]
    assert first(blocks, 1)[0] == pytest.approx(decoded, rel=2e-4)
    assert blocks.dequantize().isfinite().all()


def test_n12_exported_bytes() -> None:
    blocks = quantize(block_of(1.0, -6.0), "mxfp4")
    assert blocks.scales.tolist() == [127]
    assert blocks.packed.tolist() == [0xF2] + [0] * 15


FROZEN = {  # scheme: (values, packed bytes, scale byte)
    "mxfp8_e4m3": ([1.0, -448.0, 0.001953125, -0.0], "38 fe 01 80", 127),
    "mxfp8_e5m2": ([1.0, -57344.0, 2.0**-16, -0.0], "3c fb 01 80", 127),
    "mxfp6_e2m3": ([7.5, -0.125, 1.0, -0.0], "5f 88 80", 127),
    "mxfp6_e3m2": ([28.0, -0.0625, 1.0, -0.0], "5f c8 80", 127),
    "mxfp4": ([6.0, -0.5, 1.0, -0.0], "97 82", 127),
    "mxint8": ([1.984375, -1.984375, 0.015625, -1.0], "7f 81 01 c0", 127),
    "mxint4": ([1.75, -1.75, 0.25, -1.0], "97 c1", 127),
}


@pytest.mark.parametrize("scheme", FROZEN)
def test_named_corner_cases_have_these_bytes(scheme: str) -> None:
    values, packed, byte = FROZEN[scheme]
    blocks = quantize(torch.tensor(values), scheme)
    assert blocks.scales.tolist() == [byte]
    assert bytes(blocks.packed.tolist()).hex(" ") == packed
    assert first(blocks, 4) == values


def test_named_corner_cases_of_zero_points() -> None:
    blocks = quantize(torch.tensor([1.0, 2.0, 3.0, 4.0]), "aint2")
    assert (blocks.scales.item(), blocks.zeros.item()) == (1.0, 1.0)
    assert blocks.packed.tolist() == [0b11_10_01_00]
    assert first(blocks, 4) == [1.0, 2.0, 3.0, 4.0]
    blocks = quantize(torch.tensor([-1.0, 6.5, 14.0]), "aint4")
    assert (blocks.scales.item(), blocks.zeros.item()) == (1.0, -1.0)
    assert blocks.packed.tolist() == [0x80, 0x0F]  # 7.5 is a tie and goes to 8
