"""Which layer hurts: KL with one layer's keys or values quantized alone; and recipes side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import plotly.graph_objects as go
from numpy.typing import ArrayLike

from mxviz.figures._bars import Row, bars, name_axis, row, upright
from mxviz.figures._frame import LINE, Columns, Frame, Panel
from mxviz.figures._layout import room, start
from mxviz.figures._nats import FLOOR, plain
from mxviz.figures._traces import log_ticks
from mxviz.figures.labels import escape, wrap
from mxviz.figures.theme import faded, is_compact, sizes_for, theme_named

_PARTS = ("Keys", "Values")
_RUNG = 28  # pixels of the line below a heading


class Rung(NamedTuple):
    """One recipe of `recipe_ladder`.

    Args:
        name: what it is called; plain text.
        kl: mean KL in nats; NaN is not drawn.
        said: more about it; plain text.
        meaning: `micro`, `single` or `exact`: the colour.
    """

    name: str
    kl: float
    said: str
    meaning: str


def layer_map(
    key: ArrayLike,
    value: ArrayLike,
    *,
    title: str,
    subtitle: str = "",
    marked: Sequence[int] = (),
    meaning: str = "micro",
    theme: str = "light",
    width: int = 1280,
    height: int | None = None,
) -> go.Figure:
    """Draw the KL that each layer's keys, and below its values, bring when they alone are quantized.

    Args:
        key: mean KL in nats with only this layer's keys quantized, `[layers]`; NaN where they stay exact.
        value: the same for values.
        title: one sentence that says what is seen; plain text, like subtitle.
        marked: layers to point out, such as those a suggestion exempts.
        meaning: `micro` or `single`: the colour of what was stored.
        theme: `light` or `dark`.
        width: CSS pixels; below 640 the figure is laid out for a phone. So is height.

    Raises:
        ValueError: for arrays of different lengths or an unknown theme.
    """
    layers = [str(i) for i in range(len(np.asarray(key)))]
    rows = [row(n, x, layers, "layers") for n, x in (("key", key), ("value", value))]
    top = 1.15 * max((float(np.nanmax(x)) for x in rows if np.isfinite(x).any()), default=0.0) or 1.0
    step = 10.0 ** np.floor(np.log10(top))
    step = next(s for s in (step / 5, step / 2, step, 2 * step, 5 * step) if top / s <= 4)
    ticks = {float(at): plain(float(at)) for at in np.arange(0, top, step)}
    colours, compact = theme_named(theme), is_compact(width)
    frame = start(
        [Panel(_heading(part, x), 1, ticks) for part, x in zip(_PARTS, rows, strict=True)],
        Columns(layers, {float(i): f"layer {i}" for i in range(len(layers))}, list(marked)),
        theme=theme,
        width=width,
        height=height or (520 if compact else 560),
        title=title,
        subtitle=subtitle,
    )
    name_axis(frame, "layer, the only one that is quantized")
    for i, (part, x) in enumerate(zip(_PARTS, rows, strict=True)):
        upright(frame, i, (0.0, top), "KL, nats")
        _layer_bars(frame, i, part, x, marked, (getattr(colours, meaning), colours.outlier))
    return frame.finish("sensitivity", _alt(rows), None)


def _heading(part: str, x: Row) -> str:
    if not np.isfinite(x).any():
        return f"{part} — exact in this recipe"
    worst = int(np.nanargmax(x))
    return f"{part} — layer {worst} costs most: {plain(float(x[worst]))} nats (exact 0)"


def _layer_bars(
    frame: Frame, i: int, part: str, x: Row, marked: Sequence[int], colours: tuple[str, str]
) -> None:
    """Draw one part's bars; the marked layers stand out in the second colour and carry their number."""
    plain_colour, colour = colours
    places = np.arange(len(x), dtype=np.float64)
    strong = np.isin(np.arange(len(x)), list(marked))
    hover = f"{part.lower()} alone quantized: KL %{{customdata:.3g}} nats"
    for some, paint, name in ((~strong, plain_colour, part), (strong, colour, f"{part}, marked")):
        heights = np.where(some, x, np.nan)
        bars(frame, i, places, heights, x, colour=paint, name=name, hover=hover)
        frame.fig.data[-1].visible = bool(some.any())
    axes, wide = frame.axes(i), frame.plot_width / len(x) > 2.2 * frame.sizes.tick
    for layer in np.flatnonzero(strong & np.isfinite(x)):
        frame.note(
            f"▾ {layer}" if wide else "▾",
            **{"x": int(layer), "xref": axes["xaxis"], "xanchor": "center"},
            **{"y": float(x[layer]), "yref": axes["yaxis"], "yanchor": "bottom", "yshift": 2},
            font={"size": frame.sizes.tick, "color": colour, "weight": 600},
            name="marked",
        )


