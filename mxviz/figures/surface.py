"""|x| as a landscape over tokens and channels: the classic picture of outliers, for talks.

The manner is that of SmoothQuant (arXiv 2211.10438) and of Massive Activations (arXiv 2402.17762).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import ArrayLike

from mxviz.figures._cells import MAX_ROWS, Array, Grid, checked, grid, notice
from mxviz.figures._frame import LINE
from mxviz.figures._traces import log_range, log_ticks, number
from mxviz.figures.labels import balance, escape, label, wrap
from mxviz.figures.theme import Theme, base_layout, colorscale, faded, is_compact, sizes_for, theme_named

MAX_CELLS = 60_000
"""Cells a surface sends; each is drawn as two triangles, and the picture is turned by hand."""

_LABELS = 4
_TOKENS = {False: 7, True: 3}


def surface(
    x: ArrayLike,
    tokens: Sequence[str],
    *,
    title: str,
    subtitle: str = "",
    marked: Sequence[int] = (),
    symbol: str = "|K|",
    theme: str = "light",
    width: int = 1280,
    height: int | None = None,
) -> go.Figure:
    """Draw |x| as a surface, its height on a linear axis and its colour on a logarithmic one.

    What is more than `MAX_CELLS` is reduced by the largest magnitude, so that a lone spike survives.

    Args:
        x: one head's keys or values, `[tokens, channels]`, with their signs.
        tokens: the text of each token.
        title: one sentence that says what is seen; plain text, like subtitle.
        marked: outlier channels, the most important first; their ridges are labelled with their peak.
        symbol: what |x| is called.
        theme: `light` or `dark`.
        width: CSS pixels; below 640 the figure is laid out for a phone. So is height.

    Raises:
        ValueError: for arrays of the wrong shape, marked channels that are not there, an unknown theme.
    """
    values = checked("x", x, tokens)
    missing = [c for c in marked if not 0 <= c < values.shape[1]]
    if missing:
        raise ValueError(f"marked channels {missing} are not among the {values.shape[1]} channels of x")
    look, compact, sizes = theme_named(theme), is_compact(width), sizes_for(width)
    room = max(1, MAX_CELLS // min(values.shape[1], MAX_ROWS))  # channels stay apart, tokens are reduced
    cells = grid(np.abs(values), width=room, height=values.shape[1], cells=MAX_CELLS)
    low, high = log_range(np.abs(values))
    room = width - 2 * sizes.pad
    titles, notes = balance(title, room, sizes.title * 1.08), wrap(subtitle, room, sizes.subtitle)
    head = sizes.pad + len(titles) * LINE * sizes.title + len(notes) * LINE * sizes.subtitle + 8
    height = height or (520 if compact else 720)
    fig = go.Figure(_trace(cells, symbol, low, high, look, compact))
    fig.update_layout(base_layout(look, width=width, height=height))
    fig.update_layout(
        title={
            "text": "<br>".join(map(escape, titles)),
            "font": {"size": sizes.title, "color": look.ink, "weight": 700},
            "pad": {"l": sizes.pad, "t": sizes.pad + 0.7 * sizes.title * (len(titles) > 1)},
            **{"x": 0, "xref": "container", "xanchor": "left"},
            **{"y": 1, "yref": "container", "yanchor": "top"},
        },
        margin={"l": 0, "r": 0, "t": head, "b": 8, "autoexpand": False},
        scene=_scene(values, tokens, marked, symbol, look, compact),
    )
    if notes:
        fig.add_annotation(
            text="<br>".join(map(escape, notes)),
            **{"x": 0, "xref": "paper", "xanchor": "left", "xshift": sizes.pad, "align": "left"},
            **{"y": 1, "yref": "paper", "yanchor": "bottom", "yshift": 4, "showarrow": False},
            font={"size": sizes.subtitle, "color": look.muted},
            name="subtitle",
        )
    meta = {"figure": "surface", "alt": _alt(values, marked, symbol), "reduced": notice(cells, values.shape)}
    return fig.update_layout(meta=meta)


def _trace(cells: Grid, symbol: str, low: float, high: float, theme: Theme, compact: bool) -> go.Surface:
    """The landscape: z is |x| with tokens to the right, [channels, tokens]; colour is its logarithm."""
    real = np.isfinite(cells.z)
    colour = np.log10(np.where(real, np.maximum(cells.z, 10**low), np.nan)).astype(np.float32)
    ticks = log_ticks(low, high)
    return go.Surface(
        z=np.where(real, cells.z, np.nan).astype(np.float32),
        x=(cells.x[:-1] + cells.x[1:]) / 2,
        y=(cells.y[:-1] + cells.y[1:]) / 2,
        surfacecolor=colour,
        **{"cmin": low, "cmax": high, "colorscale": colorscale(theme.sequential)},
        colorbar={
            **{"len": 0.5, "thickness": 10, "outlinewidth": 0, "x": 0.99, "xanchor": "right", "y": 0.55},
            **{"tickvals": list(ticks), "ticktext": list(ticks.values())},
            "title": {"text": escape(symbol), "side": "top"},
            "tickfont": {"color": theme.muted},
        },
        showscale=not compact,
        lighting={"ambient": 0.78, "diffuse": 0.45, "specular": 0.05, "roughness": 0.9},
        contours={"x": {"highlight": False}, "y": {"highlight": False}, "z": {"highlight": False}},
        hovertemplate=f"token %{{x:.0f}} · channel %{{y:.0f}}<br>{escape(symbol)} %{{z:.4g}}<extra></extra>",
        name=escape(symbol),
    )


def _scene(
    values: Array, tokens: Sequence[str], marked: Sequence[int], symbol: str, theme: Theme, compact: bool
) -> dict[str, Any]:
    count, channels = values.shape
    size, step = 11 if compact else 13, max(1, channels // 4)
    axis = {
        **{"gridcolor": theme.grid, "zeroline": False, "showbackground": False, "showspikes": False},
        "tickfont": {"size": size, "color": theme.muted},
    }
    name = lambda text: {"text": text, "font": {"size": size + 1, "color": theme.ink}}  # noqa: E731
    return {
        "xaxis": axis | {"title": name("token"), "showticklabels": False, "range": [-0.5, count - 0.5]},
        "yaxis": axis | {"title": name("channel"), "tickvals": list(range(step, channels, step))},
        "zaxis": axis | {"title": name(escape(symbol)), "rangemode": "tozero", "nticks": 5},
        "aspectmode": "manual",
        "aspectratio": {"x": 1.75, "y": 1.2, "z": 0.8} if not compact else {"x": 1.35, "y": 1.0, "z": 0.85},
        # From the first token's side and a little above: ridges along tokens run away from the eye.
        "camera": {
            "eye": {"x": -1.2, "y": -1.7, "z": 0.8} if not compact else {"x": -1.62, "y": -2.27, "z": 1.13},
            "center": {"x": 0, "y": 0, "z": -0.22},
            "projection": {"type": "perspective"},
        },
        "dragmode": "turntable",
        "annotations": [*_names(tokens, theme, compact), *_ridges(values, marked, theme, compact)],
    }


def _names(tokens: Sequence[str], theme: Theme, compact: bool) -> list[dict[str, Any]]:
    """Name some tokens along the near edge. WebGL would show the ticks' escaped text raw; these are SVG."""
    places = np.unique(np.linspace(0, len(tokens) - 1, _TOKENS[compact]).round().astype(int))
    return [
        {
            **{"x": int(i), "y": -0.5, "z": 0, "text": f"{i}: {label(tokens[i], 12)}", "showarrow": False},
            **{"xanchor": "center", "yanchor": "top", "yshift": -2, "name": "token"},
            "font": {"size": 10 if compact else 12, "color": theme.muted},
        }
        for i in places
    ]


