"""The race drawn: values against NumPy by hand, a front that is a step, names that never collide."""

from __future__ import annotations

import numpy as np
import pytest
from made_capture import LAYERS, made_capture

from mxviz import _pictures_race as pictures
from mxviz import _pictures_race_table as tables
from mxviz import _pictures_race_words as sayings
from mxviz.figures import alt_text
from mxviz.figures.labels import text_width
from mxviz.figures.race import MEASURES, Entry, Line, race_layers, race_map
from mxviz.formats import Recipe, Scheme
from mxviz.metrics import part_error
from mxviz.race import race_schemes

ENTRIES = [
    Entry("MXFP4", 4.25, 18.0, False, False, "channel", "said"),
    Entry("MXINT4 along tokens", 4.25, 21.0, False, True, "token"),
    Entry("FP4 per tensor", 4.0, 14.0, True, False, None),
    Entry("INT8 <b>$x$", 8.0, 37.0, True, True, None),
    Entry("nothing known", 6.0, np.nan, False, False, "channel"),
]


def drawn(fig) -> dict[str, tuple[float, float, str]]:
    """Name to bits, value and symbol, from what a reader can hover over."""
    return {
        row[0]: (x, y, symbol)
        for trace in fig.data
        if trace.customdata is not None
        for row, x, y, symbol in zip(trace.customdata, trace.x, trace.y, trace.marker.symbol, strict=True)
    }


def named(fig) -> list[str]:
    return [note.text for note in fig.layout.annotations if note.name == "scheme"]


def test_every_scheme_stands_where_its_numbers_say() -> None:
    fig = race_map(ENTRIES, "sqnr", title="t", front=[2, 1, 3])
    marks = drawn(fig)
    assert marks == {
        "MXFP4": (4.25, 18.0, "circle"),
        "MXINT4 along tokens": (4.25, 21.0, "circle-cross-open"),
        "FP4 per tensor": (4.0, 14.0, "square"),
        "INT8 &lt;b&gt;&#36;x&#36;": (8.0, 37.0, "square-cross"),
    }
    colours = {trace.marker.color for trace in fig.data if trace.customdata is not None}
    assert colours == {"#0f766e", "#c2410c"}, "micro-scaled teal, single-scale orange"
    line = next(trace for trace in fig.data if trace.mode == "lines")
    assert (line.x, line.y, line.line.shape) == ((4.0, 4.25, 8.0), (14.0, 21.0, 37.0), "hv")
    assert fig.layout.xaxis.range[0] < 4 and fig.layout.xaxis.range[1] > 8


def test_kl_stands_on_a_log_axis_that_shows_real_values() -> None:
    entries = [
        entry._replace(value=value) for entry, value in zip(ENTRIES, (0.5, 0.01, 2, 0, 1), strict=True)
    ]
    fig = race_map(entries, "kl", title="t", front=[1])
    marks = drawn(fig)
    assert marks["MXFP4"][1] == pytest.approx(np.log10(0.5))
    assert len(marks) == 4, "a KL of exactly 0 has no place on a log axis"
    ticks = dict(zip(fig.layout.yaxis.tickvals, fig.layout.yaxis.ticktext, strict=True))
    assert ticks[0.0] == "1" and ticks[-1.0] == "0.1"
    hover = next(t for t in fig.data if t.customdata is not None)
    assert hover.customdata[0][2] == "0.5" and "nats" in hover.hovertemplate


def test_the_legend_tells_shape_and_fill_without_colour() -> None:
    fig = race_map(ENTRIES, "sqnr", title="t", marked=[0])
    keys = {t.name: t.marker.symbol for t in fig.data if t.showlegend and t.mode == "markers"}
    assert keys == {
        "a scale per block along channels": "circle",
        "a scale per block along tokens": "circle-open",
        "one scale for a tensor, head, token or channel": "square",
        "what this run used": "circle-open",
        "crossed: integers; plain: floats": "circle-cross-open",
    }


@pytest.mark.parametrize("width", [358, 1216])
@pytest.mark.parametrize("measure", ["sqnr", "flushed"])
@pytest.mark.parametrize("part", ["key", "value"])
def test_names_keep_off_each_other_and_off_the_marks(width: int, measure: str, part: str) -> None:
    fig = pictures.race_picture(made_capture(), measure, part, width=width)
    margin, layout = fig.layout.margin, fig.layout
    (x0, x1), (y0, y1) = layout.xaxis.range, layout.yaxis.range
    plot = (layout.width - margin.l - margin.r, layout.height - margin.t - margin.b)
    to = lambda x, y: (  # noqa: E731
        margin.l + (x - x0) / (x1 - x0) * plot[0],
        layout.height - margin.b - (y - y0) / (y1 - y0) * plot[1],
    )
    boxes = []
    for note in (n for n in layout.annotations if n.name == "scheme"):
        x, y = to(note.x, note.y)
        half = text_width(note.text, note.font.size) / 2
        middle = y - note.yshift
        boxes.append((x + note.xshift - half, middle - 7, x + note.xshift + half, middle + 7))
    assert boxes
    points = [to(x, y) for x, y, _ in drawn(fig).values()]
    for i, (left, top, right, bottom) in enumerate(boxes):
        assert left > 0 and right < layout.width and top > margin.t and bottom < layout.height - margin.b
        for other in boxes[i + 1 :]:
            apart = right <= other[0] or other[2] <= left or bottom <= other[1] or other[3] <= top
            assert apart, (named(fig)[i], other)
        assert not any(left < x < right and top < y < bottom for x, y in points), named(fig)[i]


