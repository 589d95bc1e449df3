"""The tables: limits follow from field widths, and each scheme is what the table of schemes says."""

from __future__ import annotations

import pytest
import torch

from mxviz.formats import ELEMENTS, FLT_MAX, SCHEMES, ElementFormat, Kind, Reach, ScaleFormat, Scheme
from mxviz.quantize import quantize

LIMITS = {  # element: (bits, largest value, smallest positive value, emax, ticks on the ruler)
    "fp8_e4m3": (8, 448.0, 2.0**-9, 8, 253),
    "fp8_e5m2": (8, 57344.0, 2.0**-16, 15, 247),
    "fp6_e2m3": (6, 7.5, 0.125, 2, 63),
    "fp6_e3m2": (6, 28.0, 0.0625, 4, 63),
    "fp4": (4, 6.0, 0.5, 2, 15),
    "int8": (8, 127 / 64, 1 / 64, 0, 255),
    "int4": (4, 1.75, 0.25, 0, 15),
    "uint4": (4, 15.0, 1.0, 0, 16),
    "uint2": (2, 3.0, 1.0, 0, 4),
}


def test_no_element_is_untested() -> None:
    assert set(LIMITS) == set(ELEMENTS)


@pytest.mark.parametrize("name", LIMITS)
def test_limits_follow_from_the_fields(name: str) -> None:
    e = ELEMENTS[name]
    assert (e.bits, e.max_normal, e.min_subnormal, e.emax, len(e.ticks)) == LIMITS[name]
    assert e.ticks == tuple(sorted(e.ticks))
    assert len(e.values) == 1 << e.bits


def test_biases_nan_codes_and_the_end_of_float32() -> None:
    """By OFP8 and OCP MX; integers have no bias, and only 8-bit floats have a NaN."""
    biases = {"fp8_e4m3": 7, "fp8_e5m2": 15, "fp6_e2m3": 1, "fp6_e3m2": 3, "fp4": 1}
    assert {name: e.bias for name, e in ELEMENTS.items() if e.bias} == biases
    assert {name: e.nan_code for name, e in ELEMENTS.items() if e.nan_code is not None} == {
        "fp8_e4m3": 0x7F,
        "fp8_e5m2": 0x7F,
    }
    assert torch.finfo(torch.float32).max == FLT_MAX


def test_a_format_of_ones_own_gets_its_limits_from_its_fields() -> None:
    fp5 = ElementFormat("fp5_e2m2", Kind.FLOAT, 2, 2)
    assert (fp5.bits, fp5.max_normal, fp5.min_subnormal, fp5.emax) == (5, 7.0, 0.25, 2)


BITS = {  # the table of schemes, bits per element
    "mxfp8_e4m3": 8.25,
    "mxfp8_e5m2": 8.25,
    "mxfp6_e2m3": 6.25,
    "mxfp6_e3m2": 6.25,
    "mxfp4": 4.25,
    "mxint8": 8.25,
    "mxint4": 4.25,
    "nvfp4": 4.5,
    "aint4": 5.0,
    "aint2": 3.0,
}


@pytest.mark.parametrize("name", BITS)
@pytest.mark.parametrize("axis", ["channel", "token"])
def test_bits_per_element_by_formula_and_as_stored(name: str, axis: str) -> None:
    scheme = Scheme.parse(f"{name}:axis={axis}")
    assert scheme.bits_per_element() == BITS[name]
    assert quantize(torch.randn(2, 64, 128), scheme).bits_per_element == BITS[name]


def test_a_smaller_block_costs_more() -> None:
    assert Scheme.parse("mxfp4:block=16").bits_per_element() == 4.5
    assert Scheme.parse("mxfp4:block=64").bits_per_element() == 4.125


@pytest.mark.parametrize("element", [e for e in ELEMENTS.values() if e.kind is not Kind.UNSIGNED], ids=str)
def test_single_scale_schemes_cost_the_element_and_their_share_of_one_float32(element: ElementFormat) -> None:
    for reach, shared in {"tensor": 4 * 32 * 64, "head": 32 * 64, "token": 64, "channel": 32}.items():
        scheme = SCHEMES[f"{element.name}@{reach}"]
        stored = quantize(torch.randn(4, 32, 64), scheme)
        assert stored.bits_per_element == element.bits + 32 / shared
        assert stored.nbytes == 4 * 32 * 64 * element.bits // 8 + 4 * (4 * 32 * 64 // shared)
    assert SCHEMES[f"{element.name}@token"].bits_per_element(64) == element.bits + 0.5
    assert SCHEMES[f"{element.name}@tensor"].bits_per_element(64) == element.bits