def _ridges(values: Array, marked: Sequence[int], theme: Theme, compact: bool) -> list[dict[str, Any]]:
    """Name the highest ridges at their peak."""
    notes = []
    for i, channel in enumerate(marked[: _LABELS // (1 + compact)]):
        size = np.where(np.isfinite(values[:, channel]), np.abs(values[:, channel]), -1)
        token = int(size.argmax())
        notes.append(
            {
                **{"x": token, "y": channel, "z": float(size[token])},
                "text": f"ch {channel} · {number(float(size[token]), 4)}",
                **{"showarrow": True, "arrowhead": 0, "arrowwidth": 1.5, "arrowcolor": theme.outlier},
                **{"ax": 0, "ay": -22 - 16 * (i % 2)},
                **{"bgcolor": faded(theme.paper, 0.8), "borderpad": 1},
                "font": {"size": 12 if compact else 14, "color": theme.outlier, "weight": 600},
                "name": "outlier",
            }
        )
    return notes


def _alt(values: Array, marked: Sequence[int], symbol: str) -> str:
    size = np.abs(values)
    real = size[np.isfinite(size)]
    if not real.size:
        return f"Surface of {symbol}: nothing in it is finite."
    named = ", ".join(
        f"channel {c} at {number(float(np.nanmax(np.where(np.isfinite(size[:, c]), size[:, c], np.nan))), 4)}"
        for c in marked
        if np.isfinite(size[:, c]).any()
    )
    return (
        f"Surface of {symbol} over {values.shape[0]:,} tokens and {values.shape[1]:,} channels: median "
        f"{number(float(np.median(real)))}, highest {number(float(real.max()), 4)}. "
        + (f"Ridges that are marked: {named}." if named else "No ridge is marked.")
    )
