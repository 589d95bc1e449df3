"""Figures: NumPy arrays and token texts in, `plotly.graph_objects.Figure` out; pure, and never sees torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import plotly.graph_objects as go
from plotly.graph_objects import Figure

from mxviz.figures.error import error_maps
from mxviz.figures.outliers import magnitude_map
from mxviz.figures.scales import scale_map
from mxviz.figures.theme import THEMES, Theme

__all__ = [
    "FIGURES",
    "THEMES",
    "Family",
    "Figure",
    "Theme",
    "alt_text",
    "error_maps",
    "magnitude_map",
    "scale_map",
]


class Family(NamedTuple):
    """A kind of figure: the function that draws it, its name for people, and what a reader sees in it."""

    draw: Callable[..., go.Figure]
    title: str
    about: str


FIGURES = {
    "scales": Family(
        scale_map,
        "Shared scales",
        "Each cell is one block and its colour is the scale that the block's values share, a power of two in "
        "MX formats. A bright block holds something large, and every small value beside it is measured with "
        "that long ruler.",
    ),
    "outliers": Family(
        magnitude_map,
        "Outliers",
        "Each cell is one number of the cache and its colour is how large it is, on a logarithmic scale. A "
        "bright line is a channel that towers over the rest at every token: it sets the scale that its "
        "neighbours have to share.",
    ),
    "error": Family(
        error_maps,
        "What is lost",
        "Each cell is the relative error of one stored number: nothing lost has the colour of the paper, and "
        "100 % means that the number became zero. The upper picture gives every block its own scale, the "
        "lower one gives all of them the same.",
    ),
}
"""Name to figure; `mxviz figure NAME` and the pages take their figures from here."""


def alt_text(fig: go.Figure) -> str:
    """Return what the figure shows, in words, for those who cannot see it."""
    return (fig.layout.meta or {}).get("alt", "")
