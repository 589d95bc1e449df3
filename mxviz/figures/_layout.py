"""The layout of a figure, in pixels: where title, headings, panels and token labels stand."""

from __future__ import annotations

import re
from collections.abc import Sequence

import plotly.graph_objects as go

from mxviz.figures._frame import BAR_LENGTH, BAR_THICKNESS, LINE, Columns, Frame, Panel
from mxviz.figures.labels import TokenTicks, balance, escape, text_width, token_ticks, wrap
from mxviz.figures.theme import Sizes, base_layout, is_compact, sizes_for, theme_named


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
    titles, notes = balance(title, room, sizes.title * 1.08), wrap(subtitle, room, sizes.subtitle)
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
    beside = BAR_LENGTH + 130 if panel.bar and not frame.compact else 0
    space = frame.plot_width - beside + frame.right * (not beside)
    return wrap(panel.heading, space, 1.06 * frame.sizes.heading)  # set in semi-bold


def _heading_height(frame: Frame, panel: Panel) -> float:
    text = len(_heading_lines(frame, panel)) * LINE * frame.sizes.heading + 18
    bar = BAR_THICKNESS + LINE * frame.sizes.tick + 14 if panel.bar else 0
    return text + bar if frame.compact else max(text, bar)


def _titles(frame: Frame, titles: list[str], notes: list[str], under_title: float) -> None:
    sizes = frame.sizes
    frame.lay(
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
    frame.lay(
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
