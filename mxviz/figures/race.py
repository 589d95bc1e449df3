"""The race: what every scheme costs in bits against what it loses, and where none does both better."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import plotly.graph_objects as go
from numpy.typing import ArrayLike

from mxviz.figures import _race_marks as marks
from mxviz.figures._frame import LINE, Frame
from mxviz.figures._race_marks import Entry, Measure, Span
from mxviz.figures._titled import titled
from mxviz.figures._traces import log_ticks, number
from mxviz.figures.labels import escape, text_width
from mxviz.figures.theme import is_compact

__all__ = ["MEASURES", "Entry", "Line", "race_layers", "race_map"]

MEASURES = {
    "sqnr": Measure("SQNR, dB", "higher loses less", "dB SQNR", True),
    "flushed": Measure("flushed to zero, % of numbers", "lower loses less", "% flushed to zero", False),
    "kl": Measure("KL of the next token, nats", "lower changes less", "nats of KL", False, True),
}
"""What a race can be run by."""


class Line(NamedTuple):
    """One scheme of `race_layers`: name, a number for each layer, family, and how its line is drawn."""

    name: str
    values: ArrayLike
    single: bool
    dash: str = "solid"


def race_map(
    entries: Sequence[Entry],
    measure: str,
    *,
    title: str,
    subtitle: str = "",
    front: Sequence[int] = (),
    marked: Sequence[int] = (),
    named: Sequence[int] = (),
    theme: str = "light",
    width: int = 1280,
    height: int | None = None,
) -> go.Figure:
    """Draw every scheme by its bits per element and what it loses; the Pareto front is a line.

    Args:
        entries: the schemes.
        measure: a name of `MEASURES`: `sqnr` in dB, `flushed` in percent, `kl` in nats on a log axis.
        title: one sentence that says what is seen; plain text, like subtitle.
        front: indices of the entries that none undercuts, as `mxviz.race.pareto` finds them; named.
        marked: indices that are ringed and named: what the run itself used.
        named: indices that are named after these where there is room; not on a phone.
        theme: `light` or `dark`.
        width: CSS pixels; below 640 the figure is laid out for a phone. So is height.

    Raises:
        ValueError: for an unknown measure or theme, an index that is no entry, or nothing that can be drawn.
    """
    if measure not in MEASURES:
        raise ValueError(f"unknown measure {measure!r}; expected one of: {', '.join(MEASURES)}")
    wrong = [i for i in (*front, *marked, *named) if not 0 <= i < len(entries)]
    if wrong:
        raise ValueError(f"entry {wrong[0]} does not exist; expected 0 to {len(entries) - 1}")
    kind, compact = MEASURES[measure], is_compact(width)
    drawn = {i: entry for i, entry in enumerate(entries) if kind.shows(entry)}
    if not drawn:
        raise ValueError("none of these schemes was measured; there is nothing to draw")
    frame = titled(
        theme=theme,
        width=width,
        height=height or (640 if compact else 660),
        title=title,
        subtitle=subtitle,
        left=52 if compact else 76,
        foot=60 + LINE * 13 * marks.ENTRIES * 1.22 if compact else 118,
    )
    frame.panels.append((frame.head, frame.height - frame.foot))
    span = _axes(frame, kind, list(drawn.values()))
    line = [i for i in sorted(front, key=lambda i: entries[i].bits) if i in drawn]
    used = [i for i in marked if i in drawn]
    marks.front_line(frame, [drawn[i] for i in line], kind)
    marks.points(frame, list(drawn.values()), kind)
    marks.rings(frame, [drawn[i] for i in used], kind)
    marks.key_of_integers(frame)
    more = [] if compact else [i for i in named if i in drawn]
    marks.names(frame, drawn, [*used, *line, *more], line, span, kind)
    _legend(frame, "v" if compact else "h")
    return frame.finish("race", _alt(drawn, line, kind), None)


def race_layers(
    lines: Sequence[Line],
    layers: Sequence[int],
    measure: str = "sqnr",
    *,
    title: str,
    subtitle: str = "",
    theme: str = "light",
    width: int = 1280,
    height: int | None = None,
) -> go.Figure:
    """Draw what a few schemes lose layer by layer.

    Args:
        lines: the schemes; their values are `[layers]`, NaN where there is none.
        layers: layer numbers.
        measure: what the values are: `sqnr` in dB or `flushed` in percent.
        title: one sentence that says what is seen; plain text, like subtitle.
        theme: `light` or `dark`.
        width: CSS pixels; below 640 the figure is laid out for a phone. So is height.

    Raises:
        ValueError: for lines that have not one value a layer, or an unknown theme.
    """
    values = {line.name: np.asarray(line.values, dtype=np.float64) for line in lines}
    for name, found in values.items():
        if found.shape != (len(layers),):
            raise ValueError(f"{name} has shape {found.shape}; expected one number for {len(layers)} layers")
    compact = is_compact(width)
    longest = max((text_width(name, 14) for name in values), default=0)
    rows = len(lines) if compact else -(-len(lines) // max(1, int((width - 76) // (longest + 70))))
    frame = titled(
        theme=theme,
        width=width,
        height=height or 400 + 20 * rows,
        title=title,
        subtitle=subtitle,
        left=52 if compact else 76,
        foot=66 + 20 * rows,
    )
    near = [layers[0] - 0.5, layers[-1] + 0.5]
    _axis(frame, "xaxis", "layer", range=near, dtick=_step(layers), tick0=0)
    ends = {"range": (-4, 104)} if measure == "flushed" else {}
    name = _named(frame, MEASURES[measure]) if measure == "sqnr" else "flushed to zero, %"
    _axis(frame, "yaxis", name, **ends)
    unit = {"sqnr": "dB", "flushed": "% flushed"}[measure]
    for line in lines:
        _line(frame, line, values[line.name], layers, unit)
    _legend(frame, "v" if compact else "h")
    return frame.finish("race-layers", _layers_alt(values, layers, measure, unit), None)


def _line(frame: Frame, line: Line, values: Any, layers: Sequence[int], unit: str) -> None:
    colour = frame.theme.single if line.single else frame.theme.micro
    frame.fig.add_trace(
        go.Scatter(
            **{"x": list(layers), "y": values, "name": escape(line.name), "showlegend": True},
            **{"mode": "lines+markers", "line": {"color": colour, "width": 2.5, "dash": line.dash}},
            marker={"symbol": "square" if line.single else "circle", "size": 6, "color": colour},
            hovertemplate=f"<b>{escape(line.name)}</b><br>layer %{{x}}: %{{y:.1f}} {unit}<extra></extra>",
        )
    )


def _step(layers: Sequence[int]) -> int:
    return next((s for s in (1, 2, 4, 5, 10) if (layers[-1] - layers[0]) / s <= 15), 20)


def _named(frame: Frame, measure: Measure) -> str:
    return measure.axis if frame.compact else f"{measure.axis} ({measure.reading})"


def _axis(frame: Frame, axis: str, name: str, **more: Any) -> None:
    muted = {"size": frame.sizes.tick, "color": frame.theme.muted}
    frame.fig.layout[axis] = {
        "title": {"text": escape(name), "font": muted, "standoff": 8},
        **{"tickfont": muted, "ticks": "outside", "ticklen": 4, "tickcolor": frame.theme.grid},
        **{"showgrid": True, "gridcolor": frame.theme.grid, "zeroline": False, **more},
    }


def _axes(frame: Frame, measure: Measure, entries: Sequence[Entry]) -> Span:
    bits, heights = [e.bits for e in entries], [measure.height(e) for e in entries]
    pad = 0.07 * (max(heights) - min(heights) or 1.0)
    span = Span((min(bits) - 0.6, max(bits) + 0.6), (min(heights) - 1.4 * pad, max(heights) + 1.6 * pad))
    words = "bits per element" if frame.compact else "bits per element, scales included; 16 uncompressed"
    _axis(frame, "xaxis", words, tickmode="array", tickvals=list(range(2, 17)), range=span.x)
    ticks: dict[str, Any] = {"range": span.y}
    if measure.log:
        found = log_ticks(*span.y)
        ticks |= {"tickmode": "array", "tickvals": list(found), "ticktext": list(found.values())}
    _axis(frame, "yaxis", _named(frame, measure), **ticks)
    return span


def _legend(frame: Frame, way: str) -> None:
    frame.lay(
        showlegend=True,
        legend={
            **{"orientation": way, "itemclick": False, "itemdoubleclick": False},
            **{"x": 0, "xref": "paper", "xanchor": "left"},
            **{"y": frame.y(frame.height - 4), "yref": "paper", "yanchor": "bottom"},
            "font": {"size": frame.sizes.tick, "color": frame.theme.ink},
            "bgcolor": "rgba(0,0,0,0)",
        },
    )


def _alt(drawn: dict[int, Entry], line: Sequence[int], measure: Measure) -> str:
    said = ", ".join(
        f"{drawn[i].name} ({drawn[i].bits:.4g} bits, {number(drawn[i].value)} {measure.unit})" for i in line
    )
    return (
        f"Scatter of {len(drawn)} schemes: bits per element against {measure.axis} ({measure.reading}). "
        f"On the Pareto front: {said or 'none'}."
    )


def _layers_alt(values: dict[str, Any], layers: Sequence[int], measure: str, unit: str) -> str:
    said = [
        f"{name} {np.nanmin(found):.1f} to {np.nanmax(found):.1f} {unit}"
        for name, found in values.items()
        if not np.isnan(found).all()
    ]
    return f"Lines of {MEASURES[measure].axis} over {len(layers)} layers: {'; '.join(said)}."
