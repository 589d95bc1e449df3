"""Pictures of the lesson that no other page has: each shows one thing, with letters for the back row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import plotly.graph_objects as go
from numpy.typing import ArrayLike

from mxviz.figures._bars import bars, columns, row, upright
from mxviz.figures._frame import Columns, Frame, Panel
from mxviz.figures._layout import start
from mxviz.figures._lesson_bars import Bar, Mark, named_bars
from mxviz.figures._lesson_block import shared_block
from mxviz.figures._lesson_lines import Curve, curves
from mxviz.figures._titled import titled
from mxviz.figures.error import percent
from mxviz.figures.labels import escape, shorten
from mxviz.figures.theme import is_compact, sizes_for

__all__ = [
    "Bar",
    "Curve",
    "Mark",
    "Row",
    "curves",
    "look_back_bars",
    "named_bars",
    "ruler_rows",
    "shared_block",
]


def look_back_bars(
    weights: ArrayLike,
    tokens: Sequence[str],
    *,
    title: str,
    subtitle: str = "",
    hidden: bool = False,
    theme: str = "light",
    width: int = 1280,
    height: int | None = None,
) -> go.Figure:
    """Draw how one token's attention is shared among the tokens before it; the largest share is named.

    Args:
        weights: `[tokens]`, of sum 1; the last is the share that the token gives itself.
        tokens: the text of each.
        title: one sentence that says what is seen; plain text, like subtitle.
        hidden: leave the bars out, so that somebody can guess.
        theme: `light` or `dark`.
        width: CSS pixels; below 640 the figure is laid out for a phone. So is height.

    Raises:
        ValueError: for arrays of different lengths or an unknown theme.
    """
    shares = row("weights", weights, tokens)
    top, last = int(shares.argmax()), len(shares) - 1
    grid = columns(len(shares), 1)
    highest = 1.0 if hidden else 1.15 * float(shares.max())
    ticks = {share: percent(share) for share in (0.0, 0.25, 0.5, 0.75, 1.0) if share <= highest}
    frame = start(
        [Panel("Share of the attention", 1, ticks)],
        Columns(tokens, grid.column_names(tokens), [last] if hidden else [top, last]),
        theme=theme,
        width=width,
        height=height or (420 if is_compact(width) else 430),
        title=title,
        subtitle=subtitle,
    )
    upright(frame, 0, (0.0, highest), "")
    if not hidden:
        colours = [frame.theme.ink if i == top else frame.theme.exact for i in range(len(shares))]
        centres = (grid.x[:-1] + grid.x[1:]) / 2
        hover = "token %{x:.0f} · %{customdata:.1%}"
        bars(frame, 0, centres, shares, shares, colour=colours, name="attention", hover=hover)
        _name_top(frame, top, float(shares[top]), tokens[top], len(shares))
    said = f"most, {percent(float(shares[top]))}, goes to token {top}, {shorten(tokens[top], 24)}"
    alt = f"Bars of the attention of token {last} over {len(shares)} tokens"
    return frame.finish("look-back", f"{alt}; {'hidden' if hidden else said}.", None)


def _name_top(frame: Frame, top: int, share: float, token: str, count: int) -> None:
    side = top / count
    frame.note(
        f"{escape(shorten(token, 18))}  {percent(share)}",
        **{"x": top, "xref": "x", "y": share, "yref": "y", "yanchor": "bottom", "yshift": 2},
        xanchor="left" if side < 0.2 else "right" if side > 0.8 else "center",
        font={"size": frame.sizes.heading, "color": frame.theme.ink, "weight": 700},
        name="top",
    )


class Row(NamedTuple):
    """One ruler of `ruler_rows`: its name, its ticks from −1 to 1, and what is said at its end."""

    name: str
    ticks: ArrayLike
    said: str


def ruler_rows(
    rows: Sequence[Row],
    *,
    title: str,
    subtitle: str = "",
    theme: str = "light",
    width: int = 1280,
    height: int | None = None,
) -> go.Figure:
    """Draw element formats as rulers of one length, a mark at every number each can hold.

    Args:
        rows: from top to bottom, at least one; names are plain text.
        title: one sentence that says what is seen; plain text, like subtitle.
        theme: `light` or `dark`.
        width: CSS pixels; below 640 the figure is laid out for a phone. So is height.

    Raises:
        ValueError: for no rows or an unknown theme.
    """
    if not rows:
        raise ValueError("no rulers to draw; give at least one")
    compact, sizes = is_compact(width), sizes_for(width)
    frame = titled(
        theme=theme,
        width=width,
        height=height or (200 if compact else 190) + 74 * len(rows),
        title=title,
        subtitle=subtitle,
        left=sizes.pad + (12 if compact else 12),
        foot=50,
    )
    for i, ruler in enumerate(rows):
        _draw_ruler(frame, i, np.asarray(ruler.ticks, dtype=np.float64))
        for text, side, bold in ((ruler.name, "left", 700), (ruler.said, "right", 400)):
            frame.note(
                escape(text),
                **{"x": 0 if side == "left" else 1, "xanchor": side, "y": i - 0.26, "yref": "y"},
                yanchor="bottom",
                font={"size": sizes.heading, "color": frame.theme.ink, "weight": bold},
                name=f"ruler {'name' if side == 'left' else 'said'}",
            )
    ends = {-1: "−longest", -0.5: "−½", 0: "0", 0.5: "½", 1: "longest"}
    frame.lay(
        xaxis={
            **{"range": [-1.04, 1.04], "fixedrange": True, "zeroline": False, "showgrid": True},
            **{"gridcolor": frame.theme.grid, "tickvals": list(ends), "ticktext": list(ends.values())},
            "tickfont": {"size": sizes.tick, "color": frame.theme.muted},
        },
        yaxis={"range": [len(rows) - 0.55, -0.75], "fixedrange": True, "visible": False},
    )
    said = "; ".join(f"{ruler.name}: {ruler.said}" for ruler in rows)
    return frame.finish("ruler-rows", f"Number formats as rulers of one length. {said}.", None)


def _draw_ruler(frame: Frame, i: int, ticks: np.ndarray) -> None:
    marks = [(x, y) for t in ticks for x, y in ((t, i - 0.17), (t, i + 0.17), (None, None))]
    dense = len(ticks) > frame.plot_width / 6
    for name, (x, y), thick in (
        ("ruler", ([ticks[0], ticks[-1]], [i, i]), 2.0),
        ("ticks", zip(*marks, strict=True), 1.0 if dense else 3.0),
    ):
        frame.fig.add_trace(
            go.Scatter(
                x=list(x),
                y=list(y),
                mode="lines",
                line={"color": frame.theme.ink, "width": thick},
                hoverinfo="skip",
                name=f"{name} {i}",
            )
        )
