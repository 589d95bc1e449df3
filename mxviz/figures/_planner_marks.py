"""What stands in the planner's figure: weights, the context, lines of caches, the card, and what fits."""

from __future__ import annotations

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
    "single": ("square", "dash", 2.5),
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


def weights_mark(frame: Frame, contexts: Any, place: Place, top: float) -> None:
    """The weights lie at the bottom, hatched so that they are told without colour."""
    if not place.weights:
        return
    frame.fig.add_trace(
        go.Scatter(
            x=[0, contexts[-1]],
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
        **{"x": 0, "xref": "x", "xshift": 8, "y": min(place.weights, top) / 2, "yref": "y"},
        yanchor="middle",
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
                "size": 11,
                "color": colour,
                "line": {"color": frame.theme.paper, "width": 1.5},
            },
            name=name,
            hovertemplate=f"<b>{name}</b><br>{at:,} tokens: cache {cache.at:.3g} GiB<extra></extra>",
        )
    )


def card_mark(frame: Frame, contexts: Any, place: Place, top: float) -> None:
    if place.memory is None:
        return
    frame.fig.add_shape(
        type="line",
        **{"x0": 0, "x1": 1, "xref": "paper", "y0": place.memory, "y1": place.memory, "yref": "y"},
        line={"color": frame.theme.ink, "width": 2},
    )
    frame.note(
        f"<b>{escape(place.card)}</b> {number(place.memory)} GiB",
        **{"x": 0, "xref": "x", "xshift": 8, "y": place.memory, "yref": "y"},
        **{"yanchor": "top", "yshift": -4},
        bgcolor=frame.theme.paper,
        font={"size": frame.sizes.tick, "color": frame.theme.ink},
        name="card",
    )


def ends(frame: Frame, caches: Sequence[Cache], place: Place, contexts: Any) -> None:
    """Mark where lines meet the card and write how many tokens fit, off each other."""
    if place.memory is None:
        return
    taken: list[tuple[float, float, int]] = []
    size, last = frame.sizes.tick + 1, float(contexts[-1])
    met = [cache for cache in caches if cache.ends is not None and 0 < cache.ends <= last]
    for cache in sorted(met, key=lambda cache: cache.ends):
        colour = getattr(frame.theme, cache.lane)
        text, pixels = f"{rounded_down(cache.ends):,}", cache.ends / last * frame.plot_width
        half = text_width(text, size) / 2 + 6
        centre = min(max(pixels, half), frame.plot_width - half)
        level = next(
            n for n in range(9) if all(n != o or centre - half > b or centre + half < a for a, b, o in taken)
        )
        taken.append((centre - half, centre + half, level))
        frame.fig.add_trace(
            go.Scatter(
                x=[cache.ends],
                y=[place.memory],
                mode="markers",
                marker={
                    **{"symbol": f"{STYLES[cache.lane][0]}-open", "size": 12, "color": colour},
                    "line": {"width": 2.5, "color": colour},
                },
                hovertemplate=f"<b>{escape(cache.name)}</b><br>up to {cache.ends:,} tokens<extra></extra>",
                name="fits up to",
                showlegend=False,
            )
        )
        frame.note(
            text,
            **{"x": cache.ends, "xref": "x", "xanchor": "center", "xshift": centre - pixels},
            **{"y": place.memory, "yref": "y", "yanchor": "bottom", "yshift": 7 + level * LINE * size},
            font={"size": size, "color": colour, "weight": 700},
            name="fits",
        )


def rounded_down(tokens: int) -> int:
    """Return a count with three digits that matter, never more than it is."""
    step = 10 ** max(0, len(str(tokens)) - 3)
    return tokens // step * step