def _alt(rows: Sequence[Row]) -> str:
    said = [_heading(part, x) for part, x in zip(_PARTS, rows, strict=True)]
    return f"Bars of the KL that each of {len(rows[0])} layers brings alone. {'. '.join(said)}."


def recipe_ladder(
    rungs: Sequence[Rung],
    *,
    title: str,
    subtitle: str = "",
    theme: str = "light",
    width: int = 1280,
    height: int | None = None,
) -> go.Figure:
    """Draw recipes one below the other, each with its KL on one logarithmic axis.

    Args:
        rungs: from top to bottom.
        title: one sentence that says what is seen; plain text, like subtitle.
        theme: `light` or `dark`.
        width: CSS pixels; below 640 the figure is laid out for a phone. So is height.

    Raises:
        ValueError: for no rungs, a meaning that has no colour, or an unknown theme.
    """
    wrong = [rung.meaning for rung in rungs if rung.meaning not in ("micro", "single", "exact")]
    if not rungs or wrong:
        raise ValueError(
            f"{len(rungs)} rungs with meanings {wrong}; expected micro, single or exact for each"
        )
    colours = theme_named(theme)
    known = [rung.kl for rung in rungs if np.isfinite(rung.kl) and rung.kl > 0]
    low = min([FLOOR, *known])
    span = float(np.log10(low)), float(np.log10(max([1.0, *known]))) + 0.1
    said = [f"{rung.name} — {_nats(rung.kl)}{', ' * bool(rung.said)}{rung.said}" for rung in rungs]
    meanings = [getattr(colours, rung.meaning) for rung in rungs]
    frame = start(
        [Panel(text, 1, {0.0: " "}, colour) for text, colour in zip(said, meanings, strict=True)],
        Columns([" "], {}),
        theme=theme,
        width=width,
        height=height or _ladder_height(said, title, subtitle, width),
        title=title,
        subtitle=subtitle,
    )
    frame.notes = [note for note in frame.notes if note.get("name") != "token"]
    name_axis(frame, "KL(exact‖quantized), nats; 0 is the exact model")
    for i, rung in enumerate(rungs):
        _rung(frame, i, rung, span, last=i == len(rungs) - 1)
    words = f"{len(rungs)} recipes by their KL on a logarithmic axis. {'; '.join(said)}."
    return frame.finish("recipes", words, None)


def _ladder_height(said: Sequence[str], title: str, subtitle: str, width: int) -> int:
    """Return the pixels that all headings, each with a rung below it, need."""
    sizes, space = sizes_for(width), room(width)
    lines = sum(len(wrap(text, 0.95 * space, 1.06 * sizes.heading)) for text in said)
    head = len(wrap(title, space, 1.2 * sizes.title)) * LINE * sizes.title + LINE * sizes.subtitle * (
        1 + len(wrap(subtitle, space, sizes.subtitle))
    )
    return round(head + lines * LINE * sizes.heading + len(said) * (18 + _RUNG) + 110)


def _nats(kl: float) -> str:
    return f"{plain(kl, 2)} nats" if np.isfinite(kl) else "no KL"


def _rung(frame: Frame, i: int, rung: Rung, span: tuple[float, float], *, last: bool) -> None:
    """Draw a line from the left edge to a recipe's KL, on an axis of nats where the frame has tokens."""
    axes, name, ticks = frame.axes(i), f"axis{i + 1 if i else ''}", log_ticks(*span)
    frame.fig.layout[f"x{name}"].update(
        range=span,
        tickvals=list(ticks),
        ticktext=list(ticks.values()),
        showticklabels=last,
        tickfont={"size": frame.sizes.tick, "color": frame.theme.muted},
        showgrid=True,
        gridcolor=frame.theme.grid,
    )
    frame.fig.layout[f"y{name}"].update(range=[1, -1], title={"text": ""}, ticks="", showticklabels=False)
    colour = getattr(frame.theme, rung.meaning)
    if not np.isfinite(rung.kl):
        return
    at = float(np.log10(max(rung.kl, 10 ** span[0])))
    frame.fig.add_trace(
        go.Scatter(
            x=[span[0], at],
            y=[0, 0],
            mode="lines+markers",
            line={"color": faded(colour, 0.6), "width": 4},
            marker={"color": colour, "size": [0, 13], "symbol": "diamond"},
            name=escape(rung.name),
            hovertemplate=f"<b>{escape(rung.name)}</b><br>{_nats(rung.kl)}<br>{escape(rung.said)}<extra></extra>",
            **axes,
        )
    )
