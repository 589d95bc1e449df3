"""A frame with a title and nothing else: for figures whose axes are not tokens and channels."""

from __future__ import annotations

import plotly.graph_objects as go

from mxviz.figures._frame import LINE, Frame
from mxviz.figures._layout import _titles
from mxviz.figures.labels import balance, wrap
from mxviz.figures.theme import base_layout, sizes_for, theme_named


def titled(
    *, theme: str, width: int, height: int, title: str, subtitle: str, left: float, foot: float
) -> Frame:
    """Return an empty figure with its title, subtitle and margins.

    Args:
        theme: its name.
        width: CSS pixels; so are height, left and foot (the margins left of and below the plot).
        title: one sentence, plain text; so is subtitle.
    """
    sizes = sizes_for(width)
    room = width - 2 * sizes.pad
    titles, notes = balance(title, room, sizes.title * 1.08), wrap(subtitle, room, sizes.subtitle)
    under_title = sizes.pad + len(titles) * LINE * sizes.title
    frame = Frame(
        fig=go.Figure(layout=base_layout(theme_named(theme), width=width, height=height)),
        theme=theme_named(theme),
        sizes=sizes,
        width=width,
        height=height,
        left=left,
        right=sizes.pad,
        head=under_title + len(notes) * LINE * sizes.subtitle + 12,
        foot=foot,
    )
    if height - frame.head - foot < 60:
        raise ValueError(f"a height of {height} px leaves no room for the plot; give at least 360")
    _titles(frame, titles, notes, under_title)
    return frame
