"""Figures against NumPy by hand, literal token text (F1, F2), scales without a colour (F4), the cap (P8)."""

import ast
import base64
import itertools
import json
import re
from pathlib import Path

import numpy as np
import pytest

import mxviz.figures
from mxviz.figures import FIGURES, THEMES, alt_text, error_maps, magnitude_map, scale_map
from mxviz.figures import _cells as cells
from mxviz.figures.labels import balance, escape, hover_label, label, text_width, token_ticks, visible, wrap
from mxviz.figures.theme import rgb

AWKWARD = [
    *(
        "<s>",
        "</s>",
        "<b>",
        "<br>",
        "<|im_start|>",
        "&lt;",
        "<",
        "$$",
        "$x$",
        "%{x}",
        "{0}",
        "\n",
        "\t",
        "\r",
    ),
    *("", " ", "  ", " the", "the", "Ġthe", "▁", "·the", "↵", "🙂", "👩\u200d💻", "שלום", "a\u200db", "ab"),
    *("\x07", "\u202e", "\u00a0", "\ud83d", "\u0301", "⟨empty⟩", "1", "2024", "\u3000", "⋯", "◌\u0301"),
]


def rows(n_tokens, channels=64, seed=0):
    return np.random.default_rng(seed).normal(size=(n_tokens, channels)).astype(np.float32)


def three(tokens, **options):
    """One figure of each family over the same tokens."""
    x = rows(len(tokens))
    error = np.clip(np.abs(x), 0, 1)
    scales = np.exp2(np.round(x[:, :2]))
    return {
        "outliers": magnitude_map(x, tokens, title="t", marked=[3], **options),
        "scales": scale_map(scales, tokens, axis="channel", block=32, title="t", **options),
        "error": error_maps(
            error, error, tokens, flushed_micro=0.061, flushed_single=0.968, title="t", **options
        ),
    }


def notes(fig, name):
    return [a.text for a in fig.layout.annotations if a.name == name]


def unescaped(text):
    return re.sub(r"&#(\d+);|&(lt|gt|amp);", _character, text)


def _character(match):
    return chr(int(match[1])) if match[1] else {"lt": "<", "gt": ">", "amp": "&"}[match[2]]


# Values


def test_magnitude_map_holds_log10_of_x_with_channels_down():
    x = np.array([[1.0, -10.0, 0.1], [100.0, 0.0, -1000.0]])
    fig = magnitude_map(x, ["a", "b"], title="t")
    heat = fig.data[0]
    low = heat.zmin - 1
    np.testing.assert_allclose(heat.z, [[0, 2], [1, low], [-1, 3]], atol=1e-6)
    assert heat.zmax == pytest.approx(3)
    np.testing.assert_array_equal(heat.customdata, x.T.astype(np.float32))
    np.testing.assert_array_equal(heat.x, [-0.5, 0.5, 1.5])
    np.testing.assert_array_equal(heat.y, [-0.5, 0.5, 1.5, 2.5])
    assert fig.layout.yaxis.range == (2.5, -0.5)
    bar = dict(zip(heat.colorbar.tickvals, heat.colorbar.ticktext, strict=True))
    assert bar[2.0] == "100" and bar[0.0] == "1"


def test_marked_channels_are_named_with_their_peak_and_partner():
    x = rows(8)
    x[5, 31], x[2, 63] = -214.7, 114.4
    fig = magnitude_map(x, ["t"] * 8, title="t", marked=[31, 63], partners={31: 63, 63: 31})
    assert notes(fig, "outlier") == [
        "ch 31 · peaks at 214.7<br>RoPE partner of ch 63",
        "ch 63 · peaks at 114.4<br>RoPE partner of ch 31",
    ]
    ticks = dict(zip(fig.layout.yaxis.tickvals, fig.layout.yaxis.ticktext, strict=True))
    assert THEMES["light"].outlier in ticks[31.0]
    assert all(a.x == 7.5 for a in fig.layout.annotations if a.name == "outlier"), "labels stand off the data"


