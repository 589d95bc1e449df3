"""Scale maps: the shared scale of every block, where the block lies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import ArrayLike, NDArray

from mxviz.figures._cells import MAX_ROWS, Array, Grid, checked, edges, grid, span
from mxviz.figures._frame import Columns, Frame, Panel, colour_bar
from mxviz.figures._layout import room, start
from mxviz.figures._traces import channel_ticks, number, overlay
from mxviz.figures.theme import colorscale, is_compact, steps, theme_named

ZERO_BYTE = 2.0**-127
"""E8M0 byte 0: the scale a block of zeros gets, since E8M0 has no zero."""
MAX_HOVER_TEXTS = 1 << 14
MAX_STEPS = 16
ZERO, BROKEN = "scale 0 — block of zeros", "NaN — the block holds NaN or Inf"
EXACT = "stored exactly — no scale"
KEPT = -1.0  # stands for such a scale; no scale is negative


def scale_map(
    scales: ArrayLike,
    tokens: Sequence[str],
    *,
    axis: str,
    block: int | None,
    title: str,
    subtitle: str = "",
    channels: int | None = None,
    first: int = 0,
    stored: ArrayLike | None = None,
    exact: ArrayLike | None = None,
    heading: str | None = None,
    marked: Sequence[int] = (),
    theme: str = "light",
    width: int = 1280,
    height: int | None = None,
    window: tuple[int, int] | None = None,
) -> go.Figure:
    """Draw the shared scale of every block on a log2 colour scale, tokens to the right and channels down.

    Args:
        scales: decoded scales of one head, `[tokens, blocks]` for axis `channel` and `[blocks, channels]` for
            axis `token`; a dimension of 1 spans everything: one scale for a head is `[1, 1]`.
        tokens: the text of each token.
        axis: `channel` or `token`: what a block runs along.
        block: elements of a block; None where nothing is blocked.
        title: one sentence that says what is seen; plain text, like subtitle and heading.
        channels: head_dim, where the last block along channels is shorter than `block`.
        first: token at which the first block along tokens starts (the number of sinks).
        stored: the scale bytes, shaped like scales, for hovers; negative where there is none. E8M0's are
            worked out where they are left out.
        exact: where a scale is missing because the numbers are kept exactly (sinks); bool, like scales.
        marked: outlier channels, named in their colour on the channel axis where every channel is a row.
        theme: `light` or `dark`.
        width: CSS pixels; below 640 the figure is laid out for a phone. So is height.
        window: first and last token in sight; all by default.

    Raises:
        ValueError: for scales that do not fit the tokens, an unknown axis, or an unknown theme.
    """
    axis = getattr(axis, "value", axis)
    if axis not in ("channel", "token"):
        raise ValueError(f"unknown axis {axis!r}; expected one of: channel, token")
    values = kept_scales(scales, exact)
    cells = lay_out(values, len(tokens), axis, block, channels, first, room(width), window)
    count = int(cells.y[-1] + 0.5)
    compact = is_compact(width)
    ticks = scale_ticks(cells, compact, marked, theme_named(theme).outlier)
    frame = start(
        [Panel(heading or scale_heading(axis, block, values.shape), count, ticks, bar=True)],
        Columns(tokens, cells.column_names(tokens), window=window),
        theme=theme,
        width=width,
        height=height or (400 if compact else 460),
        title=title,
        subtitle=subtitle,
        legend=sum(bool(mask.any()) for mask in odd_scales(cells.z).values()),
    )
    bytes_ = None if stored is None else np.asarray(stored).T
    draw_scales(frame, cells, bytes_ if bytes_ is not None and bytes_.shape == cells.z.shape else None)
    return frame.finish(
        "scales", _alt(values, heading or scale_heading(axis, block, values.shape)), _notice(cells)
    )


def kept_scales(scales: ArrayLike, exact: ArrayLike | None) -> Array:
    """Return scales as float32, those of numbers that are kept exactly marked as such."""
    values = checked("scales", scales)
    if exact is None:
        return values
    return np.where(np.isnan(values) & np.asarray(exact, bool), np.float32(KEPT), values)


def lay_out(
    values: Array,
    tokens: int,
    axis: str,
    block: int | None,
    channels: int | None,
    first: int,
    width: int,
    window: tuple[int, int] | None,
) -> Grid:
    """Put `[rows, blocks]` of scales where their blocks lie, reduced where they are too many."""
    rows, columns = values.shape
    if block and axis == "token":
        x, y = edges(tokens, block, first), edges(channels or columns)
    else:
        x = edges(tokens) if rows > 1 else edges(tokens, tokens)
        width_of_block = block or (channels or 1 if columns == 1 else 1)
        y = edges(channels or columns * width_of_block, width_of_block)
    if (len(x) - 1, len(y) - 1) != (rows, columns):
        raise ValueError(
            f"scales have shape {values.shape}; {tokens} tokens and {channels or 'all'} channels in blocks "
            f"of {block} along {axis}s have {len(x) - 1} × {len(y) - 1}"
        )
    per_token = axis == "channel" and rows == tokens
    small = grid(values, width=width, height=MAX_ROWS, window=window if per_token else None)
    placed = small._replace(y=_every(y, small.per_row))
    return placed if per_token else placed._replace(x=_every(x, small.per_column))


def _every(bounds: NDArray[np.float64], step: int) -> NDArray[np.float64]:
    return np.append(bounds[:-1:step], bounds[-1])


def scale_heading(axis: str, block: int | None, shape: tuple[int, ...]) -> str:
    """Return what shares a scale, in words, from the shape of the scales."""
    if block:
        other = "channel" if axis == "token" else "token"
        return f"One scale for every {block} {axis}s of a {other}"
    if shape == (1, 1):
        return "The one scale they share"
    return f"One scale for every {'token' if shape[1] == 1 else 'channel'}"


def scale_ticks(cells: Grid, compact: bool, marked: Sequence[int], colour: str) -> dict[float, str]:
    """Name the blocks along channels (0–31, 32–63), or the channels where every one is a row."""
    bounds = cells.y
    if len(bounds) - 1 == bounds[-1] + 0.5 and len(bounds) > 2:
        return channel_ticks(len(bounds) - 1, frequent=not compact, marked=marked, colour=colour)
    every = -(-(len(bounds) - 1) // 12)
    pairs = list(zip(bounds[:-1], bounds[1:], strict=True))[::every]
    return {(a + b) / 2: span(a, b) for a, b in pairs}


def draw_scales(
    frame: Frame, cells: Grid, stored: NDArray[Any] | None, i: int = 0, *, told: bool = True
) -> None:
    """Draw the scales into panel i, with the block edges as gaps and a colour bar.

    Each cell tells its place and its byte where it is hovered over, unless something above it does (`told`).
    """
    z, theme = cells.z, frame.theme
    odd = odd_scales(z)
    with np.errstate(divide="ignore", invalid="ignore"):
        log = np.where(without_scale(z), np.nan, np.log2(z)).astype(np.float32)
    low, high, ticks, stepped = _colours(log)
    across, down = frame.plot_width / z.shape[1], np.diff(frame.panels[i])[0] / z.shape[0]
    frame.fig.add_trace(
        go.Heatmap(
            z=log,
            x=cells.x,
            y=cells.y,
            zmin=low,
            zmax=high,
            colorscale=steps(theme.sequential, round(high - low))
            if stepped
            else colorscale(theme.sequential),
            colorbar=colour_bar(frame, i, ticks, "shared scale"),
            xgap=_gap(across),
            ygap=_gap(down),
            name="shared scale",
            **_hover(cells, stored if told else None, told),
            **frame.axes(i),
        )
    )
    for (name, mask), colour in zip(odd.items(), (theme.zero, theme.missing, theme.exact), strict=True):
        overlay(frame, i, mask, cells, colour, name)
    for trace in frame.fig.data:
        if trace.type == "heatmap" and trace.xaxis == frame.axes(i)["xaxis"]:
            trace.xgap, trace.ygap = _gap(across), _gap(down)


def odd_scales(z: Array) -> dict[str, NDArray[np.bool_]]:
    """Return where there is no scale to draw, by the reason, in the words of the legend."""
    return {ZERO: (z >= 0) & (z <= ZERO_BYTE), BROKEN: ~np.isfinite(z), EXACT: z == KEPT}


def without_scale(z: Array) -> NDArray[np.bool_]:
    """Return where there is no scale to draw, for whatever reason."""
    return np.logical_or.reduce(list(odd_scales(z).values()))


def _gap(pitch: float) -> float:
    """Return the width of a block's edge: none where it would eat the block."""
    return 3 if pitch >= 40 else 1 if pitch >= 8 else 0


