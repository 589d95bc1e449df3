"""Named bars: bytes against the memory of cards, or nats of KL; every bar says its number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import plotly.graph_objects as go

from mxviz.figures._frame import Frame
from mxviz.figures._titled import titled
from mxviz.figures.labels import escape, text_width
from mxviz.figures.theme import is_compact, sizes_for

PATTERNS = {"exact": "", "micro": "", "single": "/"}
"""Lanes of a bar; one scale for all is hatched, so that colour does not tell it alone."""


_LEVEL = 18
"""Pixels between the names of lines, which stand one above the other: on two levels, or on a phone each on
its own."""


class Bar(NamedTuple):
    """One bar: its name, its value, what is said at its end, and its lane (a meaning colour)."""

    name: str
    value: float
    said: str
    lane: str


class Mark(NamedTuple):
    """A line across the bars, and its name."""

    value: float
    name: str


def named_bars(
    bars: Sequence[Bar],
    *,
    title: str,
    axis: str,
    span: tuple[float, float],
    ticks: dict[float, str],
    marks: Sequence[Mark] = (),
    subtitle: str = "",
    theme: str = "light",
    width: int = 1280,
    height: int | None = None,
) -> go.Figure:
    """Draw horizontal bars on a logarithmic axis, in the order given, with lines across them.

    Args:
        bars: at least one, values above 0; what lies outside the span ends at its edge.
        title: one sentence that says what is seen; plain text, like every name.
        axis: what the values are, with their unit.
        span: first and last value of the axis, above 0.
        ticks: value to what is written there.
        marks: lines across.
        theme: `light` or `dark`.
        width: CSS pixels; below 640 the figure is laid out for a phone. So is height.

    Raises:
        ValueError: for no bars, a value of 0 or less, an unknown lane or an unknown theme.
    """
    if not bars or any(bar.lane not in PATTERNS or not bar.value > 0 for bar in bars):
        raise ValueError(
            f"{len(bars)} bars; expected some, of values above 0 and lanes {', '.join(PATTERNS)}"
        )
    compact, sizes = is_compact(width), sizes_for(width)
    widest = max(text_width(bar.name, sizes.heading) for bar in bars)
    frame = titled(
        theme=theme,
        width=width,
        height=height
        or (270 if compact else 210)
        + (64 if compact else 50) * len(bars)
        + _LEVEL * len(marks) // (1 if compact else 2),
        title=title,
        subtitle=subtitle,
        left=sizes.pad + (8 if compact else widest + 14),
        foot=64,
    )
    first, last = np.log10(span)
    _draw(frame, bars, float(first), float(last))
    _axes(frame, bars, (float(first), float(last)), ticks, axis, bool(marks))
    for i, mark in enumerate(marks):
        _mark(frame, mark, i if compact else i % 2)
    said = "; ".join(f"{bar.name}: {bar.said}" for bar in bars)
    lines = "; ".join(mark.name for mark in marks)
    return frame.finish("named-bars", f"Bars of {axis}. {said}.{f' Lines: {lines}.' if lines else ''}", None)


def _draw(frame: Frame, bars: Sequence[Bar], first: float, last: float) -> None:
    places = [float(np.clip(np.log10(bar.value), first, last)) for bar in bars]
    colours = [getattr(frame.theme, bar.lane) for bar in bars]
    frame.fig.add_trace(
        go.Bar(
            x=[place - first for place in places],
            base=first,
            y=list(range(len(bars))),
            orientation="h",
            width=0.4 if frame.compact else 0.6,
            marker={
                "color": colours,
                "line": {"width": 0},
                "pattern": {
                    "shape": [PATTERNS[bar.lane] for bar in bars],
                    "fgcolor": frame.theme.paper,
                    "size": 7,
                },
            },
            customdata=[[escape(bar.name), escape(bar.said)] for bar in bars],
            hovertemplate="%{customdata[0]}<br>%{customdata[1]}<extra></extra>",
            name="bars",
        )
    )
    for i, (bar, place) in enumerate(zip(bars, places, strict=True)):
        if frame.compact:  # at the right end of the line that names the bar
            where = {"x": 1, "y": i - 0.22, "xanchor": "right", "yanchor": "bottom"}
        else:
            where = {"x": place, "xref": "x", "y": i, "yanchor": "middle"} | _side(
                frame, bar, place, first, last
            )
        frame.note(
            escape(bar.said),
            **{"yref": "y", "bgcolor": frame.theme.paper, "borderpad": 2} | where,
            font={
                "size": frame.sizes.tick if frame.compact else frame.sizes.heading,
                "color": frame.theme.ink,
                "weight": 700,
            },
            name="said",
        )


def _side(frame: Frame, bar: Bar, place: float, first: float, last: float) -> dict[str, object]:
    """Return where a bar's text goes: behind its end, or inside where there is no room behind it."""
    pixels = frame.plot_width * (place - first) / (last - first)
    inside = pixels + text_width(bar.said, frame.sizes.heading) * 1.08 + 16 > frame.plot_width
    return {"xanchor": "right" if inside else "left", "xshift": -8 if inside else 8}


def _axes(
    frame: Frame,
    bars: Sequence[Bar],
    span: tuple[float, float],
    ticks: dict[float, str],
    axis: str,
    marked: bool,
) -> None:
    sizes, muted = frame.sizes, frame.theme.muted
    shown = {float(np.log10(value)): text for value, text in ticks.items()}
    room = 0.6 + 0.35 * frame.compact  # above the first bar
    room += marked * (1.3 if frame.compact else 0.8)  # for the names of lines
    frame.lay(
        xaxis={
            **{"range": list(span), "fixedrange": True, "zeroline": False, "gridcolor": frame.theme.grid},
            **{"tickvals": list(shown), "ticktext": list(shown.values())},
            **{"tickfont": {"size": sizes.tick, "color": muted}},
            "title": {"text": escape(axis), "font": {"size": sizes.tick, "color": muted}, "standoff": 6},
        },
        yaxis={
            **{"range": [len(bars) - 0.45, -room], "fixedrange": True, "showgrid": False},
            **{"tickvals": list(range(len(bars))), "ticktext": [escape(bar.name) for bar in bars]},
            **{"tickfont": {"size": sizes.heading, "color": frame.theme.ink}},
            **{"ticks": "outside", "ticklen": 8, "tickcolor": frame.theme.paper, "zeroline": False},
            "showticklabels": not frame.compact,
        },
    )
    if frame.compact:  # no room beside the bars: names stand above them
        for i, bar in enumerate(bars):
            frame.note(
                escape(bar.name),
                **{"y": i - 0.22, "yref": "y", "yanchor": "bottom"},
                font={"size": sizes.tick, "color": frame.theme.ink},
                name="bar name",
            )


def _mark(frame: Frame, mark: Mark, level: int) -> None:
    place = float(np.log10(mark.value))
    frame.fig.add_shape(
        type="line",
        **{"x0": place, "x1": place, "xref": "x", "y0": 0, "y1": 1, "yref": "paper", "layer": "above"},
        line={"color": frame.theme.outlier, "width": 2, "dash": "dash"},
    )
    frame.note(
        escape(mark.name),
        **{"x": place, "xref": "x", "y": 1, "yref": "paper", "yanchor": "top", "yshift": -_LEVEL * level},
        xanchor="center",
        bgcolor=frame.theme.paper,
        font={"size": frame.sizes.tick, "color": frame.theme.outlier, "weight": 600},
        name="mark",
    )
