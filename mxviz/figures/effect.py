"""Did it matter? KL at every token, micro-scaled above single-scale, on one logarithmic axis."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
from numpy.typing import ArrayLike, NDArray

from mxviz.figures._cells import Grid, grid
from mxviz.figures._frame import Columns, Frame, Panel
from mxviz.figures._layout import room, start
from mxviz.figures._nats import CEILING, FLOOR, plain
from mxviz.figures._traces import log_ticks
from mxviz.figures.labels import hover_label, text_width
from mxviz.figures.theme import faded, is_compact, sizes_for, theme_named

Row = NDArray[np.float32]

_HEADROOM = 0.7  # decades above the largest KL, where the worst token is named
_CHOICES = (("same first choice", "circle-open"), ("another first choice", "diamond"))


def divergence(
    micro: ArrayLike,
    single: ArrayLike,
    tokens: Sequence[str],
    *,
    changed_micro: ArrayLike,
    changed_single: ArrayLike,
    title: str,
    subtitle: str = "",
    names: tuple[str, str] = ("micro-scaled", "one scale for all"),
    theme: str = "light",
    width: int = 1280,
    height: int | None = None,
    window: tuple[int, int] | None = None,
) -> go.Figure:
    """Draw KL(exact‖quantized) at every token as a stem whose head tells whether the first choice changed.

    Args:
        micro: nats by which the micro-scaled model's forecast of each token differs, `[tokens]`; NaN where
            there is none (nothing forecasts the first token).
        single: the same with one scale.
        tokens: the text of each token.
        changed_micro: whether the most probable token became another one, bool `[tokens]`.
        changed_single: the same with one scale.
        title: one sentence that says what is seen; plain text, like subtitle and names.
        names: headings of the two panels.
        theme: `light` or `dark`.
        width: CSS pixels; below 640 the figure is laid out for a phone. So is height.
        window: first and last token in sight; all by default.

    Raises:
        ValueError: for arrays of different lengths or an unknown theme.
    """
    lanes = [_row(name, x, tokens) for name, x in (("micro", micro), ("single", single))]
    marks = (("changed_micro", changed_micro), ("changed_single", changed_single))
    flags = [_row(name, x, tokens) > 0 for name, x in marks]
    colours, compact = theme_named(theme), is_compact(width)
    means = [float(x[np.isfinite(x)].mean()) if np.isfinite(x).any() else 0.0 for x in lanes]
    gutter = max(text_width(_mean_text(mean), sizes_for(width).tick) for mean in means) + 4
    highest = max([CEILING, *(float(x[np.isfinite(x)].max(initial=0)) for x in lanes)])
    span = float(np.log10(FLOOR)), float(np.log10(highest)) + _HEADROOM
    ticks = log_ticks(*span) | {span[0]: f"≤ {plain(FLOOR)}"}
    across = int(room(width) - gutter)
    cells = [
        grid(np.where(np.isfinite(x), x, np.float32(0))[:, None], width=across, height=1, window=window)
        for x in lanes
    ]
    headings = zip(names, (colours.micro, colours.single), strict=True)
    frame = start(
        [Panel(name, 1, ticks, colour) for name, colour in headings],
        Columns(tokens, cells[0].column_names(tokens), _worst(lanes), window),
        theme=theme,
        width=width,
        height=height or (580 if compact else 640),
        title=title,
        subtitle=subtitle,
        gutter=gutter,
        legend=2,
    )
    for i, (drawn, changed) in enumerate(zip(cells, flags, strict=True)):
        _upwards(frame, i, span)
        _lane(frame, i, drawn, changed)
        _mean(frame, i, means[i])
        _name_worst(frame, i, lanes[i], tokens)
    _legend(frame, frame.theme.muted)
    return frame.finish("effect", _alt(names, lanes, flags), _notice(cells[0], len(tokens)))


def _row(name: str, x: ArrayLike, tokens: Sequence[str]) -> Row:
    row = np.asarray(x, dtype=np.float32)
    if row.shape != (len(tokens),) or not len(tokens):
        raise ValueError(
            f"{name} has shape {row.shape}; expected one number for each of {len(tokens)} tokens"
        )
    return row


def _worst(lanes: Sequence[Row], count: int = 4) -> list[int]:
    """Return the columns to label first: where KL is largest, of both lanes in turn."""
    orders = [np.argsort(-np.where(np.isfinite(x), x, -1), kind="stable")[:count] for x in lanes]
    return list(dict.fromkeys(int(i) for pair in zip(*orders, strict=True) for i in pair))


def _upwards(frame: Frame, i: int, span: tuple[float, float]) -> None:
    """Give panel i an axis of nats that grows upwards, where the frame has channels down."""
    frame.fig.layout[f"yaxis{i + 1 if i else ''}"].update(
        range=span, title={"text": "KL, nats"}, showgrid=True, gridcolor=frame.theme.grid
    )


def _lane(frame: Frame, i: int, cells: Grid, changed: NDArray[np.bool_]) -> None:
    colour, x = (frame.theme.micro, frame.theme.single)[i], (cells.x[:-1] + cells.x[1:]) / 2
    nats = cells.z[0].astype(np.float64)
    tops, foot = np.log10(np.maximum(nats, FLOOR)), np.log10(FLOOR)
    spans = np.round(np.stack([cells.x[:-1] + 0.5, cells.x[1:] + 0.5], 1)).astype(int)
    flips = np.array([changed[a:b].any() for a, b in spans])
    seen = nats > FLOOR
    frame.fig.add_trace(
        go.Scatter(
            x=[v for at in x[seen] for v in (at, at, None)],
            y=[v for top in tops[seen] for v in (foot, top, None)],
            mode="lines",
            line={"color": faded(colour, 0.55), "width": 1.5},
            **{"hoverinfo": "skip", "showlegend": False, "name": "stems"},
            **frame.axes(i),
        )
    )
    size = 6 if len(x) * 6 < frame.plot_width else 4
    for flag, (name, symbol) in enumerate(_CHOICES):
        some = flips == flag
        frame.fig.add_trace(
            go.Scatter(
                x=x[some],
                y=tops[some],
                customdata=nats[some].astype(np.float32),
                mode="markers",
                marker={"symbol": symbol, "size": size + 3 * flag, "color": colour},
                **{"name": name, "showlegend": False},
                hovertemplate="<b>%{x}</b><br>token %{x:.0f}<br>KL %{customdata:.3g} nats · "
                f"{name}<extra></extra>",
                **frame.axes(i),
            )
        )


def _legend(frame: Frame, colour: str) -> None:
    """Say what the heads mean, in no lane's colour."""
    for name, symbol in _CHOICES:
        marker = {"symbol": symbol, "size": 9, "color": colour}
        frame.fig.add_trace(
            go.Scatter(x=[None], y=[None], mode="markers", marker=marker, name=name, showlegend=True)
        )


