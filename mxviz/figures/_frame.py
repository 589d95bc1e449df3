"""The frame of a figure, laid out in pixels: title, panels one above the other, token labels below."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import plotly.graph_objects as go

from mxviz.figures.labels import TokenTicks, escape, text_width, token_ticks, wrap
from mxviz.figures.theme import Sizes, Theme, base_layout, is_compact, sizes_for, theme_named

LINE = 1.3  # line height in font sizes, as Plotly sets text
BAR_THICKNESS = 10
BAR_LENGTH = 300


class Panel(NamedTuple):
    """One panel: heading (plain text) and its colour, channels and their ticks, share of the height."""

    heading: str
    channels: int
    ticks: dict[float, str]
    colour: str | None = None
    weight: float = 1.0
    bar: bool = False


class Columns(NamedTuple):
    """The token axis: token texts, place to name of each column (escaped), columns to label first, and the
    first and last token in sight."""

    tokens: Sequence[str]
    names: dict[float, str]
    priority: Collection[int] = ()
    window: tuple[int, int] | None = None


@dataclass
class Frame:
    """A figure under construction and its measures in pixels; `panels` are top and bottom of each."""

    fig: go.Figure
    theme: Theme
    sizes: Sizes
    width: int
    height: int
    left: float
    right: float
    head: float
    foot: float
    panels: list[tuple[float, float]] = field(default_factory=list)

    @property
    def plot_width(self) -> float:
        return self.width - self.left - self.right

    @property
    def compact(self) -> bool:
        return is_compact(self.width)

    def y(self, pixels: float) -> float:
        """Return a distance in pixels from the top as Plotly's paper fraction."""
        return 1 - (pixels - self.head) / (self.height - self.head - self.foot)

    def axes(self, i: int) -> dict[str, str]:
        """Return what a trace needs to stand in panel i."""
        return {"xaxis": f"x{i + 1 if i else ''}", "yaxis": f"y{i + 1 if i else ''}"}

    def note(self, text: str, **where: Any) -> None:
        """Add an escaped text; by default at the left edge of the panels, without an arrow."""
        placed = {
            "x": 0,
            "xref": "paper",
            "yref": "paper",
            "xanchor": "left",
            "showarrow": False,
            "borderpad": 0,
        }
        self.fig.add_annotation(text=text, **(placed | where))

    def finish(self, figure: str, alt: str, reduced: str | None) -> go.Figure:
        """Return the figure with its name, alt text and notice in `layout.meta`."""
        self.fig.update_layout(meta={"figure": figure, "alt": alt, "reduced": reduced})
        return self.fig


def start(
    panels: Sequence[Panel],
    columns: Columns,
    *,
    theme: str,
    width: int,
    height: int,
    title: str,
    subtitle: str,
    gutter: float = 0,
    legend: int = 0,
) -> Frame:
    """Lay out an empty figure: everything but the traces and the colour bars.

    Args:
        panels: from top to bottom; their axes are linked.
        columns: the token axis.
        theme: its name.
        width: CSS pixels; so is height.
        title: one sentence, plain text; so is subtitle.
        gutter: pixels kept free to the right of the panels.
        legend: entries the legend will have; it stands at the foot.
    """
    sizes = sizes_for(width)
    right = gutter + sizes.pad
    left = _left(panels, sizes)
    ticks = _ticks(columns, width - left - right, sizes, is_compact(width))
    room = width - 2 * sizes.pad
    titles, notes = wrap(title, room, sizes.title * 1.08), wrap(subtitle, room, sizes.subtitle)
    under_title = sizes.pad + len(titles) * LINE * sizes.title
    frame = Frame(
        fig=go.Figure(layout=base_layout(theme_named(theme), width=width, height=height)),
        theme=theme_named(theme),
        sizes=sizes,
        width=width,
        height=height,
        left=left,
        right=right,
        head=under_title + len(notes) * LINE * sizes.subtitle + 4,
        foot=ticks.height + LINE * sizes.tick * (1 + 1.15 * legend * is_compact(width)) + 18,
    )
    _place(frame, panels)
    _titles(frame, titles, notes, under_title)
    for i, panel in enumerate(panels):
        _axes(frame, i, panel, columns)
        _heading(frame, i, panel)
    _token_labels(frame, ticks, len(panels) - 1)
    if legend:
        _legend(frame)
    return frame


