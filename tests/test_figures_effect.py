"""Figures of the effect against NumPy by hand: KL at every token, attention, layer by layer, recipes."""

from __future__ import annotations

import numpy as np
import pytest

from mxviz.figures import THEMES, alt_text
from mxviz.figures._nats import CEILING, PALEST, SHADES, contrast, plain, shade_of, shades
from mxviz.figures.attention import attention_bars, head_errors
from mxviz.figures.effect import divergence
from mxviz.figures.sensitivity import Rung, layer_map, recipe_ladder

AWKWARD = ["<s>", "<b>", "$x$", "\n", "%{x}", "&lt;", "🙂", ""]
SIZES = [("light", 1280), ("dark", 390)]


def texts(fig, name: str) -> list[str]:
    return [a.text for a in fig.layout.annotations if a.name == name]


def kl_figure(micro, single, tokens=None, **options):
    tokens = tokens or [f"t{i}" for i in range(len(micro))]
    flips = {"changed_micro": np.zeros(len(micro), bool), "changed_single": np.zeros(len(micro), bool)}
    return divergence(micro, single, tokens, title="t", **(flips | options))


# Colours and numbers


@pytest.mark.parametrize("theme", THEMES.values(), ids=THEMES)
def test_every_background_carries_readable_ink(theme) -> None:
    found = shades(theme)
    assert len({shade.paper for shade in found}) == SHADES == len(found)
    assert min(contrast(shade.ink, shade.paper) for shade in found) >= 4.5
    luminance = [contrast(shade.paper, theme.paper) for shade in found]
    assert luminance == sorted(luminance)  # the order survives any colour blindness


def test_contrast_is_that_of_wcag() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


def test_shades_are_logarithmic_and_held_at_both_ends() -> None:
    assert [shade_of(x) for x in (0.0, 1e-9, PALEST, CEILING, 1e6)] == [0, 0, 0, SHADES - 1, SHADES - 1]
    assert shade_of(0.1001) == SHADES // 3 and shade_of(1.001) == 2 * SHADES // 3  # three decades
    assert shade_of(float("nan")) is None and shade_of(float("inf")) is None


def test_numbers_carry_no_markup() -> None:
    assert [plain(x) for x in (0, 0.1234, 12345.6, 1.2e-9, -3.45e7)] == [
        *("0", "0.123", "12,346", "1.2 × 10⁻⁹", "−3.45 × 10⁷")
    ]


# KL at every token


@pytest.mark.parametrize(("theme", "width"), SIZES)
def test_divergence_holds_log10_nats_and_marks_other_first_choices(theme: str, width: int) -> None:
    micro, single = np.array([np.nan, 0.01, 1.0, 1e-6]), np.array([np.nan, 0.1, 100.0, 0.0])
    fig = kl_figure(
        micro, single, changed_single=np.array([False, False, True, False]), theme=theme, width=width
    )
    for axis, nats, flips in (("y", micro, []), ("y2", single, [2])):
        marks = [t for t in fig.data if t.mode == "markers" and t.yaxis == axis and t.customdata is not None]
        same, other = marks
        assert other.x.tolist() == flips and sorted([*same.x, *other.x]) == [0, 1, 2, 3]
        for trace in marks:
            for x, y, told in zip(trace.x, trace.y, trace.customdata, strict=True):
                real = float(np.nan_to_num(nats[int(x)]))
                assert y == pytest.approx(np.log10(max(real, 1e-3)), abs=1e-6)
                assert told == pytest.approx(real)
        assert same.marker.symbol != other.marker.symbol  # not by colour alone
    assert fig.layout.yaxis.range[1] > 2  # 100 nats are in sight
    assert texts(fig, "worst") == ["t2  1 nats", "t2  100 nats"]
    assert texts(fig, "mean") == [f"mean {plain(x, 2)}" for x in (np.nanmean(micro), np.nanmean(single))]
    assert "largest KL 100 at token 2; first choice changed at 1 tokens" in alt_text(fig)