def _mean_text(mean: float) -> str:
    return f"mean {plain(mean, 2)}"


def _mean(frame: Frame, i: int, mean: float) -> None:
    """Draw the mean as a dashed line, its value in the gutter."""
    if mean <= 0:
        return
    y, axes = np.log10(max(FLOOR, mean)), frame.axes(i)
    across = {"x0": 0, "x1": 1, "xref": "x domain" if i == 0 else f"x{i + 1} domain"}
    line = {"color": frame.theme.muted, "width": 1.5, "dash": "dash"}
    frame.fig.add_shape(type="line", y0=y, y1=y, yref=axes["yaxis"], line=line, layer="below", **across)
    frame.note(
        _mean_text(mean),
        **{"x": 1, "xshift": 4, "y": y, "yref": axes["yaxis"], "yanchor": "middle"},
        font={"size": frame.sizes.tick, "color": frame.theme.muted},
        name="mean",
    )


def _name_worst(frame: Frame, i: int, nats: Row, tokens: Sequence[str]) -> None:
    """Write the token in sight whose forecast differs most, and by how much, beside its mark."""
    first, last = frame.fig.layout.xaxis.range
    place, axes = np.arange(len(nats)), frame.axes(i)
    inside = np.where((place > first) & (place < last) & np.isfinite(nats), nats, -1.0)
    worst = int(inside.argmax())
    if inside[worst] <= FLOOR:
        return
    left = worst <= (first + last) / 2
    top = frame.fig.layout[f"yaxis{i + 1 if i else ''}"].range[1]
    frame.note(
        f"{hover_label(tokens[worst], 16)}  {plain(float(nats[worst]))} nats",
        **{
            "x": worst,
            "xref": axes["xaxis"],
            "xshift": -6 if left else 6,
            "xanchor": "left" if left else "right",
        },
        **{"y": top, "yref": axes["yaxis"], "yanchor": "top"},
        font={"size": frame.sizes.tick, "color": frame.theme.ink, "weight": 600},
        name="worst",
    )


def _notice(cells: Grid, tokens: int) -> str | None:
    if not cells.reduced:
        return None
    return f"{tokens:,} tokens are too many to draw: each mark is the worst of {cells.per_column} tokens"


def _alt(names: Sequence[str], lanes: Sequence[Row], flags: Sequence[NDArray[np.bool_]]) -> str:
    said = []
    for name, nats, changed in zip(names, lanes, flags, strict=True):
        real = nats[np.isfinite(nats)]
        largest = (
            f"{plain(float(real.max()))} at token {int(np.where(np.isfinite(nats), nats, -1).argmax())}"
            if real.size
            else "none"
        )
        said.append(f"{name}; largest KL {largest}; first choice changed at {int(changed.sum())} tokens")
    return (
        f"KL from the exact model's forecast at {len(lanes[0]):,} tokens, in nats on a logarithmic axis. "
        f"{'. '.join(said)}."
    )
