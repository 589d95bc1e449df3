"""Magnitude maps: |x| of every channel at every token, with the channels that tower over the rest marked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import plotly.graph_objects as go
from numpy.typing import ArrayLike

from mxviz.figures._cells import MAX_HOVER_VALUES, MAX_ROWS, Array, Grid, checked, grid, notice
from mxviz.figures._frame import LINE, Columns, Frame, Panel, colour_bar
from mxviz.figures._layout import room, start
from mxviz.figures._traces import channel_ticks, log_range, log_ticks, number, overlay
from mxviz.figures.labels import escape, text_width
from mxviz.figures.theme import colorscale, is_compact, sizes_for, theme_named

_LEADER = {False: 22, True: 12}
"""Pixels of the line from a channel to its label, wide and compact."""


def magnitude_map(
    x: ArrayLike,
    tokens: Sequence[str],
    *,
    title: str,
    subtitle: str = "",
    marked: Sequence[int] = (),
    partners: Mapping[int, int] | None = None,
    symbol: str = "|K|",
    heading: str | None = None,
    theme: str = "light",
    width: int = 1280,
    height: int | None = None,
    window: tuple[int, int] | None = None,
) -> go.Figure:
    """Draw |x| on a logarithmic colour scale, tokens to the right and channels down.

    Args:
        x: one head's keys or values, `[tokens, channels]`, in the model's own units, with their signs.
        tokens: the text of each token.
        title: one sentence that says what is seen; plain text, like subtitle and heading.
        marked: outlier channels; each gets a marker and a label with its peak at the right edge.
        partners: channel to the channel RoPE rotates it with; named where the partner is marked too.
        symbol: what |x| is called.
        theme: `light` or `dark`.
        width: CSS pixels; below 640 the figure is laid out for a phone. So is height.
        window: first and last token in sight; all by default.

    Raises:
        ValueError: for arrays of the wrong shape, marked channels that are not there, an unknown theme.
    """
    values = checked("x", x, tokens)
    missing = [c for c in marked if not 0 <= c < values.shape[1]]
    if missing:
        raise ValueError(f"marked channels {missing} are not among the {values.shape[1]} channels of x")
    magnitude = np.abs(values)
    peaks = {c: _peak(magnitude[:, c]) for c in sorted(set(marked))}
    compact, colour = is_compact(width), theme_named(theme).outlier
    labels = {c: _mark_text(c, peaks, (partners or {}).get(c), compact) for c in peaks}
    gutter = _gutter(labels, sizes_for(width).tick, compact)
    cells = grid(values, width=int(room(width) - gutter), height=MAX_ROWS, window=window)
    panel = Panel(
        heading or f"{symbol} of {values.shape[1]} channels at {values.shape[0]:,} tokens",
        values.shape[1],
        channel_ticks(values.shape[1], frequent=not compact, marked=list(peaks), colour=colour),
        bar=True,
    )
    frame = start(
        [panel],
        Columns(tokens, cells.column_names(tokens), _peak_tokens(magnitude, peaks), window),
        theme=theme,
        width=width,
        height=height or (480 if compact else 720),
        title=title,
        subtitle=subtitle,
        legend=int(not np.isfinite(cells.z).all()),
        gutter=gutter,
    )
    low, high = log_range(magnitude)
    frame.fig.add_trace(magnitudes(frame, cells, low, high, symbol))
    overlay(frame, 0, ~np.isfinite(cells.z), cells, frame.theme.missing, "NaN or infinite")
    _mark(frame, labels, values.shape[1])
    return frame.finish("outliers", _alt(values, peaks, symbol), notice(cells, values.shape))


def _peak(magnitude: Array) -> float:
    real = magnitude[np.isfinite(magnitude)]
    return float(real.max()) if real.size else float("nan")


def _peak_tokens(magnitude: Array, peaks: Mapping[int, float]) -> list[int]:
    return [int(np.where(np.isfinite(magnitude[:, c]), magnitude[:, c], -1).argmax()) for c in peaks]


def magnitudes(frame: Frame, cells: Grid, low: float, high: float, symbol: str, i: int = 0) -> go.Heatmap:
    """Return the heat map for panel i: z is log10 |x|, the signed value rides along where there is room."""
    with np.errstate(divide="ignore"):
        z = np.log10(np.abs(cells.z))
    z[~np.isfinite(cells.z)] = np.nan
    z[cells.z == 0] = low - 1  # zeros have no logarithm: they take the smallest colour
    rides = cells.z.size <= MAX_HOVER_VALUES
    what = "largest value %{customdata:.4g}" if cells.reduced else "value %{customdata:.4g}"
    where = "tokens around %{x:,.0f}" if cells.per_column > 1 else "token %{x:d}"
    return go.Heatmap(
        z=z.astype(np.float32),
        x=cells.x,
        y=cells.y,
        zmin=low,
        zmax=high,
        colorscale=colorscale(frame.theme.sequential),
        colorbar=colour_bar(frame, i, log_ticks(low, high), symbol),
        customdata=cells.z if rides else None,
        hovertemplate=f"<b>%{{x}}</b><br>{where} · channel %{{y:d}}<br>"
        + (what if rides else f"log<sub>10</sub> {escape(symbol)} = %{{z:.2f}}")
        + "<extra></extra>",
        name=escape(symbol),
        **frame.axes(i),
    )


def _mark_text(channel: int, peaks: Mapping[int, float], partner: int | None, compact: bool) -> list[str]:
    """Return the lines that name an outlier channel."""
    peak = number(peaks[channel], 4)
    if compact:
        return [f"ch {channel}", peak]
    twin = [f"RoPE partner of ch {partner}"] if partner in peaks else []
    return [f"ch {channel} · peaks at {peak}", *twin]


def _gutter(labels: Mapping[int, list[str]], size: int, compact: bool) -> float:
    longest = max((text_width(line, size) for lines in labels.values() for line in lines), default=0.0)
    return longest + (_LEADER[compact] if labels else 0)


def _mark(frame: Frame, labels: Mapping[int, list[str]], channels: int) -> None:
    """Point at the marked channels from the right edge, outside the data; labels make way for each other."""
    theme, size = frame.theme, frame.sizes.tick
    end = frame.fig.layout.xaxis.range[1]
    top, bottom = frame.panels[0]
    rows = [top + (c + 0.5) * (bottom - top) / channels for c in labels]
    lanes = _spread(rows, max(map(len, labels.values()), default=1) * LINE * size + 4, top, bottom)
    for (channel, lines), row, lane in zip(labels.items(), rows, lanes, strict=True):
        frame.note(
            "<br>".join(lines),
            x=end,
            xref="x",
            y=channel,
            yref="y",
            **{"showarrow": True, "arrowhead": 0, "arrowwidth": 1.5, "arrowcolor": theme.outlier},
            **{"ax": _LEADER[frame.compact], "ay": lane - row, "standoff": 3, "align": "left"},
            font={"size": size, "color": theme.outlier, "weight": 600},
            name="outlier",
        )


def _spread(wanted: Sequence[float], apart: float, top: float, bottom: float) -> list[float]:
    """Return places at least `apart` pixels from each other, near those wanted: one pass down, one up."""
    places: list[float] = []
    for want in wanted:
        places.append(max(want, places[-1] + apart) if places else max(want, top + apart / 2 - 4))
    limit = bottom - apart / 2 + 4
    for i in reversed(range(len(places))):
        places[i] = min(places[i], limit)
        limit = places[i] - apart
    return places


def _alt(values: Array, peaks: Mapping[int, float], symbol: str) -> str:
    real = np.abs(values[np.isfinite(values)])
    span = (
        f"median {number(float(np.median(real)))}, largest {number(float(real.max()), 4)}"
        if real.size
        else "none"
    )
    named = ", ".join(f"channel {c} peaks at {number(peak, 4)}" for c, peak in peaks.items())
    return (
        f"Heat map of {symbol} for {values.shape[0]:,} tokens and {values.shape[1]:,} channels on a "
        f"logarithmic colour scale: {span}. "
        + (f"Marked as outliers: {named}." if named else "None is marked.")
    )