def test_labels_of_neighbouring_channels_make_way():
    fig = magnitude_map(rows(8), ["t"] * 8, title="t", marked=[29, 30, 31, 62, 63])
    marks = [a for a in fig.layout.annotations if a.name == "outlier"]
    top, bottom = (1 - d for d in reversed(fig.layout.yaxis.domain))
    plot = fig.layout.height - fig.layout.margin.t - fig.layout.margin.b
    row = (bottom - top) * plot / 64
    heights = [top * plot + (a.y + 0.5) * row + a.ay for a in marks]
    assert min(np.diff(heights)) >= fig.layout.yaxis.tickfont.size
    assert heights[-1] < bottom * plot + 14


def test_scale_map_along_channels_holds_log2_where_the_blocks_lie():
    scales = np.array([[1.0, 32.0], [0.25, 2.0], [8.0, 4.0]])
    fig = scale_map(scales, ["a", "b", "c"], axis="channel", block=32, title="t", channels=40)
    heat = fig.data[0]
    np.testing.assert_array_equal(heat.z, [[0, -2, 3], [5, 1, 2]])
    np.testing.assert_array_equal(heat.x, [-0.5, 0.5, 1.5, 2.5])
    np.testing.assert_array_equal(heat.y, [-0.5, 31.5, 39.5])
    assert list(fig.layout.yaxis.ticktext) == ["0–31", "32–39"]
    assert heat.customdata[1][0] == "token 0 · channels 32–39<br>scale 2<sup>5</sup> = 32 · byte 132"
    bar = dict(zip(heat.colorbar.tickvals, heat.colorbar.ticktext, strict=True))
    assert bar == {-2: "1/4", -1: "1/2", 0: "1", 1: "2", 2: "4", 3: "8", 4: "16", 5: "32"}
    assert heat.ygap > 0, "block edges show"


def test_scale_map_along_tokens_holds_blocks_after_the_sinks():
    scales = np.exp2(np.arange(6.0)).reshape(2, 3)
    fig = scale_map(scales, [f"t{i}" for i in range(44)], axis="token", block=32, first=4, title="t")
    heat = fig.data[0]
    np.testing.assert_array_equal(heat.z, np.arange(6.0).reshape(2, 3).T)
    np.testing.assert_array_equal(heat.x, [3.5, 35.5, 43.5])
    assert heat.customdata[2][1].startswith("tokens 36–43 · channel 2<br>scale 2<sup>5</sup>")
    assert list(fig.layout.xaxis.ticktext) == ["t4 ⋯ t35", "t36 ⋯ t43"]


@pytest.mark.parametrize(
    ("shape", "x", "y", "heading"),
    [
        ((1, 1), [-0.5, 2.5], [-0.5, 3.5], "The one scale they share"),
        ((3, 1), [-0.5, 0.5, 1.5, 2.5], [-0.5, 3.5], "One scale for every token"),
        ((1, 4), [-0.5, 2.5], [-0.5, 0.5, 1.5, 2.5, 3.5], "One scale for every channel"),
    ],
)
def test_scales_that_are_shared_without_blocks(shape, x, y, heading):
    fig = scale_map(np.full(shape, 0.3), ["a", "b", "c"], axis="channel", block=None, channels=4, title="t")
    np.testing.assert_array_equal(fig.data[0].x, x)
    np.testing.assert_array_equal(fig.data[0].y, y)
    assert notes(fig, "heading") == [heading]
    assert fig.data[0].colorbar.ticktext == ("0.3",)


def test_one_scale_for_all_is_one_cell():
    fig = scale_map([[30.7]], ["a"] * 5, axis="channel", block=None, channels=64, title="t")
    np.testing.assert_array_equal(fig.data[0].x, [-0.5, 4.5])
    np.testing.assert_array_equal(fig.data[0].y, [-0.5, 63.5])
    assert "30.7" in fig.data[0].customdata[0][0] and "byte" not in fig.data[0].customdata[0][0]


