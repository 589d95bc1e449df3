"""The range and the colours of KL, in nats: the same in every figure, text and run."""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

from mxviz.figures._traces import number
from mxviz.figures.theme import Theme, rgb, steps

FLOOR, CEILING = 1e-3, 10.0
"""Nats that axes of KL run between at least. A word of which the exact model is sure has become some twenty
thousand times less likely where its forecast moved by 10 nats."""

PALEST = 1e-2
"""Nats up to which a word in a coloured text stays as pale as the paper."""

SHADES = 24
"""Steps of the colour scale of a text."""


_RAISED = str.maketrans("−0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def plain(value: float, digits: int = 3) -> str:
    """Return a number as figures write it, without markup: 1.2 × 10⁻⁹."""
    return re.sub("<sup>(.+?)</sup>", lambda match: match[1].translate(_RAISED), number(value, digits))


class Shade(NamedTuple):
    """A background of coloured text and the ink that is read on it, #rrggbb."""

    paper: str
    ink: str


def shades(theme: Theme) -> list[Shade]:
    """Return the backgrounds of KL, small to large, each with an ink of contrast 4.5 or more (WCAG AA)."""
    papers = [colour for _, colour in steps(theme.loss, SHADES)][::2]
    return [Shade(paper, _ink(paper, theme)) for paper in papers]


def shade_of(nats: float) -> int | None:
    """Return the index of the background a KL takes, logarithmically; None where it is no number."""
    if not np.isfinite(nats):
        return None
    share = np.log10(max(nats, PALEST) / PALEST) / np.log10(CEILING / PALEST)
    return min(SHADES - 1, int(share * SHADES))


def contrast(a: str, b: str) -> float:
    """Return the contrast ratio of two colours, 1 to 21, as WCAG defines it."""
    high, low = sorted((_luminance(a), _luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def _ink(paper: str, theme: Theme) -> str:
    """Take the theme's ink or paper where that can be read, else black or white, of which one always can."""
    inks = (theme.ink, theme.paper, "#000000", "#ffffff")
    return next(
        (ink for ink in inks if contrast(ink, paper) >= 4.6), max(inks, key=lambda i: contrast(i, paper))
    )


def _luminance(colour: str) -> float:
    parts = np.array(rgb(colour)) / 255
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    return float(linear @ (0.2126, 0.7152, 0.0722))
