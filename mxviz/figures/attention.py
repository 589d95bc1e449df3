"""Where one query looks under three caches, and how far each head's output is off."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
from numpy.typing import ArrayLike

from mxviz.figures._bars import Row, bars, columns, name_axis, row, summed, upright
from mxviz.figures._frame import Columns, Frame, Panel
from mxviz.figures._layout import room, start
from mxviz.figures.error import percent
from mxviz.figures.theme import is_compact, theme_named

_MARKS = (1.0, 0.5, 0.25, 0.1, 0.05, 0.01, 0.005, 0.001, 0.0001)
_PIXELS = 2  # of the narrowest bar
_LANES = ("exact", "micro", "single")


def attention_bars(
    exact: ArrayLike,
    micro: ArrayLike,
    single: ArrayLike,
    tokens: Sequence[str],
    *,
    title: str,
    subtitle: str = "",
    names: tuple[str, str, str] = ("exact", "micro-scaled", "one scale for all"),
    theme: str = "light",
    width: int = 1280,
    height: int | None = None,
) -> go.Figure:
    """Draw one query's attention over its tokens three times, and what changed against exact below.

    Heights are square roots, so that a sink of 90 % leaves room for the rest; ticks and hovers tell the real
    shares. Where tokens are narrower than two pixels, a bar is the attention of several together.

    Args:
        exact: weights `[tokens]` that sum to 1; micro and single likewise. NaN is not drawn.
        tokens: the text of each token.
        title: one sentence that says what is seen; plain text, like subtitle and names.
        names: headings of the three panels.
        theme: `light` or `dark`.
        width: CSS pixels; below 640 the figure is laid out for a phone. So is height.

    Raises:
        ValueError: for arrays of different lengths or an unknown theme.
    """
    rows = {n: row(n, x, tokens) for n, x in zip(_LANES, (exact, micro, single), strict=True)}
    per = -(-_PIXELS * len(tokens) // room(width))
    grid = columns(len(tokens), per)
    sums = {name: summed(x, per) for name, x in rows.items()}
    changes = {name: sums[name] - sums["exact"] for name in ("micro", "single")}
    highest = _largest(sums.values())
    ticks = {float(np.sqrt(mark)): percent(mark) for mark in _marks(highest)} | {0.0: "0"}
    colours, compact = theme_named(theme), is_compact(width)
    meanings = (colours.exact, colours.micro, colours.single)
    most = _largest(changes.values())
    frame = start(
        [
            *(Panel(name, 1, ticks, colour) for name, colour in zip(names, meanings, strict=True)),
            Panel("Difference from exact, in percentage points", 1, _signed_ticks(most), weight=1.4),
        ],
        Columns(tokens, grid.column_names(tokens), _changed_most(rows)),
        theme=theme,
        width=width,
        height=height or (760 if compact else 800),
        title=title,
        subtitle=subtitle,
        legend=2,
    )
    _weights(frame, grid.x, sums, highest)
    _differences(frame, grid.x, changes, most)
    said = f"{len(tokens):,} tokens are too many to draw: each bar is the attention of {per} together"
    return frame.finish("attention", _alt(names, rows, len(tokens)), said if per > 1 else None)


def _largest(found) -> float:
    return max((float(np.nanmax(np.abs(x))) for x in found if np.isfinite(x).any()), default=0.0) or 1.0


def _marks(highest: float) -> list[float]:
    """Return the shares to mark on a square-root axis up to `highest`, none nearer than a fifth of it."""
    chosen: list[float] = []
    for mark in _MARKS:
        place, top = np.sqrt(mark), np.sqrt(highest)
        if (
            mark <= highest * 1.02
            and place > 0.2 * top
            and all(np.sqrt(c) - place > 0.2 * top for c in chosen)
        ):
            chosen.append(mark)
    return chosen


def _signed_ticks(most: float) -> dict[float, str]:
    marks = _marks(most)[:2]
    points = {mark: percent(mark).removesuffix(" %") for mark in marks}
    return (
        {-float(np.sqrt(mark)): f"−{text}" for mark, text in points.items()}
        | {0.0: "0"}
        | {float(np.sqrt(mark)): f"+{text}" for mark, text in points.items()}
    )


def _changed_most(rows: dict[str, Row], count: int = 5) -> list[int]:
    """Return the columns to label first: where either lane differs most, and the query's own."""
    moved = [np.nan_to_num(np.abs(rows[name] - rows["exact"])) for name in ("micro", "single")]
    order = np.argsort(-np.maximum(*moved), kind="stable")[:count]
    return list(dict.fromkeys([*order.tolist(), len(rows["exact"]) - 1]))


