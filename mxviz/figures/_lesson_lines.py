"""A few curves that are named at their ends: how work or time grows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import plotly.graph_objects as go
from numpy.typing import ArrayLike

from mxviz.figures._frame import Frame
from mxviz.figures._titled import titled
from mxviz.figures.labels import escape
from mxviz.figures.theme import is_compact


class Curve(NamedTuple):
    """One curve: its name, its points, a meaning colour of the theme, and how its line is drawn."""

    name: str
    x: ArrayLike
    y: ArrayLike
    colour: str
    dash: str = "solid"


def curves(
    lines: Sequence[Curve],
    *,
    title: str,
    x_name: str,
    y_name: str,
    subtitle: str = "",
    x_end: float | None = None,
    y_end: float | None = None,
    theme: str = "light",
    width: int = 1280,
    height: int | None = None,
) -> go.Figure:
    """Draw curves on linear axes from zero, the first one below; each is named at its end.

    Args:
        lines: at least one point altogether; names are plain text.
        title: one sentence that says what is seen; plain text, like all names.
        x_end: where the axis ends; by default where the longest curve does. So is y_end, but for the highest.
        theme: `light` or `dark`.
        width: CSS pixels; below 640 the figure is laid out for a phone. So is height.

    Raises:
        ValueError: for no points, x and y of different lengths, or an unknown theme.
    """
    points = [(np.asarray(c.x, float), np.asarray(c.y, float)) for c in lines]
    if not any(x.size for x, _ in points) or any(x.shape != y.shape for x, y in points):
        raise ValueError(f"curves of {[(x.size, y.size) for x, y in points]} points; expected some, in pairs")
    compact = is_compact(width)
    frame = titled(
        theme=theme,
        width=width,
        height=height or (460 if compact else 500),
        title=title,
        subtitle=subtitle,
        left=64 if compact else 92,
        foot=58,
    )
    right = x_end or max(float(x.max()) for x, _ in points if x.size)
    top = 1.14 * (y_end or max(float(y.max()) for _, y in points if y.size))
    for curve, (x, y) in zip(lines, points, strict=True):
        _draw(frame, curve, x, y, (right, top))
    _axes(frame, right, top, x_name, y_name)
    ends = "; ".join(
        f"{c.name} ends at {y[-1]:,.0f}" for c, (_, y) in zip(lines, points, strict=True) if y.size
    )
    return frame.finish("curves", f"{y_name} by {x_name}. {ends}.", None)


def _draw(frame: Frame, curve: Curve, x: np.ndarray, y: np.ndarray, ends: tuple[float, float]) -> None:
    right, top = ends
    if not x.size:
        return
    colour = getattr(frame.theme, curve.colour)
    frame.fig.add_trace(
        go.Scatter(
            x=x,
            y=y,
            mode="lines+markers" if len(x) < 12 else "lines",
            line={"color": colour, "width": 4, "dash": curve.dash},
            marker={"size": 10, "color": colour},
            hovertemplate=f"{escape(curve.name)}<br>%{{x:.0f}}: %{{y:,.4~g}}<extra></extra>",
            name=escape(curve.name),
        )
    )
    frame.note(
        f"{escape(curve.name)}: {y[-1]:,.0f}",
        **{"x": float(x[-1]), "xref": "x", "y": min(float(y[-1]), top / 1.14), "yref": "y"},
        **{"xanchor": "right" if x[-1] > 0.3 * right else "left", "yanchor": "bottom", "yshift": 8},
        bgcolor=frame.theme.paper,
        font={"size": frame.sizes.heading, "color": colour, "weight": 700},
        name="curve",
    )


def _axes(frame: Frame, right: float, top: float, x_name: str, y_name: str) -> None:
    size, muted = frame.sizes.tick, frame.theme.muted
    common = {
        **{"fixedrange": True, "zeroline": True, "zerolinecolor": muted, "gridcolor": frame.theme.grid},
        **{"tickfont": {"size": size, "color": muted}, "nticks": 6},
    }
    title = {"font": {"size": size, "color": muted}, "standoff": 6}
    frame.lay(
        xaxis=common | {"range": [0, 1.01 * right], "title": title | {"text": escape(x_name)}},
        yaxis=common | {"range": [0, top], "title": title | {"text": escape(y_name)}, "tickformat": ",~g"},
    )