def _ticks(columns: Columns, width: float, sizes: Sizes, compact: bool) -> TokenTicks:
    return token_ticks(
        columns.tokens,
        width,
        sizes.tick - 1,
        priority=columns.priority,
        window=columns.window,
        limit=12 if compact else 16,
    )


def _left(panels: Sequence[Panel], sizes: Sizes) -> float:
    """Return the pixels that channel ticks and the axis's name take to the left of the panels."""
    texts = (re.sub("<[^>]+>", "", text) for panel in panels for text in panel.ticks.values())
    return max(sizes.left, 2.2 * sizes.tick + 12 + max(text_width(text, sizes.tick) for text in texts))


def room(width: int) -> int:
    """Return about how many pixels the token axis has in a figure of a width, before any gutter."""
    sizes = sizes_for(width)
    return width - sizes.left - sizes.pad


def _place(frame: Frame, panels: Sequence[Panel]) -> None:
    """Share the height that headings leave among the panels, by weight."""
    rows = [_heading_height(frame, panel) for panel in panels]
    free = frame.height - frame.head - frame.foot - sum(rows)
    if free < 24 * len(panels):
        raise ValueError(f"a height of {frame.height} px leaves no room for the panels; give at least 360")
    total, at = sum(panel.weight for panel in panels), frame.head
    for row, panel in zip(rows, panels, strict=True):
        top = at + row
        at = top + free * panel.weight / total
        frame.panels.append((top, at))


def _heading_lines(frame: Frame, panel: Panel) -> list[str]:
    beside = BAR_LENGTH + 90 if panel.bar and not frame.compact else 0
    return wrap(panel.heading, frame.plot_width - beside + frame.right * (not beside), frame.sizes.heading)


def _heading_height(frame: Frame, panel: Panel) -> float:
    text = len(_heading_lines(frame, panel)) * LINE * frame.sizes.heading + 18
    bar = BAR_THICKNESS + LINE * frame.sizes.tick + 14 if panel.bar else 0
    return text + bar if frame.compact else max(text, bar)


def _titles(frame: Frame, titles: list[str], notes: list[str], under_title: float) -> None:
    sizes = frame.sizes
    frame.fig.update_layout(
        title={
            "text": "<br>".join(map(escape, titles)),
            "font": {"size": sizes.title, "color": frame.theme.ink, "weight": 700},
            # Plotly lowers a single line by its cap height and forgets to where there are several.
            "pad": {"l": sizes.pad, "t": sizes.pad + 0.7 * sizes.title * (len(titles) > 1)},
            **{"x": 0, "xref": "container", "xanchor": "left"},
            **{"y": 1, "yref": "container", "yanchor": "top"},
        },
        margin={
            **{"l": frame.left, "r": frame.right, "t": frame.head, "b": frame.foot},
            **{"pad": 0, "autoexpand": False},
        },
    )
    if notes:
        frame.note(
            "<br>".join(map(escape, notes)),
            align="left",
            font={"size": sizes.subtitle, "color": frame.theme.muted},
            xshift=sizes.pad - frame.left,
            y=frame.y(under_title),
            yanchor="top",
            name="subtitle",
        )


def _axes(frame: Frame, i: int, panel: Panel, columns: Columns) -> None:
    """Give panel i its axes: channels down, tokens to the right, both linked to those of the first panel."""
    x, y = (f"{letter}axis{i + 1 if i else ''}" for letter in "xy")
    top, bottom = frame.panels[i]
    first, last = columns.window or (0, len(columns.tokens) - 1)
    frame.fig.layout[x] = {
        "anchor": f"y{i + 1 if i else ''}",
        "range": [first - 0.5, last + 0.5],
        # Every column has its text here for hovers (%{x}); the labels in sight are chosen by token_ticks.
        "tickmode": "array",
        "tickvals": list(columns.names),
        "ticktext": list(columns.names.values()),
        **{"showticklabels": False, "ticks": "", "showgrid": False, "zeroline": False},
        **({"matches": "x"} if i else {}),
    }
    frame.fig.layout[y] = {
        "anchor": f"x{i + 1 if i else ''}",
        "domain": [max(0.0, frame.y(bottom)), min(1.0, frame.y(top))],
        "range": [panel.channels - 0.5, -0.5],
        "tickmode": "array",
        "tickvals": list(panel.ticks),
        "ticktext": list(panel.ticks.values()),
        "tickfont": {"size": frame.sizes.tick, "color": frame.theme.muted},
        "title": {
            "text": "channel",
            "font": {"size": frame.sizes.tick, "color": frame.theme.muted},
            "standoff": 4,
        },
        **{"ticks": "outside", "ticklen": 4, "tickcolor": frame.theme.grid},
        **{"showgrid": False, "zeroline": False},
        **({"matches": "y"} if i else {}),
    }


