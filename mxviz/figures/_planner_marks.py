"""What stands in the planner's figure: weights, the context, lines of caches, the card, and what fits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import plotly.graph_objects as go
from numpy.typing import ArrayLike

from mxviz.figures._frame import LINE, Frame
from mxviz.figures._traces import number
from mxviz.figures.labels import escape, text_width
from mxviz.figures.theme import faded

STYLES = {
    "exact": ("circle", "solid", 3.0),
    "micro": ("diamond", "solid", 4.0),
    "single": ("square-open", "dash", 2.5),
}


"""By lane: marker, dash and width of its line."""


class Cache(NamedTuple):
    """One way to store the cache.

    Args:
        name: for the legend, plain text.
        gib: GiB of the cache alone, one number a context.
        lane: `exact`, `micro` or `single`: its meaning colour.
        ends: tokens at which it meets the card, None where it does not within reach.
        at: GiB at the context that is looked at.
    """

    name: str
    gib: ArrayLike
    lane: str
    ends: int | None
    at: float


class Place(NamedTuple):
    """What the cache has to fit into: a card and its GiB (or nothing), the GiB that lie below the cache, and
    what they are."""

    card: str
    memory: float | None
    weights: float
    words: str = "weights"


def weights_mark(frame: Frame, last: float, place: Place) -> None:
    """The weights lie at the bottom, hatched so that they are told without colour."""
    if not place.weights:
        return
    frame.fig.add_trace(
        go.Scatter(
            x=[0, last],
            y=[place.weights] * 2,
            mode="lines",
            line={"color": frame.theme.muted, "width": 1},
            fill="tozeroy",
            fillcolor=faded(frame.theme.muted, 0.1),
            fillpattern={
                "shape": "/",
                "fgcolor": faded(frame.theme.muted, 0.35),
                "size": 9,
                "solidity": 0.15,
            },
            hoverinfo="skip",
            showlegend=False,
            name="weights",
        )
    )
    frame.note(
        f"{escape(place.words)} {number(place.weights)} GiB",
        **{"x": 0, "xref": "x", "xshift": 8, "y": 0, "yref": "y", "yshift": 8, "yanchor": "bottom"},
        bgcolor=frame.theme.paper,
        font={"size": frame.sizes.tick, "color": frame.theme.ink},
        name="weights",
    )


def context_mark(frame: Frame, at: int) -> None:
    frame.fig.add_shape(
        type="line",
        **{"x0": at, "x1": at, "xref": "x", "y0": 0, "y1": 1, "yref": "paper"},
        line={"color": frame.theme.muted, "width": 1.5, "dash": "dot"},
        layer="below",
    )


def line_mark(frame: Frame, cache: Cache, contexts: Any, gib: Any, place: Place, at: int) -> None:
    symbol, dash, thick = STYLES[cache.lane]
    colour, name = getattr(frame.theme, cache.lane), escape(cache.name)
    frame.fig.add_trace(
        go.Scatter(
            x=contexts,
            y=gib + place.weights,
            customdata=gib,
            mode="lines",
            line={"color": colour, "width": thick, "dash": dash},
            name=name,
            showlegend=False,
            hovertemplate=f"<b>{name}</b><br>%{{x:,.0f}} tokens: cache %{{customdata:.3~g}} GiB, "
            "with weights %{y:.3~g} GiB<extra></extra>",
        )
    )
    frame.fig.add_trace(  # its place at the context that is looked at, and its line in the legend
        go.Scatter(
            x=[at],
            y=[cache.at + place.weights],
            mode="lines+markers",
            line={"color": colour, "width": thick, "dash": dash},
            marker={
                "symbol": symbol,
                "size": 15 if cache.lane == "single" else 11,
                "color": colour,
                "line": {"color": frame.theme.paper, "width": 1.5},
            },
            name=name,
            hovertemplate=f"<b>{name}</b><br>{at:,} tokens: cache {cache.at:.3g} GiB<extra></extra>",
        )
    )


def card_words(place: Place) -> str:
    return f"{place.card} {number(place.memory)} GiB"


def card_mark(frame: Frame, place: Place, last: float) -> None:
    """Draw the card as a line and name it over its left end; on a phone the legend names it."""
    frame.fig.add_trace(
        go.Scatter(
            x=[0, last],
            y=[place.memory] * 2,
            mode="lines",
            line={"color": frame.theme.ink, "width": 2},
            name=escape(card_words(place)),
            showlegend=frame.compact,
            hoverinfo="skip",
        )
    )
    if frame.compact:
        return
    frame.note(
        f"<b>{escape(place.card)}</b> {number(place.memory)} GiB",
        **{"x": 0, "xref": "x", "xshift": 8, "y": place.memory, "yref": "y"},
        **{"yanchor": "bottom", "yshift": _OVER},
        font={"size": frame.sizes.tick, "color": frame.theme.ink},
        name="card",
    )


_OVER = 6  # pixels between the card's line and what is written at it


class _Spot(NamedTuple):
    """Where a text stands at the card's line: pixels from the left, its width, rows above (below: -1)."""

    left: float
    width: float
    row: int

    def meets(self, other: _Spot) -> bool:
        apart = self.left + self.width <= other.left or other.left + other.width <= self.left
        return self.row == other.row and not apart


