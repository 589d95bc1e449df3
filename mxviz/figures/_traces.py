"""Traces and ticks that several figures share."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from mxviz.figures._cells import Grid
from mxviz.figures._frame import Frame
from mxviz.figures.theme import faded


def channel_ticks(
    channels: int, *, frequent: bool = True, marked: Sequence[int] = (), colour: str = ""
) -> dict[float, str]:
    """Return ticks for a channel axis: round steps, the last channel, and marked ones in a colour."""
    wanted = 8 if frequent else 4
    step = next((s for s in (1, 2, 4, 8, 16, 32, 64, 128, 256) if channels / s <= wanted), 512)
    ticks = {float(c): str(c) for c in range(0, channels, step)}
    strong: dict[float, str] = {}
    for c in sorted(set(marked)):
        if all(c - other > step / 2 for other in strong):
            strong[float(c)] = f'<b style="color:{colour}">{c}</b>'
    last = (
        {} if any(channels - 1 - c < step / 2 for c in strong) else {float(channels - 1): str(channels - 1)}
    )
    fixed = strong | last
    return {c: t for c, t in ticks.items() if all(abs(c - f) > step / 2 for f in fixed)} | fixed


def number(value: float, digits: int = 3) -> str:
    """Return a number as people write it: so many digits, no exponent between 0.001 and 100,000."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    if not 1e-3 <= abs(value) < 1e5:
        mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
        return f"{float(mantissa):g} × 10<sup>{int(exponent)}</sup>".replace("-", "−")
    places = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    text = f"{value:,.{places}f}"
    return (text.rstrip("0").rstrip(".") if "." in text else text).replace("-", "−")


def log_range(magnitude: NDArray[np.float32]) -> tuple[float, float]:
    """Return the decimal logarithms that colours run between; the smallest 2 % lie below."""
    real = magnitude[np.isfinite(magnitude) & (magnitude > 0)]
    if real.size == 0:
        return -1.0, 0.0
    low, high = np.log10(np.quantile(real, 0.02)), np.log10(real.max())
    return float(min(low, high - 1)), float(high)


def log_ticks(low: float, high: float) -> dict[float, str]:
    """Return ticks for a decimal logarithm: the real values 1, 10, 100, and 2 and 5 where there is room."""
    steps = (1, 2, 5) if high - low < 2.2 else (1,)
    ticks: dict[float, str] = {}
    for decade in range(math.floor(low), math.floor(high) + 1):
        for step in steps:
            place = decade + math.log10(step)
            if low <= place <= high:
                ticks[place] = number(step * 10.0**decade)
    return ticks


def overlay(frame: Frame, i: int, mask: NDArray[np.bool_], cells: Grid, colour: str, name: str) -> None:
    """Cover the cells of a mask with one flat colour and give it a legend entry; nothing if it is empty."""
    if not mask.any():
        return
    frame.fig.add_trace(
        go.Heatmap(
            z=np.where(mask, np.float32(0), np.float32(np.nan)),
            x=cells.x,
            y=cells.y,
            colorscale=[[0, colour], [1, colour]],
            showscale=False,
            showlegend=True,
            name=name,
            hoverinfo="skip",
            **frame.axes(i),
        )
    )


def block_lines(frame: Frame, i: int, x: Sequence[float], y: Sequence[float]) -> None:
    """Draw hairlines at the edges of blocks, vertical ones at x and horizontal ones at y, over panel i."""
    wide, tall = (
        frame.fig.layout[f"xaxis{i + 1 if i else ''}"],
        frame.fig.layout[f"yaxis{i + 1 if i else ''}"],
    )
    x0, x1, y0, y1 = *wide.range, *tall.range
    xs = [v for edge in x for v in (edge, edge, None)] + [v for _ in y for v in (x0, x1, None)]
    ys = [v for _ in x for v in (y0, y1, None)] + [v for edge in y for v in (edge, edge, None)]
    frame.fig.add_trace(
        go.Scatter(
            x=xs,
            y=ys,
            mode="lines",
            line={"color": faded(frame.theme.ink, 0.45), "width": 1},
            hoverinfo="skip",
            name="block edges",
            showlegend=False,
            **frame.axes(i),
        )
    )
