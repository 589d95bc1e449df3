"""Figures: NumPy arrays and token texts in, `plotly.graph_objects.Figure` out; pure, and never sees torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import plotly.graph_objects as go
from plotly.graph_objects import Figure

from mxviz.figures.attention import attention_bars, head_errors
from mxviz.figures.cuts import cut_bars
from mxviz.figures.effect import divergence
from mxviz.figures.error import error_maps
from mxviz.figures.head import head_maps
from mxviz.figures.outliers import magnitude_map
from mxviz.figures.overview import overview_map
from mxviz.figures.profile import channel_profile, token_profile
from mxviz.figures.race import race_layers, race_map
from mxviz.figures.rulers import two_rulers
from mxviz.figures.scales import scale_map
from mxviz.figures.surface import surface
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
    "overview": Family(
        overview_map,
        "The whole cache",
        "Each cell is one KV head of one layer, keys above values, and its colour is one number about it. "
        "Where a cell differs from its neighbours is where to look closer.",
    ),
    "head": Family(
        head_maps,
        "One head in four maps",
        "From top to bottom: how large each number is, the scale its block shares, and what both rulers lose "
        "of it. The same token stands above itself in all four, so that one can follow an outlier down.",
    ),
    "cuts": Family(
        cut_bars,
        "Which way to cut",
        "Each bar is the share of a layer's keys or values that becomes zero under one way to share scales. "
        "The same numbers are stored each time; only who shares a ruler with whom differs.",
    ),
    "rulers": Family(
        two_rulers,
        "One block, two rulers",
        "Every mark on a ruler is a number that it can hold, and every stored value moves to the nearest "
        "mark. Above is the block's own ruler, below the one it shares with everything else.",
    ),
    "channels": Family(
        channel_profile,
        "Channels in profile",
        "Each step is one channel of a head: its largest, its median and the middle 90 % of its magnitudes "
        "over all tokens. What towers over the dashed line at every token is an outlier channel.",
    ),
    "tokens": Family(
        token_profile,
        "Tokens in profile",
        "Each step is one token of a head: its largest and its median magnitude over the channels that are "
        "no outliers. Some tokens are loud, and the first ones are often nearly silent.",
    ),
    "surface": Family(
        surface,
        "A head as a surface",
        "Height is how large a number is, over tokens and channels. A ridge that runs through all tokens is "
        "an outlier channel; height is linear here, colour is logarithmic.",
    ),
    "divergence": Family(
        divergence,
        "KL at every token",
        "Each stem is how far the quantized model's forecast of one token lies from the exact model's, in "
        "nats. A filled diamond marks a token for which another first choice came out on top.",
    ),
    "attention": Family(
        attention_bars,
        "Where one query looks",
        "Each bar is the share of its attention that one query gives to one token, over exact, micro-scaled "
        "and single-scale keys. The query is the exact model's own, so the damage is one layer's alone.",
    ),
    "head-errors": Family(
        head_errors,
        "What every head hands on",
        "Each bar is how far the output of one query head is off when keys and values are quantized, as a "
        "share of its length. The queries are the exact model's own: errors of earlier layers do not count.",
    ),
    "race": Family(
        race_map,
        "The race",
        "Each mark is one scheme: the further left, the fewer bits it costs. The grey line is the Pareto "
        "front: for every scheme off it there is one that costs no more and loses less by this measure.",
    ),
    "race-layers": Family(
        race_layers,
        "The race, layer by layer",
        "Each line is one scheme, layer by layer. Where lines part, it matters in that layer how the scales "
        "are shared; where all of them dip, its numbers are hard to store for any.",
    ),
}
"""Name to figure; `mxviz._pictures_registry` says how each is drawn from a capture, for CLI and studio."""


def alt_text(fig: go.Figure) -> str:
    """Return what the figure shows, in words, for those who cannot see it."""
    return (fig.layout.meta or {}).get("alt", "")