def test_error_maps_share_one_colour_axis_and_say_the_loss_in_words():
    micro, single = np.array([[0.0, 0.5]]), np.array([[1.0, np.inf]])
    fig = error_maps(
        micro,
        single,
        ["a"],
        flushed_micro=0.061,
        flushed_single=0.968,
        names=("MXFP4", "FP4"),
        title="t",
        values=[[3.0, 4.0]],
        decoded=([[3.0, 2.0]], [[0.0, 0.0]]),
    )
    assert notes(fig, "heading") == [
        "MXFP4 — flushed to zero: 6.1 &#37; of values",
        "FP4 — flushed to zero: 96.8 &#37; of values",
    ]
    colours = [a.font.color for a in fig.layout.annotations if a.name == "heading"]
    assert colours == [THEMES["light"].micro, THEMES["light"].single]
    assert {t.coloraxis for t in fig.data} == {"coloraxis"}
    assert (fig.layout.coloraxis.cmin, fig.layout.coloraxis.cmax) == (0, 1)
    np.testing.assert_array_equal(fig.data[0].z, [[0], [0.5]])
    np.testing.assert_array_equal(fig.data[1].z, [[1], [10]])
    np.testing.assert_array_equal(fig.data[1].customdata, [[[3, 0]], [[4, 0]]])
    assert (fig.layout.xaxis2.matches, fig.layout.yaxis2.matches) == ("x", "y"), "zoom is linked"
    assert fig.layout.coloraxis.colorbar.ticktext[-1] == "≥ 100 %"


@pytest.mark.parametrize(
    ("axis", "first", "expected"),
    [("token", 0, {31.5, 63.5}), ("token", 4, {3.5, 35.5, 67.5}), ("channel", 0, {31.5})],
)
def test_block_edges_lie_where_the_ruler_changes(axis, first, expected):
    x = rows(70)
    fig = error_maps(
        x, x, ["t"] * 70, flushed_micro=0, flushed_single=0, title="t", axis=axis, block=32, first=first
    )
    lines = next(t for t in fig.data if t.name == "block edges")
    along = lines.x if axis == "token" else lines.y
    assert {v for v in along if v is not None} == expected
    assert lines.yaxis == "y", "only the micro-scaled panel has blocks"


# F1, F2: token text


def test_f1_repeated_tokens_stay_columns_in_order():
    for fig in three(["the", "cat", "the", "the"]).values():
        assert list(fig.layout.xaxis.ticktext) == ["the", "cat", "the", "the"]
        assert list(fig.layout.xaxis.tickvals) == [0, 1, 2, 3]
        assert notes(fig, "token") == ["the", "cat", "the", "the"]
        assert fig.data[0].z.shape[1] == 4


def test_f1_numbers_stay_text():
    for fig in three(["1", "2024"]).values():
        assert list(fig.layout.xaxis.ticktext) == ["1", "2024"]
        assert [a.x for a in fig.layout.annotations if a.name == "token"] == [0, 1]


def test_f2_labels_are_distinct_literal_and_hold_no_markup():
    assert len({label(t) for t in AWKWARD}) == len(AWKWARD)
    shown = [label(t, 40) for t in AWKWARD]
    for token, text in zip(AWKWARD, shown, strict=True):
        assert not set("<>$%") & set(text) and not re.search(r"&(?!#\d+;|lt;|gt;|amp;)", text)
        assert unescaped(text) == visible(token), token
        assert text.strip(), "nothing is invisible"


@pytest.mark.parametrize(
    ("token", "expected"),
    [
        (" the", "·the"),
        ("\n", "↵"),
        ("  ", "··"),
        ("", "⟨empty⟩"),
        ("·", "⟨U+00B7⟩"),
        ("\x07", "⟨U+0007⟩"),
        ("\u202e", "⟨U+202E⟩"),
        ("Ġthe", "Ġthe"),
        ("👩\u200d💻", "👩\u200d💻"),
        ("a\u200db", "a⟨U+200D⟩b"),
    ],
)
def test_visible(token, expected):
    assert visible(token) == expected


def test_a_megabyte_of_token_is_cut_in_the_middle():
    text = "a" * 500_000 + "b" * 500_000
    assert label(text) == "aaaaaaaaaa⋯bbbbb"
    assert hover_label(text).endswith("(1,000,000 characters)") and len(hover_label(text)) < 140