def test_one_is_for_float_elements_only() -> None:
    ones = {name.partition("@")[0] for name in SCHEMES if name.endswith("@one")}
    assert ones == {e.name for e in ELEMENTS.values() if e.kind is Kind.FLOAT}


def test_every_scheme_of_the_table_is_there_and_no_other() -> None:
    singles = {f"{e}@{r}" for e in LIMITS for r in ("tensor", "head", "token", "channel") if e[:4] != "uint"}
    ones = {f"{e}@one" for e in LIMITS if e.startswith("fp")}
    assert set(SCHEMES) == set(BITS) | singles | ones | {"none"}
    assert len(SCHEMES) == 44


def test_none_stores_nothing() -> None:
    none = SCHEMES["none"]
    assert none.is_none and not none.is_blocked and none.bits_per_element() is None
    assert none.options == ()


def test_which_scales_a_growing_cache_must_freeze() -> None:
    frozen = {s.name for s in SCHEMES.values() if s.is_frozen_while_generating}
    right = {s.name for s in SCHEMES.values() if s.name.endswith(("@tensor", "@head", "@channel"))}
    assert frozen == right | {"nvfp4"}


def test_what_each_scale_is_stored_as() -> None:
    dtypes = {
        ScaleFormat.E8M0: torch.uint8,
        ScaleFormat.E4M3: torch.uint8,
        ScaleFormat.FLOAT16_ZERO: torch.float16,
        ScaleFormat.FLOAT32: torch.float32,
    }
    for scheme in SCHEMES.values():
        if not scheme.is_none:
            blocks = quantize(torch.randn(2, 4, 64), scheme)
            assert blocks.scales.dtype == dtypes[scheme.scale]
            assert (blocks.zeros is not None) == (scheme.scale is ScaleFormat.FLOAT16_ZERO)
            assert (blocks.global_scale is not None) == (scheme.scale is ScaleFormat.E4M3)
            assert scheme.reach is Reach.BLOCK or "@" in scheme.name


CAPTIONS = {
    "mxfp4": "MXFP4, E8M0 scale per 32 channels, rule floor",
    "mxfp6_e2m3:axis=token,scale=even,block=16": "MXFP6 E2M3, E8M0 scale per 16 tokens, rule even",
    "mxint4": "MXINT4, E8M0 scale per 32 channels, rule floor (not in OCP MX; the teaching twin of INT4)",
    "nvfp4": "NVFP4, E4M3 × float32 scale per 16 channels",
    "aint2:axis=token": "AINT2, float16 + zero point scale per 32 tokens",
    "int4@tensor": "INT4, one scale for the layer (float32 scale)",
    "int8@head": "INT8, one scale per head (float32 scale)",
    "fp4@token": "FP4, one scale per token (float32 scale)",
    "fp6_e3m2@channel": "FP6 E3M2, one scale per channel (float32 scale)",
    "fp8_e4m3@one": "FP8 E4M3, scale fixed at 1.0",
    "none": "uncompressed",
}


@pytest.mark.parametrize("text", CAPTIONS)
def test_a_scheme_in_one_phrase(text: str) -> None:
    assert Scheme.parse(text).describe() == CAPTIONS[text]


def test_captions_say_the_rule_and_that_mxint4_is_not_ocps() -> None:
    assert Scheme.parse("mxfp4:axis=token,scale=rceil").describe().endswith("per 32 tokens, rule rceil")
    assert "not in OCP" in SCHEMES["mxint4"].describe()
    assert "1.0" in SCHEMES["fp8_e4m3@one"].describe()
    assert "floor" in SCHEMES["mxfp8_e5m2"].describe()
    assert all("rule" not in s.describe() for s in SCHEMES.values() if s.scale is not ScaleFormat.E8M0)
