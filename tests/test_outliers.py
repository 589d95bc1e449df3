"""Where the outliers sit, and what one does to those it shares a ruler with."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from made_capture import made_capture

from mxviz._outliers_advice import advice, said
from mxviz._outliers_list import KINDS, find, listed
from mxviz._outliers_profile import head_profile, origin, rope_pairing
from mxviz._outliers_survey import survey
from mxviz._outliers_words import broken_words, harm_words, list_words
from mxviz.outliers import channel_outliers, layer_channel_outliers, median_magnitude, token_outliers
from mxviz.quantize import quantize


def q1(seed: int) -> torch.Tensor:
    x = torch.randn(1, 256, 128, generator=torch.Generator().manual_seed(seed))
    x[..., 7] += 600
    return x


@pytest.mark.parametrize(
    ("scheme", "block", "neighbours_kept", "rmse"),
    [
        ("mxfp4", 32, False, 0.115),
        ("nvfp4", 16, False, 0.095),
        ("mxfp8_e4m3", 32, True, 0.0296),
        ("mxfp8_e5m2", 32, True, 0.054),
    ],
)
def test_q1_what_a_biased_channel_does(scheme: str, block: int, neighbours_kept: bool, rmse: float) -> None:
    for seed in range(3):
        x = q1(seed)
        x_hat = quantize(x, scheme).dequantize()
        neighbours = [c for c in range(block) if c != 7]
        assert bool(x_hat[..., neighbours].any()) is neighbours_kept
        others, kept = x[..., block:].double(), x_hat[..., block:].double()
        relative = float((others - kept).square().sum().sqrt() / others.square().sum().sqrt())
        assert relative == pytest.approx(rmse, rel=0.03)


def test_q1_one_int8_scale_flushes_nearly_everything() -> None:
    for seed in range(3):
        x = q1(seed)
        assert float((quantize(x, "int8@tensor").dequantize() == 0).double().mean()) == pytest.approx(
            0.975, abs=0.004
        )


def test_q1_channel_7_is_named() -> None:
    found = layer_channel_outliers(q1(0), "key", 3)
    assert [(row.layer, row.head, row.channel, row.partner) for row in found] == [(3, 0, 7, 71)]
    assert found[0].amax == pytest.approx(603, abs=2)
    assert found[0].ratio_to_median == pytest.approx(603 / 0.68, rel=0.02)
    assert found[0].share_of_tokens == 1.0


def test_q2_scale_one_clamps_and_counts_it() -> None:
    x = q1(0)
    blocks = quantize(x, "fp8_e4m3@one")
    assert (blocks.dequantize()[..., 7] == 448).all()
    assert blocks.clipped(x) == 256 / x.numel()
    assert blocks.scheme.describe() == "FP8 E4M3, scale fixed at 1.0"


def test_a_gaussian_has_no_outliers() -> None:
    x = torch.randn(8, 2048, 128, generator=torch.Generator().manual_seed(0))
    assert layer_channel_outliers(x, "key", 0) == []
    assert layer_channel_outliers(torch.zeros(2, 4, 8), "key", 0) == []
    assert layer_channel_outliers(torch.full((2, 4, 8), float("nan")), "key", 0) == []


def test_one_large_number_is_a_token_outlier_and_no_channel() -> None:
    capture = made_capture()
    capture.values[2][1, 0, 5] = 9.0
    assert [r for r in channel_outliers(capture, "value") if r.layer == 2] == []
    (found,) = token_outliers(capture, "value")
    assert found[:5] == ("value", 2, 1, 0, 5)
    assert found.amax == 9.0 and found.ratio_to_median == pytest.approx(9 / 0.0675, rel=0.05)
    assert token_outliers(capture, "key") == []  # the outlier channel is named once, not at every token


# All outliers in one pass


def with_keys(x: torch.Tensor, **changes):
    """A capture of one layer whose keys and values are x `[kv_heads, tokens, head_dim]`."""
    tokens = x.shape[1]
    return made_capture(
        keys={0: x},
        values={0: x.clone()},
        token_texts=tuple(f"t{i}" for i in range(tokens + 1)),
        shape={"layers": 1, "kv_heads": x.shape[0], "head_dim": x.shape[2], "value_dim": x.shape[2]},
        **changes,
    )


def gaussian(heads: int = 1, tokens: int = 64, channels: int = 32) -> torch.Tensor:
    return torch.randn(heads, tokens, channels, generator=torch.Generator().manual_seed(3))


def test_a_survey_lists_what_the_single_lists_do():
    capture = made_capture()
    capture.values[2][1, 0, 5] = 9.0
    for part in ("key", "value"):
        found = survey(capture, part)
        assert found.channels == channel_outliers(capture, part)
        assert found.tokens == token_outliers(capture, part)
        assert found.medians == {i: median_magnitude(capture.part(part, i)) for i in capture.layers}
    assert survey(capture, "key") is survey(capture, "key")


def test_a_planted_sink_is_quiet_and_alone():
    x = gaussian(2)
    x[1, 0] *= 0.04
    (found,) = survey(with_keys(x), "value").quiet
    assert found[:4] == ("value", 0, 1, 0)
    lower = lambda a: float(np.sort(a.ravel())[(a.size - 1) // 2])  # noqa: E731
    size = x.abs().numpy()
    assert found.median == pytest.approx(lower(size[1, 0]))
    assert found.share_of_median == pytest.approx(lower(size[1, 0]) / lower(size[1]))


def test_a_lone_spike_is_a_single_value_and_its_ratio_is_over_the_largest_median():
    x = gaussian()
    x[0, :, 9] *= 3  # a channel that is a little larger: its median is the largest of the three
    x[0, 40, 9] = -50.0
    (found,) = survey(with_keys(x), "key").values
    assert found[:6] == ("key", 0, 0, 40, 9, -50.0)
    channel = float(x[0, :, 9].abs().median())
    assert channel > float(x[0, 40].abs().median()) and channel > float(x.abs().median())
    assert found.ratio == pytest.approx(50 / channel)
    assert survey(with_keys(x), "key").channels == []


def test_an_outlier_channel_holds_no_single_values():
    assert survey(with_keys(q1(0)), "key").values == []


def test_not_finite_numbers_are_counted_and_poison_nothing():
    x = gaussian(2)
    clean = survey(with_keys(x.clone()), "key")
    x[0, 3, 4], x[1, 5, 6] = float("nan"), float("inf")
    capture = with_keys(x)
    found = survey(capture, "key")
    assert found.not_finite == {0: 2} and clean.not_finite == {}
    assert found.medians[0] == pytest.approx(clean.medians[0], rel=0.01)
    assert broken_words(capture, "key").startswith("2 keys are NaN or infinite, in layer 0;")
    profile = head_profile(capture, 0, 0, "key")
    assert profile.not_finite == 1
    assert profile.channels.amax[4] == np.abs(np.delete(x[0, :, 4].numpy(), 3)).max()
    assert profile.channels.median[4] == pytest.approx(np.median(np.abs(np.delete(x[0, :, 4].numpy(), 3))))


@pytest.mark.parametrize("value", [0.0, float("nan")])
def test_nothing_to_measure_against_gives_empty_lists_that_say_so(value: float):
    capture = with_keys(torch.full((1, 8, 16), value))
    for kind in KINDS:
        assert listed(capture, "key", kind) == ()
        assert "there is no median" in list_words(capture, "key", kind, "", ())
    assert advice(capture, "key").layers == ()
    profile = head_profile(capture, 0, 0, "key")
    assert (profile.median, profile.marked, profile.apart) == (0.0, [], None)


# One head in profile


def test_a_profile_is_numpys_quantiles():
    x = gaussian(2, 50, 40)
    x[1, :, 7] += 30
    profile = head_profile(with_keys(x), 0, 1, "key")
    size = x[1].abs().numpy()
    np.testing.assert_array_equal(profile.channels.amax, size.max(0))
    np.testing.assert_array_equal(profile.channels.at, size.argmax(0))
    np.testing.assert_allclose(profile.channels.median, np.median(size, 0), rtol=1e-6)
    np.testing.assert_allclose(profile.channels.low, np.quantile(size, 0.05, axis=0), rtol=1e-6)
    np.testing.assert_allclose(profile.channels.high, np.quantile(size, 0.95, axis=0), rtol=1e-6)
    rest = np.delete(size, 7, 1)
    np.testing.assert_array_equal(profile.tokens.amax, rest.max(1))
    np.testing.assert_array_equal(size[np.arange(50), profile.tokens.at], rest.max(1))
    np.testing.assert_allclose(profile.tokens.high, np.quantile(rest, 0.95, axis=1), rtol=1e-6)
    np.testing.assert_array_equal(profile.apart, size[:, 7])
    assert [row.channel for row in profile.marked] == [7]
    assert profile.bias is None


def test_a_wrong_head_is_refused():
    with pytest.raises(ValueError, match="no KV head 2; layer 0 has heads 0 to 1"):
        head_profile(made_capture(), 0, 2, "key")


# Where a channel comes from


def rope(x: torch.Tensor, width: int | None = None, scale: float = 1.0) -> torch.Tensor:
    """x `[heads, tokens, head_dim]` turned by RoPE over its first `width` channels, half-split."""
    width = width or x.shape[-1]
    angles = torch.arange(x.shape[1])[:, None] * 10000.0 ** (-torch.arange(width // 2) / (width // 2))
    cos, sin, (a, b) = angles.cos(), angles.sin(), x[..., :width].chunk(2, -1)
    return torch.cat([scale * (a * cos - b * sin), scale * (b * cos + a * sin), x[..., width:]], -1)


@pytest.mark.parametrize(("width", "scale"), [(32, 1.0), (16, 1.0), (32, 1.2), (8, 1.0)])
def test_the_pairing_is_measured_where_keys_before_rope_are_there(width: int, scale: float):
    before = gaussian(2)
    after = rope(before, width, scale)
    pairing = rope_pairing(with_keys(after, keys_pre_rope={0: before}), 0)
    half = width // 2
    assert pairing.measured
    assert pairing.partner == tuple((c + half) % width if c < width else None for c in range(32))


def test_the_pairing_is_assumed_or_unknown_otherwise():
    before = gaussian()
    interleaved = rope(before[..., torch.arange(32).view(16, 2).T.flatten()])
    assert rope_pairing(with_keys(before), 0) == ((*range(16, 32), *range(16)), False)
    assert rope_pairing(with_keys(gaussian(1, 64, 31)), 0) is None
    other = torch.empty_like(interleaved)
    other[..., torch.arange(32).view(16, 2).T.flatten()] = interleaved
    assert rope_pairing(with_keys(other, keys_pre_rope={0: before}), 0) is None
    unturned = rope_pairing(with_keys(before, keys_pre_rope={0: before.clone()}), 0)
    assert unturned == ((None,) * 32, True)


def test_the_bias_is_compared_with_the_length_of_the_pair_at_the_peak():
    bias = torch.zeros(1, 32)
    bias[0, 5], bias[0, 21] = 30.0, -40.0
    before = 0.1 * gaussian() + bias
    after = rope(before)
    capture = with_keys(after, key_bias={0: bias})
    comes = origin(capture, 0, 0, 5)
    peak = int(after[0, :, 5].abs().argmax())
    length = float(after[0, peak, [5, 21]].norm())
    assert comes.bias == 30.0
    assert comes.reaches == pytest.approx(50 / length)
    assert comes.reaches == pytest.approx(1, abs=0.01)
    assert origin(made_capture(), 1, 1, 7) is None
    row = next(r for r in listed(capture, "key", "channels") if r["channel"] == 5)
    assert (row["partner"], row["bias"], row["token"]) == (21, 30.0, peak)
    assert head_profile(capture, 0, 0, "key").bias[21] == 40.0
    assert head_profile(capture, 0, 0, "value").bias is None


# Finding by name


def test_a_channel_is_found_by_number_and_a_token_by_text():
    capture = made_capture(token_texts=("<s>", " def", "DEF", "7", *(f"t{i}" for i in range(67))))
    for text in ("7", "ch 7", "Channel 7", " ch7 "):
        kind, rows = find(capture, "key", text)
        assert kind == "channels" and len(rows) == 6  # three layers with two heads
        assert [rows[0][name] for name in ("layer", "head", "channel")] == [1, 1, 7]
    kind, rows = find(capture, "key", "def")
    assert kind == "tokens" and [row["token"] for row in rows] == [1, 2]
    assert [row["token"] for row in find(capture, "key", '" def"')[1]] == [1]
    assert [row["token"] for row in find(capture, "key", '"7"')[1]] == [3]
    assert [row["token"] for row in find(capture, "key", "token 40")[1]] == [40]
    for nothing in ("40", "token 70", "no such text", ""):
        assert find(capture, "key", nothing)[1] == ()
    assert list_words(capture, "key", "channels", "ch 40", ()) == (
        "There is no channel 40: these heads have channels 0 to 39."
    )


def test_a_found_token_is_listed_where_it_stands_out_most():
    capture = made_capture()
    capture.keys[2][0, 12, 3] = 20.0
    (row,) = find(capture, "key", "token 12")[1]
    assert (row["layer"], row["head"], row["channel"], row["why"]) == (2, 0, 3, "loud")
    assert row["ratio"] == pytest.approx(20 / median_magnitude(capture.keys[2]))


def test_an_unknown_kind_is_refused():
    with pytest.raises(ValueError, match="unknown kind 'rows'; expected one of: channels, tokens"):
        listed(made_capture(), "key", "rows")


# What exempts them


def test_q1_the_layers_are_warned_about_and_exempted():
    capture = made_capture(
        keys={0: gaussian(1, 64, 40), 1: q1(0)[..., :40].clone()}, values={0: gaussian(), 1: gaussian()}
    )
    found = advice(capture, "key", "mxfp4")
    assert (found.layers, found.harmed, found.limit, found.safe) == ((1,), (1,), 24.0, "")
    assert [way.recipe for way in found.ways] == ["k=mxfp4:axis=token;v=mxfp4", "mxfp4;skip=1"]
    assert harm_words(found, "key").startswith("In layer 1 a channel peaks at more than 24 times the median")
    for way in found.ways:  # what is offered does exempt: the channel harms nobody any more
        assert advice(capture, "key", way.recipe).safe
    x = capture.keys[1]
    lost = lambda scheme: float((quantize(x, scheme).dequantize()[..., :7] == 0).double().mean())  # noqa: E731
    assert lost("mxfp4") == 1.0 and lost("mxfp4:axis=token") < 0.2


@pytest.mark.parametrize(
    ("recipe", "limit", "said"),
    [
        ("mxfp8_e4m3", 448 / 2**-10, "no channel towers that far"),
        ("int8@tensor", 127 / 0.5, ""),
        ("none", None, "stores keys exactly"),
        ("fp8_e4m3@one", None, "the scale is fixed"),
        ("int4@channel", 14, "scales of its own"),
        ("mxfp4;skip=1", 24, "keeps layer 1 exact"),
        ("mxfp4;rotate=1", 24, "rotates head_dim"),
    ],
)
def test_advice_depends_on_the_recipe(recipe: str, limit: float | None, said: str):
    capture = made_capture(
        keys={0: gaussian(1, 64, 40), 1: q1(0)[..., :40].clone()}, values={0: gaussian(), 1: gaussian()}
    )
    found = advice(capture, "key", recipe)
    assert found.limit == limit
    assert said in found.safe and bool(said) == bool(found.safe)


def test_layers_are_said_as_people_list_them():
    assert said((3,)) == "3"
    assert said((1, 2, 8)) == "1, 2 and 8"
    assert said((0, 1, 2, 3, 7, 9, 10)) == "0–3, 7, 9 and 10"
