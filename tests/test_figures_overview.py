"""The whole cache, one head and the ways to cut it, drawn: cells, targets, rings and words by hand."""

from __future__ import annotations

import numpy as np
import oracle
import pytest
from made_capture import HEADS, LAYERS, TOKENS, made_capture

from mxviz import _pictures_head, _pictures_overview
from mxviz.figures import THEMES, alt_text
from mxviz.figures._targets import MAX_TARGETS, block_targets
from mxviz.figures.cuts import Cut, cut_bars
from mxviz.figures.head import Blocks, Loss, head_maps
from mxviz.figures.overview import MEASURES, overview_map, said


def trace(fig, name, panel=0):
    return [t for t in fig.data if t.name == name][panel]


def title(fig):
    return fig.layout.title.text.replace("<br>", " ").replace("&#37;", "%").replace("\xa0", " ")


TABLES = {"key": [[1.0, 10.0], [100.0, np.nan], [np.inf, 0.1]], "value": np.ones((3, 2))}


def test_cells_lie_with_layers_to_the_right_and_heads_down() -> None:
    fig = overview_map(TABLES, [0, 4, 7], "ratio", title="t")
    heat = trace(fig, "overview 0")
    np.testing.assert_allclose(heat.z, [[0, 2, np.nan], [1, np.nan, -1]])
    np.testing.assert_array_equal(heat.x, [-0.5, 0.5, 1.5, 2.5])
    np.testing.assert_array_equal(trace(fig, "overview 1").z, np.zeros((2, 3)))
    assert [a.text for a in fig.layout.annotations if a.name == "token"] == ["0", "4", "7"]
    assert [a.text for a in fig.layout.annotations if a.name == "axis"] == ["layer"]
    assert fig.layout.yaxis.title.text == fig.layout.yaxis2.title.text == "KV head"
    assert {t.name for t in fig.data} >= {"stored exactly", "no number"}
    assert (fig.layout.coloraxis.cmin, fig.layout.coloraxis.cmax) == (-1, 2)
    assert "100 times" in alt_text(fig) and "<" not in alt_text(fig)


def test_every_cell_can_be_clicked_and_says_its_number() -> None:
    fig = overview_map(TABLES, [0, 4, 7], "ratio", title="t")
    cells = trace(fig, "cells")
    place = list(cells.customdata).index(next(d for d in cells.customdata if list(d[:3]) == ["key", 4, 0]))
    assert (cells.x[place], cells.y[place]) == (1, 0) and cells.customdata[place][3] == "100 times"
    assert cells.marker.opacity == 0 and cells.unselected.marker.opacity == 0
    assert len(cells.x) == 6 and fig.layout.clickmode == "event+select"
    assert trace(fig, "cells", 1).xaxis == "x2" and trace(fig, "cells", 1).customdata[0][0] == "value"


def test_a_ring_marks_the_open_head() -> None:
    fig = overview_map(TABLES, [0, 4, 7], "ratio", title="t", opened=("value", 7, 1))
    rings = [t for t in fig.data if t.name == "the open head"]
    assert [r.line.color for r in rings] == [THEMES["light"].paper, THEMES["light"].ink]
    assert (min(rings[1].x), max(rings[1].x), min(rings[1].y), max(rings[1].y)) == (1.5, 2.5, 0.5, 1.5)
    assert rings[1].yaxis == "y2"
    gone = overview_map({"key": TABLES["key"]}, [0, 4, 7], "ratio", title="t", opened=("value", 7, 1))
    assert not [t for t in gone.data if t.name == "the open head"]


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize("heads", [1, 8, 40])
def test_every_measure_draws_at_every_size(measure, heads) -> None:
    table = np.linspace(0.01, 0.9, 3 * heads).reshape(3, heads)
    for width in (358, 1056):
        fig = overview_map({"key": table}, [0, 1, 2], measure, title="t", width=width, theme="dark")
        assert len(fig.layout.coloraxis.colorbar.ticktext) >= 1 and len(fig.to_json()) < 200_000


def test_numbers_in_words() -> None:
    assert said(127.3, "times") == "127 times" and said(0.952, "share") == "95.2 %"
    assert said(-3.21, "db") == "−3.2 dB" and said(np.inf, "db") == "exact" and said(np.nan, "share") == "n/a"
    assert said(-1.0, "exponent") == "2<sup>−1.0</sup> = 0.5"


