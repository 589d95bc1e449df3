"""Two rulers: the values of one block, and where each lands on one ruler for all and on its own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from mxviz.figures._frame import Frame
from mxviz.figures._ruler_marks import (
    ROWS,
    TOP,
    WORDS,
    Ruler,
    draw_ring,
    draw_ruler,
    draw_values,
)
from mxviz.figures._titled import titled
from mxviz.figures._traces import number
from mxviz.figures.error import percent
from mxviz.figures.labels import escape
from mxviz.figures.theme import is_compact

__all__ = ["Ruler", "span", "two_rulers"]

INSIDE = 6.0
"""A close-up shows the values up to so many times the block's median |x|; a Gaussian's 32 stay below 4."""
LANES = 6
"""Values that would cover each other step aside, this many places up and down."""


def two_rulers(
    micro: Ruler,
    single: Ruler,
    names: Sequence[str],
    *,
    title: str,
    subtitle: str = "",
    at: int | None = None,
    near: bool = True,
    kind: str = "value",
    theme: str = "light",
    width: int = 1280,
    height: int | None = None,
) -> go.Figure:
    """Draw a block's values between two rulers, with a line from each to the tick it lands on.

    Both rulers and the values share one linear axis. Every tick is a number that an element code times the
    scale can be, so that float formats show their uneven marks.

    Args:
        micro: the block's own ruler, below; single: the one ruler for all, above.
        names: what each value is called, such as `token 5 · channel 31`; plain text.
        title: one sentence that says what is seen; plain text, like subtitle.
        at: index of the value that is looked at; it is ringed and named.
        near: whether to show the values close up, leaving out what towers over them, instead of both rulers
            from end to end.
        kind: what a value is called: key or value.
        theme: `light` or `dark`.
        width: CSS pixels; below 640 the figure is laid out for a phone. So is height.

    Raises:
        ValueError: for arrays of different lengths, a place that is not there, or an unknown theme.
    """
    micro, single = _wide(micro), _wide(single)
    rulers = {"single": single, "micro": micro}
    _check(rulers, names, at)
    compact = is_compact(width)
    frame = titled(
        theme=theme,
        width=width,
        height=height or (640 if compact else 620),
        title=title,
        subtitle=subtitle,
        left=64 if compact else 92,
        foot=100 if compact else 84,
    )
    low, high = span(micro, single, near)
    apart = 0.24 * (micro.values.tobytes() != single.values.tobytes())  # a row of its own for each
    step = 12 * (high - low) / frame.plot_width
    heights = {lane: apart * ROWS[lane] + _lifts(ruler.values, step) for lane, ruler in rulers.items()}
    _axes(frame, low, high, near)
    _row_names(frame, rulers, apart, "exact" if compact else f"exact {kind}")
    for lane, ruler in rulers.items():
        inside = np.isfinite(ruler.values) & (ruler.values >= low) & (ruler.values <= high)
        draw_ruler(frame, lane, ruler, inside, heights[lane])
    for lane in rulers if apart else ("micro",):
        told = {lane: rulers[lane]} if apart else rulers
        draw_values(frame, rulers[lane], heights[lane], _hovers(told, names))
        if at is not None:
            draw_ring(frame, rulers[lane].values[at], heights[lane][at], names[at], 22 if apart else 44)
    _legend(frame, _marks(list(rulers.values()), kind))
    return frame.finish("rulers", _alt(rulers, kind), None)


def span(micro: Ruler, single: Ruler, near: bool) -> tuple[float, float]:
    """Return the ends of the axis: around the values and where they land, or both rulers whole."""
    values = [ruler.values[np.isfinite(ruler.values)] for ruler in (micro, single)]
    if near:
        median = float(np.median(np.abs(np.concatenate(values)))) if any(map(np.size, values)) else 0.0
        limit = INSIDE * median if median else np.inf
        ends = [ruler.landed[np.abs(ruler.values) <= limit] for ruler in (micro, single)]
        ends += [v[np.abs(v) <= limit] for v in values]
    else:
        ends = [micro.ticks, single.ticks, *values]
    points = np.concatenate(ends)
    points = points[np.isfinite(points)].astype(np.float64)
    if not points.size:
        return -1.0, 1.0
    low, high = float(points.min()), float(points.max())
    room = 0.05 * (high - low) or 0.5 * abs(high) or 1.0
    return low - room, high + room


def _wide(ruler: Ruler) -> Ruler:
    """Return a ruler in float64, where the room around float32's largest values can be computed."""
    floats = (np.asarray(array, dtype=np.float64) for array in (ruler.ticks, ruler.values, ruler.landed))
    flags = (np.asarray(array, dtype=bool) for array in (ruler.flushed, ruler.clipped))
    return Ruler(ruler.heading, *floats, *flags, ruler.said)


def _check(rulers: dict[str, Ruler], names: Sequence[str], at: int | None) -> None:
    for lane, ruler in rulers.items():
        lengths = {len(array) for array in ruler[2:6]}
        if lengths != {len(names)}:
            raise ValueError(
                f"the {lane} ruler has arrays of {sorted(lengths)} values and there are {len(names)} names"
            )
    if at is not None and not 0 <= at < len(names):
        raise ValueError(f"value {at} is not among the {len(names)} of the block")