def _colours(log: Array) -> tuple[float, float, dict[float, str], bool]:
    """Return the ends of the colour axis, its ticks, and whether it goes in steps of one power of two."""
    real = log[np.isfinite(log)]
    low, high = (float(real.min()), float(real.max())) if real.size else (0.0, 0.0)
    if low == high:
        return low - 0.5, high + 0.5, {low: number(2.0**low)}, True
    whole = bool((real == np.round(real)).all())
    exponents = range(int(np.floor(low)), int(np.ceil(high)) + 1)
    every = -(-len(exponents) // 8)
    ticks = {float(e): power(e) for e in exponents if (e - exponents[-1]) % every == 0}
    if whole and len(exponents) <= MAX_STEPS:
        return low - 0.5, high + 0.5, ticks, True
    return low, high, ticks, False


def power(exponent: int) -> str:
    """Return a power of two as a reader knows it: 1/4, 8, and from 2¹⁴ on by its exponent."""
    if 0 <= exponent < 14:
        return f"{2**exponent:,}"
    if -10 < exponent < 0:
        return f"1/{2**-exponent}"
    return f"2<sup>{exponent}</sup>".replace("-", "−")


def _hover(cells: Grid, stored: NDArray[Any] | None, told: bool) -> dict[str, Any]:
    head = "<b>%{x}</b><br>"
    if cells.z.size > MAX_HOVER_TEXTS or cells.reduced or not told:
        return {"hovertemplate": head + "scale 2^%{z:.4g}<extra></extra>"}
    whole = are_powers(cells.z[~without_scale(cells.z)])
    names = [span(a, b) for a, b in zip(cells.y[:-1], cells.y[1:], strict=True)]
    texts = np.empty(cells.z.shape, dtype=object)
    for (row, column), value in np.ndenumerate(cells.z):
        byte = None if stored is None or stored[row, column] < 0 else int(stored[row, column])
        unit = "channels" if "–" in names[row] else "channel"
        place = span(cells.x[column], cells.x[column + 1])
        texts[row, column] = (
            f"{'tokens' if '–' in place else 'token'} {place} · {unit} {names[row]}<br>"
            + scale_text(float(value), byte, whole)
        )
    return {"customdata": texts, "hovertemplate": head + "%{customdata}<extra></extra>"}


def are_powers(values: Array) -> bool:
    """Return whether all of them are powers of two, as E8M0 scales are."""
    return values.size > 0 and bool((np.frexp(values)[0] == 0.5).all())


def scale_text(value: float, byte: int | None, is_e8m0: bool) -> str:
    """Return a scale in words: as 2^E, in decimal and as its byte, or why it has none of these."""
    if value == KEPT:
        return EXACT
    if not np.isfinite(value):
        return BROKEN + ("" if byte is None and not is_e8m0 else f" · byte {255 if byte is None else byte}")
    if value == 0:
        return ZERO
    exponent = np.log2(value)
    if byte is None and is_e8m0:
        byte = round(exponent) + 127
    shown = f"2<sup>{exponent:.4g}</sup> = {number(value)}".replace("<sup>-", "<sup>−")
    tail = "" if byte is None else f" · byte {byte}"
    return f"scale {shown}{tail}" + (" — block of zeros" if value <= ZERO_BYTE else "")


def _notice(cells: Grid) -> str | None:
    if not cells.reduced:
        return None
    return (
        f"too many blocks to draw: each cell shows the largest scale of {cells.per_column} × {cells.per_row}"
    )


def _alt(values: Array, heading: str) -> str:
    real = values[~without_scale(values)]
    span = f"from {number(float(real.min()))} to {number(float(real.max()))}" if real.size else "none is set"
    said = "".join(f"; {name}: {mask.sum():,}" for name, mask in odd_scales(values).items() if mask.any())
    return f"Heat map of shared scales, {values.size:,} in all. {heading}: {span}{said}."
