"""One head in four maps, one above the other: what is in it, its scales, and what both rulers lost of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import plotly.graph_objects as go
from numpy.typing import ArrayLike, NDArray

from mxviz.figures._cells import (
    MAX_CELLS,
    MAX_HOVER_VALUES,
    MAX_ROWS,
    Array,
    checked,
    edges,
    grid,
    notice,
    span,
)
from mxviz.figures._frame import Columns, Frame, Panel
from mxviz.figures._layout import room, start
from mxviz.figures._traces import channel_ticks, log_range, number, overlay
from mxviz.figures.error import LANES, loss_axis, losses, mark_edges, pairs, percent
from mxviz.figures.outliers import magnitudes
from mxviz.figures.scales import (
    are_powers,
    draw_scales,
    kept_scales,
    lay_out,
    scale_heading,
    scale_text,
    without_scale,
)
from mxviz.figures.theme import is_compact, theme_named

MAX_TARGETS = 1024
"""Blocks that can be clicked; where there are more in sight, the nearest of so many answers."""

_OFF = 2.5
"""Pixels that the frame of the open block stands off it."""


class Blocks(NamedTuple):
    """How the micro-scaled lane is cut; see `mxviz.figures.scale_map` for the fields it shares.

    Args:
        scales: `[tokens, blocks]` for axis `channel`, `[blocks, channels]` for axis `token`.
        axis: what a block runs along.
        block: elements of a block; None where nothing is blocked.
        first: token at which the first block along tokens starts.
        stored: scale bytes, shaped like scales, negative where there is none; or None.
        exact: where a scale is missing because numbers are kept exactly; bool, like scales; or None.
    """

    scales: ArrayLike
    axis: str
    block: int | None
    first: int = 0
    stored: ArrayLike | None = None
    exact: ArrayLike | None = None


class Loss(NamedTuple):
    """What one lane lost: relative error `[tokens, channels]`, what x came back as, its name, its share of
    non-zero values that became zero (0 to 1, or None)."""

    error: ArrayLike
    decoded: ArrayLike
    name: str
    flushed: float | None


def head_maps(
    x: ArrayLike,
    tokens: Sequence[str],
    blocks: Blocks,
    micro: Loss,
    single: Loss,
    *,
    title: str,
    subtitle: str = "",
    marked: Sequence[int] = (),
    symbol: str = "|K|",
    about: str = "",
    opened: tuple[tuple[int, int], tuple[int, int]] | None = None,
    targets: bool = False,
    theme: str = "light",
    width: int = 1280,
    height: int | None = None,
    window: tuple[int, int] | None = None,
) -> go.Figure:
    """Draw magnitude, shared scale and both errors over the same tokens and channels, zoomed together.

    Args:
        x: one head's keys or values, `[tokens, channels]`, as the model made them.
        tokens: the text of each token.
        blocks: the micro-scaled lane's blocks and scales; micro and single: what was lost.
        title: one sentence that says what is seen; plain text, like subtitle and about.
        marked: outlier channels, named in their colour on the channel axes.
        symbol: what |x| is called.
        about: what to add to the first map's heading.
        opened: first and last token, first and last channel of the block that is open; framed in every map.
        targets: whether to lay an invisible point over every block of the map of scales (a heat map answers
            no click), named `blocks`, with the block's first token and first channel as custom data.
        theme: `light` or `dark`.
        width: CSS pixels; below 640 the figure is laid out for a phone. So is height.
        window: first and last token in sight; all by default.

    Raises:
        ValueError: for arrays of different shapes, an unknown axis or an unknown theme.
    """
    values = checked("x", x, tokens)
    lost = [checked(lane, loss.error, tokens) for lane, loss in zip(LANES, (micro, single), strict=True)]
    if any(error.shape != values.shape for error in lost):
        raise ValueError(f"errors have shapes {[e.shape for e in lost]}; expected that of x, {values.shape}")
    compact, colours, shape = is_compact(width), theme_named(theme), values.shape
    named = _apart(values, marked)
    names = channel_ticks(shape[1], frequent=False, marked=named, colour=colours.outlier)
    scales = kept_scales(blocks.scales, blocks.exact)
    said = scale_heading(blocks.axis, blocks.block, scales.shape)
    panels = [
        Panel(f"{symbol}{': ' + about if about else ''}", shape[1], names, colours.outlier, bar=True),
        Panel(said, shape[1], names, bar=True, weight=0.7),
        Panel(_lost(micro), shape[1], names, colours.micro, bar=True),
        Panel(_lost(single), shape[1], names, colours.single),
    ]
    share = {"width": room(width), "height": MAX_ROWS // 4, "cells": MAX_CELLS // 4, "window": window}
    drawn = [grid(array, **share) for array in (values, *lost)]
    frame = start(
        panels,
        Columns(tokens, drawn[0].column_names(tokens), window=window),
        theme=theme,
        width=width,
        height=height or (1180 if compact else 1120),
        title=title,
        subtitle=subtitle,
        legend=1,
    )
    _magnitude(frame, values, drawn[0], symbol)
    cells = lay_out(scales, shape[0], blocks.axis, blocks.block, shape[1], blocks.first, room(width), window)
    stored = None if blocks.stored is None else np.asarray(blocks.stored).T
    draw_scales(frame, cells, stored if stored is not None and stored.shape == cells.z.shape else None, 1)
    exact = pairs(values, (micro.decoded, single.decoded), values)
    for i, (cells, lane) in enumerate(zip(drawn[1:], LANES, strict=True)):
        light = not cells.reduced and 4 * cells.z.size <= MAX_HOVER_VALUES
        frame.fig.add_trace(losses(frame, 2 + i, cells, exact[i] if light else None, lane))
        overlay(frame, 2 + i, np.isnan(cells.z), cells, colours.missing, "NaN")
    mark_edges(frame, blocks.axis, blocks.block, blocks.first, shape, 2)
    loss_axis(frame, drawn[1:], 2)
    if targets:
        _targets(frame, blocks, scales, shape)
    if opened:
        _open(frame, opened)
    _once_in_legend(frame)
    return frame.finish("head", _alt(values, (micro, single), symbol), notice(drawn[0], shape))


def _apart(values: Array, marked: Sequence[int]) -> list[int]:
    """Return the marked channels that have room for a name, the loudest of neighbours."""
    peaks = np.abs(np.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0)).max(0)
    chosen: list[int] = []
    for c in sorted(marked, key=lambda c: -peaks[c]):
        if all(abs(c - other) > values.shape[1] / 8 for other in chosen):
            chosen.append(c)
    return chosen


def _lost(loss: Loss) -> str:
    return f"{loss.name} — flushed to zero: {percent(loss.flushed)} of values"


def _magnitude(frame: Frame, values: Array, cells: Any, symbol: str) -> None:
    low, high = log_range(np.abs(values))
    frame.fig.add_trace(magnitudes(frame, cells, low, high, symbol))
    overlay(frame, 0, ~np.isfinite(cells.z), cells, frame.theme.missing, "NaN or infinite")


def block_centres(
    axis: str, block: int | None, first: int, shape: tuple[int, int], window: tuple[float, float]
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]:
    """Return every block's centre `[blocks, 2]` (token, channel) in a window of tokens, and its first token
    and channel; at most `MAX_TARGETS`, evenly chosen. Where nothing is blocked, 32 channels stand for one."""
    size = block or 32
    along = (edges(shape[0], size, first), edges(shape[1])) if block and axis == "token" else None
    x, y = along or (edges(shape[0]), edges(shape[1], size))
    seen = [i for i in range(len(x) - 1) if x[i + 1] > window[0] and x[i] < window[1]]
    rows = len(y) - 1
    step = -(-len(seen) * rows // MAX_TARGETS)
    pick = np.arange(0, len(seen) * rows, max(1, step))
    columns, rows_ = np.array(seen, int)[pick // rows] if seen else pick, pick % rows
    middle = np.stack([(x[columns] + x[columns + 1]) / 2, (y[rows_] + y[rows_ + 1]) / 2], axis=1)
    return middle, (x[columns] + 0.5).astype(int), (y[rows_] + 0.5).astype(int)


def _targets(frame: Frame, blocks: Blocks, scales: Array, shape: tuple[int, int]) -> None:
    """Lay a point that can be clicked over each block of the second map."""
    middle, token, channel = block_centres(
        blocks.axis, blocks.block, blocks.first, shape, frame.fig.layout.xaxis.range
    )
    size = blocks.block or 32
    wide, tall = (size, 1) if blocks.block and blocks.axis == "token" else (1, size)
    whole = are_powers(scales[~without_scale(scales)])
    texts = []
    for t, c in zip(token, channel, strict=True):
        text = f"tokens {span(t - 0.5, min(t + wide, shape[0]) - 0.5)}"
        text += f" · channels {span(c - 0.5, min(c + tall, shape[1]) - 0.5)}"
        if blocks.block:
            at = ((t - blocks.first) // size, c) if wide > 1 else (t, c // size)
            byte = -1 if blocks.stored is None else int(np.asarray(blocks.stored)[at])
            text += f"<br>{scale_text(float(scales[at]), None if byte < 0 else byte, whole)}"
        texts.append(text)
    frame.fig.add_trace(
        go.Scatter(
            x=middle[:, 0],
            y=middle[:, 1],
            mode="markers",
            marker={"size": 10, "opacity": 0},
            selected={"marker": {"opacity": 0}},
            unselected={"marker": {"opacity": 0}},
            customdata=[[int(t), int(c), text] for t, c, text in zip(token, channel, texts, strict=True)],
            hovertemplate="%{customdata[2]}<br><i>click to open this block</i><extra></extra>",
            showlegend=False,
            name="blocks",
            **frame.axes(1),
        )
    )
    frame.fig.update_layout(clickmode="event+select", hoverdistance=400)


def _open(frame: Frame, opened: tuple[tuple[int, int], tuple[int, int]]) -> None:
    """Frame the open block in every map: ink on a halo of paper, seen on any colour."""
    (t0, t1), (c0, c1) = opened
    first, last = frame.fig.layout.xaxis.range
    wide = _OFF * (last - first) / frame.plot_width  # drawn outside, so that a block of one row stays visible
    for i, (top, bottom) in enumerate(frame.panels):
        tall = _OFF * frame.fig.layout.yaxis.range[0] / (bottom - top)
        x0, x1, y0, y1 = t0 - 0.5 - wide, t1 + 0.5 + wide, c0 - 0.5 - tall, c1 + 0.5 + tall
        for colour, thick in ((frame.theme.paper, 4), (frame.theme.ink, 2)):
            frame.fig.add_trace(
                go.Scatter(
                    x=[x0, x1, x1, x0, x0],
                    y=[y0, y0, y1, y1, y0],
                    mode="lines",
                    line={"color": colour, "width": thick},
                    hoverinfo="skip",
                    showlegend=thick == 2,
                    name="the open block",
                    **frame.axes(i),
                )
            )


def _once_in_legend(frame: Frame) -> None:
    named: set[str] = set()
    for trace in frame.fig.data:
        if trace.showlegend:
            trace.showlegend = trace.name not in named
            named.add(trace.name)


def _alt(values: Array, lanes: tuple[Loss, Loss], symbol: str) -> str:
    real = np.abs(values[np.isfinite(values)])
    largest = number(float(real.max()), 4) if real.size else "none"
    said = "; ".join(_lost(loss) for loss in lanes)
    return (
        f"Four maps of {values.shape[0]:,} tokens and {values.shape[1]:,} channels: {symbol} (largest "
        f"{largest}), the shared scales, and the relative error of both. {said}."
    )