def _lifts(values: NDArray[np.float32], step: float) -> NDArray[np.float64]:
    """Return how far each value steps aside so that markers `step` wide do not cover each other."""
    lifts, ends = np.zeros(len(values)), np.full(2 * LANES + 1, -np.inf)
    places = [0, *(sign * i for i in range(1, LANES + 1) for sign in (1, -1))]
    for i in np.argsort(values, kind="stable"):
        free = (p for p, end in enumerate(ends) if values[i] - end >= step)
        lane = next(free, int(ends.argmin()))
        ends[lane], lifts[i] = values[i], places[lane] * 0.075
    return lifts


def _axes(frame: Frame, low: float, high: float, near: bool) -> None:
    theme, size = frame.theme, frame.sizes.tick
    frame.lay(
        hoverdistance=16,
        xaxis={
            **{"range": [low, high], "zeroline": True, "zerolinecolor": theme.muted, "zerolinewidth": 1},
            **{"showgrid": True, "gridcolor": theme.grid, "exponentformat": "power"},
            **{"nticks": 6 if frame.compact else 12, "tickfont": {"size": size, "color": theme.muted}},
            "title": {
                "text": "linear axis, " + ("close up" if near else "both rulers from end to end"),
                "font": {"size": size, "color": theme.muted},
                "standoff": 6,
            },
        },
        yaxis={"range": [-TOP, TOP], "fixedrange": True, "showgrid": False, "zeroline": False, "ticks": ""},
    )


def _row_names(frame: Frame, rulers: dict[str, Ruler], apart: float, exact: str) -> None:
    """Name the two rulers and the values between them, in their colours."""
    theme = frame.theme
    rows = [(ROWS[lane], WORDS[lane], getattr(theme, lane)) for lane in rulers]
    if apart:
        rows += [(apart * ROWS[lane], ruler.said or exact, theme.exact) for lane, ruler in rulers.items()]
    else:
        rows.append((0.0, exact, theme.exact))
    frame.fig.update_yaxes(
        tickmode="array",
        tickvals=[at for at, _, _ in rows],
        ticktext=[f'<b style="color:{colour}">{escape(name)}</b>' for _, name, colour in rows],
        tickfont={"size": frame.sizes.tick},
    )


def _marks(rulers: Sequence[Ruler], kind: str) -> dict[str, str]:
    """Return the marks that occur, name to symbol, without colour: the colours belong to the rulers."""
    landed = any((np.isfinite(r.landed) & ~(r.flushed | r.clipped)).any() for r in rulers)
    entries = {
        f"exact {kind}": ("circle", True),
        "stored as": ("square", landed),
        "became zero": ("x", any(r.flushed.any() for r in rulers)),
        "clipped": ("triangle-right", any(r.clipped.any() for r in rulers)),
    }
    return {name: symbol for name, (symbol, there) in entries.items() if there}


def _legend(frame: Frame, entries: dict[str, str]) -> None:
    """Put the names of the marks at the foot."""
    for i, (name, symbol) in enumerate(entries.items()):
        marker = {"symbol": symbol, "color": frame.theme.ink if i else frame.theme.exact, "size": 10}
        frame.fig.add_trace(go.Scatter(x=[None], y=[None], mode="markers", name=name, marker=marker))
    frame.lay(
        showlegend=True,
        legend={
            **{"orientation": "h", "itemclick": False, "itemdoubleclick": False},
            **{"x": 1, "xref": "paper", "xanchor": "right", "bgcolor": "rgba(0,0,0,0)"},
            **{"y": frame.y(frame.height - 6), "yref": "paper", "yanchor": "bottom"},
            "font": {"size": frame.sizes.tick, "color": frame.theme.ink},
        },
    )


def _hovers(rulers: dict[str, Ruler], names: Sequence[str]) -> list[str]:
    """Return what is said of each value when it is pointed at."""
    lines = []
    for i, name in enumerate(names):
        text = f"<b>{escape(name)}</b>"
        for lane, ruler in rulers.items():
            value, landed = float(ruler.values[i]), float(ruler.landed[i])
            lost = abs(value - landed) / abs(value) if value else float(landed != 0)
            said = " · clipped" if ruler.clipped[i] else " · became zero" if ruler.flushed[i] else ""
            text += f"<br>{WORDS[lane]}: {number(value, 4)} → {number(landed, 4)}, {percent(lost)} off{said}"
        lines.append(text)
    return lines


def _alt(rulers: dict[str, Ruler], kind: str) -> str:
    said = []
    for ruler in rulers.values():
        zeros, cut = int(ruler.flushed.sum()), int(ruler.clipped.sum())
        said.append(f"{ruler.heading}: {zeros} become zero, {cut} lie beyond its end")
    count = len(rulers["micro"].values)
    return f"{count} {kind}{'s' * (count != 1)} of one block between two rulers. {'. '.join(said)}."
