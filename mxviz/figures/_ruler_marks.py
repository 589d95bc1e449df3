"""Marks of the two rulers: ticks, values, and the lines between them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from mxviz.figures._frame import Frame
from mxviz.figures._traces import number
from mxviz.figures.labels import escape, text_width, wrap
from mxviz.figures.theme import faded, sizes_for

TICK = 0.13
ROWS = {"single": 1.0, "micro": -1.0}
"""Where the rulers lie; the values lie between them, around 0."""
TOP = 1.7
"""Half of what the axis shows of them: room for tick labels and headings outside the rulers."""
WORDS = {"single": "one scale", "micro": "own scale"}
_DASHES = {"": "solid", "flushed": "dot", "clipped": "dash"}
"""A value's line says without colour what became of it."""


class Ruler(NamedTuple):
    """One ruler and what lies on it; arrays are `[values]` float32 or bool, in one order for both rulers.

    Args:
        heading: what the ruler is, in words; plain text.
        ticks: `[ticks]`, every number the ruler can hold, ascending; empty where values are kept exactly or
            the scale is NaN.
        values: what was stored.
        landed: what it reads as afterwards.
        flushed: which became zero without being zero.
        clipped: which lie beyond the end of the ruler.
        said: what the values are, where the two rulers store different ones; plain text.
    """

    heading: str
    ticks: NDArray[np.float32]
    values: NDArray[np.float32]
    landed: NDArray[np.float32]
    flushed: NDArray[np.bool_]
    clipped: NDArray[np.bool_]
    said: str = ""


def draw_ruler(
    frame: Frame, lane: str, ruler: Ruler, inside: NDArray[np.bool_], heights: NDArray[np.float64]
) -> None:
    """Draw one ruler, and how the values that are inside the picture, at their heights, land on it."""
    _draw_ticks(frame, lane, ruler)
    _draw_lines(frame, lane, ruler, inside, heights)
    _draw_landed(frame, lane, ruler, inside)


def _draw_ticks(frame: Frame, lane: str, ruler: Ruler) -> None:
    """Draw the ruler's line and a mark at every number it can hold, with its heading."""
    low, high = frame.fig.layout.xaxis.range
    row, colour = ROWS[lane], getattr(frame.theme, lane)
    seen = ruler.ticks[(ruler.ticks >= low) & (ruler.ticks <= high)]
    ends = (ruler.ticks[0], ruler.ticks[-1]) if ruler.ticks.size else (low, high)
    first, last = (float(np.clip(end, low, high)) for end in ends)  # a ruler ends where its ticks do
    tall = [TICK * (1.6 if t in ends else 1.0) for t in seen]
    pieces = {
        "ruler": ([first, last], [row, row], 2.5),
        "ticks": (
            [x for t in seen.tolist() for x in (t, t, None)],
            [y for h in tall for y in (row - h, row + h, None)],
            1.0 if len(seen) > frame.plot_width / 6 else 3.0,
        ),
    }
    for name, (x, y, thick) in pieces.items():
        frame.fig.add_trace(
            go.Scatter(
                x=x,
                y=y,
                mode="lines",
                line={"color": colour, "width": thick},
                hoverinfo="skip",
                showlegend=False,
                name=f"{lane} {name}",
            )
        )
    _tick_labels(frame, lane, seen)
    frame.note(
        "<br>".join(map(escape, heading_lines(frame.width, ruler.heading))),
        xshift=frame.sizes.pad - frame.left,
        y=TOP if lane == "single" else -TOP,
        yref="y",
        yanchor="top" if lane == "single" else "bottom",
        font={"size": frame.sizes.heading, "color": colour, "weight": 600},
        bgcolor=frame.theme.paper,
        align="left",
        name="heading",
    )


def heading_lines(width: int, heading: str) -> list[str]:
    """Return the lines a ruler's heading takes in a figure of a width."""
    sizes = sizes_for(width)
    return wrap(heading, width - 2 * sizes.pad, sizes.heading * 1.04)


def _tick_labels(frame: Frame, lane: str, seen: NDArray[np.float32]) -> None:
    """Write what ticks stand for, as many as have room; zero first, then the longest."""
    size, low, high = frame.sizes.tick - 2, *frame.fig.layout.xaxis.range
    per_pixel = (high - low) / frame.plot_width
    taken: list[tuple[float, float]] = []
    for tick in sorted(seen.tolist(), key=lambda t: (t != 0, -abs(t))):
        text = number(tick)
        half = (text_width(text, size) / 2 + 5) * per_pixel
        if all(tick + half < a or tick - half > b for a, b in taken):
            taken.append((tick - half, tick + half))
            above = lane == "single"
            frame.note(
                text,
                **{"x": tick, "xref": "x", "xanchor": "center", "yref": "y"},
                y=ROWS[lane] + (1.6 * TICK + 0.01) * (1 if above else -1),
                yanchor="bottom" if above else "top",
                font={"size": size, "color": getattr(frame.theme, lane)},
                name=f"tick {lane}",
            )


