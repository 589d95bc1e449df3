"""Which way to cut: the share of values that becomes zero under each way to share scales, as bars."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import plotly.graph_objects as go

from mxviz.figures._frame import Frame
from mxviz.figures._titled import titled
from mxviz.figures.error import percent
from mxviz.figures.labels import escape, shorten, text_width
from mxviz.figures.theme import faded, is_compact, sizes_for

_PATTERNS = {"micro": "", "single": "/"}
"""Bars of one scale for all are hatched, so that colour does not tell it alone."""


class Cut(NamedTuple):
    """One way to share scales: its name, its share of values flushed (0 to 1, None for n/a), its lane, and
    whether it is the one that is looked through or compared with."""

    name: str
    flushed: float | None
    lane: str
    chosen: bool = False


def cut_bars(
    cuts: Sequence[Cut],
    *,
    title: str,
    subtitle: str = "",
    theme: str = "light",
    width: int = 1280,
    height: int | None = None,
) -> go.Figure:
    """Draw the shares as horizontal bars from 0 to 100 %, in the order given.

    Args:
        cuts: at least one; names are plain text.
        title: one sentence that says what is seen; plain text, like subtitle.
        theme: `light` or `dark`.
        width: CSS pixels; below 640 the figure is laid out for a phone. So is height.

    Raises:
        ValueError: for no cuts, an unknown lane or an unknown theme.
    """
    if not cuts or any(cut.lane not in _PATTERNS for cut in cuts):
        raise ValueError(f"{len(cuts)} cuts; expected some, each of lane {' or '.join(_PATTERNS)}")
    compact, sizes = is_compact(width), sizes_for(width)
    names = [shorten(cut.name, 60).replace("·", " ") for cut in cuts]
    widest = max(text_width(name, sizes.tick) for name in names)
    frame = titled(
        theme=theme,
        width=width,
        height=height or (250 if compact else 170) + (58 if compact else 44) * len(cuts),
        title=title,
        subtitle=subtitle,
        left=sizes.pad + (0 if compact else widest + 12),
        foot=46,
    )
    frame.fig.add_trace(
        go.Bar(
            x=[np.nan if cut.flushed is None else cut.flushed for cut in cuts],
            y=list(range(len(cuts))),
            orientation="h",
            width=0.42 if compact else 0.62,
            marker={
                "color": [getattr(frame.theme, c.lane) if c.chosen else _pale(frame, c) for c in cuts],
                "line": {"color": [getattr(frame.theme, cut.lane) for cut in cuts], "width": 1.5},
                "pattern": {
                    "shape": [_PATTERNS[cut.lane] for cut in cuts],
                    "fgcolor": frame.theme.paper,
                    "size": 7,
                },
            },
            customdata=[[escape(name), percent(cut.flushed)] for name, cut in zip(names, cuts, strict=True)],
            hovertemplate="%{customdata[0]}<br>%{customdata[1]} become zero<extra></extra>",
            name="flushed to zero",
        )
    )
    for i, cut in enumerate(cuts):
        frame.note(
            percent(cut.flushed),
            **{"x": cut.flushed or 0, "xref": "x", "y": i, "yref": "y", "xshift": 6, "yanchor": "middle"},
            font={"size": sizes.tick + 1, "color": frame.theme.ink, "weight": 700 if cut.chosen else 400},
            name="share",
        )
    _axes(frame, names)
    return frame.finish("cuts", _alt(cuts), None)


def _pale(frame: Frame, cut: Cut) -> str:
    return faded(getattr(frame.theme, cut.lane), 0.35)


def _axes(frame: Frame, names: Sequence[str]) -> None:
    size, muted = frame.sizes.tick, frame.theme.muted
    shares = (0, 0.25, 0.5, 0.75, 1)
    frame.lay(
        xaxis={
            **{"range": [0, 1.09], "fixedrange": True, "zeroline": False, "gridcolor": frame.theme.grid},
            **{"tickvals": shares, "ticktext": [percent(s) for s in shares]},
            "tickfont": {"size": size, "color": muted},
        },
        yaxis={
            **{"range": [len(names) - 0.4, -0.6], "fixedrange": True, "showgrid": False, "zeroline": False},
            **{"tickvals": list(range(len(names))), "ticktext": [escape(name) for name in names]},
            **{"tickfont": {"size": size, "color": frame.theme.ink}},
            **{"ticks": "outside", "ticklen": 8, "tickcolor": frame.theme.paper},
            "showticklabels": not frame.compact,
        },
    )
    if frame.compact:  # no room beside the bars: names stand above them
        for i, name in enumerate(names):
            frame.note(
                escape(name),
                **{"y": i - 0.26, "yref": "y", "yanchor": "bottom"},
                font={"size": size, "color": frame.theme.ink},
                name="bar name",
            )


def _alt(cuts: Sequence[Cut]) -> str:
    return "Bars of the share of values that becomes zero. " + "; ".join(
        f"{cut.name}: {percent(cut.flushed)}" for cut in cuts
    )
