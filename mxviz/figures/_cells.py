"""Arrays on their way to a picture: where cells lie, and fewer of them where there are too many."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

MAX_COLUMNS = 2048
MAX_ROWS = 512
MAX_CELLS = 1 << 19
"""Cells a figure sends as float32: 2.8 MB once written out, about 0.7 s to draw; 5 MB is the cap."""
MAX_HOVER_VALUES = 1 << 18
"""Numbers a figure sends for hovers alone, as float32: 1.4 MB."""

Array = NDArray[np.float32]


class Grid(NamedTuple):
    """Cells and where they lie: `z` `[rows, columns]`, edges in channels and tokens, tokens a column."""

    z: Array
    x: NDArray[np.float64]
    y: NDArray[np.float64]
    per_column: int
    per_row: int

    @property
    def reduced(self) -> bool:
        return self.per_column > 1 or self.per_row > 1


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


def grid(x: Array, cells: int = MAX_CELLS) -> Grid:
    """Lay out `[tokens, channels]` with tokens to the right, reduced where it is beyond `cells`.

    A reduced cell holds the value of the largest magnitude in it, so that a lone spike survives; NaN counts
    as larger than anything.
    """
    per_column = -(-x.shape[0] // min(MAX_COLUMNS, cells))
    per_row = -(-x.shape[1] // min(MAX_ROWS, max(1, cells // -(-x.shape[0] // per_column))))
    z = _largest(_largest(x, per_column).T, per_row)
    return Grid(z, edges(x.shape[0], per_column), edges(x.shape[1], per_row), per_column, per_row)


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
