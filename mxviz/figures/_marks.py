"""Marks on a logarithmic panel: points with labels that make way for each other."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import plotly.graph_objects as go

from mxviz.figures._frame import LINE, Frame
from mxviz.figures.labels import escape, text_width


class Mark(NamedTuple):
    """A point that is named: where on the x axis, its value, a plain text, and which side the text goes."""

    at: float
    value: float
    text: str
    below: bool = False


class Span(NamedTuple):
    """The panel the marks stand in: ends of its x axis, and of its y axis in decimal logarithms."""

    x: tuple[float, float]
    y: tuple[float, float]


_STEP = 16
"""Pixels between a point and its label, at first."""


def place_marks(frame: Frame, span: Span, marks: Sequence[Mark], most: int) -> None:
    """Draw all marks as outlier points and label the first `most` of them that find room.

    Labels stay inside the panel and off each other and off the points; where none of the places around a
    point is free the label is left out: the point has its hover.
    """
    if not marks:
        return
    frame.fig.add_trace(
        go.Scatter(
            x=[mark.at for mark in marks],
            y=[mark.value for mark in marks],
            mode="markers",
            marker={
                **{"symbol": "diamond-open", "size": 8 if frame.compact else 11},
                **{"color": frame.theme.outlier, "line": {"width": 2.5, "color": frame.theme.outlier}},
            },
            hoverinfo="skip",
            name="outliers",
            showlegend=False,
        )
    )
    points = [_pixels(frame, span, mark) for mark in marks]
    taken = [_Box(x - 6, y - 6, x + 6, y + 6) for x, y in points]
    for mark, point in list(zip(marks, points, strict=True))[:most]:
        _label(frame, span, mark, point, taken)


class _Box(NamedTuple):
    left: float
    top: float
    right: float
    bottom: float

    def meets(self, other: _Box) -> bool:
        return (
            self.left < other.right
            and other.left < self.right
            and self.top < other.bottom
            and other.top < self.bottom
        )


def _pixels(frame: Frame, span: Span, mark: Mark) -> tuple[float, float]:
    """Where a mark stands, in pixels from the left and the top of the figure."""
    (x0, x1), (y0, y1), (top, bottom) = span.x, span.y, frame.panels[0]
    across = (mark.at - x0) / (x1 - x0)
    up = (math.log10(mark.value) - y0) / (y1 - y0)
    return frame.left + across * frame.plot_width, bottom - up * (bottom - top)


def _label(frame: Frame, span: Span, mark: Mark, point: tuple[float, float], taken: list[_Box]) -> None:
    size = frame.sizes.tick
    wide, tall = text_width(mark.text, size) * 1.04 + 8, LINE * size
    top, bottom = frame.panels[0]
    right = frame.left + frame.plot_width + 4
    for across, shift in _places(wide, tall, -1 if not mark.below else 1):
        left = min(max(point[0] + across, frame.left), right - wide)
        middle = point[1] + shift
        box = _Box(left, middle - tall / 2, left + wide, middle + tall / 2)
        if box.top >= top and box.bottom <= bottom and not any(box.meets(other) for other in taken):
            taken.append(box)
            _write(frame, mark, left + wide / 2 - point[0], shift)
            return


def _places(wide: float, tall: float, away: int) -> Iterator[tuple[float, float]]:
    """Left end and middle of a label, from its point: over it, beside it, then further and further off."""
    yield -wide / 2, away * _STEP
    yield -wide - 8, 0.0
    yield 8.0, 0.0
    for further in range(0, int(6 * tall), 5):
        for across in (-wide / 2, -8.0, 8 - wide):
            yield across, away * (_STEP + further)


def _write(frame: Frame, mark: Mark, across: float, shift: float) -> None:
    theme, size = frame.theme, frame.sizes.tick
    where = {"x": mark.at, "xref": "x", "y": math.log10(mark.value), "yref": "y"}
    if abs(shift) > _STEP:  # a hairline from the label back to its point
        frame.note(
            "",
            **where,
            **{"showarrow": True, "arrowhead": 0, "arrowwidth": 1, "arrowcolor": theme.outlier},
            **{"ax": 0, "ay": shift - math.copysign(0.6 * size, shift), "standoff": 5},
            name="leader",
        )
    frame.note(
        escape(mark.text),
        **where,
        **{"xanchor": "center", "yanchor": "middle", "xshift": across, "yshift": -shift},
        bgcolor=theme.paper,
        font={"size": size, "color": theme.outlier, "weight": 600},
        name="outlier",
    )
