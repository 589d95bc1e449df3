"""One block under several rulers: every value, and the height below which its ruler sees nothing."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
from numpy.typing import ArrayLike

from mxviz.figures._bars import row
from mxviz.figures._frame import Frame
from mxviz.figures._titled import titled
from mxviz.figures._traces import log_ticks, number
from mxviz.figures.theme import faded, is_compact

_FATES = {
    "kept": ("circle", "micro", "kept"),
    "flushed": ("x", "ink", "became zero"),
    "outlier": ("diamond", "outlier", "the outlier"),
}
"""What became of a value: its mark, its colour and its name."""


def shared_block(
    values: ArrayLike,
    decoded: ArrayLike,
    limits: ArrayLike,
    size: int,
    *,
    at: int,
    title: str,
    subtitle: str = "",
    theme: str = "light",
    width: int = 1280,
    height: int | None = None,
) -> go.Figure:
    """Draw |values| of a block on a logarithmic axis; a bar over each ruler's values marks what it loses.

    Args:
        values: `[values]`; decoded (what they read as) and limits (half of the first tick of each value's
            ruler, positive) likewise.
        size: neighbours that share a ruler.
        at: where the outlier stands.
        title: one sentence that says what is seen; plain text, like subtitle.
        theme: `light` or `dark`.
        width: CSS pixels; below 640 the figure is laid out for a phone. So is height.

    Raises:
        ValueError: for arrays of different lengths, a size below 1, or an unknown theme.
    """
    names = [str(i) for i in range(len(np.asarray(values)))]
    x, read, low = (row(n, a, names, "values") for n, a in zip("xrl", (values, decoded, limits), strict=True))
    if size < 1:
        raise ValueError(f"{size} values cannot share a ruler; expected 1 or more")
    compact = is_compact(width)
    frame = titled(
        theme=theme,
        width=width,
        height=height or (500 if compact else 520),
        title=title,
        subtitle=subtitle,
        left=56 if compact else 84,
        foot=92 if compact else 74,
    )
    flushed = (x != 0) & (read == 0)
    known = np.concatenate([np.abs(x[x != 0]), low])
    ends = np.log10([known.min() / 1.6, known.max() * 1.8])
    _rulers(frame, low, size)
    place = np.arange(len(x))
    kept = ~flushed & (place != at)
    for fate, mask in (("kept", kept), ("flushed", flushed), ("outlier", (place == at) & ~flushed)):
        _values(frame, fate, place[mask], x[mask], read[mask])
    _axes(frame, float(ends[0]), float(ends[1]), len(x))
    zeros = int(flushed.sum())
    alt = f"{len(x)} values, {size} to a ruler; {zeros} become zero; the outlier is {number(float(x[at]))}."
    return frame.finish("shared-block", alt, None)


def _rulers(frame: Frame, low: np.ndarray, size: int) -> None:
    """Shade what each ruler does not see, up to half of its first tick."""
    for i in range(0, len(low), size):
        left, right = i - 0.46, min(i + size, len(low)) - 0.54
        frame.fig.add_shape(
            type="rect",
            **{"x0": left, "x1": right, "xref": "x", "yref": "y", "layer": "below"},
            **{"y0": 1e-12, "y1": float(low[i])},
            fillcolor=faded(frame.theme.micro, 0.16),
            line={"width": 0},
            name="unseen",
        )
        frame.fig.add_shape(
            type="line",
            **{"x0": left, "x1": right, "xref": "x", "yref": "y", "y0": float(low[i]), "y1": float(low[i])},
            line={"color": frame.theme.micro, "width": 3},
            name="ruler",
        )


def _values(frame: Frame, fate: str, place: np.ndarray, x: np.ndarray, read: np.ndarray) -> None:
    symbol, colour, name = _FATES[fate]
    said = [f"{number(float(v))} → {number(float(r))}" for v, r in zip(x, read, strict=True)]
    frame.fig.add_trace(
        go.Scatter(
            x=place,
            y=np.abs(x),
            mode="markers",
            marker={
                **{"symbol": symbol, "size": 10 if frame.compact else 14},
                **{"color": getattr(frame.theme, colour), "line": {"width": 1, "color": frame.theme.paper}},
            },
            customdata=said,
            hovertemplate="value %{x}: %{customdata}<extra></extra>",
            name=name,
            showlegend=len(x) > 0,
        )
    )


def _axes(frame: Frame, low: float, high: float, count: int) -> None:
    size, muted = frame.sizes.tick, frame.theme.muted
    ticks = log_ticks(low, high)
    title = {"font": {"size": size, "color": muted}, "standoff": 6}
    frame.lay(
        xaxis={
            **{"range": [-0.6, count - 0.4], "fixedrange": True, "showgrid": False, "zeroline": False},
            **{"tickfont": {"size": size, "color": muted}, "title": title | {"text": "value of the block"}},
        },
        yaxis={
            **{"type": "log", "range": [low, high], "fixedrange": True, "gridcolor": frame.theme.grid},
            **{"tickvals": [10**t for t in ticks], "ticktext": list(ticks.values()), "zeroline": False},
            **{"tickfont": {"size": size, "color": muted}, "title": title | {"text": "|key|"}},
        },
        showlegend=True,
        legend={
            **{"orientation": "h", "itemclick": False, "itemdoubleclick": False},
            **{"x": 1, "xref": "paper", "xanchor": "right", "bgcolor": "rgba(0,0,0,0)"},
            **{"y": frame.y(frame.height - 4), "yref": "paper", "yanchor": "bottom"},
            "font": {"size": frame.sizes.tick, "color": frame.theme.ink},
        },
    )