def test_tables_that_do_not_fit_are_refused() -> None:
    for tables, layers, measure, words in (
        ({"key": np.ones((3, 2))}, [0, 1], "ratio", "expected \\[2 layers, kv_heads\\]"),
        ({"keys": np.ones((1, 2))}, [0], "ratio", "tables of keys"),
        ({"key": np.ones((1, 2))}, [0], "loudness", "unknown measure 'loudness'"),
    ):
        with pytest.raises(ValueError, match=words):
            overview_map(tables, layers, measure, title="t")


def test_the_overview_names_the_worst_head() -> None:
    capture = made_capture()
    x = np.abs(capture.keys[1].numpy())
    fig = _pictures_overview.overview(capture, opened=("key", 1, 1))
    ratio = float(x[1].max() / np.median(x))
    assert (
        title(fig) == f"Layer 1, KV head 1 holds the loudest key channel: {said(ratio, 'times')} the median"
    )
    np.testing.assert_allclose(trace(fig, "overview 0").z[1, 1], np.log10(ratio), rtol=1e-2)
    fig = _pictures_overview.overview(capture, "single_flushed")
    flushed = oracle.quantize(capture.keys[1].numpy(), "fp4@tensor").flushed
    np.testing.assert_allclose(trace(fig, "overview 0").z[:, 1], flushed.mean((1, 2)), rtol=1e-6)
    assert "under one scale" in title(fig) and f"{100 * flushed.mean((1, 2)).max():.1f} %" in title(fig)


def test_both_lanes_are_coloured_on_one_scale() -> None:
    ends = [
        (fig.layout.coloraxis.cmin, fig.layout.coloraxis.cmax)
        for fig in (
            _pictures_overview.overview(made_capture(), f"{lane}_sqnr") for lane in ("micro", "single")
        )
    ]
    assert ends[0] == ends[1]


def head_of(x, blocks, **options):
    lane = Loss(np.abs(x) * 0, x, "lane", 0.25)
    return head_maps(x, [f"t{i}" for i in range(len(x))], blocks, lane, lane, title="t", **options)


def test_four_maps_share_their_axes() -> None:
    x = np.random.default_rng(0).normal(size=(40, 64)).astype(np.float32)
    blocks = Blocks(np.full((2, 64), 0.5), "token", 32, stored=np.full((2, 64), 126))
    fig = head_of(x, blocks, marked=[7], opened=((32, 39), (5, 5)), targets=True)
    maps = [t for t in fig.data if t.type == "heatmap"]
    assert len(maps) == 4 and [m.yaxis for m in maps] == ["y", "y2", "y3", "y4"]
    assert all(fig.layout[f"{axis}axis{i}"].matches == axis for i in (2, 3, 4) for axis in "xy")
    np.testing.assert_allclose(maps[0].z, np.log10(np.abs(x.T)), atol=1e-6)
    np.testing.assert_array_equal(maps[1].z, np.full((64, 2), -1))
    np.testing.assert_array_equal(maps[1].x, [-0.5, 31.5, 39.5])
    assert maps[2].coloraxis == maps[3].coloraxis == "coloraxis"
    rings = [t for t in fig.data if t.name == "the open block"]
    assert len(rings) == 8 and sum(bool(t.showlegend) for t in rings) == 1
    assert min(rings[0].x) < 31.5 < 32 and max(rings[0].x) > 39.5 and 3 < min(rings[0].y) < 4.5
    edges = trace(fig, "block edges")
    assert edges.yaxis == "y3" and set(edges.x) - {None} == {31.5}


def test_a_bar_over_every_block_opens_it() -> None:
    x = np.ones((70, 40), np.float32)
    stored = np.arange(140).reshape(70, 2)
    fig = head_of(x, Blocks(np.exp2(stored - 127.0), "channel", 32, stored=stored), targets=True)
    bars = trace(fig, "blocks")
    assert len(bars.x) == 140 and bars.yaxis == "y2" and bars.opacity == 0
    i = [list(d[:2]) for d in bars.customdata].index([69, 32])
    assert (bars.x[i], bars.width[i], bars.base[i], bars.y[i]) == (68.5, 1, 31.5, 8)
    assert bars.customdata[i][2].startswith("tokens 69 · channels 32–39<br>scale 2<sup>12</sup>")
    assert "byte 139" in bars.customdata[i][2]
    assert not [t for t in head_of(x, Blocks(np.ones((1, 1)), "channel", None)).data if t.name == "blocks"]


