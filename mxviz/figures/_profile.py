"""What both profiles are drawn with: a band, two lines, a reference, marks; |x| on a logarithmic axis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import plotly.graph_objects as go
from numpy.typing import ArrayLike, NDArray

from mxviz.figures._cells import edges
from mxviz.figures._frame import LINE, Columns, Frame, Panel
from mxviz.figures._layout import start
from mxviz.figures._marks import Span
from mxviz.figures._traces import log_ticks, number
from mxviz.figures.labels import escape, text_width
from mxviz.figures.theme import faded, is_compact, sizes_for

HEIGHTS = {False: 600, True: 500}
"""Pixels a profile takes by default, wide and compact."""

_HEADROOM = {False: 84, True: 62}
"""Pixels kept free above the largest value, for labels."""

_DEPTH = 5
"""Decades below the largest value at which the axis ends at the latest; what is lower stands at its foot."""

TIMES = 10
"""The second reference line: so many medians make an outlier."""


class Lines(NamedTuple):
    """The lines of a profile, each `[columns]` float64, and the edges of the columns."""

    amax: NDArray[np.float64]
    median: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    edges: NDArray[np.float64]

    @property
    def centres(self) -> NDArray[np.float64]:
        return (self.edges[:-1] + self.edges[1:]) / 2


def lines_of(amax: ArrayLike, median: ArrayLike, low: ArrayLike, high: ArrayLike) -> Lines:
    """Return the lines as float64; ValueError says which of them does not match."""
    four = {"amax": amax, "median": median, "low": low, "high": high}
    arrays = {name: np.asarray(x, dtype=np.float64) for name, x in four.items()}
    shape = arrays["amax"].shape
    for name, x in arrays.items():
        if x.ndim != 1 or x.shape != shape or not x.size:
            raise ValueError(
                f"{name} has shape {x.shape}; expected [n] like amax, which has {shape}, and n > 0"
            )
    return Lines(*arrays.values(), edges(shape[0]))


def one_each(name: str, x: ArrayLike | None, count: int) -> NDArray[np.float64] | None:
    """Return an optional array of one value a column; ValueError says what is wrong with it."""
    array = None if x is None else np.asarray(x, dtype=np.float64)
    if array is not None and array.shape != (count,):
        raise ValueError(f"{name} has shape {array.shape}; expected one value for each of {count} columns")
    return array


def reduced(lines: Lines, columns: int) -> Lines:
    """Return at most so many columns: the largest and smallest survive, medians are taken of medians."""
    count = len(lines.amax)
    size = -(-count // columns)
    if size == 1:
        return lines
    inner = np.arange(0, count, size)
    groups = [slice(i, i + size) for i in inner]
    return Lines(
        np.array([np.fmax.reduce(lines.amax[g]) for g in groups]),
        np.array([np.median(lines.median[g]) for g in groups]),
        np.array([np.fmin.reduce(lines.low[g]) for g in groups]),
        np.array([np.fmax.reduce(lines.high[g]) for g in groups]),
        edges(count, size),
    )


def span_of(lines: Lines, also: Sequence[float | None], width: int, height: int | None) -> Span:
    """Return the ends of the axes: all lines and nearly all of the band, and room above for labels."""
    compact = is_compact(width)
    tops = [*lines.amax, *(x for x in also if x is not None)]
    real = [x for x in tops if math.isfinite(x) and x > 0]
    top = math.log10(max(real)) if real else 0.0
    lows = _positive(lines.low)
    ends = [*_positive(lines.median), *_positive(lines.amax)]
    ends += [np.quantile(lows, 0.02, method="lower")] if lows.size else []
    bottom = min(max(math.log10(min(ends, default=1.0)), top - _DEPTH), top - 1)
    share = _HEADROOM[compact] / ((height or HEIGHTS[compact]) - 170)
    return Span((-0.5, lines.edges[-1]), (bottom, top + share / (1 - share) * (top - bottom)))


def _positive(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return x[np.isfinite(x) & (x > 0)]


def held(x: Any, span: Span) -> Any:
    """Return values as they are drawn: what has no logarithm or lies too low stands at the foot."""
    return np.maximum(x, 10 ** span.y[0])


def frame_of(
    columns: Columns,
    heading: str,
    span: Span,
    symbol: str,
    reference: float | None,
    legend: int,
    size: dict[str, Any],
) -> Frame:
    """Lay out an empty profile: its axes, its reference lines and their names in the right margin."""
    width, compact = size["width"], is_compact(size["width"])
    ticks = log_ticks(*span.y)
    named = _references(reference, compact)
    gutter = 8 + max((text_width(t, sizes_for(width).tick) for _, t in named), default=-8)
    size = size | {"height": size["height"] or HEIGHTS[compact]}
    panel = Panel(heading, 1, ticks, bar=not compact)
    frame = start([panel], columns, gutter=gutter, legend=legend if compact else 0, **size)
    theme = frame.theme
    frame.fig.layout.yaxis.update(
        **{"type": "log", "range": span.y, "title": {"text": escape(symbol)}},
        **{"tickvals": [10**place for place in ticks], "ticktext": list(ticks.values())},
        **{"showgrid": True, "gridcolor": theme.grid, "tickcolor": theme.grid},
    )
    frame.lay(hovermode="x")
    if not compact:
        _legend(frame)
    for value, text in named:
        if not span.y[0] <= math.log10(value) <= span.y[1]:
            continue
        frame.fig.add_shape(
            **{"type": "line", "xref": "x", "x0": span.x[0], "x1": span.x[1], "y0": value, "y1": value},
            line={"color": theme.muted, "width": 1, "dash": "dash"},
            name="reference",
        )
        frame.note(
            escape(text),
            **{"x": 1, "xshift": 6, "y": math.log10(value), "yref": "y", "yanchor": "middle"},
            font={"size": frame.sizes.tick, "color": theme.muted},
            name="reference",
        )
    return frame


def _references(reference: float | None, compact: bool) -> list[tuple[float, str]]:
    if not reference or not math.isfinite(reference):
        return []
    name = "median" if compact else f"median {number(reference)}"
    return [(reference, name), (TIMES * reference, f"{TIMES} ×" if compact else f"{TIMES} × median")]


def _legend(frame: Frame) -> None:
    """Put the legend above the panel, at its right end; on a phone the foot has room for it."""
    frame.lay(
        showlegend=True,
        legend={
            **{"orientation": "h", "itemclick": False, "itemdoubleclick": False},
            **{"x": 1, "xref": "paper", "xanchor": "right"},
            **{"y": frame.y(frame.panels[0][0] - 2), "yref": "paper", "yanchor": "bottom"},
            "font": {"size": frame.sizes.tick, "color": frame.theme.ink},
            "bgcolor": "rgba(0,0,0,0)",
        },
    )


def draw(frame: Frame, lines: Lines, span: Span, symbol: str, band: str) -> None:
    """Draw the band, the median and the largest, as steps."""
    x = np.repeat(lines.edges, 2)[1:-1]
    thin = frame.plot_width < 6 * len(lines.amax)
    known = [int(c) for c in np.flatnonzero(np.isfinite(lines.amax))]
    boxes = [(c, float(held(lines.low[c], span)), float(held(lines.high[c], span))) for c in known]
    frame.fig.add_trace(columns_of(lines, boxes, faded(frame.theme.exact, 0.3), band))
    for values, name, colour, width in (
        (lines.median, "median", frame.theme.ink, 1.25 if thin else 2),
        (lines.amax, f"largest {symbol}", frame.theme.exact, 1 if thin else 1.5),
    ):
        frame.fig.add_trace(
            go.Scatter(
                **{"x": x, "y": np.repeat(held(values, span), 2), "mode": "lines", "name": escape(name)},
                **{"line": {"color": colour, "width": width}, "hoverinfo": "skip", "connectgaps": False},
            )
        )


def towers(frame: Frame, lines: Lines, span: Span, marked: Sequence[int], reference: float | None) -> None:
    """Fill the columns of outliers from the layer's median up to their largest."""
    foot = float(held(reference or 0.0, span))
    boxes = [
        (c, min(foot, top), top) for c in marked if math.isfinite(top := float(held(lines.amax[c], span)))
    ]
    if boxes:
        frame.fig.add_trace(columns_of(lines, boxes, faded(frame.theme.outlier, 0.22), None))


