"""Profiles and the surface: what they are drawn from, where labels stand, and what survives reduction."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from made_capture import made_capture

from mxviz._pictures_outliers import channel_picture, surface_picture, token_picture
from mxviz.figures import THEMES, alt_text
from mxviz.figures._profile import lines_of, reduced
from mxviz.figures.profile import channel_profile, token_profile
from mxviz.figures.surface import MAX_CELLS, surface

AMAX = np.array([2.0, 300.0, 3.0, 200.0])
MEDIAN = np.array([1.0, 250.0, 0.0, 150.0])
LOW = np.array([0.1, 100.0, 0.0, 120.0])
HIGH = np.array([1.5, 280.0, 2.5, 190.0])


def channels(**options):
    return channel_profile(AMAX, MEDIAN, LOW, HIGH, **{"title": "t", **options})


def tokens_of(count: int, **options):
    x = np.abs(np.random.default_rng(0).normal(size=(count, 64)))
    four = x.max(1), np.median(x, 1), *np.quantile(x, (0.05, 0.95), axis=1)
    return token_profile(*four, [f"t{i}" for i in range(count)], **{"title": "t", **options})


def traces(fig) -> dict:
    return {trace.name: trace for trace in fig.data}


def notes(fig, name: str) -> list[str]:
    return [note.text for note in fig.layout.annotations if note.name == name]


def steps(trace) -> np.ndarray:
    """The values of a line that is drawn in steps, one a column."""
    assert (np.asarray(trace.y)[::2] == np.asarray(trace.y)[1::2]).all()
    return np.asarray(trace.y)[::2]


# Channels


def test_lines_hold_the_values_on_a_log_axis_with_real_ticks():
    fig = channels()
    drawn, axis = traces(fig), fig.layout.yaxis
    foot = 10 ** axis.range[0]
    np.testing.assert_allclose(steps(drawn["largest |K|"]), AMAX)
    np.testing.assert_allclose(steps(drawn["median"]), np.maximum(MEDIAN, foot))  # zero stands at the foot
    assert axis.type == "log" and axis.range[1] > np.log10(300)
    ticks = dict(zip(axis.ticktext, axis.tickvals, strict=True))
    assert ticks["100"] == pytest.approx(100) and ticks["1"] == pytest.approx(1)
    assert fig.layout.xaxis.range == (-0.5, 3.5)
    np.testing.assert_array_equal(np.unique(drawn["median"].x), [-0.5, 0.5, 1.5, 2.5, 3.5])


def test_the_band_is_one_box_a_channel_from_5_to_95_percent():
    band = next(t for t in channels().data if t.name == "5–95 &#37; of the tokens")
    boxes = np.array([v for v in band.y if v is not None]).reshape(4, 4)
    np.testing.assert_allclose(boxes[[0, 1, 3], 0], LOW[[0, 1, 3]])
    np.testing.assert_allclose(boxes[:, 1], HIGH)
    np.testing.assert_array_equal([v for v in band.x if v is not None][::4], [-0.5, 0.5, 1.5, 2.5])


def test_outliers_are_magenta_labelled_and_their_pair_is_joined():
    fig = channels(marked=[1, 3], partners={1: 3, 3: 1}, reference=1.5)
    points = traces(fig)["outliers"]
    points = next(t for t in fig.data if t.mode == "markers" and t.marker.symbol == "diamond-open")
    assert (list(points.x), list(points.y)) == ([1, 3], [300.0, 200.0])
    assert points.marker.color == THEMES["light"].outlier
    assert notes(fig, "outlier") == ["1 · 300", "3 · 200"]
    assert notes(fig, "partners") == ["RoPE turns 1 and 3 into each other"]
    brackets = [shape for shape in fig.layout.shapes if shape.name == "partners"]
    assert (brackets[0].x0, brackets[0].x1) == (1, 3)
    assert [t for t in fig.layout.xaxis.ticktext if THEMES["light"].outlier in t]
    assert notes(channels(marked=[1], partners={1: 3, 3: 1}), "partners") == []


def test_the_median_of_the_layer_and_ten_times_it_are_lines():
    fig = channels(reference=1.5)
    lines = [shape for shape in fig.layout.shapes if shape.name == "reference"]
    assert [(line.y0, line.y1) for line in lines] == [(1.5, 1.5), (15.0, 15.0)]
    assert notes(fig, "reference") == ["median 1.5", "10 × median"]
    assert not [s for s in channels(reference=None).layout.shapes if s.name == "reference"]


def test_the_bias_is_a_stroke_on_its_channel():
    stroke = traces(channels(bias=[0.5, 290.0, 0.0, 180.0]))["|bias of k_proj|"]
    assert stroke.marker.symbol == "line-ew"
    assert (list(stroke.x), list(stroke.y)) == ([0, 1, 3], [0.5, 290.0, 180.0])
    assert "|bias of k_proj|" not in traces(channels())


def test_a_single_value_is_marked_first():
    fig = channels(marked=[1], spot=(2, 2.9, "token 7 <b> · 2.9"))
    assert notes(fig, "outlier")[0] == "token 7 &lt;b&gt; · 2.9"


def test_labels_stay_inside_and_off_each_other():
    count = 64
    amax = np.ones(count)
    amax[28:36] = np.arange(100, 180, 10)
    amax[63] = 170
    for width in (1056, 358):
        fig = channel_profile(amax, amax, amax, amax, title="t", width=width, marked=[*range(35, 27, -1), 63])
        marks = [note for note in fig.layout.annotations if note.name == "outlier"]
        assert len(marks) >= 3
        plot = width - fig.layout.margin.l - fig.layout.margin.r
        tall = (fig.layout.yaxis.domain[1] - fig.layout.yaxis.domain[0]) * (
            fig.layout.height - fig.layout.margin.t - fig.layout.margin.b
        )
        low, high = fig.layout.yaxis.range
        boxes = []
        for note in marks:
            x = (note.x + 0.5) / count * plot + note.xshift
            y = (high - note.y) / (high - low) * tall - note.yshift
            half = 3.4 * len(note.text)
            boxes.append((x - half, y - 8, x + half, y + 8))
            assert x - half > -8 and x + half < plot + 12 and y > 0
        for i, a in enumerate(boxes):
            for b in boxes[:i]:
                assert a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1]


def test_hovers_and_alt_text_hold_the_numbers():
    fig = channels(marked=[1], partners={1: 3}, bias=[0, 290, 0, 0])
    hover = traces(fig)["hover"].text[1]
    for said in (
        "channel 1",
        "largest |K| 300",
        "median 250",
        "100 to 280",
        "bias of k_proj| 290",
        "partner 3",
    ):
        assert said in hover
    assert "channel 1 peaks at 300 where the bias of k_proj is 290" in alt_text(fig)
    assert fig.layout.hovermode == "x"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"marked": [4]}, r"marked channels \[4\] are not among the 4 channels"),
        ({"spot": (-1, 2.0, "x")}, r"marked channels \[-1\]"),
        ({"bias": [1.0]}, r"bias has shape \(1,\)"),
        ({"theme": "grey"}, "unknown theme 'grey'"),
    ],
)
def test_what_does_not_fit_is_refused(change, said):
    with pytest.raises(ValueError, match=said):
        channels(**change)


def test_arrays_of_other_lengths_are_refused():
    with pytest.raises(ValueError, match=r"median has shape \(3,\); expected \[n\] like amax"):
        channel_profile(AMAX, MEDIAN[:3], LOW, HIGH, title="t")
    with pytest.raises(ValueError, match="amax has 4 tokens and there are 1 token texts"):
        token_profile(AMAX, MEDIAN, LOW, HIGH, ["a"], title="t")


# Tokens


def test_loud_tokens_are_named_above_and_quiet_ones_below():
    fig = token_profile(AMAX, MEDIAN, LOW, HIGH, ["<s>", "a", "b", "$x$"], title="t", loud=[1], quiet=[0])
    points = next(t for t in fig.data if t.mode == "markers" and t.marker.symbol == "diamond-open")
    assert (list(points.x), list(points.y)) == ([1, 0], [300.0, 1.0])
    assert notes(fig, "outlier") == ["1: a", "0: &lt;s&gt;"]
    shifts = [note.yshift for note in fig.layout.annotations if note.name == "outlier"]
    assert shifts[0] >= 0 and shifts[1] <= 0
    assert "token 0, <s>, is quiet: median 1" in alt_text(fig)
    assert "&#36;x&#36;" in notes(fig, "token")


def test_outlier_channels_have_a_line_of_their_own():
    fig = tokens_of(8, apart=np.arange(8) + 100.0, apart_name="channel 7")
    np.testing.assert_array_equal(steps(traces(fig)["channel 7"]), np.arange(8) + 100.0)
    assert fig.layout.yaxis.range[1] > np.log10(107)


def test_many_tokens_are_reduced_and_a_spike_survives():
    count = 66_000
    amax = np.ones(count)
    amax[41_234] = 99.0
    low = np.full(count, 0.5)
    low[7] = 0.25
    fig = token_profile(amax, amax, low, amax, ["t"] * count, title="t")
    drawn = traces(fig)
    columns = steps(drawn["largest |K|"])
    assert len(columns) <= 2048 and columns.max() == 99.0
    assert "the largest, the smallest and the median" in fig.layout.meta["reduced"]
    lines = reduced(lines_of(amax, amax, low, amax), 1000)
    assert (lines.low.min(), lines.amax.max(), len(lines.median)) == (0.25, 99.0, 1000)
    assert len(fig.to_json()) < 5e6
    assert tokens_of(100).layout.meta["reduced"] is None


# The surface


def test_the_surface_is_x_in_height_and_its_logarithm_in_colour():
    x = np.array([[1.0, -10.0, 0.5], [100.0, 0.0, np.nan]], dtype=np.float32)
    fig = surface(x, ["<s>", "b"], title="t", marked=[0])
    land = fig.data[0]
    np.testing.assert_array_equal(land.z, [[1, 100], [10, 0], [0.5, np.nan]])
    np.testing.assert_allclose(land.surfacecolor[:2], [[0, 2], [1, land.cmin]], atol=1e-6)
    assert land.cmax == pytest.approx(2) and np.isnan(land.surfacecolor[2, 1])
    assert (list(land.x), list(land.y)) == ([0, 1], [0, 1, 2])
    ridge = next(note for note in fig.layout.scene.annotations if note.name == "outlier")
    assert (ridge.x, ridge.y, ridge.z, ridge.text) == (1, 0, 100, "ch 0 · 100")
    assert "0: &lt;s&gt;" in [note.text for note in fig.layout.scene.annotations]
    colours = {stop for _, stop in land.colorscale}
    assert colours == set(THEMES["light"].sequential)
    assert "channel 0 at 100" in alt_text(fig)


def test_a_lone_spike_survives_in_at_most_60_000_cells():
    x = np.abs(np.random.default_rng(1).normal(size=(5_001, 128))).astype(np.float32)
    x[3_333, 77] = -500
    fig = surface(x, ["t"] * 5_001, title="t")
    land = fig.data[0]
    assert land.z.size <= MAX_CELLS and land.z.shape[0] == 128
    channel, column = np.unravel_index(int(land.z.argmax()), land.z.shape)
    assert land.z.max() == 500 and channel == 77
    assert abs(land.x[column] - 3_333) <= 6
    assert "too many to draw" in fig.layout.meta["reduced"]
    assert len(fig.to_json()) < 5e6


# From a capture


def test_sentences_say_what_is_there():
    capture = made_capture()
    x = capture.keys[1][1].abs()
    ratio = float(x[:, 7].max() / capture.keys[1].abs().median())
    title = lambda fig: re.sub("<br>", " ", fig.layout.title.text)  # noqa: E731
    assert title(channel_picture(capture)) == f"Channel 7 peaks at {ratio:,.0f} times the layer's median key"
    assert title(channel_picture(capture, layer=0, head=0)).startswith(
        "No channel stands out: the largest key"
    )
    assert title(surface_picture(capture)).startswith("Channel 7 runs through these keys as a ridge")
    assert title(token_picture(capture)).startswith("No token stands out: the largest key beside the outlier")
    capture = made_capture()
    capture.values[2][1, 0, 5] = 9.0
    capture.values[2][0, 4] *= 0.01
    size = capture.values[2].abs()
    loud = 9 / float(size.median())
    single = 9 / float(max(size.median(), size[1, 0].median(), size[1, :, 5].median()))
    spot = channel_picture(capture, layer=2, head=1, part="value", channel=5, token=0)
    assert title(spot).startswith(f"One value stands alone: {single:,.0f} times what")
    assert title(token_picture(capture, layer=2, head=1, part="value")).startswith(
        f"Token 0, t0, peaks at {loud:,.0f} times"
    )
    quiet = token_picture(capture, layer=2, head=0, part="value", token=4)
    assert title(quiet).startswith("Token 4, t4, is nearly silent: its median value is")


def test_a_bias_that_makes_the_channel_is_in_the_sentence():
    keys = 0.1 * torch.randn(1, 70, 8, generator=torch.Generator().manual_seed(0))
    bias = torch.zeros(1, 8)
    bias[0, 3] = 50.0
    capture = made_capture(keys={0: keys + bias}, values={0: keys}, key_bias={0: bias})
    fig = channel_picture(capture)
    assert "the bias of k_proj alone reaches 99" in re.sub("<br>", " ", fig.layout.title.text)
    assert 50.0 in traces(fig)["|bias of k_proj|"].y


@pytest.mark.parametrize("value", [0.0, float("nan"), float("inf")])
@pytest.mark.parametrize("draw", [channel_picture, token_picture, surface_picture])
def test_nothing_to_draw_is_drawn_and_said(draw, value):
    x = torch.full((1, 70, 40), value)
    fig = draw(made_capture(keys={0: x}, values={0: x}), layer=0, head=0)
    assert fig.layout.title.text and alt_text(fig)
    if draw is not surface_picture:
        assert "Not one key" in fig.layout.title.text or "are zero" in fig.layout.title.text


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_every_figure_wears_the_theme_at_both_widths(theme: str, width: int):
    for draw in (channel_picture, token_picture, surface_picture):
        fig = draw(made_capture(), theme=theme, width=width)
        assert fig.layout.paper_bgcolor == THEMES[theme].paper
        assert fig.layout.width == width