@pytest.mark.parametrize(
    ("axis", "block", "first", "shape", "window", "count"),
    [
        ("token", 32, 0, (154, 64), (-0.5, 153.5), 320),
        ("token", 32, 4, (154, 64), (-0.5, 153.5), 320),
        ("channel", 32, 0, (154, 64), (40.5, 60.5), 40),
        ("channel", None, 0, (5, 40), (-0.5, 4.5), 10),
        ("token", 32, 9, (5, 40), (-0.5, 4.5), 0),
        ("token", 32, 0, (154, 64), (33.5, 50.5), 64),
    ],
)
def test_targets_cover_the_blocks_in_sight(axis, block, first, shape, window, count) -> None:
    boxes, places = block_targets(axis, block, first, shape, window)
    assert len(boxes) == len(places) == count
    np.testing.assert_array_equal(boxes[:, [0, 2]] + 0.5, places)
    if count:
        area = (boxes[:, 1] - boxes[:, 0]) @ (boxes[:, 3] - boxes[:, 2])
        assert area == (boxes[:, 1].max() - boxes[:, 0].min()) * shape[1], "no gaps and no overlaps"


def test_too_many_blocks_share_targets() -> None:
    boxes, places = block_targets("channel", 16, 0, (8000, 128), (-0.5, 7999.5))
    assert len(boxes) <= MAX_TARGETS
    assert (boxes[:, 0] < places[:, 0]).all() and (places[:, 0] < boxes[:, 1]).all()
    assert (boxes[:, 2] < places[:, 1]).all() and (places[:, 1] < boxes[:, 3]).all()
    assert (boxes[:, 1] - boxes[:, 0]) @ (boxes[:, 3] - boxes[:, 2]) == 8000 * 128


def test_a_long_head_stays_light() -> None:
    x = np.random.default_rng(0).normal(size=(6000, 128)).astype(np.float32)
    x[4321, 77] = 1e4
    fig = head_of(x, Blocks(np.ones((6000, 4)), "channel", 32), targets=True, opened=((9, 9), (0, 31)))
    assert len(fig.to_json()) < 5_000_000 and "too many to draw" in fig.layout.meta["reduced"]
    assert np.nanmax(trace(fig, "|K|").z) == pytest.approx(4)
    near = head_of(x, Blocks(np.ones((6000, 4)), "channel", 32), window=(4200, 4400))
    assert near.layout.xaxis.range == (4199.5, 4400.5)


def test_the_head_of_a_capture_frames_the_open_block() -> None:
    capture = made_capture(recipe="mxfp4:axis=token;sink=4")
    fig = _pictures_head.head(capture, 1, 1, token=40, channel=7, targets=True)
    ring = [t for t in fig.data if t.name == "the open block"][1]
    assert min(ring.x) < 35.5 and max(ring.x) > 67.5 and round((min(ring.y) + max(ring.y)) / 2) == 7
    assert [list(d[:2]) for d in trace(fig, "blocks").customdata][:2] == [[4, 0], [4, 1]]
    assert "channel 7 peaks at" in next(a.text for a in fig.layout.annotations if a.name == "heading")


def test_bars_of_each_way_to_cut() -> None:
    cuts = [
        Cut("FP4, one <scale>", 0.952, "single", True),
        Cut("MXFP4", None, "micro"),
        Cut("x", 0.0, "micro"),
    ]
    for width in (358, 1056):
        fig = cut_bars(cuts, title="t", width=width)
        np.testing.assert_array_equal(fig.data[0].x, [0.952, np.nan, 0])
        assert [a.text for a in fig.layout.annotations if a.name == "share"] == ["95.2 %", "n/a", "0 %"]
        assert fig.data[0].marker.pattern.shape == ("/", "", ""), "not told by colour alone"
        assert list(fig.layout.yaxis.ticktext)[0] == "FP4, one &lt;scale&gt;"
    with pytest.raises(ValueError, match="0 cuts"):
        cut_bars([], title="t")


def test_the_sentence_of_the_cuts() -> None:
    capture = made_capture(recipe="mxfp4")
    x = capture.keys[1].numpy()
    shares = [
        f"{100 * oracle.quantize(x, scheme).flushed.sum() / np.count_nonzero(x):.1f} %".replace(".0 %", " %")
        for scheme in ("mxfp4:axis=token", "mxfp4", "fp4@tensor")
    ]
    fig = _pictures_head.cuts(capture, 1)
    assert title(fig) == (
        f"Cut along tokens, {shares[0]} of layer 1's keys become zero; along channels {shares[1]}, "
        f"under one scale {shares[2]}"
    )
    assert title(_pictures_head.cuts(capture, 1, "key", "none", "none")).startswith(
        "Nothing of layer 1's keys"
    )
    assert "INT4" in title(_pictures_head.cuts(capture, 1, "key", "int4@token", "none"))
    assert (LAYERS, HEADS, TOKENS) == (3, 2, 70)
