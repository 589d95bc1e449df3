"""The marks of a race: one a scheme, with a name where there is room for it, and what they mean."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import plotly.graph_objects as go

from mxviz.figures._frame import LINE, Frame
from mxviz.figures._marks import _Box
from mxviz.figures._traces import number
from mxviz.figures.labels import escape, text_width


class Entry(NamedTuple):
    """One scheme in the race.

    Args:
        name: what it is called; plain text.
        bits: bits per element.
        value: what is measured; NaN is not drawn.
        single: whether few float32 scales serve it, as against one for each block.
        integer: whether its elements are integers.
        along: `channel` or `token`, the way its blocks run; None for single scales.
        said: more about it, for hovers; plain text.
    """

    name: str
    bits: float
    value: float
    single: bool
    integer: bool
    along: str | None
    said: str = ""


class Measure(NamedTuple):
    """What a race is run by: the axis's name, its unit, which way is better kept, whether y is a log axis."""

    axis: str
    reading: str
    unit: str
    more: bool
    log: bool = False

    def height(self, entry: Entry) -> float:
        """Where an entry stands; a log axis is drawn as logarithms, and its ticks show real values."""
        return float(np.log10(entry.value)) if self.log else float(entry.value)

    def shows(self, entry: Entry) -> bool:
        """Whether there is something to draw."""
        return bool(np.isfinite(entry.value)) and (entry.value > 0 or not self.log)


class Span(NamedTuple):
    """Ends of both axes, y as it is drawn."""

    x: tuple[float, float]
    y: tuple[float, float]


class Look(NamedTuple):
    """A mark: which entries have it, its symbol, and what it means, in full and in short."""

    single: bool
    along: str | None
    symbol: str
    words: str
    short: str


LOOKS = (
    Look(False, "channel", "circle", "a scale per block along channels", "blocks along channels"),
    Look(False, "token", "circle-open", "a scale per block along tokens", "blocks along tokens"),
    Look(True, None, "square", "one scale for a tensor, head, token or channel", "one scale for many"),
)
_FRONT = ("Pareto front: nothing costs less and loses less", "Pareto front")
_USED = ("what this run used", "what this run used")
_INTEGERS = ("crossed: integers; plain: floats", "crossed: integers")
ENTRIES = 6
"""Entries of the legend at most."""


def front_line(frame: Frame, front: Sequence[Entry], measure: Measure) -> None:
    """Draw the Pareto front: a step, for between two schemes there is nothing."""
    if not front:
        return
    frame.fig.add_trace(
        go.Scatter(
            **{"x": [e.bits for e in front], "y": [measure.height(e) for e in front], "mode": "lines"},
            **{"line": {"color": frame.theme.exact, "width": 2, "shape": "hv"}, "hoverinfo": "skip"},
            **{"name": _FRONT[frame.compact], "showlegend": True},
        )
    )


def points(frame: Frame, entries: Sequence[Entry], measure: Measure) -> None:
    """Draw a mark for each entry; blocks along tokens are open, integers have a cross."""
    for look in LOOKS:
        mine = [e for e in entries if (e.single, e.along) == (look.single, look.along)]
        if not mine:
            continue
        colour = frame.theme.single if look.single else frame.theme.micro
        shape, _, is_open = look.symbol.partition("-")
        edge = colour if is_open else frame.theme.paper
        size = 10 if frame.compact else 14
        frame.fig.add_trace(
            go.Scatter(
                **{"x": [e.bits for e in mine], "y": [measure.height(e) for e in mine], "mode": "markers"},
                marker={
                    "symbol": ["-".join(filter(None, (shape, e.integer and "cross", is_open))) for e in mine],
                    "size": [size + (2 if e.integer and not is_open else 0) for e in mine],
                    **{
                        "color": colour,
                        "opacity": 1,
                        "line": {"width": 2 if is_open else 1.3, "color": edge},
                    },
                },
                customdata=[[escape(e.name), f"{e.bits:.4g}", number(e.value), escape(e.said)] for e in mine],
                hovertemplate="<b>%{customdata[0]}</b><br>%{customdata[1]} bits per element<br>"
                f"%{{customdata[2]}} {escape(measure.unit)}<br>%{{customdata[3]}}<extra></extra>",
                **{"name": look.words, "showlegend": False},
            )
        )
        _key(frame, look.symbol, colour, (look.words, look.short)[frame.compact])