def test_what_cannot_be_drawn_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown measure 'mse'; expected one of: sqnr, flushed, kl"):
        race_map(ENTRIES, "mse", title="t")
    with pytest.raises(ValueError, match="entry 9 does not exist; expected 0 to 4"):
        race_map(ENTRIES, "sqnr", title="t", front=[9])
    with pytest.raises(ValueError, match="none of these schemes was measured"):
        race_map(ENTRIES[4:], "sqnr", title="t")
    with pytest.raises(ValueError, match=r"MXFP4 has shape \(2,\); expected one number for 3 layers"):
        race_layers([Line("MXFP4", [1, 2], False)], [0, 1, 2], title="t")


def test_lines_hold_one_number_a_layer() -> None:
    lines = [Line("MXFP4", [18.0, 17.0, np.nan], False), Line("FP4 <b>", [14.0, 9.0, 12.0], True, "dash")]
    fig = race_layers(lines, [0, 2, 7], title="t")
    assert [trace.name for trace in fig.data] == ["MXFP4", "FP4 &lt;b&gt;"]
    np.testing.assert_array_equal(fig.data[0].y, [18, 17, np.nan])
    assert fig.data[1].x == (0, 2, 7)
    assert (fig.data[0].marker.symbol, fig.data[1].marker.symbol) == ("circle", "square")
    assert "MXFP4 17.0 to 18.0 dB" in alt_text(fig)
    shares = race_layers(lines, [0, 2, 7], "flushed", title="t")
    assert "MXFP4 17.0 to 18.0 % flushed" in alt_text(shares) and shares.layout.yaxis.range == (-4, 104)
    assert "% flushed" in shares.data[0].hovertemplate


# From a capture


@pytest.mark.parametrize("part", ["key", "value"])
def test_the_picture_is_the_captures(part: str) -> None:
    capture = made_capture("nvfp4", "int4@head")
    fig = pictures.race_picture(capture, "sqnr", part)
    marks = drawn(fig)
    assert len(marks) == 53
    for text in ("mxfp4", "nvfp4:axis=token", "int4@head", "fp8_e4m3@one"):
        right = part_error(capture, text, part)["sqnr_db"]
        assert marks[tables.words(Scheme.parse(text))][1] == pytest.approx(right, rel=1e-9)
    rings = next(trace for trace in fig.data if trace.name == "what this run used")
    assert sorted(rings.x) == [4.0, 4.5]
    percents = drawn(pictures.race_picture(capture, "flushed", part))
    right = part_error(capture, "int4@head", part)["flushed"]
    assert percents["INT4 per head"][1] == pytest.approx(100 * right)


def test_kl_is_of_recipes_and_takes_what_was_measured_since() -> None:
    since = {"k=mxfp4:axis=token;v=mxfp4": {"kl_mean": 0.02, "top1_agreement": 0.9}}
    capture = made_capture()
    entries = pictures.effect_entries(capture, since)
    assert list(entries) == ["mxfp4", "fp4@tensor", "k=mxfp4:axis=token;v=mxfp4"]
    kl = float(capture.effect["single"]["kl"].double().mean())
    assert entries["fp4@tensor"].value == pytest.approx(kl) and entries["fp4@tensor"].bits == 4
    mixed = entries["k=mxfp4:axis=token;v=mxfp4"]
    assert (mixed.name, mixed.bits, mixed.along) == ("MXFP4, keys along tokens", 4.25, "token")
    title = pictures.race_picture(capture, "kl", effects=since).layout.title.text
    mxfp4 = entries["mxfp4"].value
    said = f"along channels by {mxfp4:.2g} nats, with keys along tokens by 0.02 nats"
    assert said in title.replace("<br>", " ").replace("\N{NO-BREAK SPACE}", " ")
    assert title.startswith(f"At 4 bits one scale moves the next word by {kl:.2g}")