def _draw_lines(
    frame: Frame, lane: str, ruler: Ruler, inside: NDArray[np.bool_], heights: NDArray[np.float64]
) -> None:
    """Draw a line from every value in sight to where it lands, dashed by what became of it."""
    end = ROWS[lane] * (1 - TICK / 2 / abs(ROWS[lane]))
    there = inside & np.isfinite(ruler.landed)
    fates = {"flushed": ruler.flushed, "clipped": ruler.clipped & ~ruler.flushed}
    fates[""] = ~(ruler.flushed | ruler.clipped)
    for fate, mask in fates.items():
        chosen = np.flatnonzero(there & mask)
        if chosen.size:
            frame.fig.add_trace(
                go.Scatter(
                    x=[x for i in chosen for x in (float(ruler.values[i]), float(ruler.landed[i]), None)],
                    y=[y for i in chosen for y in (float(heights[i]), end, None)],
                    mode="lines",
                    line={
                        "color": faded(getattr(frame.theme, lane), 0.55),
                        "width": 1.3,
                        "dash": _DASHES[fate],
                    },
                    hoverinfo="skip",
                    showlegend=False,
                    name=f"{lane} lines {fate}".strip(),
                )
            )


def _draw_landed(frame: Frame, lane: str, ruler: Ruler, inside: NDArray[np.bool_]) -> None:
    """Mark the ticks that values land on, and count those that became zero."""
    there = inside & np.isfinite(ruler.landed)
    marks = {
        "": ("square", there & ~(ruler.flushed | ruler.clipped)),
        "clipped": ("triangle-right", there & ruler.clipped & ~ruler.flushed),
        "flushed": ("x", there & ruler.flushed),
    }
    colour = getattr(frame.theme, lane)
    for fate, (symbol, mask) in marks.items():
        landed, counts = np.unique(ruler.landed[mask], return_counts=True)
        if not landed.size:
            continue
        left = fate == "clipped"
        frame.fig.add_trace(
            go.Scatter(
                x=landed,
                y=np.full(len(landed), ROWS[lane]),
                mode="markers",
                marker={
                    "symbol": ["triangle-left" if left and v < 0 else symbol for v in landed],
                    "size": 13 if fate else 10,
                    "color": colour,
                    "line": {"color": frame.theme.paper, "width": 1},
                },
                customdata=counts,
                hovertemplate="stored as %{x:.5g} · %{customdata} of them<extra></extra>",
                showlegend=False,
                name=f"{lane} landed {fate}".strip(),
            )
        )
    if (count := int(ruler.flushed.sum())) and (there & ruler.flushed).any():
        frame.note(
            f"{count} became zero",
            **{"x": 0, "xref": "x", "xshift": 12, "yref": "y", "yanchor": "middle"},
            y=ROWS[lane] + 0.24 * (-1 if lane == "single" else 1),
            font={"size": frame.sizes.tick, "color": colour, "weight": 700},
            bgcolor=faded(frame.theme.paper, 0.85),
            name=f"zeros {lane}",
        )


def draw_values(frame: Frame, ruler: Ruler, heights: NDArray[np.float64], hovers: list[str]) -> None:
    """Draw the exact values, and at the edges how many lie out of sight."""
    low, high = frame.fig.layout.xaxis.range
    theme, x = frame.theme, ruler.values
    inside = np.flatnonzero(np.isfinite(x) & (x >= low) & (x <= high))
    frame.fig.add_trace(
        go.Scatter(
            x=x[inside],
            y=heights[inside],
            mode="markers",
            marker={"size": 11, "color": theme.exact, "line": {"color": theme.paper, "width": 1.2}},
            customdata=[[int(i), hovers[i]] for i in inside],
            hovertemplate="%{customdata[1]}<extra></extra>",
            showlegend=False,
            name="values",
        )
    )
    for left, beyond in ((True, x[x < low]), (False, x[x > high])):
        beyond = beyond[np.isfinite(beyond)]
        if beyond.size:
            far = number(float(beyond[np.abs(beyond).argmax()]), 4)
            said = far if beyond.size == 1 else f"{beyond.size} as far as {far}"
            frame.note(
                f"◀ {said}" if left else f"{said} ▶",
                x=low if left else high,
                **{"xref": "x", "xanchor": "left" if left else "right", "xshift": 4 if left else -4},
                **{"y": float(np.median(heights)), "yref": "y", "yanchor": "middle"},
                font={"size": frame.sizes.tick, "color": theme.outlier, "weight": 700},
                bgcolor=faded(theme.paper, 0.85),
                name="beyond",
            )


def draw_ring(frame: Frame, value: float, height: float, name: str, up: int = 44) -> None:
    """Ring the value that is looked at, its name `up` pixels above; nothing where it is out of sight."""
    low, high = frame.fig.layout.xaxis.range
    if not low <= value <= high:
        return
    frame.fig.add_trace(
        go.Scatter(
            x=[float(value)],
            y=[float(height)],
            mode="markers",
            marker={"symbol": "circle-open", "size": 18, "color": frame.theme.ink, "line": {"width": 2.5}},
            hoverinfo="skip",
            showlegend=False,
            name="ring",
        )
    )
    side = (value - low) / (high - low)
    frame.note(
        f"{escape(name)}: {number(float(value), 4)}",
        **{"x": float(value), "xref": "x", "y": float(height), "yref": "y"},
        **{"showarrow": True, "ax": 0, "ay": -up, "arrowhead": 0, "arrowwidth": 1.5, "standoff": 9},
        xanchor="left" if side < 0.2 else "right" if side > 0.8 else "center",
        font={"size": frame.sizes.tick, "color": frame.theme.ink, "weight": 700},
        bgcolor=faded(frame.theme.paper, 0.9),
        arrowcolor=frame.theme.ink,
        name="ring",
    )
