"""One head in four maps, one above the other: what is in it, its scales, and what both rulers lost of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import plotly.graph_objects as go
from numpy.typing import ArrayLike

from mxviz.figures._cells import (
    MAX_CELLS,
    MAX_ROWS,
    Array,
    checked,
    grid,
    notice,
)
from mxviz.figures._frame import Columns, Frame, Panel
from mxviz.figures._layout import room, start
from mxviz.figures._targets import Blocks, draw_targets
from mxviz.figures._traces import channel_ticks, log_range, number, overlay
from mxviz.figures.error import LANES, loss_axis, losses, mark_edges, pairs, percent
from mxviz.figures.outliers import magnitudes
from mxviz.figures.scales import (
    draw_scales,
    kept_scales,
    lay_out,
    scale_heading,
)
from mxviz.figures.theme import is_compact, theme_named

MAX_PAIRS = 1 << 14
"""Cells of an error map up to which each tells its value and what that is stored as: 256 tokens of 64
channels. Where there are more, they are thinner than four pixels, and the pairs were half of what is sent."""
_OFF = 2.5
"""Pixels that the frame of the open block stands off it."""


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
        targets: whether to lay unseen bars over the blocks of the map of scales (a heat map answers no
            click), named `blocks`, with the block's first token and first channel as custom data.
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
    fits = stored is not None and stored.shape == cells.z.shape
    draw_scales(frame, cells, stored if fits else None, 1, told=not targets)
    light = not drawn[1].reduced and drawn[1].z.size <= MAX_PAIRS
    exact = pairs(values, (micro.decoded, single.decoded), values) if light else [None, None]
    for i, (cells, lane) in enumerate(zip(drawn[1:], LANES, strict=True)):
        frame.fig.add_trace(losses(frame, 2 + i, cells, exact[i], lane))
        overlay(frame, 2 + i, np.isnan(cells.z), cells, colours.missing, "NaN")
    mark_edges(frame, blocks.axis, blocks.block, blocks.first, shape, 2)
    loss_axis(frame, drawn[1:], 2)
    if targets:
        draw_targets(frame, 1, blocks, scales, shape)
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