def _heading(frame: Frame, i: int, panel: Panel) -> None:
    lines = _heading_lines(frame, panel)
    above = BAR_THICKNESS + LINE * frame.sizes.tick + 14 if panel.bar and frame.compact else 0
    frame.note(
        "<br>".join(map(escape, lines)),
        align="left",
        font={"size": frame.sizes.heading, "color": panel.colour or frame.theme.ink, "weight": 600},
        y=frame.y(frame.panels[i][0] - above - 5),
        yanchor="bottom",
        name="heading",
    )


def _token_labels(frame: Frame, ticks: TokenTicks, i: int) -> None:
    """Write the chosen token labels under panel i; they move with it when it is zoomed."""
    x = frame.axes(i)["xaxis"]
    for position, text, special in zip(ticks.positions, ticks.texts, ticks.special, strict=True):
        frame.note(
            text,
            x=position,
            xref=x,
            # Anchors are those of the turned box; half a line further right, the text ends at its column.
            xanchor="right" if ticks.angle else "center",
            xshift=0.6 * frame.sizes.tick if ticks.angle else 0,
            y=frame.y(frame.panels[i][1]),
            yanchor="top",
            yshift=-3,
            textangle=ticks.angle,
            font={
                "size": frame.sizes.tick - 1,
                "color": frame.theme.ink if special else frame.theme.muted,
                "weight": 600 if special else 400,
            },
            name="token",
        )
    frame.note(
        "token",
        x=0.5,
        xanchor="center",
        y=frame.y(frame.panels[i][1] + ticks.height + 6),
        yanchor="top",
        font={"size": frame.sizes.tick, "color": frame.theme.muted},
        name="axis",
    )


def _legend(frame: Frame) -> None:
    """Put the legend at the foot: beside the axis's name, or below it on a phone."""
    frame.fig.update_layout(
        showlegend=True,
        legend={
            "orientation": "v" if frame.compact else "h",
            **{"itemclick": False, "itemdoubleclick": False},
            **{"x": 1, "xref": "paper", "xanchor": "right"},
            **{"y": frame.y(frame.height - 4), "yref": "paper", "yanchor": "bottom"},
            "font": {"size": frame.sizes.tick, "color": frame.theme.ink},
            "bgcolor": "rgba(0,0,0,0)",
        },
    )


def colour_bar(frame: Frame, i: int, ticks: dict[float, str], caption: str) -> dict[str, Any]:
    """Return a horizontal colour bar above panel i, at its right end, and write its caption beside it.

    Args:
        ticks: place on the colour axis to text (escaped).
        caption: what the colours are, plain text.
    """
    sizes = frame.sizes
    inset = text_width(list(ticks.values())[-1], sizes.tick) / 2 if ticks else 0  # the last tick's text
    length = min(BAR_LENGTH, frame.plot_width - inset - text_width(caption, sizes.tick) - 16)
    top = frame.panels[i][0] - BAR_THICKNESS - LINE * sizes.tick - 8
    frame.note(
        escape(caption),
        x=1,
        xanchor="right",
        xshift=-length - inset - 10,
        y=frame.y(top + BAR_THICKNESS / 2),
        yanchor="middle",
        font={"size": sizes.tick, "color": frame.theme.muted},
        name="bar",
    )
    return {
        "orientation": "h",
        **{"x": 1 - inset / frame.plot_width, "xref": "paper", "xanchor": "right", "xpad": 0},
        **{"y": frame.y(top), "yref": "paper", "yanchor": "top", "ypad": 0},
        **{"len": length, "lenmode": "pixels", "thickness": BAR_THICKNESS, "outlinewidth": 0},
        **{"tickmode": "array", "tickvals": list(ticks), "ticktext": list(ticks.values())},
        **{"ticks": "outside", "ticklen": 3, "tickcolor": frame.theme.muted},
        "tickfont": {"size": sizes.tick - 1, "color": frame.theme.muted},
    }
