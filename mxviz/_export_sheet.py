"""A figure as a sheet: its size, its ground, its fonts, and a title, a caption and a last line of its own."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from mxviz.figures import Figure
from mxviz.figures._frame import LINE
from mxviz.figures.labels import balance, escape, wrap
from mxviz.figures.theme import Sizes, sizes_for, theme_named

WIDTH = 1280
"""CSS pixels of a figure whose size names none."""


class Size(NamedTuple):
    """CSS pixels (None: as the figure was built) and how many device pixels each becomes in a PNG.

    `zoom` is how much larger than laid out the figure is drawn: at the same size, larger fonts.
    """

    width: int | None
    height: int | None
    scale: float
    zoom: float = 1.0


SIZES = {
    "slide": Size(1280, 720, 1.5),
    "square": Size(864, 864, 1.25),
    "column": Size(420, None, 3.0),
    "page": Size(880, None, 2.5),
    "figure": Size(None, None, 2.0),
    "phone": Size(390, None, 3.0),
}
"""Build a figure at the width and height named here, then write it: labels are laid out for that width."""

ABOUT_SIZES = {
    "slide": "slide, 16:9, 1920 × 1080",
    "square": "square, 1080 × 1080",
    "column": "paper, one column",
    "page": "paper, full width",
    "figure": "as high as it needs",
    "phone": "phone",
}

GROUNDS = {
    "light": ("light", False),
    "dark": ("dark", False),
    "transparent": ("light", True),
    "transparent-dark": ("dark", True),
}
"""What a sheet lies on: the theme it is drawn in, and whether its background is left out."""

_LEAST = 200  # pixels of height that any figure needs

SCALES = (0.5, 3.0)
"""Smallest and largest font scale."""


class Sheet(NamedTuple):
    """How a figure is put into a file.

    Args:
        theme: a name of `GROUNDS`.
        size: a name of `SIZES`.
        title: instead of the figure's own sentence; empty for none, None for its own.
        caption: a text below the figure.
        font_scale: how much larger all fonts and lines are, 0.5 to 3.
        provenance: whether a last line says where the figure came from.
    """

    theme: str = "light"
    size: str = "slide"
    title: str | None = None
    caption: str = ""
    font_scale: float = 1.0
    provenance: bool = False


class _Text(NamedTuple):
    """Lines below a figure: their font size in pixels and their colour."""

    lines: list[str]
    size: float
    colour: str


def size_of(sheet: Sheet) -> Size:
    """Return a sheet's size, laid out smaller and drawn larger by about its font scale.

    Where a height is set, the scale is rounded to where width and height stay whole: a slide has exactly
    1920 × 1080 device pixels at every scale.

    Raises:
        ValueError: for an unknown size, or a font scale out of range.
    """
    if sheet.size not in SIZES:
        raise ValueError(f"unknown size {sheet.size!r}; expected one of: {', '.join(SIZES)}")
    if not SCALES[0] <= sheet.font_scale <= SCALES[1]:
        raise ValueError(f"font scale {sheet.font_scale:g}; expected {SCALES[0]:g} to {SCALES[1]:g}")
    size = SIZES[sheet.size]
    width = size.width or WIDTH
    step = math.gcd(width, size.height) if size.height else width
    parts = max(1, round(step / sheet.font_scale))
    height = size.height and size.height // step * parts
    return Size(width // step * parts, height, size.scale, step / parts)


def theme_of(sheet: Sheet) -> tuple[str, bool]:
    """Return the theme a sheet is drawn in, and whether its background is left out; ValueError lists them."""
    if sheet.theme not in GROUNDS:
        raise ValueError(f"unknown theme {sheet.theme!r}; expected one of: {', '.join(GROUNDS)}")
    return GROUNDS[sheet.theme]


def put_on(sheet: Sheet, draw: Callable[..., Figure], line: str = "") -> Figure:
    """Draw a figure and put it on a sheet, at exactly the sheet's width and, where it has one, height.

    Args:
        sheet: how.
        draw: draws it, given theme, width and height (None: what it needs); each call a new figure.
        line: where it came from, in one line; shown where the sheet says so.

    Raises:
        ValueError: as `size_of` and `theme_of`, for what `draw` refuses, and where it does not fit.
    """
    (theme, clear), size = theme_of(sheet), size_of(sheet)
    sizes, colours = sizes_for(size.width), theme_named(theme)
    room = size.width - 2 * sizes.pad
    texts = [
        _Text(wrap(sheet.caption, room, sizes.subtitle), sizes.subtitle, colours.ink),
        _Text(wrap(line if sheet.provenance else "", room, sizes.tick - 2), sizes.tick - 2, colours.muted),
    ]
    texts = [text for text in texts if text.lines]
    foot = round(sum(_height(text) for text in texts) + sizes.pad / 2 * bool(texts))

    def drawn(head: int) -> Figure:
        height = size.height and size.height - foot - head
        try:
            if height is not None and height < _LEAST:
                raise ValueError(f"a height of {height} px leaves no room")
            return draw(theme=theme, width=size.width, height=height)
        except ValueError as error:
            if "leaves no room" not in str(error):
                raise
            raise ValueError(
                f"the figure does not fit the size {sheet.size} with these fonts, title and caption; take a "
                "smaller font scale, or the size figure, which is as high as it needs"
            ) from None

    fig, head = drawn(0), 0
    if sheet.title is not None:
        titles = balance(sheet.title, room, 1.08 * sizes.title)
        head = round((len(titles) - _title_lines(fig)) * LINE * sizes.title)
        fig = drawn(head) if head and size.height else fig
        _retitle(fig, titles, sizes, head)
    _write_below(fig, texts, sizes, foot)
    if clear:
        fig.update_layout(paper_bgcolor="rgba(0,0,0,0)", plot_bgcolor="rgba(0,0,0,0)")
    return fig


def _height(text: _Text) -> float:
    return len(text.lines) * LINE * text.size + 0.5 * text.size


def _title_lines(fig: Figure) -> int:
    text = fig.layout.title.text
    return text.count("<br>") + 1 if text else 0


def _retitle(fig: Figure, titles: list[str], sizes: Sizes, head: int) -> None:
    """Set another title; what stands below it moves by `head` pixels and keeps its size."""
    layout = fig.layout
    layout.title.text = "<br>".join(map(escape, titles))
    layout.title.pad.t = sizes.pad + 0.7 * sizes.title * (len(titles) > 1)  # as in figures/_layout
    layout.margin.t += head
    layout.height += head


def _write_below(fig: Figure, texts: list[_Text], sizes: Sizes, foot: int) -> None:
    """Make room below a figure, and write there."""
    layout, notes, at = fig.layout, [], fig.layout.margin.b
    for text in texts:
        at += 0.5 * text.size
        notes.append(
            {
                "text": "<br>".join(map(escape, text.lines)),
                "font": {"size": text.size, "color": text.colour},
                **{"x": 0, "xref": "paper", "xanchor": "left", "xshift": sizes.pad - layout.margin.l},
                **{"y": 0, "yref": "paper", "yanchor": "top", "yshift": -at, "align": "left"},
                **{"showarrow": False, "borderpad": 0, "name": "below"},
            }
        )
        at += len(text.lines) * LINE * text.size
    layout.annotations = [*layout.annotations, *notes]
    layout.margin.b += foot
    layout.height += foot