def columns_of(
    lines: Lines, boxes: Sequence[tuple[int, float, float]], colour: str, name: str | None
) -> go.Scatter:
    """One box a column, from its low to its high end; boxes that touch read as a band."""
    xs: list[float | None] = []
    ys: list[float | None] = []
    for c, low, high in boxes:
        left, right = lines.edges[c], lines.edges[c + 1]
        xs += [left, left, right, right, None]
        ys += [low, high, high, low, None]
    return go.Scatter(
        **{"x": xs, "y": ys, "fill": "toself", "fillcolor": colour, "mode": "lines", "line": {"width": 0}},
        **{"name": escape(name or "outliers"), "showlegend": name is not None, "hoverinfo": "skip"},
    )


def hover(frame: Frame, lines: Lines, span: Span, texts: Sequence[str]) -> None:
    """Give every column a hover of its own, wherever in it the pointer is; texts are escaped."""
    frame.fig.add_trace(
        go.Scatter(
            **{"x": lines.centres, "y": held(np.nan_to_num(lines.amax), span), "mode": "markers"},
            **{"marker": {"opacity": 0, "size": 1}, "text": list(texts), "name": "hover"},
            **{"hovertemplate": "%{text}<extra></extra>", "showlegend": False},
        )
    )


def here_line(frame: Frame, here: int | None, text: str) -> None:
    """Draw a dotted line where one looks, and say so at its upper end."""
    if here is None:
        return
    theme, size = frame.theme, frame.sizes.tick
    top, bottom = frame.panels[0]
    frame.fig.add_shape(
        **{"type": "line", "xref": "x", "x0": here, "x1": here},
        **{"yref": "paper", "y0": frame.y(bottom), "y1": frame.y(top)},
        **{"line": {"color": theme.ink, "width": 1, "dash": "dot"}, "layer": "below", "name": "here"},
    )
    first, last = frame.fig.layout.xaxis.range
    right = here > (first + last) / 2
    frame.note(
        escape(text),
        **{"x": here, "xref": "x", "xanchor": "right" if right else "left", "xshift": -4 if right else 4},
        **{"y": frame.y(bottom - 3), "yanchor": "bottom"},
        **{"bgcolor": theme.paper, "borderpad": 1},
        font={"size": size - 1, "color": theme.ink},
        name="here",
    )


def line_height(frame: Frame) -> float:
    """Return the pixels of a line of labels."""
    return LINE * frame.sizes.tick
