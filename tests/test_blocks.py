"""One block under two rulers, against MXBlocks and against the oracle, for every scheme and both axes."""

from __future__ import annotations

import math

import numpy as np
import oracle
import pytest
import torch
from made_capture import HEAD_DIM, TOKENS, made_capture

from mxviz import _pictures_rulers as pictures
from mxviz.analysis import layer_overview, race_schemes
from mxviz.blocks import block_view
from mxviz.cuts import flushed_by_cut, loudness, mean_exponents
from mxviz.formats import SCHEMES, Scheme
from mxviz.quantize import quantize

EVERY = [*map(str, race_schemes()), "mxfp4:scale=rceil,block=16", "nvfp4:axis=token,block=64"]


@pytest.mark.parametrize("recipe", EVERY)
@pytest.mark.parametrize(("token", "channel"), [(40, 7), (TOKENS - 1, HEAD_DIM - 1)])
def test_a_block_says_what_the_bytes_say(recipe: str, token: int, channel: int) -> None:
    capture = made_capture()
    view = block_view(capture, 1, 1, "key", token, channel, recipe, "none")
    whole = quantize(capture.keys[1], recipe)
    at = (1, torch.tensor(view.tokens), torch.tensor(view.channels))
    np.testing.assert_array_equal(view.micro.codes, whole.codes()[at])
    np.testing.assert_array_equal(view.micro.decoded, whole.dequantize()[at])
    np.testing.assert_array_equal(view.micro.scales, whole.divisor().expand(whole.shape)[at])
    np.testing.assert_array_equal(view.micro.clipped, whole.clipped_mask(capture.keys[1])[at])
    np.testing.assert_array_equal(view.micro.flushed, whole.flushed_mask(capture.keys[1])[at])
    np.testing.assert_array_equal(view.x, capture.keys[1][at])
    assert (view.tokens[view.at], view.channels[view.at]) == (token, channel)
    assert np.isin(view.micro.decoded[view.at], view.micro.ticks), "a value lands on a tick"
    np.testing.assert_array_equal(view.single.decoded, view.x)
    assert view.single.exact.all() and view.single.ticks.size == 0 and view.single.shares == 0


@pytest.mark.parametrize("recipe", EVERY)
def test_a_block_is_as_long_as_its_scale_reaches(recipe: str) -> None:
    scheme, view = Scheme.parse(recipe), block_view(made_capture(), 0, 0, "key", 69, 39, recipe)
    size, end = scheme.block, TOKENS if scheme.axis.value == "token" else HEAD_DIM
    assert len(view.x) == (end % size or size)
    if scheme.is_blocked:
        assert view.micro.shares == len(view.x)
        assert len(set(view.micro.scales)) == 1
    else:
        reach = {"tensor": 2 * 70 * 40, "head": 70 * 40, "token": 40, "channel": 70, "one": 2 * 70 * 40}
        assert view.micro.shares == reach[scheme.reach.value]
    assert len(view.micro.ticks) <= len(scheme.element.ticks)


def test_every_tick_of_the_ruler_is_there() -> None:
    view = block_view(made_capture(), 1, 1, "key", 0, 7, "mxfp4", "int4@tensor")
    result = oracle.quantize(made_capture().keys[1].numpy(), "mxfp4")
    byte = int(result.scales[1][0, 0])
    assert view.micro.byte == byte and view.micro.block_scale == 2.0 ** (byte - 127)
    halves = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32) * np.float32(2.0 ** (byte - 127))
    np.testing.assert_array_equal(view.micro.ticks, np.unique(np.concatenate([-halves, halves])))
    amax = np.float32(np.abs(made_capture().keys[1].numpy()).max())
    np.testing.assert_array_equal(
        view.single.ticks, (np.arange(-7, 8) / 4).astype(np.float32) * (amax / np.float32(1.75))
    )
    assert view.single.byte is None and view.single.shares == 2 * 70 * 40


def test_nvfp4_has_two_scales_and_a_zero_point_moves_the_ruler() -> None:
    x = made_capture().keys[1].numpy()
    view = block_view(made_capture(), 1, 1, "key", 3, 20, "nvfp4", "none").micro
    result = oracle.quantize(x, "nvfp4")
    assert view.global_scale == np.float32(result.global_scale.flat[0])
    assert view.block_scale == oracle.decode(result.scales[1][3, 1:2], oracle.ELEMENTS["fp8_e4m3"])[0]
    assert view.scales[0] == np.float32(view.block_scale) * np.float32(view.global_scale)

    view = block_view(made_capture(), 1, 1, "key", 3, 20, "aint4:axis=token", "none")
    low = np.float16(view.x.min())
    assert view.micro.zero == low and view.micro.ticks[0] == low and len(view.micro.ticks) == 16
    assert view.micro.byte is None