def _weights(frame: Frame, bounds: Row, sums: dict[str, Row], highest: float) -> None:
    theme, x = frame.theme, (bounds[:-1] + bounds[1:]) / 2
    for i, (name, colour) in enumerate(zip(_LANES, (theme.exact, theme.micro, theme.single), strict=True)):
        upright(frame, i, (0.0, 1.08 * float(np.sqrt(highest))), "attention")
        hover = "token %{x:.0f} · attention %{customdata:.3p}"
        bars(frame, i, x, np.sqrt(sums[name]), sums[name], colour=colour, name=name, hover=hover)


def _differences(frame: Frame, bounds: Row, changes: dict[str, Row], most: float) -> None:
    top, x = 1.12 * float(np.sqrt(most)), (bounds[:-1] + bounds[1:]) / 2
    upright(frame, 3, (-top, top), "points")
    names, colours = ("micro-scaled − exact", "one scale − exact"), (frame.theme.micro, frame.theme.single)
    for lane, (change, name, colour) in enumerate(zip(changes.values(), names, colours, strict=True)):
        signed = np.sign(change) * np.sqrt(np.abs(change))
        hover = f"token %{{x:.0f}}<br>{name} %{{customdata:+.2f}} percentage points"
        bars(frame, 3, x, signed, 100 * change, colour=colour, name=name, hover=hover, lane=lane)
    for i, trace in enumerate(frame.fig.data):
        trace.showlegend = i >= len(_LANES)


def head_errors(
    micro: ArrayLike,
    single: ArrayLike,
    *,
    title: str,
    subtitle: str = "",
    group: int = 1,
    theme: str = "light",
    width: int = 1280,
    height: int | None = None,
) -> go.Figure:
    """Draw the relative L2 error of every query head's output, both lanes side by side.

    Args:
        micro: ‖Ô − O‖/‖O‖, `[query_heads]`; single likewise. NaN is not drawn.
        title: one sentence that says what is seen; plain text, like subtitle.
        group: query heads that share a KV head; told in the hover.
        theme: `light` or `dark`.
        width: CSS pixels; below 640 the figure is laid out for a phone. So is height.

    Raises:
        ValueError: for arrays of different lengths or an unknown theme.
    """
    heads = [str(i) for i in range(len(np.asarray(micro)))]
    rows = [row(n, x, heads, "query heads") for n, x in (("micro", micro), ("single", single))]
    top = 1.1 * _largest(rows)
    step = next(s for s in (0.02, 0.05, 0.1, 0.2, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, top) if top / s <= 5)
    ticks = {float(at): percent(float(at)) for at in np.arange(0, top, step)}
    named = {float(i): f"query head {i}, KV head {i // group}" for i in range(len(heads))}
    frame = start(
        [Panel("Relative error of the head's output, keys and values quantized (exact 0 %)", 1, ticks)],
        Columns(heads, named),
        theme=theme,
        width=width,
        height=height or 400,
        title=title,
        subtitle=subtitle,
        legend=2,
    )
    upright(frame, 0, (0.0, top), "‖Ô − O‖ / ‖O‖")
    name_axis(frame, "query head")
    named_lanes = (("micro-scaled", frame.theme.micro), ("one scale", frame.theme.single))
    for lane, (errors, (name, colour)) in enumerate(zip(rows, named_lanes, strict=True)):
        places = np.arange(len(heads), dtype=np.float64)
        hover = f"{name}: %{{customdata:.1%}}"
        bars(frame, 0, places, errors, errors, colour=colour, name=name, hover=hover, lane=lane)
    said = "; ".join(
        f"head {i}: micro-scaled {percent(a)}, one scale {percent(b)}"
        for i, (a, b) in enumerate(zip(*rows, strict=True))
    )
    return frame.finish("head-errors", f"Bars of the output error of {len(heads)} query heads. {said}.", None)


def _alt(names: Sequence[str], rows: dict[str, Row], tokens: int) -> str:
    said = []
    for name, weights in zip(names, rows.values(), strict=True):
        finite = np.isfinite(weights).all()
        place = int(weights.argmax()) if finite else 0
        most = f"most, {percent(float(weights[place]))}, on token {place}" if finite else "not a number"
        said.append(f"{name}: {most}")
    return (
        f"Attention of one query over {tokens:,} tokens, three times, and the differences. {'; '.join(said)}."
    )