def test_titles_and_headings_are_literal():
    fig = magnitude_map(rows(2), ["a", "b"], title="Costs $5 & <b>$6</b>\x07 %{meta}", subtitle="<i>$x$</i>")
    assert unescaped(fig.layout.title.text) == "Costs $5 & <b>$6</b>⟨U+0007⟩ %{meta}"
    assert notes(fig, "subtitle") == [escape("<i>$x$</i>")]
    json.dumps(fig.to_plotly_json()["layout"], default=str).encode()


@pytest.mark.parametrize("count", [3, 40, 128, 650, 5000])
@pytest.mark.parametrize("width", [300, 1100])
def test_token_labels_never_touch(count, width):
    tokens = ["<|im_start|>" if i % 21 < 2 else f" word{i}" for i in range(count)]
    ticks = token_ticks(tokens, width, 13, priority=[7] if count > 7 else [])
    pitch = width / count
    apart = np.diff(ticks.positions) * pitch
    need = [13 * 1.15 / np.sin(np.deg2rad(55))] if ticks.angle else [13 * 0.5 * len(t) for t in ticks.texts]
    assert len(apart) == 0 or apart.min() >= min(need) or len(ticks.positions) == count and not ticks.angle
    assert count <= 7 or 7 in ticks.positions, "outlier tokens are labelled first"
    assert ticks.positions == sorted(set(ticks.positions))


def test_balanced_lines_leave_no_word_alone():
    assert balance("one two three four", 80, 10) == ["one two", "three four"]
    assert balance("one two", 80, 10) == ["one two"]


def test_wrap_breaks_at_spaces_and_keeps_long_words():
    assert wrap("one two three", 60, 10) == ["one two", "three"]
    assert wrap("zero: 6.1 %", text_width("zero: 6.1", 10), 10) == ["zero:", "6.1 %"]
    assert wrap("", 60, 10) == [] and wrap("x" * 50, 60, 10) == ["x" * 50]


# F4, N4, N8: what has no colour


def test_f4_zero_and_nan_scales_have_entries_of_their_own():
    fig = scale_map([[2.0**-9, 1.0], [0.0, np.nan]], ["a", "b"], axis="channel", block=32, title="t")
    main, zero, nan = fig.data
    np.testing.assert_array_equal(main.z, [[-9, np.nan], [0, np.nan]])
    assert main.customdata[0][0].endswith("scale 2<sup>−9</sup> = 0.00195 · byte 118")
    assert main.customdata[0][1].endswith("scale 0 — block of zeros")
    assert "NaN — the block holds NaN or Inf" in main.customdata[1][1]
    assert (zero.name, nan.name) == ("scale 0 — block of zeros", "NaN — the block holds NaN or Inf")
    np.testing.assert_array_equal(np.isfinite(zero.z), [[False, True], [False, False]])
    np.testing.assert_array_equal(np.isfinite(nan.z), [[False, False], [False, True]])
    assert zero.showlegend and nan.showlegend and fig.layout.showlegend
    colours = {zero.colorscale[0][1], nan.colorscale[0][1]}
    assert len(colours) == 2 and not colours & {c for _, c in main.colorscale}


def test_what_is_kept_exactly_is_not_called_nan():
    scales = [[np.nan, np.nan], [np.nan, 2.0]]
    fig = scale_map(
        scales, ["a", "b"], axis="channel", block=32, title="t", exact=[[True, True], [False, False]]
    )
    assert [t.name for t in fig.data[1:]] == [
        "NaN — the block holds NaN or Inf",
        "stored exactly — no scale",
    ]
    np.testing.assert_array_equal(np.isfinite(fig.data[2].z), [[True, False], [True, False]])
    assert fig.data[0].customdata[0][0].endswith("stored exactly — no scale")
    assert "stored exactly — no scale: 2" in alt_text(fig)


def test_byte_zero_is_a_block_of_zeros():
    fig = scale_map([[2.0**-127, 1.0]], ["a"], axis="channel", block=32, title="t")
    assert fig.data[0].customdata[0][0].endswith("byte 0 — block of zeros")
    assert fig.data[0].zmin == -0.5, "byte 0 does not stretch the colours"
    assert len(fig.data) == 2