def rings(frame: Frame, marked: Sequence[Entry], measure: Measure) -> None:
    """Put a ring around what the run itself used."""
    if not marked:
        return
    ring = {"symbol": "circle-open", "size": 20 if frame.compact else 26, "color": frame.theme.ink}
    frame.fig.add_trace(
        go.Scatter(
            **{"x": [e.bits for e in marked], "y": [measure.height(e) for e in marked], "mode": "markers"},
            **{"marker": ring | {"line": {"width": 1.5, "color": frame.theme.ink}}, "hoverinfo": "skip"},
            **{"name": _USED[frame.compact], "showlegend": True},
        )
    )


def key_of_integers(frame: Frame) -> None:
    """Say in the legend what the cross is."""
    _key(frame, "circle-cross-open", frame.theme.muted, _INTEGERS[frame.compact])


def _key(frame: Frame, symbol: str, colour: str, words: str) -> None:
    frame.fig.add_trace(
        go.Scatter(
            **{"x": [None], "y": [None], "mode": "markers", "name": words, "showlegend": True},
            marker={"symbol": symbol, "size": 11, "color": colour, "line": {"width": 1.5, "color": colour}},
        )
    )


def names(
    frame: Frame,
    drawn: Mapping[int, Entry],
    wanted: Sequence[int],
    front: Sequence[int],
    span: Span,
    measure: Measure,
) -> None:
    """Name entries where there is room off the marks, the front and each other; the rest have their hover.

    Args:
        drawn: index to entry.
        wanted: indices to name, the most important first.
        front: indices of the front, by bits.
    """
    size, half = frame.sizes.tick, 7 if frame.compact else 9
    at = {i: _pixels(frame, span, e.bits, measure.height(e)) for i, e in drawn.items()}
    taken = [_Box(x - half, y - half, x + half, y + half) for x, y in at.values()]
    taken += _steps([at[i] for i in front])
    top, bottom = frame.panels[0]
    for i in dict.fromkeys(wanted):
        entry, (x, y) = drawn[i], at[i]
        wide, tall = text_width(entry.name, size) * 1.04 + 6, LINE * size
        for across, down in _places(wide, tall, half, -1 if measure.more else 1):
            box = _Box(x + across, y + down - tall / 2, x + across + wide, y + down + tall / 2)
            inside = box.left > frame.left and box.right < frame.width - 2
            if inside and box.top > top and box.bottom < bottom and not any(map(box.meets, taken)):
                taken.append(box)
                _name(frame, entry, measure.height(entry), across, down, wide)
                break


def _steps(front: Sequence[tuple[float, float]]) -> list[_Box]:
    """The boxes that the front's line takes."""
    boxes = []
    for (x0, y0), (x1, y1) in zip(front[:-1], front[1:], strict=True):
        boxes.append(_Box(x0, y0 - 2, x1, y0 + 2))
        boxes.append(_Box(x1 - 2, min(y0, y1), x1 + 2, max(y0, y1)))
    return boxes


def _places(wide: float, tall: float, half: float, away: int) -> Iterator[tuple[float, float]]:
    """Left end and middle of a name, from its mark: over it, beside it, then further and further off."""
    near = half + tall / 2 + 1
    for way in (away, -away):
        yield from ((across, way * near) for across in (-wide / 2, -wide + half, -half))
    yield half + 3, 0.0
    yield -wide - half - 3, 0.0
    for level in range(1, 4):
        for way in (away, -away):
            shift = way * (near + level * tall)
            yield from ((across, shift) for across in (-wide / 2, 8.0, -wide - 8))


def _name(frame: Frame, entry: Entry, height: float, across: float, down: float, wide: float) -> None:
    colour = frame.theme.single if entry.single else frame.theme.micro
    where = {"x": entry.bits, "xref": "x", "y": height, "yref": "y"}
    size = frame.sizes.tick
    if abs(down) > 2.2 * size:
        inner = min(max(0.0, across + 8), across + wide - 8)  # where the leader meets the text
        frame.note(
            "",
            **where,
            **{"showarrow": True, "arrowhead": 0, "arrowwidth": 1, "arrowcolor": colour, "standoff": 7},
            **{"ax": inner, "ay": down - np.sign(down) * 0.6 * size, "name": "leader"},
        )
    frame.note(
        escape(entry.name),
        **where,
        **{"xanchor": "center", "yanchor": "middle", "xshift": across + wide / 2, "yshift": -down},
        font={"size": size, "color": colour, "weight": 600},
        name="scheme",
    )


def _pixels(frame: Frame, span: Span, x: float, y: float) -> tuple[float, float]:
    """Where a point stands, in pixels from the left and the top of the figure."""
    (x0, x1), (y0, y1), (top, bottom) = span.x, span.y, frame.panels[0]
    across, up = (x - x0) / (x1 - x0), (y - y0) / (y1 - y0)
    return frame.left + across * frame.plot_width, bottom - up * (bottom - top)