def test_sinks_skipped_layers_and_none_are_stored_exactly() -> None:
    capture = made_capture()
    for recipe, token, count in (
        ("mxfp4:axis=token;sink=4", 2, 4),
        ("mxfp4;sink=4", 2, 32),
        ("mxfp4;skip=1", 40, 32),
        ("none", 40, 32),
        ("mxfp4:axis=token;sink=99", 40, 32),
    ):
        view = block_view(capture, 1, 1, "key", token, 3, recipe, "fp4@tensor")
        assert len(view.x) == count and view.micro.exact.all() and not view.single.exact.any()
        np.testing.assert_array_equal(view.micro.decoded, view.x)
        assert "stored exactly" in pictures.sentence(view)
        assert "exact" in pictures.cards(view)[0][1] and set(pictures.table(view)["own: code"]) == {""}
    view = block_view(capture, 1, 1, "key", 5, 3, "mxfp4:axis=token;sink=4")
    assert (view.tokens[0], view.tokens[-1], view.at) == (4, 35, 1)


def test_another_baselines_sinks_lie_inside_the_block() -> None:
    view = block_view(made_capture(), 1, 0, "key", 0, 3, "mxfp4:axis=token", "int4@token;sink=7")
    assert view.single.exact.tolist() == [True] * 7 + [False] * 25
    assert np.isnan(view.single.scales[:7]).all() and len(set(view.single.scales[7:])) == 25
    np.testing.assert_array_equal(view.single.decoded[:7], view.x[:7])
    whole = quantize(made_capture().keys[1][:, 7:], "int4@token").dequantize()
    np.testing.assert_array_equal(view.single.decoded[7:], whole[0, :25, 3])
    assert view.single.ticks.size == 0, "the value looked at has no ruler"


def test_a_rotated_block_shows_what_was_stored() -> None:
    keys = {0: torch.randn(2, 40, 64)}
    capture = made_capture(keys=keys, values={0: torch.randn(2, 40, 64)})
    view = block_view(capture, 0, 1, "key", 9, 33, "mxfp4;rotate=1", "fp4@tensor")
    from mxviz._hadamard import rotate

    turned = rotate(keys[0])
    np.testing.assert_array_equal(view.micro.values, turned[1, 9, 32:64])
    np.testing.assert_array_equal(view.micro.decoded, quantize(turned, "mxfp4").dequantize()[1, 9, 32:64])
    np.testing.assert_array_equal(view.single.values, keys[0][1, 9, 32:64])
    assert view.micro.rotated and not view.single.rotated
    assert "rotated value" in pictures.table(view)


def test_nan_breaks_its_block_and_no_other() -> None:
    capture = made_capture()
    capture.keys[0][0, 3, 5] = math.nan
    broken = block_view(capture, 0, 0, "key", 3, 0, "mxfp4", "fp4@head")
    assert np.isnan(broken.micro.decoded).all() and broken.micro.ticks.size == 0 and broken.micro.byte == 255
    assert pictures.is_broken(broken.micro) and pictures.sentence(broken).startswith("NaN or infinity among")
    assert pictures.rulers(capture, 0, 0, "key", 3, 0, "mxfp4").data
    assert np.isfinite(block_view(capture, 0, 0, "key", 3, 33, "mxfp4").micro.decoded).all()
    assert np.isfinite(block_view(capture, 0, 0, "key", 4, 0, "mxfp4").micro.decoded).all()


def test_a_tail_of_one_is_a_block() -> None:
    keys = {0: torch.randn(1, 33, 40)}
    capture = made_capture(keys=keys, values={0: torch.randn(1, 33, 40)})
    view = block_view(capture, 0, 0, "key", 32, 2, "mxfp4:axis=token")
    assert len(view.x) == 1 and view.at == 0 and view.axis == "token" and view.micro.shares == 1
    assert "this one key" in pictures.sentence(view) and "keys" not in pictures.sentence(view)
    assert pictures.rulers(capture, 0, 0, "key", 32, 2, "mxfp4:axis=token").data


