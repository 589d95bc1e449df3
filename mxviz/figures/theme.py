"""The one theme: colours that mean something, maps that read in grey, sizes that read from the back row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

FONT = "'Source Sans', 'Noto Sans', 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
"""Fonts of the system, in order; nothing is fetched."""

COMPACT_BELOW = 640
"""Figures narrower than this, in CSS pixels, label less and put colour bars on a row of their own."""

# Stops are equally spaced in OKLab lightness, so that equal steps of the data are equal steps for the eye and
# the order survives any kind of colour blindness. The brightest end is for what towers over the rest.
_MAGNITUDE = (
    *("#14205a", "#1d3275", "#27468f", "#335ca5", "#4673b4", "#608aba"),
    *("#83a1b5", "#adb5a3", "#d4c995", "#efdea1", "#fff6cf"),
)
_LOSS_LIGHT = (
    *("#fdf6ec", "#fbd6bb", "#f6b492", "#ee9176", "#e26c65", "#cc4d61"),
    *("#af3360", "#8b255b", "#651d53", "#421642", "#220f2e"),
)
_LOSS_DARK = (
    *("#131c22", "#3a1f41", "#5e2250", "#822759", "#a3325b", "#c3425b"),
    *("#d85e5f", "#ea7b65", "#f39c79", "#f8bd95", "#fbdcb8"),
)
_SIGNED_LIGHT = (
    *("#0b2f57", "#1a548a", "#417caf", "#76a5cb", "#b5ccdf", "#f5f4f0"),
    *("#e4c698", "#cb9952", "#a57128", "#7a4f11", "#4f3006"),
)
_SIGNED_DARK = (
    *("#b5ccdf", "#76a5cb", "#417caf", "#1a548a", "#123a61", "#131c22"),
    *("#4f3a14", "#7a5418", "#a57128", "#cb9952", "#e4c698"),
)


@dataclass(frozen=True)
class Theme:
    """Colours of a figure, as #rrggbb.

    Args:
        name: `light` or `dark`.
        paper: background.
        ink: titles and what is read first.
        muted: ticks, subtitles and notes.
        grid: rules and frames.
        exact: the meaning colour of uncompressed values (grey).
        micro: of micro-scaled ones (teal).
        single: of one scale for all (burnt orange).
        outlier: of outliers (magenta).
        zero: blocks of zeros, which have no scale.
        missing: NaN and what cannot be drawn.
        sequential: the map of magnitudes and scales, small to large.
        diverging: the map of signed values, negative to positive.
        loss: the map of relative error, 0 to 100 %; nothing lost is the paper's colour.
    """

    name: str
    paper: str
    ink: str
    muted: str
    grid: str
    exact: str
    micro: str
    single: str
    outlier: str
    zero: str
    missing: str
    sequential: tuple[str, ...]
    diverging: tuple[str, ...]
    loss: tuple[str, ...]


THEMES = {
    "light": Theme(
        name="light",
        paper="#fdfdfb",
        ink="#1b2426",
        muted="#566069",
        grid="#d9dedd",
        exact="#6b7280",
        micro="#0f766e",
        single="#c2410c",
        outlier="#be185d",
        zero="#c5cbcf",
        missing="#8a5cf0",
        sequential=_MAGNITUDE,
        diverging=_SIGNED_LIGHT,
        loss=_LOSS_LIGHT,
    ),
    "dark": Theme(
        name="dark",
        paper="#10181c",
        ink="#e6ecec",
        muted="#a3b0b6",
        grid="#2d3b42",
        exact="#9ca3af",
        micro="#2dd4bf",
        single="#fb923c",
        outlier="#f472b6",
        zero="#4d5c64",
        missing="#a78bfa",
        sequential=_MAGNITUDE,
        diverging=_SIGNED_DARK,
        loss=_LOSS_DARK,
    ),
}


@dataclass(frozen=True)
class Sizes:
    """Font sizes and margins of a width class, in CSS pixels."""

    title: int
    subtitle: int
    heading: int
    tick: int
    pad: int
    left: int


WIDE = Sizes(title=27, subtitle=16, heading=17, tick=14, pad=24, left=68)
COMPACT = Sizes(title=18, subtitle=13, heading=14, tick=12, pad=14, left=48)


def theme_named(name: str) -> Theme:
    """Return a theme by name; ValueError lists the names."""
    if name not in THEMES:
        raise ValueError(f"unknown theme {name!r}; expected one of: {', '.join(THEMES)}")
    return THEMES[name]


def is_compact(width: int) -> bool:
    """Return whether a figure of `width` CSS pixels is laid out for a phone."""
    return width < COMPACT_BELOW


def sizes_for(width: int) -> Sizes:
    """Return the sizes of the width class a figure of `width` CSS pixels belongs to."""
    return COMPACT if is_compact(width) else WIDE


def colorscale(stops: tuple[str, ...]) -> list[list[Any]]:
    """Return a map's stops as Plotly wants them, evenly spread over 0 to 1."""
    return [[i / (len(stops) - 1), colour] for i, colour in enumerate(stops)]


def steps(stops: tuple[str, ...], count: int) -> list[list[Any]]:
    """Return a map cut into `count` flat steps, for data that takes only that many values.

    Few steps keep away from the dark end, where neither paper sets them off.
    """
    low = 0.3 * max(0.0, 1 - count / 8)
    chosen = [_between(stops, low + (1 - low) * (i + 0.5) / count) for i in range(count)]
    return [[edge, colour] for i, colour in enumerate(chosen) for edge in (i / count, (i + 1) / count)]


def _between(stops: tuple[str, ...], t: float) -> str:
    place = t * (len(stops) - 1)
    i = min(int(place), len(stops) - 2)
    pairs = zip(rgb(stops[i]), rgb(stops[i + 1]), strict=True)
    return "#" + "".join(f"{round(a + (b - a) * (place - i)):02x}" for a, b in pairs)


def rgb(colour: str) -> tuple[int, int, int]:
    """Return the three channels of #rrggbb, 0 to 255."""
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


def faded(colour: str, alpha: float) -> str:
    """Return a colour with an opacity, as CSS."""
    return "rgba({},{},{},{})".format(*rgb(colour), alpha)


def base_layout(theme: Theme, *, width: int, height: int) -> dict[str, Any]:
    """Return the layout every figure starts from; margins are the figure's own, nothing moves by itself."""
    sizes = sizes_for(width)
    return {
        "template": "none",
        "width": width,
        "height": height,
        "paper_bgcolor": theme.paper,
        "plot_bgcolor": theme.paper,
        "font": {"family": FONT, "size": sizes.tick, "color": theme.ink},
        "hoverlabel": {
            "bgcolor": theme.paper,
            "bordercolor": theme.muted,
            "font": {"family": FONT, "size": sizes.tick, "color": theme.ink},
            "align": "left",
            "namelength": 0,
        },
        "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": theme.muted, "activecolor": theme.ink},
        "hovermode": "closest",
        "dragmode": "zoom",
        "showlegend": False,
    }
