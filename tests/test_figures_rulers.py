"""The two rulers: ticks, values, lines and words against NumPy by hand."""

from __future__ import annotations

import numpy as np
import pytest

from mxviz.figures import THEMES, alt_text
from mxviz.figures.rulers import Ruler, span, two_rulers

X = np.array([0.1, -0.3, 2.6, 7.0, 0.0], np.float32)
OWN = np.array([-6, -4, -3, -2, -1.5, -1, -0.5, 0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
ONE = np.array([-20, -10, 0, 10, 20], np.float32)


def ruler(ticks, landed, x=X, heading="FP4 & <b>: 0.5"):
    landed = np.asarray(landed, np.float32)
    end = np.abs(ticks).max() if len(ticks) else np.inf
    return Ruler(heading, ticks, x, landed, (landed == 0) & (x != 0), np.abs(x) > end)


def drawn(**options):
    micro, single = ruler(OWN, [0, -0.5, 3, 6, 0]), ruler(ONE, [0, 0, 0, 10, 0], heading="INT4")
    names = [f"token {i}" for i in range(5)]
    return two_rulers(micro, single, names, title="t", kind="key", **options)


def trace(fig, name):
    return next(t for t in fig.data if t.name == name)


def notes(fig, name):
    return [a.text for a in fig.layout.annotations if a.name == name]


def test_every_tick_in_sight_is_a_mark() -> None:
    fig = drawn(near=False)
    for lane, ticks, row in (("micro", OWN, -1), ("single", ONE, 1)):
        marks = trace(fig, f"{lane} ticks")
        assert list(marks.x[::3]) == ticks.tolist() == list(marks.x[1::3])
        assert all(x is None for x in marks.x[2::3])
        middle = (np.array(marks.y[::3], float) + np.array(marks.y[1::3], float)) / 2
        np.testing.assert_allclose(middle, row)
        line = trace(fig, f"{lane} ruler")
        assert list(line.x) == [ticks[0], ticks[-1]], "a ruler ends where its ticks do"
    assert fig.layout.xaxis.range == (-22, 22) and fig.layout.xaxis.type in (None, "linear")
    assert "end to end" in fig.layout.xaxis.title.text


def test_a_close_up_leaves_out_what_towers_over_the_rest() -> None:
    fig = drawn()
    low, high = fig.layout.xaxis.range
    # median |x| is 0.3: 2.6 and 7 lie beyond six times that; -0.5 is where -0.3 lands
    assert (low, high) == pytest.approx((-0.53, 0.13))
    assert list(trace(fig, "values").x) == pytest.approx([0.1, -0.3, 0.0])
    assert notes(fig, "beyond") == ["2 as far as 7 ▶"]
    assert "close up" in fig.layout.xaxis.title.text
    assert list(trace(fig, "micro ticks").x[::3]) == [-0.5, 0]


def test_lines_lead_from_each_value_to_where_it_lands() -> None:
    fig = drawn(near=False)
    flushed = trace(fig, "single lines flushed")
    assert list(zip(flushed.x[::3], flushed.x[1::3], strict=True)) == [
        (pytest.approx(x), 0.0) for x in (0.1, -0.3, 2.6)
    ]
    assert flushed.line.dash == "dot" and trace(fig, "micro lines clipped").line.dash == "dash"
    assert list(trace(fig, "micro lines clipped").x[:2]) == [7, 6]
    assert list(trace(fig, "micro lines").x[1::3]) == [-0.5, 3, 0], "a zero that stays zero is not flushed"
    assert trace(fig, "micro landed clipped").marker.symbol == ("triangle-right",)
    assert trace(fig, "single landed flushed").marker.symbol == ("x",)
    assert list(trace(fig, "single landed flushed").customdata) == [3]
    assert notes(fig, "zeros single") == ["3 became zero"] and notes(fig, "zeros micro") == ["1 became zero"]


def test_colours_mean_the_same_as_everywhere() -> None:
    for theme in THEMES.values():
        fig = drawn(theme=theme.name)
        assert trace(fig, "micro ruler").line.color == theme.micro
        assert trace(fig, "single ruler").line.color == theme.single
        assert trace(fig, "values").marker.color == theme.exact
        assert fig.layout.paper_bgcolor == theme.paper


def test_hovers_and_headings_are_literal_and_say_the_loss() -> None:
    fig = drawn(near=False, at=1)
    texts = [text for _, text in trace(fig, "values").customdata]
    assert texts[2] == (
        "<b>token 2</b><br>one scale: 2.6 → 0, 100 % off · became zero<br>own scale: 2.6 → 3, 15.4 % off"
    )
    assert texts[3].endswith("own scale: 7 → 6, 14.3 % off · clipped")
    assert notes(fig, "heading") == ["INT4", "FP4 &amp; &lt;b&gt;: 0.5"]
    assert notes(fig, "ring") == ["token 1: −0.3"] and list(trace(fig, "ring").x) == [pytest.approx(-0.3)]
    assert "1 become zero, 1 lie beyond" in alt_text(fig) and "5 keys of one block" in alt_text(fig)


def test_names_of_marks_are_those_that_occur() -> None:
    def named(fig):
        return [t.name for t in fig.data if t.showlegend is None]

    assert named(drawn()) == ["exact key", "stored as", "became zero", "clipped"]
    exact = ruler(np.zeros(0, np.float32), X)
    fig = two_rulers(exact, exact, ["a"] * 5, title="t")
    assert named(fig) == ["exact value", "stored as"]
    assert list(trace(fig, "micro lines").x[::3]) == list(trace(fig, "micro lines").x[1::3])


def test_values_that_would_cover_each_other_step_aside() -> None:
    x = np.full(9, 1.0, np.float32)
    one = ruler(OWN, x, x)
    fig = two_rulers(one, one, ["v"] * 9, title="t")
    assert len(set(trace(fig, "values").y)) == 9


def test_two_frames_are_two_rows() -> None:
    micro, single = ruler(OWN, [0, -0.5, 3, 6, 0]), ruler(ONE, [0] * 5, X[::-1].copy())
    fig = two_rulers(micro, single, list("abcde"), title="t", near=False)
    rows = [t for t in fig.data if t.name == "values"]
    assert len(rows) == 2 and np.mean(rows[0].y) > np.mean(rows[1].y)
    assert all("own scale" not in text for _, text in rows[0].customdata)
    fig = two_rulers(micro._replace(said="rotated"), single, list("abcde"), title="t")
    assert [name.split(">")[1] for name in fig.layout.yaxis.ticktext] == [
        "one scale</b",
        "own scale</b",
        "exact value</b",
        "rotated</b",
    ]


@pytest.mark.parametrize("near", [True, False])
@pytest.mark.parametrize(
    "x", [[0.0], [np.nan, np.inf], [3.4e38, 1e-38], [1e-40, 2e-40], [5.0], [np.nan, 1.0, 2.0]]
)
def test_odd_values_still_draw(x, near) -> None:
    x = np.array(x, np.float32)
    back = np.where(np.isfinite(x), x, np.float32(np.nan))
    one = Ruler("r", np.array([-1, 0, 1], np.float32), x, back, x != x, x != x)
    fig = two_rulers(one, one, ["v"] * len(x), title="t", at=0, near=near)
    low, high = fig.layout.xaxis.range
    assert np.isfinite([low, high]).all() and low < high
    assert len(trace(fig, "values").x) == np.isfinite(x).sum()


def test_span_without_values_or_ticks() -> None:
    none = Ruler("r", *(np.zeros(0, np.float32) for _ in range(3)), *(np.zeros(0, bool) for _ in range(2)))
    assert span(none, none, True) == span(none, none, False) == (-1.0, 1.0)


def test_what_does_not_fit_is_refused() -> None:
    one = ruler(OWN, X)
    with pytest.raises(ValueError, match="there are 2 names"):
        two_rulers(one, one, ["a", "b"], title="t")
    with pytest.raises(ValueError, match="value 5 is not among the 5"):
        two_rulers(one, one, ["a"] * 5, title="t", at=5)
    with pytest.raises(ValueError, match="unknown theme"):
        two_rulers(one, one, ["a"] * 5, title="t", theme="blue")


def test_a_phone_has_room_for_it() -> None:
    fig = drawn(width=358, near=False)
    assert fig.layout.width == 358
    shown = [a for a in fig.layout.annotations if a.name == "tick micro"]
    plot = 358 - fig.layout.margin.l - fig.layout.margin.r
    places = sorted(a.x * plot / 44 for a in shown)
    assert min(np.diff(places)) > 12, "tick labels do not touch"


def test_an_eight_bit_ruler_stays_light() -> None:
    ticks = np.unique(np.concatenate([s * np.arange(127, dtype=np.float32) for s in (-1, 1)]))
    fig = two_rulers(ruler(ticks, X), ruler(ticks, X), ["v"] * 5, title="t", near=False)
    assert len(fig.to_json()) < 60_000