def test_divergence_of_little_of_nothing_and_of_nan_still_draws() -> None:
    for row in (np.zeros(3), np.full(3, np.nan), np.array([np.nan, np.inf, 1e-9])):
        fig = kl_figure(row, row)
        assert not texts(fig, "worst")
        assert "nan" not in fig.to_json().lower().replace('"nan"', "")


def test_a_long_text_keeps_its_worst_token() -> None:
    micro, flips = np.full(5000, 0.01), np.zeros(5000, bool)
    micro[3210], flips[4001] = 7.0, True
    fig = kl_figure(micro, micro, changed_micro=flips, changed_single=~flips)
    assert fig.layout.meta["reduced"].startswith("5,000 tokens are too many to draw")
    marks = [t for t in fig.data if t.mode == "markers" and t.yaxis == "y" and t.customdata is not None]
    assert max(float(x) for t in marks for x in t.customdata) == 7.0
    assert len(marks[1].x) == 1 and abs(marks[1].x[0] - 4001) <= 3
    assert len(fig.to_json()) < 5e5


def test_a_window_shows_and_names_what_is_in_it() -> None:
    nats = np.linspace(0.1, 1, 100)
    fig = kl_figure(nats, nats, window=(10, 29))
    assert fig.layout.xaxis.range == (9.5, 29.5)
    assert texts(fig, "worst")[0].startswith("t29 ")


def test_token_texts_stay_literal() -> None:
    nats = np.linspace(0.1, 1, len(AWKWARD))
    for fig in (
        kl_figure(nats, nats, AWKWARD),
        attention_bars(nats, nats, nats, AWKWARD, title="<b>t</b>", names=("<i>", "b", "c")),
    ):
        shown = " ".join(
            [*fig.layout.xaxis.ticktext, *(a.text for a in fig.layout.annotations), fig.layout.title.text]
        )
        for markup in ("<s>", "<b>", "<i>", "$", "%{x}", "\n"):
            assert markup not in shown, markup
        assert "&lt;s&gt;" in shown and "⟨empty⟩" in shown


def test_wrong_lengths_are_said() -> None:
    with pytest.raises(ValueError, match=r"single has shape \(2,\); expected one number for each of 3"):
        kl_figure(np.zeros(3), np.zeros(2))
    with pytest.raises(ValueError, match=r"micro has shape \(2,\); expected one number for each of 3 tokens"):
        attention_bars(np.ones(3), np.ones(2), np.ones(3), ["a", "b", "c"], title="t")
    with pytest.raises(ValueError, match="unknown theme"):
        head_errors([0.1], [0.2], title="t", theme="sepia")


# Attention


@pytest.mark.parametrize(("theme", "width"), SIZES)
def test_attention_bars_hold_square_roots_and_differences(theme: str, width: int) -> None:
    rows = np.array([[0.9, 0.1, 0.0], [0.5, 0.25, 0.25], [0.0, 0.0, 1.0]])
    fig = attention_bars(*rows, ["a", "b", "c"], title="t", theme=theme, width=width)
    assert [trace.yaxis for trace in fig.data] == ["y", "y2", "y3", "y4", "y4"]
    for trace, weights in zip(fig.data, rows, strict=False):
        np.testing.assert_allclose(trace.y, np.sqrt(weights), rtol=1e-6)
        np.testing.assert_allclose(trace.customdata, weights)
    for trace, weights in zip(fig.data[3:], rows[1:], strict=True):
        np.testing.assert_allclose(trace.customdata, 100 * (weights - rows[0]))
        np.testing.assert_allclose(np.sign(trace.y) * np.square(trace.y), weights - rows[0], atol=1e-6)
    assert fig.data[3].offset < fig.data[4].offset  # side by side, not by colour alone
    assert dict(zip(fig.layout.yaxis.tickvals, fig.layout.yaxis.ticktext, strict=True))[1.0] == "100 %"
    colours = [trace.marker.color for trace in fig.data[:3]]
    assert colours == [getattr(THEMES[theme], name) for name in ("exact", "micro", "single")]
    assert "exact: most, 90 %, on token 0" in alt_text(fig)