def ends(frame: Frame, caches: Sequence[Cache], place: Place, last: float) -> None:
    """Mark where lines meet the card and write how many tokens fit.

    Lines rise to the right, so the text stands to the upper left of its mark; one that follows another
    closely stands to the lower right, where no line comes any more.
    """
    size = frame.sizes.tick + 1
    named = text_width(card_words(place), frame.sizes.tick) + 16
    taken = [] if frame.compact else [_Spot(8, named, 0)]
    met = [cache for cache in caches if cache.ends is not None and 0 < cache.ends <= last]
    before = -math.inf
    for cache in sorted(met, key=lambda cache: cache.ends):
        _meeting(frame, cache, place)
        text, at = f"{rounded_down(cache.ends):,}", cache.ends / last * frame.plot_width
        wide = text_width(text, size) * 1.06 + 8
        over = at - before > wide + 10
        left = max(0.0, at - wide - 6) if over else min(at + 6, frame.plot_width - wide)
        spots = (_Spot(left, wide, row) for row in (range(9) if over else range(-1, -9, -1)))
        spot = next(s for s in spots if not any(s.meets(other) for other in taken))
        taken.append(spot)
        before = at
        rows = spot.row if over else spot.row + 1
        frame.note(
            text,
            **{"x": cache.ends, "xref": "x", "xanchor": "left", "xshift": spot.left + 4 - at},
            **{"y": place.memory, "yref": "y", "yanchor": "bottom" if over else "top"},
            yshift=(_OVER if over else -_OVER) + rows * LINE * size,
            font={"size": size, "color": getattr(frame.theme, cache.lane), "weight": 700},
            name="fits",
        )


def _meeting(frame: Frame, cache: Cache, place: Place) -> None:
    colour, symbol = getattr(frame.theme, cache.lane), STYLES[cache.lane][0].removesuffix("-open")
    frame.fig.add_trace(
        go.Scatter(
            x=[cache.ends],
            y=[place.memory],
            mode="markers",
            marker={
                **{"symbol": f"{symbol}-open", "size": 12, "color": colour},
                "line": {"width": 2.5, "color": colour},
            },
            hovertemplate=f"<b>{escape(cache.name)}</b><br>up to {cache.ends:,} tokens<extra></extra>",
            name="fits up to",
            showlegend=False,
        )
    )


def rounded_down(tokens: int) -> int:
    """Return a count with three digits that matter, never more than it is."""
    step = 10 ** max(0, len(str(tokens)) - 3)
    return tokens // step * step
