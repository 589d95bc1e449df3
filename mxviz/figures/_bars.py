"""Bars along the token axis, or along heads or layers: their axes, and sums where there are too many."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
from numpy.typing import ArrayLike, NDArray

from mxviz.figures._cells import Grid, edges
from mxviz.figures._frame import Frame

Row = NDArray[np.float64]


def row(name: str, x: ArrayLike, labels: Sequence[str], what: str = "tokens") -> Row:
    """Return x as float64, one number a label; ValueError says which array has the wrong length."""
    found = np.asarray(x, dtype=np.float64)
    if found.shape != (len(labels),) or not len(labels):
        raise ValueError(
            f"{name} has shape {found.shape}; expected one number for each of {len(labels)} {what}"
        )
    return found


def summed(x: Row, per: int) -> Row:
    """Add up every `per` numbers; NaN stays NaN."""
    return np.add.reduceat(x, np.arange(0, len(x), per))


def columns(count: int, per: int) -> Grid:
    """Return where bars of `per` positions each lie."""
    bounds = edges(count, per)
    return Grid(np.zeros((1, len(bounds) - 1), np.float32), bounds, np.array([-0.5, 0.5]), per)


def upright(frame: Frame, i: int, span: tuple[float, float], name: str) -> None:
    """Give panel i an axis of its own that grows upwards, where the frame has channels down."""
    frame.fig.layout[f"yaxis{i + 1 if i else ''}"].update(
        range=span,
        title={"text": name},
        matches=None,
        showgrid=True,
        gridcolor=frame.theme.grid,
        zeroline=span[0] < 0,
        zerolinecolor=frame.theme.muted,
    )


def name_axis(frame: Frame, text: str) -> None:
    """Call the axis below the panels something else than token."""
    for note in frame.notes:
        if note.get("name") == "axis":
            note["text"] = text


def bars(
    frame: Frame,
    i: int,
    x: Row,
    heights: Row,
    values: Row,
    *,
    colour: str,
    name: str,
    hover: str,
    lane: int | None = None,
) -> None:
    """Draw bars in panel i; `lane` 0 or 1 puts them on the left or the right half of each column.

    Args:
        x: column centres.
        heights: on the panel's axis.
        values: what the hover reads as %{customdata}.
        hover: template behind the column's name; name is that of the trace and legend, escaped.
    """
    step = float(x[1] - x[0]) if len(x) > 1 else 1.0
    left = -0.42 * step * (lane != 1)  # an offset of our own, or bars of one column make way for each other
    frame.fig.add_trace(
        go.Bar(
            x=x,
            y=np.nan_to_num(heights).astype(np.float32),
            width=(0.84 if lane is None else 0.42) * step,
            customdata=values,
            marker={"color": colour, "line": {"width": 0}},
            name=name,
            hovertemplate=f"<b>%{{x}}</b><br>{hover}<extra></extra>",
            offset=left,
            **frame.axes(i),
        )
    )
