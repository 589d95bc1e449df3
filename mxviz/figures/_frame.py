"""The frame that figures are drawn in: panels one above the other, and their measures in pixels."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import plotly.graph_objects as go

from mxviz.figures.labels import escape, text_width
from mxviz.figures.theme import Sizes, Theme, is_compact

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
    """A figure under construction and its measures in pixels; `panels` are top and bottom of each.

    `notes` become the figure's annotations in `finish`, all at once: Plotly checks every annotation there is
    whenever one is added.
    """

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
    notes: list[dict[str, Any]] = field(default_factory=list)

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
        self.notes.append({"text": text} | placed | where)

    def lay(self, **layout: Any) -> None:
        """Set parts of the layout, those of an axis or a legend one by one.

        Plotly's own `update_layout` does the same and takes fifty times as long: 15 ms a call.
        """
        for name, value in layout.items():
            parts = value.items() if isinstance(value, dict) and name != "meta" else ()
            for part, setting in parts:
                self.fig.layout[name][part] = setting
            if not parts:
                self.fig.layout[name] = value

    def finish(self, figure: str, alt: str, reduced: str | None) -> go.Figure:
        """Return the figure with its name, alt text and notice in `layout.meta`."""
        self.fig.layout.annotations = self.notes
        self.lay(meta={"figure": figure, "alt": alt, "reduced": reduced})
        return self.fig


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
