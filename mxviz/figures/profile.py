"""Profiles: how large each channel of a head is over the tokens, and each token over the channels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import plotly.graph_objects as go
from numpy.typing import ArrayLike, NDArray

from mxviz.figures import _profile as draw
from mxviz.figures import _profile_words as words
from mxviz.figures._cells import MAX_COLUMNS
from mxviz.figures._frame import Columns, Frame
from mxviz.figures._layout import room
from mxviz.figures._marks import Mark, Span, place_marks
from mxviz.figures._profile import Lines, held
from mxviz.figures._traces import channel_ticks, number
from mxviz.figures.labels import escape, shorten

_LABELS = {False: 8, True: 4}
"""Most labels of outliers, wide and compact."""


def channel_profile(
    amax: ArrayLike,
    median: ArrayLike,
    low: ArrayLike,
    high: ArrayLike,
    *,
    title: str,
    subtitle: str = "",
    marked: Sequence[int] = (),
    partners: Mapping[int, int] | None = None,
    bias: ArrayLike | None = None,
    reference: float | None = None,
    here: int | None = None,
    spot: tuple[int, float, str] | None = None,
    symbol: str = "|K|",
    heading: str | None = None,
    theme: str = "light",
    width: int = 1280,
    height: int | None = None,
) -> go.Figure:
    """Draw |x| of each channel over the tokens: its largest, its median, the band of 5 to 95 %.

    Args:
        amax: largest |x| of each channel, `[channels]`; median, low (5 %) and high (95 %) likewise.
        title: one sentence that says what is seen; plain text, like subtitle and heading.
        marked: outlier channels, the most important first: magenta, and labelled with their peak.
        partners: channel to the channel RoPE turns it with; a pair that is marked is joined by a bracket.
        bias: |k_proj bias| on each channel, where it is known; a short stroke.
        reference: the median |x| of the layer; a line, and a second one at ten times that.
        here: the channel one looks at.
        spot: a single value: its channel, its size and its name.
        symbol: what |x| is called.
        theme: `light` or `dark`.
        width: CSS pixels; below 640 the figure is laid out for a phone. So is height.

    Raises:
        ValueError: for arrays that do not match, channels that are not there, an unknown theme.
    """
    lines = draw.lines_of(amax, median, low, high)
    count = len(lines.amax)
    _check("channels", [*marked, *([spot[0]] if spot else [])], count)
    strokes = draw.one_each("bias", bias, count)
    largest = None if strokes is None else float(strokes.max())
    span = draw.span_of(lines, [spot[1] if spot else None, reference, largest], width, height)
    frame = draw.frame_of(
        Columns([str(c) for c in range(count)], {}),
        heading or f"{count} channels",
        span,
        symbol,
        reference,
        3 + (strokes is not None),
        {"theme": theme, "width": width, "height": height, "title": title, "subtitle": subtitle},
    )
    _channel_axis(frame, count, marked)
    draw.here_line(frame, here, f"channel {here}")
    draw.towers(frame, lines, span, marked, reference)
    draw.draw(frame, lines, span, symbol, "5–95 % of the tokens")
    if strokes is not None:
        _strokes(frame, strokes, span)
    draw.hover(frame, lines, span, words.channel_hovers(lines, strokes, partners or {}, symbol))
    marks = [Mark(c, float(held(lines.amax[c], span)), f"{c} · {number(lines.amax[c], 4)}") for c in marked]
    if spot:
        marks.insert(0, Mark(spot[0], float(held(spot[1], span)), spot[2]))
    place_marks(frame, span, marks, _LABELS[frame.compact])
    _bracket(frame, marked, partners or {})
    return frame.finish("channel-profile", words.channel_alt(lines, marked, strokes, symbol), None)


def token_profile(
    amax: ArrayLike,
    median: ArrayLike,
    low: ArrayLike,
    high: ArrayLike,
    tokens: Sequence[str],
    *,
    title: str,
    subtitle: str = "",
    loud: Sequence[int] = (),
    quiet: Sequence[int] = (),
    apart: ArrayLike | None = None,
    apart_name: str = "the outlier channels",
    reference: float | None = None,
    here: int | None = None,
    symbol: str = "|K|",
    heading: str | None = None,
    theme: str = "light",
    width: int = 1280,
    height: int | None = None,
) -> go.Figure:
    """Draw |x| of each token over the channels: its largest, its median, the band of 5 to 95 %.

    Args:
        amax: largest |x| of each token, `[tokens]`; median, low (5 %) and high (95 %) likewise.
        tokens: the text of each token.
        loud: tokens whose largest stands out, the most important first; labelled above.
        quiet: tokens whose median is small, as that of an attention sink; labelled below.
        apart: largest |x| at each token of the channels that were left out of the rest, `[tokens]`.
        apart_name: what they are called.
        here: the token one looks at. The rest is that of `channel_profile`.

    Raises:
        ValueError: for arrays that do not match, tokens that are not there, an unknown theme.
    """
    whole = draw.lines_of(amax, median, low, high)
    count = len(whole.amax)
    if len(tokens) != count:
        raise ValueError(f"amax has {count} tokens and there are {len(tokens)} token texts")
    _check("tokens", [*loud, *quiet], count)
    above = draw.one_each("apart", apart, count)
    lines = draw.reduced(whole, min(MAX_COLUMNS, max(1, room(width))))
    largest = None if above is None else float(np.nanmax(above, initial=0))
    span = draw.span_of(lines, [reference, largest], width, height)
    frame = draw.frame_of(
        Columns(tokens, {}, [*([] if here is None else [here]), *loud, *quiet]),
        heading or f"{count:,} tokens",
        span,
        symbol,
        reference,
        3 + (above is not None),
        {"theme": theme, "width": width, "height": height, "title": title, "subtitle": subtitle},
    )
    draw.here_line(frame, here, f"token {here}")
    draw.draw(frame, lines, span, symbol, "5–95 % of the channels")
    if above is not None:
        _apart(frame, draw.reduced(Lines(*(above,) * 4, whole.edges), len(lines.amax)), span, apart_name)
    draw.hover(frame, lines, span, words.token_hovers(lines, tokens, symbol))
    limit = 10 if frame.compact else 14
    marks = [
        *(Mark(t, float(held(whole.amax[t], span)), f"{t}: {shorten(tokens[t], limit)}") for t in loud),
        *(
            Mark(t, float(held(whole.median[t], span)), f"{t}: {shorten(tokens[t], limit)}", below=True)
            for t in quiet
        ),
    ]
    place_marks(frame, span, marks, _LABELS[frame.compact])
    return frame.finish(
        "token-profile", words.token_alt(whole, tokens, loud, quiet, symbol), _notice(count, len(lines.amax))
    )


def _check(what: str, marked: Sequence[int], count: int) -> None:
    missing = [i for i in marked if not 0 <= i < count]
    if missing:
        raise ValueError(f"marked {what} {missing} are not among the {count} {what}")


def _notice(count: int, columns: int) -> str | None:
    if columns == count:
        return None
    return (
        f"{count:,} tokens are too many to draw: each column shows the largest, the smallest and the median "
        f"of {-(-count // columns)} tokens"
    )


def _channel_axis(frame: Frame, count: int, marked: Sequence[int]) -> None:
    """Turn the token axis into one of channels: plain numbers, outliers in their colour."""
    fig, theme = frame.fig, frame.theme
    frame.notes = [note for note in frame.notes if note.get("name") != "token"]
    next(note for note in frame.notes if note.get("name") == "axis")["text"] = "channel"
    apart = count / (8 if frame.compact else 12)
    strong: list[int] = []
    for c in marked:  # the most important first
        strong += [c] if all(abs(c - other) > apart for other in strong) else []
    ticks = channel_ticks(count, frequent=not frame.compact, marked=strong, colour=theme.outlier)
    fig.layout.xaxis.update(
        **{"tickvals": list(ticks), "ticktext": list(ticks.values()), "showticklabels": True},
        **{"ticks": "outside", "ticklen": 4, "tickcolor": theme.grid},
        tickfont={"size": frame.sizes.tick, "color": theme.muted},
    )


def _strokes(frame: Frame, bias: NDArray[np.float64], span: Span) -> None:
    """Draw |k_proj bias| as a short stroke on each channel."""
    size = max(4.0, min(18.0, 0.8 * frame.plot_width / len(bias)))
    at = np.flatnonzero(bias >= 10 ** span.y[0])
    frame.fig.add_trace(
        go.Scatter(
            **{"x": at, "y": bias[at], "mode": "markers", "name": "|bias of k_proj|", "hoverinfo": "skip"},
            marker={
                **{"symbol": "line-ew", "size": size, "color": frame.theme.ink},
                "line": {"width": 2.5, "color": frame.theme.ink},
            },
        )
    )


def _apart(frame: Frame, above: Lines, span: Span, name: str) -> None:
    """Draw the largest of the channels that were left out, as a line of its own."""
    frame.fig.add_trace(
        go.Scatter(
            **{"x": np.repeat(above.edges, 2)[1:-1], "y": np.repeat(held(above.amax, span), 2)},
            **{"mode": "lines", "name": escape(name), "hoverinfo": "skip"},
            line={"color": frame.theme.outlier, "width": 2},
        )
    )


def _bracket(frame: Frame, marked: Sequence[int], partners: Mapping[int, int]) -> None:
    """Join the most important pair of RoPE partners by a bracket at the top of the panel."""
    pair = next(((c, partners[c]) for c in marked if partners.get(c) in marked), None)
    if pair is None:
        return
    low, high = sorted(pair)
    top = frame.panels[0][0]
    y, drop = frame.y(top + 0.65 * draw.line_height(frame)), frame.y(top + 1.15 * draw.line_height(frame))
    for x0, x1, y0, y1 in ((low, high, y, y), (low, low, y, drop), (high, high, y, drop)):
        frame.fig.add_shape(
            **{"type": "line", "xref": "x", "yref": "paper", "x0": x0, "x1": x1, "y0": y0, "y1": y1},
            **{"line": {"color": frame.theme.outlier, "width": 1.5}, "name": "partners"},
        )
    frame.note(
        f"RoPE turns {low} and {high} into each other" if not frame.compact else f"RoPE: {low} ⇄ {high}",
        **{"x": (low + high) / 2, "xref": "x", "xanchor": "center", "y": y, "yanchor": "middle"},
        **{"bgcolor": frame.theme.paper, "borderpad": 2},
        font={"size": frame.sizes.tick - 1, "color": frame.theme.outlier},
        name="partners",
    )