def test_zeros_and_nan_still_draw():
    zeros = np.zeros((3, 64), np.float32)
    assert np.isfinite(magnitude_map(zeros, ["a"] * 3, title="t").data[0].z).all()
    x = rows(3)
    x[1, 2] = np.nan
    fig = magnitude_map(x, ["a"] * 3, title="t", marked=[2])
    assert len(fig.data) == 2 and fig.data[1].name == "NaN or infinite"
    assert "nan" not in notes(fig, "outlier")[0]
    nothing = np.full((3, 64), np.nan)
    both = error_maps(nothing, nothing, ["a"] * 3, flushed_micro=np.nan, flushed_single=0, title="t")
    assert notes(both, "heading")[0].endswith("n/a of values")


# P8: the cap


def test_p8_a_lone_spike_survives_and_the_payload_is_capped():
    x = np.full((66_000, 128), 0.5, np.float32)
    x[43_210, 77] = -1e4
    fig = magnitude_map(x, [f"t{i}" for i in range(66_000)], title="t", marked=[77])
    assert len(fig.to_json()) < 5_000_000
    assert fig.data[0].z.max() == 4 and fig.data[0].customdata.min() == -1e4
    column = int(np.argmax(fig.data[0].z[77]))
    assert fig.data[0].x[column] < 43_210 < fig.data[0].x[column + 1]
    assert "largest magnitude of" in fig.layout.meta["reduced"]
    zoomed = magnitude_map(x, [f"t{i}" for i in range(66_000)], title="t", window=(43_000, 43_500))
    assert zoomed.data[0].z.shape == (128, 501) and zoomed.layout.meta["reduced"] is None
    assert zoomed.data[0].x[0] == 42_999.5


def test_both_error_panels_stay_under_the_cap_together():
    x = np.abs(rows(20_000, 256))
    fig = error_maps(
        x, x, ["t"] * 20_000, flushed_micro=0, flushed_single=0, title="t", values=x, decoded=(x, x)
    )
    assert len(fig.to_json()) < 5_000_000


@pytest.mark.parametrize("shape", [(7, 5), (1000, 3), (1, 1), (33, 700)])
def test_reduction_keeps_the_largest_of_each_cell(shape):
    x = rows(*shape)
    got = cells.grid(x, width=10, height=4)
    assert got.z.shape == (len(got.y) - 1, len(got.x) - 1)
    for (i, (y0, y1)), (j, (x0, x1)) in itertools.product(
        enumerate(itertools.pairwise(got.y)), enumerate(itertools.pairwise(got.x))
    ):
        cell = x[int(x0 + 0.5) : int(x1 + 0.5), int(y0 + 0.5) : int(y1 + 0.5)]
        assert got.z[i, j] in cell and abs(got.z[i, j]) == np.abs(cell).max()


def test_arrays_travel_as_typed_float32():
    for fig in three(["a", "b", "c"]).values():
        sent = json.loads(fig.to_json())["data"][0]["z"]
        assert sent["dtype"] == "f4"
        assert np.frombuffer(base64.b64decode(sent["bdata"]), "f4").size == fig.data[0].z.size


# The frame


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("width", [1280, 800, 390])
def test_every_figure_at_every_width_and_theme(theme, width):
    for name, fig in three([f" t{i}" for i in range(166)], theme=theme, width=width).items():
        assert fig.layout.width == width and fig.layout.paper_bgcolor == THEMES[theme].paper
        assert fig.layout.meta["figure"] == name and len(alt_text(fig)) > 60
        for axis in fig.select_yaxes():
            assert 0 <= axis.domain[0] < axis.domain[1] <= 1
        for line in fig.layout.title.text.split("<br>"):
            assert len(line) * 0.5 * fig.layout.title.font.size < width


def test_window_sets_the_range_and_labels_what_is_in_sight():
    for fig in three([f"t{i}" for i in range(500)], window=(100, 119)).values():
        assert fig.layout.xaxis.range == (99.5, 119.5)
        assert notes(fig, "token") == [f"t{i}" for i in range(100, 120)]


