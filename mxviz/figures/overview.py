"""The whole cache at a glance: one number a layer and KV head, keys above values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import ArrayLike, NDArray

from mxviz.figures._bars import name_axis
from mxviz.figures._cells import Grid, edges
from mxviz.figures._frame import Columns, Frame, Panel, colour_bar
from mxviz.figures._layout import start
from mxviz.figures._measures import MEASURES, said
from mxviz.figures._traces import log_ticks, number, overlay
from mxviz.figures.error import percent
from mxviz.figures.scales import power
from mxviz.figures.theme import colorscale, is_compact

__all__ = ["MEASURES", "overview_map", "said"]

Table = NDArray[np.float64]
PARTS = {"key": "Keys", "value": "Values"}


def overview_map(
    tables: Mapping[str, ArrayLike],
    layers: Sequence[int],
    measure: str,
    *,
    title: str,
    subtitle: str = "",
    opened: tuple[str, int, int] | None = None,
    span: tuple[float, float] | None = None,
    theme: str = "light",
    width: int = 1280,
    height: int | None = None,
) -> go.Figure:
    """Draw a number for every layer and KV head, layers to the right, a panel for keys and one for values.

    An invisible point lies over every cell, named `cells`, with part, layer and head as custom data: a heat
    map answers no click.

    Args:
        tables: `key` and, where there are any, `value` to `[layers, kv_heads]`; NaN where there is no number.
        layers: layer numbers, one a row of the tables.
        measure: a name of `MEASURES`.
        title: one sentence that says what is seen; plain text, like subtitle.
        opened: part, layer and KV head of the cell that is open; it is ringed.
        span: ends of the colours, in the measure's own unit; by default those of the tables.
        theme: `light` or `dark`.
        width: CSS pixels; below 640 the figure is laid out for a phone. So is height.

    Raises:
        ValueError: for an unknown measure, part or theme, or tables that do not fit the layers.
    """
    numbers = _checked(tables, layers, measure)
    heads, compact = next(iter(numbers.values())).shape[1], is_compact(width)
    step = -(-heads // 8)
    ticks = {float(i): str(i) for i in range(0, heads, step)}
    names = [f"layer {layer}" for layer in layers]
    frame = start(
        [Panel(PARTS[part], heads, ticks, bar=i == 0) for i, part in enumerate(numbers)],
        Columns([str(layer) for layer in layers], dict(enumerate(names))),
        theme=theme,
        width=width,
        height=height or _height(len(numbers), heads, compact),
        title=title,
        subtitle=subtitle,
        legend=1,
    )
    kind = MEASURES[measure].kind
    z = {part: _on_axis(table, kind) for part, table in numbers.items()}
    low, high, bar, colours = _colours(frame, list(z.values()), kind, span)
    frame.lay(
        coloraxis={
            **{"cmin": low, "cmax": high, "colorscale": colours},
            "colorbar": colour_bar(frame, 0, bar, MEASURES[measure].bar),
        },
        clickmode="event+select",
        hoverdistance=200,
    )
    for i, (part, table) in enumerate(numbers.items()):
        cells = Grid(z[part].T, edges(len(layers)), edges(heads))
        _panel(frame, i, cells, table.T)
        _targets(frame, i, part, layers, table, kind)
    if opened:
        _ring(frame, list(numbers), layers, opened)
    _rename_axes(frame)
    return frame.finish("overview", _alt(numbers, layers, measure), None)


def _checked(tables: Mapping[str, ArrayLike], layers: Sequence[int], measure: str) -> dict[str, Table]:
    if measure not in MEASURES:
        raise ValueError(f"unknown measure {measure!r}; expected one of: {', '.join(MEASURES)}")
    numbers = {part: np.asarray(table, dtype=np.float64) for part, table in tables.items()}
    shapes = {table.shape for table in numbers.values()}
    if not numbers or not numbers.keys() <= PARTS.keys():
        raise ValueError(f"tables of {', '.join(numbers) or 'nothing'}; expected key, or key and value")
    if len(shapes) != 1 or len(shape := shapes.pop()) != 2 or shape[0] != len(layers) or 0 in shape:
        raise ValueError(f"tables have shapes {shapes or shape}; expected [{len(layers)} layers, kv_heads]")
    return numbers


def _height(panels: int, heads: int, compact: bool) -> int:
    """Cells are as tall as wide where heads are few, and never too thin to hit."""
    row = max(14, min(40, 260 // heads))
    return (250 if compact else 190) + panels * (heads * row + (44 if compact else 40))


def _on_axis(table: Table, kind: str) -> NDArray[np.float32]:
    """Return a table as it lies on the colour axis; NaN where it has no colour."""
    with np.errstate(divide="ignore", invalid="ignore"):
        z = np.log10(table) if kind == "times" else table
    return np.where(np.isfinite(z), z, np.nan).astype(np.float32)


def _colours(
    frame: Frame, tables: list[Any], kind: str, span: tuple[float, float] | None
) -> tuple[float, float, dict[float, str], list[list[Any]]]:
    """Return the ends of the colour axis, its ticks and its colours."""
    real = np.concatenate([z[np.isfinite(z)] for z in tables])
    if span is not None:
        real = _on_axis(np.array(span), kind)
    low, high = (float(real.min()), float(real.max())) if real.size else (0.0, 1.0)
    if kind == "share":
        between = (0.5,) if frame.compact else (0.25, 0.5, 0.75)
        return 0.0, 1.0, {t: percent(t) for t in (0.0, *between, 1.0)}, colorscale(frame.theme.loss)
    if high - low < 1e-6:
        low, high = low - 0.5, high + 0.5
    if kind == "times":
        return low, high, log_ticks(low, high), colorscale(frame.theme.sequential)
    if kind == "exponent":
        low, high = np.floor(low), np.ceil(high)
    most = 3 if frame.compact else 6
    step = next(s for s in (1, 2, 5, 10, 20, 50, 100, 1e9) if (high - low) / s <= most)
    step = step if high - low >= 2 else 0.5
    places = np.arange(np.ceil(low / step) * step, high + 1e-6, step).tolist()
    if kind == "db":
        places = places if len(places) > 1 else [low, high]
        return low, high, {t: f"{number(t)} dB" for t in places}, colorscale(frame.theme.loss[::-1])
    ticks = {t: power(int(t)) for t in places if t == int(t)}
    return low, high, ticks, colorscale(frame.theme.sequential)


def _panel(frame: Frame, i: int, cells: Grid, table: Table) -> None:
    frame.fig.add_trace(
        go.Heatmap(
            z=cells.z, x=cells.x, y=cells.y, coloraxis="coloraxis", xgap=2, ygap=2, hoverinfo="skip",
            name=f"overview {i}", **frame.axes(i),
        )
    )  # fmt: skip
    overlay(frame, i, np.isinf(table), cells, frame.theme.exact, "stored exactly")
    overlay(frame, i, np.isnan(table), cells, frame.theme.zero, "no number")


def _targets(frame: Frame, i: int, part: str, layers: Sequence[int], table: Table, kind: str) -> None:
    places = [(column, row) for column in range(table.shape[0]) for row in range(table.shape[1])]
    frame.fig.add_trace(
        go.Scatter(
            x=[column for column, _ in places],
            y=[row for _, row in places],
            mode="markers",
            marker={"size": 6, "opacity": 0},
            selected={"marker": {"opacity": 0}},
            unselected={"marker": {"opacity": 0}},
            customdata=[[part, layers[c], row, said(table[c, row], kind)] for c, row in places],
            hovertemplate="<b>layer %{customdata[1]}, KV head %{customdata[2]}</b>, %{customdata[0]}s<br>"
            "%{customdata[3]}<br><i>click to open</i><extra></extra>",
            showlegend=False,
            name="cells",
            **frame.axes(i),
        )
    )


def _ring(frame: Frame, parts: list[str], layers: Sequence[int], opened: tuple[str, int, int]) -> None:
    """Frame the open cell: ink on a halo of paper."""
    part, layer, head = opened
    if part not in parts or layer not in layers:
        return
    x, y = list(layers).index(layer), head
    for colour, thick in ((frame.theme.paper, 7), (frame.theme.ink, 3)):
        frame.fig.add_trace(
            go.Scatter(
                x=[x - 0.5, x + 0.5, x + 0.5, x - 0.5, x - 0.5],
                y=[y - 0.5, y - 0.5, y + 0.5, y + 0.5, y - 0.5],
                mode="lines",
                line={"color": colour, "width": thick},
                cliponaxis=False,
                hoverinfo="skip",
                showlegend=thick == 3,
                name="the open head",
                **frame.axes(parts.index(part)),
            )
        )


def _rename_axes(frame: Frame) -> None:
    """Columns are layers here and rows are heads."""
    name_axis(frame, "layer")
    for i in range(len(frame.panels)):
        x, y = (f"{letter}axis{i + 1 if i else ''}" for letter in "xy")
        frame.fig.layout[y].title.text = "KV head"
        frame.lay(**{x: {"fixedrange": True}, y: {"fixedrange": True}})


def _alt(numbers: Mapping[str, Table], layers: Sequence[int], measure: str) -> str:
    about, ends = MEASURES[measure], []
    for part, table in numbers.items():
        real = table[np.isfinite(table)]
        span = f"{said(real.min(), about.kind)} to {said(real.max(), about.kind)}" if real.size else "none"
        ends.append(f"{part}s {span}".replace("<sup>", "^").replace("</sup>", ""))
    heads = next(iter(numbers.values())).shape[1]
    return f"Heat map of {len(layers)} layers and {heads} KV heads: {about.title}; {', '.join(ends)}."