def test_a_long_text_is_added_up_never_thinned() -> None:
    weights = np.full(4000, 1 / 4000)
    fig = attention_bars(weights, weights, weights, ["t"] * 4000, title="t")
    assert fig.data[0].customdata.sum() == pytest.approx(1)
    assert len(fig.data[0].x) < 700 and "4,000 tokens" in fig.layout.meta["reduced"]


def test_attention_that_is_not_a_number_is_not_drawn() -> None:
    broken = np.full(3, np.nan)
    fig = attention_bars(np.ones(3) / 3, broken, broken, ["a", "b", "c"], title="t")
    assert fig.data[1].y.tolist() == [0, 0, 0] and "not a number" in alt_text(fig)


def test_head_errors_stand_side_by_side() -> None:
    fig = head_errors([0.1, 0.2], [0.5, np.nan], title="t", group=2)
    np.testing.assert_allclose([trace.y for trace in fig.data], [[0.1, 0.2], [0.5, 0]], rtol=1e-6)
    assert fig.layout.xaxis.ticktext[1] == "query head 1, KV head 0"
    assert texts(fig, "axis") == ["query head"]
    assert "head 1: micro-scaled 20 %, one scale n/a" in alt_text(fig)


# Layer by layer


@pytest.mark.parametrize(("theme", "width"), SIZES)
def test_layer_map_shows_both_parts_on_one_scale(theme: str, width: int) -> None:
    key, value = np.array([0.3, 0.02, np.nan]), np.array([0.01, 0.0, np.nan])
    fig = layer_map(key, value, title="t", marked=[0], theme=theme, width=width)
    drawn = [trace for trace in fig.data if trace.visible is not False]
    for axis, x in (("y", key), ("y2", value)):
        found = sum(trace.y.astype(float) for trace in drawn if trace.yaxis == axis)
        np.testing.assert_allclose(found, np.nan_to_num(x), rtol=1e-6)
    assert fig.layout.yaxis.range == fig.layout.yaxis2.range and fig.layout.yaxis.range[1] >= 0.3
    assert texts(fig, "marked") == ["▾ 0", "▾ 0"]
    assert "Keys — layer 0 costs most: 0.3 nats" in alt_text(fig)
    exact = layer_map(key, np.full(3, np.nan), title="t")
    assert "Values — exact in this recipe" in texts(exact, "heading")


@pytest.mark.parametrize(("theme", "width"), SIZES)
def test_a_ladder_puts_every_recipe_at_its_nats(theme: str, width: int) -> None:
    rungs = [
        Rung("int8@tensor", 0.003, "8 bits", "single"),
        Rung("k=mxfp4:axis=token;v=mxfp4;skip=0,1,2,3,4,5", 0.17, "same first choice 77 %", "micro"),
        Rung("nvfp4", 1e-5, "", "micro"),
        Rung("<b>", float("nan"), "", "exact"),
        Rung("int4@tensor", 25.0, "", "single"),
    ]
    fig = recipe_ladder(rungs, title="t", subtitle="s " * 90, theme=theme, width=width)
    assert [trace.x[1] for trace in fig.data] == pytest.approx(np.log10([0.003, 0.17, 1e-5, 25.0]))
    assert fig.layout.xaxis.range[0] == pytest.approx(-5) and fig.layout.xaxis.range[1] > np.log10(25)
    assert fig.data[0].marker.color == THEMES[theme].single
    headings = [text.replace("<br>", " ") for text in texts(fig, "heading")]
    assert headings[0] == "int8@tensor — 0.003 nats, 8 bits"
    assert headings[2:4] == ["nvfp4 — 1 × 10⁻⁵ nats", "&lt;b&gt; — no KL"]
    assert not texts(fig, "token")


def test_a_ladder_needs_rungs_and_meanings() -> None:
    with pytest.raises(ValueError, match="0 rungs"):
        recipe_ladder([], title="t")
    with pytest.raises(ValueError, match="teal"):
        recipe_ladder([Rung("a", 1.0, "", "teal")], title="t")
