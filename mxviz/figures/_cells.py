"""Arrays on their way to a picture: where cells lie, and fewer of them where there are too many."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mxviz.figures.labels import CUT, hover_label, label

MAX_COLUMNS = 2048
MAX_ROWS = 512
MAX_CELLS = 1 << 19
"""Cells a figure sends as float32: 2.8 MB once written out, about 0.7 s to draw; 5 MB is the cap."""
MAX_HOVER_VALUES = 1 << 18
"""Numbers a figure sends for hovers alone, as float32: 1.4 MB."""

Array = NDArray[np.float32]


class Grid(NamedTuple):
    """Cells and where they lie: z `[rows, columns]`, their edges on the token and the channel axis."""

    z: Array
    x: NDArray[np.float64]
    y: NDArray[np.float64]
    per_column: int = 1
    per_row: int = 1

    @property
    def reduced(self) -> bool:
        return self.per_column > 1 or self.per_row > 1

    def column_names(self, tokens: Sequence[str]) -> dict[float, str]:
        """Name every column by its token, or by the tokens it runs over; texts are escaped."""
        spans = zip(self.x[:-1], self.x[1:], strict=True)
        return {float(a + b) / 2: _name(tokens, round(a + 0.5), round(b - 0.5)) for a, b in spans}


def _name(tokens: Sequence[str], first: int, last: int) -> str:
    if first == last:
        return hover_label(tokens[first])
    return f"{label(tokens[first])} {CUT} {label(tokens[last])}"


def span(low: float, high: float) -> str:
    """Return the positions between two edges in words: 5, or 0–31."""
    first, last = round(low + 0.5), round(high - 0.5)
    return f"{first:,}" if first == last else f"{first:,}–{last:,}"


def checked(name: str, x: ArrayLike, tokens: Sequence[str] | None = None) -> Array:
    """Return x as float32 `[tokens, channels]`; ValueError says which array has the wrong shape."""
    array = np.asarray(x, dtype=np.float32)
    if array.ndim != 2 or 0 in array.shape:
        raise ValueError(f"{name} has shape {array.shape}; expected [tokens, channels], neither of them 0")
    if tokens is not None and len(tokens) != array.shape[0]:
        raise ValueError(f"{name} has {array.shape[0]} tokens and there are {len(tokens)} token texts")
    return array


def edges(count: int, size: int = 1, start: int = 0) -> NDArray[np.float64]:
    """Return the edges of cells of `size` positions over `count`; position i spans i-1/2 to i+1/2."""
    inner = np.arange(start, count, size)
    bounds = np.append(inner[inner < count], count)
    return bounds.astype(np.float64) - 0.5


def grid(
    x: Array, *, width: int, height: int, cells: int = MAX_CELLS, window: tuple[int, int] | None = None
) -> Grid:
    """Lay out `[tokens, channels]` with tokens to the right, reduced where it is more than can be seen.

    A reduced cell holds the value of the largest magnitude in it, so that a lone spike survives; NaN counts
    as larger than anything. A cell is never narrower than a pixel, where drawing would drop it.

    Args:
        width: pixels there are for the token axis; height: for the channels.
        cells: most cells to send.
        window: first and last token in sight; what lies outside is dropped where it would cost detail.
    """
    columns, rows = min(MAX_COLUMNS, max(1, width)), min(MAX_ROWS, max(1, height))
    first = 0
    if window and x.shape[0] > columns:
        first, x = max(0, window[0]), x[max(0, window[0]) : window[1] + 1]
    per_column = -(-x.shape[0] // min(columns, cells))
    per_row = -(-x.shape[1] // min(rows, max(1, cells // -(-x.shape[0] // per_column))))
    z = _largest(_largest(x, per_column).T, per_row)
    return Grid(z, edges(x.shape[0], per_column) + first, edges(x.shape[1], per_row), per_column, per_row)


def _largest(x: Array, size: int) -> Array:
    """Reduce the first dimension by `size`, keeping of each group the entry of the largest magnitude."""
    if size == 1:
        return np.ascontiguousarray(x)
    padded = np.pad(x, ((0, -x.shape[0] % size), (0, 0)))
    groups = padded.reshape(-1, size, x.shape[1])
    magnitude = np.where(np.isnan(groups), np.inf, np.abs(groups))
    return np.take_along_axis(groups, magnitude.argmax(1)[:, None], 1)[:, 0]


def notice(cells: Grid, shape: tuple[int, int]) -> str | None:
    """Return the sentence that says how a picture was reduced, or None."""
    if not cells.reduced:
        return None
    parts = [
        f"{n} {what}" for n, what in ((cells.per_column, "tokens"), (cells.per_row, "channels")) if n > 1
    ]
    return (
        f"{shape[0]:,} tokens × {shape[1]:,} channels are too many to draw: each cell shows the largest "
        f"magnitude of {' × '.join(parts)}"
    )
