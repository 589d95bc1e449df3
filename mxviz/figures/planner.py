"""Memory against context: weights at the bottom, caches on top of them, and the card they have to fit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import ArrayLike

from mxviz.figures import _planner_marks as marks
from mxviz.figures._frame import LINE, Frame
from mxviz.figures._planner_marks import Cache, Place, rounded_down
from mxviz.figures._titled import titled
from mxviz.figures.theme import is_compact

__all__ = ["Cache", "Place", "context_words", "memory_lines", "rounded_down"]


def context_words(tokens: int) -> str:
    """Return a context as people call it: 131,072 is 128k, 1,048,576 is 1M; others in full."""
    for unit, letter in ((2**20, "M"), (2**10, "k")):
        if tokens >= unit and tokens * 2 % unit == 0:
            return f"{tokens / unit:g}{letter}"
    return f"{tokens:,}"


def memory_lines(
    tokens: ArrayLike,
    caches: Sequence[Cache],
    place: Place,
    *,
    at: int,
    title: str,
    subtitle: str = "",
    theme: str = "light",
    width: int = 1280,
    height: int | None = None,
) -> go.Figure:
    """Draw GiB against context for some ways to store a cache.

    Args:
        tokens: contexts, ascending.
        caches: what is drawn, in the order of the legend.
        place: the card and the weights.
        at: the context that is looked at.
        title: one sentence that says what is seen; plain text, like subtitle.
        theme: `light` or `dark`.
        width: CSS pixels; below 640 the figure is laid out for a phone. So is height.

    Raises:
        ValueError: for a cache that has not one number a context, an unknown lane or theme, or no cache.
    """
    contexts = np.asarray(tokens, dtype=np.float64)
    heights = [np.asarray(cache.gib, dtype=np.float64) for cache in caches]
    for cache, found in zip(caches, heights, strict=True):
        if found.shape != contexts.shape or contexts.ndim != 1 or len(contexts) < 2:
            raise ValueError(f"{cache.name} has shape {found.shape}; expected one number for each context")
        if cache.lane not in marks.STYLES:
            raise ValueError(f"unknown lane {cache.lane!r}; expected one of: {', '.join(marks.STYLES)}")
    if not caches:
        raise ValueError("there is no cache to draw; give at least one")
    compact, last = is_compact(width), float(contexts[-1])
    frame = titled(
        theme=theme,
        width=width,
        height=height or (560 if compact else 600),
        title=title,
        subtitle=subtitle,
        left=56 if compact else 76,
        foot=64 + LINE * 14 * 1.15 * (len(caches) + (place.memory is not None) if compact else 1),
    )
    _axes(frame, last, heights, place)
    marks.weights_mark(frame, last, place)
    marks.context_mark(frame, at)
    for cache, found in zip(caches, heights, strict=True):
        marks.line_mark(frame, cache, contexts, found, place, at)
    if place.memory is not None:
        marks.card_mark(frame, place, last)
        marks.ends(frame, caches, place, last)
    _legend(frame)
    return frame.finish("planner", _alt(caches, place, at), None)


def _axes(frame: Frame, last: float, heights: Sequence[Any], place: Place) -> None:
    highest = place.weights + max(float(found.max()) for found in heights)
    top = 1.16 * max(place.memory, place.weights) if place.memory else 1.06 * highest
    muted = {"size": frame.sizes.tick, "color": frame.theme.muted}
    common = {
        **{"tickfont": muted, "ticks": "outside", "ticklen": 4, "tickcolor": frame.theme.grid},
        **{"showgrid": True, "gridcolor": frame.theme.grid, "zeroline": False},
    }
    ticks = _context_ticks(last, 4 if frame.compact else 8)
    frame.fig.layout.xaxis = {
        **common,
        **{"range": [0, last], "showgrid": False},
        **{"tickmode": "array", "tickvals": ticks, "ticktext": [context_words(t) for t in ticks]},
        "title": {"text": "tokens of context", "font": muted, "standoff": 6},
    }
    name = "GiB" if frame.compact else "GiB (2<sup>30</sup> bytes)"
    frame.fig.layout.yaxis = {
        **common,
        **{"range": [0, top], "nticks": 7},
        "title": {"text": name, "font": muted, "standoff": 8},
    }


def _context_ticks(last: float, most: int) -> list[int]:
    """Even steps of a power of two tokens."""
    step = 2 ** max(0, math.ceil(math.log2(max(1.0, last / most))))
    return list(range(0, int(last) + 1, step))


def _legend(frame: Frame) -> None:
    frame.lay(
        showlegend=True,
        legend={
            **{"orientation": "v" if frame.compact else "h", "itemclick": False, "itemdoubleclick": False},
            **{"x": 0, "xref": "paper", "xanchor": "left"},
            **{"y": frame.y(frame.height - 4), "yref": "paper", "yanchor": "bottom"},
            "font": {"size": frame.sizes.tick, "color": frame.theme.ink},
            "bgcolor": "rgba(0,0,0,0)",
        },
    )


def _alt(caches: Sequence[Cache], place: Place, at: int) -> str:
    said = [
        f"{cache.name} takes {cache.at:.3g} GiB at {at:,} tokens"
        + ("" if cache.ends is None else f" and fits up to {cache.ends:,}")
        for cache in caches
    ]
    card = "" if place.memory is None else f" The card, {place.card}, has {place.memory:.3g} GiB."
    weights = f"on top of {place.weights:.3g} GiB ({place.words})"
    return f"Lines of GiB against context, {weights}: {'; '.join(said)}.{card}"
