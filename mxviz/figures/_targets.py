"""What can be clicked in a map of blocks: an unseen bar over each, for a heat map answers no click."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np
import plotly.graph_objects as go
from numpy.typing import ArrayLike, NDArray

from mxviz.figures._cells import Array, edges, span
from mxviz.figures._frame import Frame
from mxviz.figures.scales import are_powers, scale_text, without_scale

MAX_TARGETS = 512
"""Places that can be clicked; where there are more blocks in sight, one place opens one of several.

A browser draws each as a path of its own, twice, 0.1 ms a path; and more would be thinner than two pixels.
"""


class Blocks(NamedTuple):
    """How the micro-scaled lane is cut; see `mxviz.figures.scale_map` for the fields it shares.

    Args:
        scales: `[tokens, blocks]` for axis `channel`, `[blocks, channels]` for axis `token`.
        axis: what a block runs along.
        block: elements of a block; None where nothing is blocked.
        first: token at which the first block along tokens starts.
        stored: scale bytes, shaped like scales, negative where there is none; or None.
        exact: where a scale is missing because numbers are kept exactly; bool, like scales; or None.
    """

    scales: ArrayLike
    axis: str
    block: int | None
    first: int = 0
    stored: ArrayLike | None = None
    exact: ArrayLike | None = None


def block_targets(
    axis: str, block: int | None, first: int, shape: tuple[int, int], window: tuple[float, float]
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return the boxes that open a block where they are clicked, for the blocks in a window of tokens.

    Returns:
        Boxes `[targets, 4]`: left, right, top and bottom edge on the token and channel axes; and places
        `[targets, 2]`: first token and first channel of the block each opens. At most `MAX_TARGETS`: where
        there are more blocks, a box holds several and opens the one in its middle. Where nothing is
        blocked, 32 channels of a token stand for a block.
    """
    size = block or 32
    along = (edges(shape[0], size, first), edges(shape[1])) if block and axis == "token" else None
    x, y = along or (edges(shape[0]), edges(shape[1], size))
    x = x[max(0, int((x <= window[0]).sum()) - 1) : max(2, int((x < window[1]).sum()) + 1)]
    step = [1, 1]
    while np.prod([-(-(len(e) - 1) // s) for e, s in zip((x, y), step, strict=True)]) > MAX_TARGETS:
        finer = int(len(y) / step[1] > len(x) / step[0])
        step[finer] += 1
    sides = [(_every(e, s), e[:-1][_middles(len(e) - 1, s)]) for e, s in zip((x, y), step, strict=True)]
    (xs, tokens), (ys, channels) = sides
    boxes = [
        (*wide, *tall) for wide in zip(xs, xs[1:], strict=False) for tall in zip(ys, ys[1:], strict=False)
    ]
    places = [(token, channel) for token in tokens for channel in channels]
    return np.array(boxes).reshape(-1, 4), np.round(np.array(places) + 0.5).astype(np.int64).reshape(-1, 2)


def _every(bounds: NDArray[np.float64], step: int) -> NDArray[np.float64]:
    return np.append(bounds[:-1:step], bounds[-1])


def _middles(count: int, step: int) -> NDArray[np.int64]:
    starts = np.arange(0, count, step)
    return (starts + np.minimum(starts + step, count) - 1) // 2


def draw_targets(frame: Frame, i: int, blocks: Blocks, scales: Array, shape: tuple[int, int]) -> None:
    """Lay an unseen bar over each block of the map in panel i: what can be clicked, to the pixel."""
    boxes, places = block_targets(
        blocks.axis, blocks.block, blocks.first, shape, frame.fig.layout.xaxis.range
    )
    size, whole = blocks.block or 32, are_powers(scales[~without_scale(scales)])
    along = bool(blocks.block) and blocks.axis == "token"
    words = cache(lambda scale, byte: scale_text(scale, None if byte < 0 else byte, whole))
    rides = []
    for token, channel in places.tolist():
        ends = (token + size * along, channel + size * (not along))
        text = f"tokens {span(token - 0.5, min(max(ends[0], token + 1), shape[0]) - 0.5)}"
        text += f" · channels {span(channel - 0.5, min(max(ends[1], channel + 1), shape[1]) - 0.5)}"
        if blocks.block:
            at = ((token - blocks.first) // size, channel) if along else (token, channel // size)
            byte = -1 if blocks.stored is None else int(np.asarray(blocks.stored)[at])
            text += f"<br>{words(float(scales[at]), byte)}"
        rides.append([token, channel, text])
    frame.fig.add_trace(
        go.Bar(
            x=boxes[:, 0],
            offset=0,
            width=boxes[:, 1] - boxes[:, 0],
            base=boxes[:, 2],
            y=boxes[:, 3] - boxes[:, 2],
            opacity=0,
            customdata=rides,
            hovertemplate="%{customdata[2]}<br><i>click to open this block</i><extra></extra>",
            showlegend=False,
            name="blocks",
            **frame.axes(i),
        )
    )
    frame.lay(clickmode="event+select", barmode="overlay")