def test_what_is_flushed_is_told_before_sqnr(monkeypatch: pytest.MonkeyPatch) -> None:
    def say(measure: str, one: tuple, blocks: tuple, layers: list[float]) -> str:
        found = dict(zip((sayings.ONE, *sayings.BLOCKS), (one, *blocks), strict=True))
        rows = [{"scheme": n, "key_flushed": x[0], "key_sqnr_db": x[1]} for n, x in found.items()]
        monkeypatch.setattr(sayings, "rows", lambda capture: rows)
        monkeypatch.setattr(sayings, "layer_values", lambda *a: {sayings.ONE: layers})
        return sayings.loss_sentence(made_capture(), measure, "key").replace("\N{NO-BREAK SPACE}", " ")

    wild = ((0.39, 17.5), ((0.23, 17.5), (0.07, 18.7)), [0.2, 0.95, 0.3])
    told = "one scale flushes 39 % of these keys to zero (95 % in layer 1), a scale per block 7 to 23 %"
    assert say("flushed", *wild) == f"At 4 bits {told}"
    assert say("sqnr", *wild) == f"SQNR hides it: at 4 bits {told}"
    even = ((0.39, 14.0), ((0.20, 17.0), (0.20, 19.3)), [0.4, 0.39, 0.38])
    told = "At 4 bits one scale flushes 39 % of these keys to zero, a scale per block 20 %"
    assert say("sqnr", *even) == f"{told}, 5.3 dB of SQNR above it at best"
    below = ((0.10, 14.0), ((0.20, 12.0), (0.20, 11.0)), [0.4])
    assert say("sqnr", *below).endswith("2.0 dB of SQNR below it at best")
    assert "What every scheme costs" in say("sqnr", (None, None), wild[1], [0.1])
    assert "not measured" in sayings.effect_sentence({})


def test_lines_name_the_layer_that_is_flushed_most() -> None:
    lines = [Line("FP4", [20.0, 95.2], True), Line("MXFP4", [6.0, 5.0], False)]
    said = sayings.lines_sentence(lines, [0, 8], "key", "flushed").replace("\N{NO-BREAK SPACE}", " ")
    assert said == "FP4 flushes 95.2 % of the keys of layer 8 to zero, MXFP4 at most 6.0 % of any layer's"
    assert sayings.lines_sentence([Line("FP4", [np.nan], True)], [0], "key", "sqnr") == (
        "How each layer's keys fare"
    )
    assert sayings.hidden_by_squares(made_capture(), ["mxfp4"], "key") is None


def test_every_scheme_has_a_name_of_its_own() -> None:
    names = [tables.words(scheme) for scheme in race_schemes()]
    assert len(set(names)) == 53
    assert {"MXFP4", "MXFP4 along tokens", "NVFP4", "INT4 per channel", "FP8 E4M3 scale 1.0"} <= set(names)
    assert tables.name_of("k=nvfp4:axis=token;v=nvfp4") == "NVFP4, keys along tokens"
    assert tables.name_of("mxfp4;sink=4") == "mxfp4;sink=4"
    assert tables.name_of("no recipe <b>") == "no recipe <b>"


def test_the_table_has_a_row_a_scheme_and_a_row_a_measured_recipe() -> None:
    capture = made_capture()
    mixed = "k=mxfp4:axis=token;v=nvfp4;sink=4"
    rows = {
        row["scheme"]: row for row in tables.table(capture, {mixed: {"kl_mean": 0.1, "top1_agreement": 0.5}})
    }
    assert len(rows) == 54
    assert rows[mixed]["bits"] == (4.25 + 4.5) / 2 and rows[mixed]["same top token"] == 50
    one_exact = tables.bits_of(capture, Recipe.parse("mxfp4;skip=0"))
    assert one_exact == pytest.approx((16 + (LAYERS - 1) * 4.25) / LAYERS)
    for text, row in ((mixed, rows[mixed]), ("int4@head", rows["int4@head"])):
        for part in ("key", "value"):
            right = part_error(capture, Recipe.parse(text), part)
            assert row[f"SQNR {part}s"] == pytest.approx(right["sqnr_db"], rel=1e-9)
            assert row[f"clipped {part}s"] == pytest.approx(100 * right["clipped"])
    assert rows["mxfp4:axis=token"]["axis"] == "tokens" and rows["int4@head"]["axis"] == "no blocks"
    assert rows["int4@head"]["KL"] is None and rows["mxfp4"]["KL"] > 0


def test_lines_of_a_capture_name_the_least_even() -> None:
    fig = pictures.layers_picture(made_capture(), ["mxfp4", "fp4@tensor"], "key")
    assert [len(trace.y) for trace in fig.data] == [LAYERS, LAYERS]
    assert "in layer" in fig.layout.title.text


def test_the_measures_are_told_apart() -> None:
    assert [MEASURES[name].more for name in ("sqnr", "flushed", "kl")] == [True, False, False]
    assert "16 uncompressed" in race_map(ENTRIES, "sqnr", title="t").layout.xaxis.title.text
