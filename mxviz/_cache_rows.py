"""Rows: one preallocated buffer of a cache that grows in place."""

from __future__ import annotations

from itertools import count

import torch
from torch import Tensor

from mxviz.backends import Span

_serials = count(1)


class Rows:
    """A tensor `[batch, kv_heads, rows, width]` that takes rows behind and drops them in front or behind.

    The first append allocates exactly what it needs; later growth rounds up to whole units and adds at most
    an eighth.

    Args:
        unit: rows that belong together (tokens, or bytes, of a block along tokens).
    """

    def __init__(self, unit: int = 1) -> None:
        self.unit = unit
        self.buffer: Tensor | None = None
        self.start = self.end = self.room = self.serial = 0

    def __setstate__(self, state: dict[str, object]) -> None:
        """Take over what was copied; the buffer is another one, and its number another's."""
        self.__dict__.update(state, serial=next(_serials) if state["room"] else 0)

    def __len__(self) -> int:
        return self.end - self.start

    @property
    def view(self) -> Tensor:
        """The rows in use, a view; only where something was appended."""
        return self.buffer.narrow(2, self.start, self.end - self.start)

    @property
    def span(self) -> Span:
        """Where the rows in use are."""
        return Span(self.buffer, self.start, self.end, self.serial)

    @property
    def nbytes(self) -> int:
        return len(self) * self._row_bytes

    @property
    def allocated_bytes(self) -> int:
        return 0 if self.buffer is None else self.buffer.shape[2] * self._row_bytes

    @property
    def _row_bytes(self) -> int:
        if self.buffer is None:
            return 0
        batch, heads, _, width = self.buffer.shape
        return batch * heads * width * self.buffer.element_size()

    def append(self, x: Tensor) -> None:
        """Copy x `[batch, kv_heads, n, width]` behind the rows held."""
        n = x.shape[2]
        if self.end + n > self.room:
            self._make_room(x, len(self) + n)
        self.buffer.narrow(2, self.end, n).copy_(x)
        self.end += n

    def _make_room(self, like: Tensor, need: int) -> None:
        """Move the rows to the front of a new buffer, always a new one: views given out keep their values."""
        room = need
        if self.buffer is not None:
            room = -(-need // self.unit) * self.unit + need // (8 * self.unit) * self.unit
        batch, heads, _, width = like.shape
        # A cache may be filled under inference_mode and cropped outside of it: its buffers are not
        # inference tensors, which could not be written to then.
        with torch.inference_mode(False):
            target = torch.empty((batch, heads, room, width), dtype=like.dtype, device=like.device)
        if len(self):
            target[:, :, : len(self)] = self.view
        self.buffer, self.start, self.end = target, 0, len(self)
        self.room, self.serial = room, next(_serials)

    def drop_front(self, n: int) -> None:
        self.start += n

    def drop_back(self, n: int) -> None:
        self.end -= n

    def clear(self) -> None:
        """Drop all rows."""
        self.start = self.end

    def select(self, index: Tensor) -> None:
        """Keep these sequences of the batch, in this order, possibly repeated."""
        if self.buffer is not None:
            with torch.inference_mode(False):
                self.buffer = self.buffer.index_select(0, index.to(self.buffer.device))
            self.serial = next(_serials)
