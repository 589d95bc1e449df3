"""Error maps: what is lost with a ruler for every block, above what is lost with one ruler for all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import ArrayLike, NDArray

from mxviz.figures._cells import MAX_CELLS, MAX_HOVER_VALUES, MAX_ROWS, Array, checked, edges, grid, notice
from mxviz.figures._frame import Columns, Frame, Panel, colour_bar
from mxviz.figures._layout import room, start
from mxviz.figures._traces import block_lines, channel_ticks, overlay
from mxviz.figures.theme import colorscale, is_compact, theme_named

BEYOND = 10.0
"""A non-zero decode of an exact zero has no relative error; it is drawn, and shown, as 1,000 %."""


LANES = ("micro-scaled", "single-scale")


def error_maps(
    micro: ArrayLike,
    single: ArrayLike,
    tokens: Sequence[str],
    *,
    flushed_micro: float | None,
    flushed_single: float | None,
    title: str,
    subtitle: str = "",
    names: tuple[str, str] = ("micro-scaled", "one scale for all"),
    axis: str | None = None,
    block: int | None = None,
    first: int = 0,
    values: ArrayLike | None = None,
    decoded: tuple[ArrayLike, ArrayLike] | None = None,
    marked: Sequence[int] = (),
    theme: str = "light",
    width: int = 1280,
    height: int | None = None,
    window: tuple[int, int] | None = None,
) -> go.Figure:
    """Draw the relative error of both rulers, one above the other, on one colour scale and linked axes.

    Args:
        micro: |x − x̂| / |x| of the micro-scaled head, `[tokens, channels]`, 1 for a value flushed to zero.
        single: the same with one scale, shaped like micro.
        tokens: the text of each token.
        flushed_micro: share of non-zero values that became zero, 0 to 1; None where all are zero.
        flushed_single: the same with one scale.
        title: one sentence that says what is seen; plain text, like subtitle and names.
        names: what the two are called, micro-scaled first.
        axis: `channel` or `token`: what a block of the micro-scaled one runs along; draws its edges.
        block: elements of a block.
        first: token at which the first block along tokens starts (the number of sinks).
        values: the exact x, shaped like micro, for hovers.
        decoded: what each x came back as, micro-scaled and single, for hovers.
        marked: outlier channels, named in their colour on the channel axis.
        theme: `light` or `dark`.
        width: CSS pixels; below 640 the figure is laid out for a phone. So is height.
        window: first and last token in sight; all by default.

    Raises:
        ValueError: for arrays of different shapes, an unknown axis or an unknown theme.
    """
    both = [checked("micro", micro, tokens), checked("single", single, tokens)]
    if both[0].shape != both[1].shape:
        raise ValueError(f"micro has shape {both[0].shape} and single {both[1].shape}; expected the same")
    shape, compact, colours = both[0].shape, is_compact(width), theme_named(theme)
    shares = (flushed_micro, flushed_single)
    ticks = channel_ticks(shape[1], frequent=False, marked=marked, colour=colours.outlier)
    meanings = (colours.micro, colours.single)
    panels = [
        Panel(f"{name} — flushed to zero: {percent(share)} of values", shape[1], ticks, colour, bar=i == 0)
        for i, (name, share, colour) in enumerate(zip(names, shares, meanings, strict=True))
    ]
    cells = [
        grid(error, width=room(width), height=MAX_ROWS // 2, cells=MAX_CELLS // 2, window=window)
        for error in both
    ]
    frame = start(
        panels,
        Columns(tokens, cells[0].column_names(tokens), window=window),
        theme=theme,
        width=width,
        height=height or (620 if compact else 720),
        title=title,
        subtitle=subtitle,
        legend=any(np.isnan(drawn.z).any() for drawn in cells),
    )
    exact = pairs(values, decoded, both[0])
    for i, drawn in enumerate(cells):
        rides = exact[i] if not drawn.reduced and 4 * drawn.z.size <= MAX_HOVER_VALUES else None
        frame.fig.add_trace(losses(frame, i, drawn, rides, LANES[i]))
        overlay(frame, i, np.isnan(drawn.z), drawn, colours.missing, "NaN")
    mark_edges(frame, axis, block, first, shape)
    loss_axis(frame, cells)
    return frame.finish("error", _alt(names, shares, both), notice(cells[0], shape))


def percent(share: float | None) -> str:
    """Return a share of 0 to 1 in words: 96.8 %, 0 %, under 0.1 %; n/a where there is none."""
    if share is None or not np.isfinite(share):
        return "n/a"
    if 0 < share < 0.0005:
        return "under 0.1 %"
    text = f"{100 * share:.1f}"
    return f"{text.removesuffix('.0')} %"


def pairs(values: Any, decoded: Any, like: Array) -> list[NDArray[np.float32] | None]:
    """Pair each value with what it came back as, `[channels, tokens, 2]` for each panel, or None."""
    if values is None or decoded is None:
        return [None, None]
    found = []
    for name, back in zip(("decoded micro", "decoded single"), decoded, strict=True):
        x, y = checked("values", values), checked(name, back)
        if x.shape != like.shape or y.shape != like.shape:
            raise ValueError(
                f"values {x.shape} and {name} {y.shape}; expected the errors' shape {like.shape}"
            )
        found.append(np.ascontiguousarray(np.stack([x.T, y.T], axis=-1)))
    return found


def losses(frame: Frame, i: int, cells: Any, rides: NDArray[np.float32] | None, name: str) -> go.Heatmap:
    """Return the heat map of a relative error for panel i; `rides` are values and what they came back as."""
    where = "tokens around %{x:,.0f}" if cells.per_column > 1 else "token %{x:d}"
    if rides is not None:  # of all tokens; the cells may be those of a window
        first = round(cells.x[0] + 0.5)
        rides = np.ascontiguousarray(rides[:, first : first + cells.z.shape[1]])
    both = "" if rides is None else "value %{customdata[0]:.4g} → stored as %{customdata[1]:.4g}<br>"
    return go.Heatmap(
        z=np.minimum(cells.z, np.float32(BEYOND)),  # keeps NaN
        x=cells.x,
        y=cells.y,
        coloraxis="coloraxis",
        customdata=rides,
        hovertemplate=f"<b>%{{x}}</b><br>{where} · channel %{{y:d}}<br>{both}"
        "relative error %{z:.1%}<extra></extra>",
        name=name,
        **frame.axes(i),
    )


def mark_edges(
    frame: Frame, axis: str | None, block: int | None, first: int, shape: tuple[int, int], i: int = 0
) -> None:
    """Draw where blocks of the micro-scaled panel i end; there the ruler changes."""
    axis = getattr(axis, "value", axis)
    if axis is None or block is None:
        return
    if axis not in ("channel", "token"):
        raise ValueError(f"unknown axis {axis!r}; expected one of: channel, token")
    if axis == "token":
        block_lines(frame, i, edges(shape[0], block, first)[0 if first else 1 : -1].tolist(), [])
    else:
        block_lines(frame, i, [], edges(shape[1], block)[1:-1].tolist())


def loss_axis(frame: Frame, cells: Sequence[Any], i: int = 0) -> None:
    """Give all maps of a relative error one colour axis, its bar above panel i."""
    over = any(np.nanmax(drawn.z, initial=0) > 1 for drawn in cells)
    between = (0.5,) if frame.compact else (0.25, 0.5, 0.75)
    ticks = {0: "0 %"} | {t: percent(t) for t in between} | {1: "≥ 100 %" if over else "100 %"}
    frame.lay(
        coloraxis={
            **{"cmin": 0, "cmax": 1, "colorscale": colorscale(frame.theme.loss)},
            "colorbar": colour_bar(frame, i, ticks, "relative error"),
        }
    )


def _alt(names: tuple[str, str], shares: tuple[float | None, float | None], errors: Sequence[Array]) -> str:
    said = [
        f"{name}: {percent(share)} of values flushed to zero, median relative error "
        f"{percent(float(np.nanmedian(error)) if np.isfinite(error).any() else float('nan'))}"
        for name, share, error in zip(names, shares, errors, strict=True)
    ]
    tokens, channels = errors[0].shape
    size = f"{tokens:,} tokens and {channels:,} channels"
    return f"Two heat maps of relative error for {size} on one colour scale. {'; '.join(said)}."