def test_mistakes_are_named():
    with pytest.raises(ValueError, match="3 tokens and there are 2 token texts"):
        magnitude_map(rows(3), ["a", "b"], title="t")
    with pytest.raises(ValueError, match=r"expected \[tokens, channels\]"):
        magnitude_map(np.zeros(3), ["a"], title="t")
    with pytest.raises(ValueError, match="light, dark"):
        magnitude_map(rows(1), ["a"], title="t", theme="blue")
    with pytest.raises(ValueError, match="channel, token"):
        scale_map([[1.0]], ["a"], axis="row", block=32, title="t")
    with pytest.raises(ValueError, match="in blocks of 32 along tokens have 2 × 64"):
        scale_map(np.ones((3, 64)), ["a"] * 40, axis="token", block=32, title="t")
    with pytest.raises(ValueError, match=r"\[70\]"):
        magnitude_map(rows(1), ["a"], title="t", marked=[70])
    with pytest.raises(ValueError, match="expected the same"):
        error_maps(rows(1), rows(1, 32), ["a"], flushed_micro=0, flushed_single=0, title="t")


def test_registry():
    assert list(FIGURES)[:3] == ["scales", "outliers", "error"]
    for family in FIGURES.values():
        assert callable(family.draw) and family.title and family.about.count(". ") >= 1


def test_notes_are_handed_to_plotly_once(monkeypatch):
    """`add_annotation` checks all that there are whenever one is added: a third of a second for a head."""

    def refuse(*args, **options):
        raise AssertionError("use Frame.note")

    monkeypatch.setattr(mxviz.figures.go.Figure, "add_annotation", refuse)
    for fig in three([f"t{i}" for i in range(30)]).values():
        assert {"heading", "token", "axis"} <= {note.name for note in fig.layout.annotations}


def test_figures_are_pure_of_torch_and_streamlit():
    allowed = {"numpy", "plotly", "mxviz"}
    for path in Path(mxviz.figures.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                top = name.split(".")[0]
                assert top in allowed or top in __import__("sys").stdlib_module_names, (path, name)
                assert top != "mxviz" or name.startswith("mxviz.figures"), (path, name)


# Colours


def lightness(colour):
    """L of OKLab."""
    c = np.array(rgb(colour)) / 255
    c = np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)
    lms = np.array(
        [
            [0.4122214708, 0.5363325363, 0.0514459929],
            [0.2119034982, 0.6806995451, 0.1073969566],
            [0.0883024619, 0.2817188376, 0.6299787005],
        ]
    )
    return float(np.array([0.2104542553, 0.7936177850, -0.0040720468]) @ np.cbrt(lms @ c))


def luminance(colour):
    c = np.array(rgb(colour)) / 255
    return float(np.where(c <= 0.03928, c / 12.92, ((c + 0.055) / 1.055) ** 2.4) @ [0.2126, 0.7152, 0.0722])


@pytest.mark.parametrize("theme", THEMES.values(), ids=THEMES)
def test_text_colours_reach_aa_on_the_paper(theme):
    for colour in (theme.ink, theme.muted, theme.exact, theme.micro, theme.single, theme.outlier):
        a, b = sorted((luminance(colour), luminance(theme.paper)))
        assert (b + 0.05) / (a + 0.05) >= 4.5, colour


@pytest.mark.parametrize("theme", THEMES.values(), ids=THEMES)
@pytest.mark.parametrize("name", ["sequential", "loss"])
def test_maps_step_evenly_in_lightness(theme, name):
    step = np.diff([lightness(c) for c in getattr(theme, name)])
    assert (step > 0).all() or (step < 0).all()
    assert np.abs(step).max() < 1.35 * np.abs(step).min()


@pytest.mark.parametrize("theme", THEMES.values(), ids=THEMES)
def test_the_diverging_map_turns_at_its_middle(theme):
    values = [lightness(c) for c in theme.diverging]
    turn = np.sign(np.diff(values))
    assert (turn[:5] == turn[0]).all() and (turn[5:] == -turn[0]).all()


@pytest.mark.parametrize("theme", THEMES.values(), ids=THEMES)
def test_nothing_lost_has_the_colour_of_the_paper(theme):
    assert abs(lightness(theme.loss[0]) - lightness(theme.paper)) < 0.05