def test_what_is_not_there_is_refused() -> None:
    for place, said in (
        ((1, 2, "key", 0, 0), "KV head 2 does not exist in layer 1; expected 0 to 1"),
        ((1, 0, "key", 70, 0), "token 70 does not exist in layer 1; expected 0 to 69"),
        ((1, 0, "value", 0, 24), "channel 24 does not exist in layer 1; expected 0 to 23"),
        ((9, 0, "key", 0, 0), "layer 9 was not recorded"),
        ((1, 0, "keys", 0, 0), "unknown part 'keys'"),
    ):
        with pytest.raises(ValueError, match=said):
            block_view(made_capture(), *place)


def test_the_largest_of_a_layer_is_told() -> None:
    capture = made_capture()
    token = int(capture.keys[1][1, :, 7].abs().argmax())
    assert block_view(capture, 1, 1, "key", token, 0).holds_largest
    assert not block_view(capture, 1, 0, "key", token, 0).holds_largest


def test_the_sentence_counts_what_became_zero() -> None:
    capture = made_capture(recipe="mxfp4:axis=token")
    view = block_view(capture, 1, 1, "key", 40, 8)
    own, one = int(view.micro.flushed.sum()), int(view.single.flushed.sum())
    x, scale = view.x, np.abs(capture.keys[1].numpy()).max() / 6
    assert one == int((np.abs(x) <= scale / 4).sum()) and one > own > 0
    assert (
        pictures.sentence(view)
        == f"{one} of these 32 keys land on zero under one ruler, {own} under their own"
    )
    cards = {title: (micro, single) for title, micro, single, _ in pictures.cards(view)}
    assert cards["Became zero"] == (f"{own} of 32", f"{one} of 32")
    assert cards["Bits per element"] == ("4.25", "4") and cards["Shared by"] == ("32 keys", "5,600 keys")


def test_the_table_holds_bits_and_errors() -> None:
    view = block_view(made_capture(), 1, 1, "key", 3, 7, "mxfp4", "int4@tensor")
    table = pictures.table(view)
    assert len(table["channel"]) == 32 and table["channel"][7] == "channel 7"
    assert all(
        len(code) == 4 and int(code, 2) == c
        for code, c in zip(table["own: code"], view.micro.codes, strict=True)
    )
    x, back = view.x.astype(np.float64), view.micro.decoded
    np.testing.assert_allclose(table["own: error"], 100 * np.abs(x - back) / np.abs(x), rtol=1e-5)
    assert table["own: reads"] == back.tolist()
    both = {"": (False, False), "own": (True, False), "one": (False, True), "both": (True, True)}
    for i, said in enumerate(table["became zero"]):
        assert both[said] == (view.micro.flushed[i], view.single.flushed[i])


def test_each_way_to_cut_is_counted_again_by_hand() -> None:
    capture = made_capture()
    ways = dict(flushed_by_cut(capture, 1, "key", "mxfp4:axis=token", "fp4@tensor"))
    assert list(map(str, ways)) == ["fp4@tensor", "int4@tensor", "mxfp4", "mxfp4:axis=token"]
    for scheme, share in ways.items():
        result = oracle.quantize(capture.keys[1].numpy(), str(scheme))
        assert share == result.flushed.sum() / np.count_nonzero(capture.keys[1])
    assert list(map(str, dict(flushed_by_cut(capture, 1, "key", "none", "none")))) == []
    wide = dict(flushed_by_cut(capture, 1, "key", "mxfp6_e2m3", "fp6_e2m3@head"))
    assert [str(s) for s in wide] == ["fp6_e2m3@head", "mxfp6_e2m3", "mxfp6_e2m3:axis=token"]


def test_mean_exponents_and_loudness_of_every_head() -> None:
    capture = made_capture()
    table = mean_exponents(capture, "key", "mxfp4")
    for layer in capture.layers:
        bytes_ = oracle.quantize(capture.keys[layer].numpy(), "mxfp4").scales.astype(float)
        np.testing.assert_allclose(table[layer], (bytes_ - 127).mean((1, 2)))
    assert np.isnan(mean_exponents(capture, "key", "none")).all()
    capture.keys[0][0] = 0
    assert np.isnan(mean_exponents(capture, "key", "mxfp4")[0, 0]), "blocks of zeros have no length"
    np.testing.assert_array_equal(loudness(capture, "key"), layer_overview(capture, "key").ratio)


def test_every_scheme_has_words() -> None:
    for name in SCHEMES:
        view = block_view(made_capture(), 1, 1, "key", 3, 7, name, "mxfp4:axis=token")
        assert pictures.sentence(view)[-1] != "." and len(pictures.cards(view)) == 6
        assert pictures.value_words(view).startswith("token 3, channel 7:")
