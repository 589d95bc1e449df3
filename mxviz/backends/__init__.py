"""Torch wrappers around the kernels, one file a backend; `mxviz.ops` picks among them.

Each offers `missing() -> str | None` (why it cannot run here, in one line), `supports(device_type) -> bool`,
`quantize(x, scheme, axis, frozen) -> MXBlocks`, `dequantize(blocks, dtype) -> Tensor` and
`attend(query, key, value, *, scaling, mask, softcap, sinks) -> Tensor`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from mxviz.formats import ScaleFormat, Scheme
from mxviz.quantize import MXBlocks


class Part(NamedTuple):
    """The keys (or the values) of a layer as a cache holds them, oldest tokens first.

    Args:
        sink: exact first tokens, `[batch, kv_heads, tokens, head_dim]`, or None.
        blocks: packed tokens behind them, or None.
        tail: exact newest tokens, or None.
        rotation: `[head_dim, head_dim]`; `x @ rotation` is what was packed of x. None where x itself was.
    """

    sink: Tensor | None
    blocks: MXBlocks | None
    tail: Tensor | None
    rotation: Tensor | None = None

    @property
    def shape(self) -> torch.Size:
        """`[batch, kv_heads, tokens, head_dim]` of all tokens together."""
        tokens = 0
        for x in self[:3]:
            if x is not None:
                batch, heads, more, dim = x.shape
                tokens += more
        return torch.Size((batch, heads, tokens, dim))

    def unpacked(
        self, dtype: torch.dtype, dequantize: Callable[[MXBlocks, torch.dtype], Tensor] = MXBlocks.dequantize
    ) -> Tensor:
        """Return all tokens as one tensor of `shape`, unrotated."""
        parts = [self.sink, None, self.tail]
        if self.blocks is not None:
            if self.rotation is None:
                parts[1] = dequantize(self.blocks, dtype)
            else:
                parts[1] = dequantize(self.blocks, torch.float32) @ self.rotation.float().mT
        return torch.cat([x.to(dtype) for x in parts if x is not None], dim=-2)


class Span(NamedTuple):
    """Rows `start` to `end` - 1 of a cache's buffer `[batch, kv_heads, rows, width]`, which may be None.

    `serial` is the buffer's own number: another buffer, though it may lie where one was, has another.
    """

    buffer: Tensor | None
    start: int
    end: int
    serial: int

    @property
    def view(self) -> Tensor | None:
        """The rows, None where there are none."""
        rows = self.end - self.start
        return self.buffer.narrow(2, self.start, rows) if rows else None

    def longer(self, more: int) -> Span:
        """The same with more rows behind, where there are any."""
        return self if self.end == self.start else self._replace(end=self.end + more)


class HeldPart:
    """A `Part` as a cache hands it out at every step: where its rows are, the views made when asked for.

    Args:
        base: spans of sinks, tail, packed, scales and zeros, in this order; scales are None where all tokens
            share `fixed`. Parts of successive steps share it, so whoever knows it knows the buffers.
        shape: `[batch, kv_heads, tokens, head_dim]`.
        packed_tokens: tokens in the packed span.
        scheme: what they are packed as.
        fixed: scales that all tokens share; for NVFP4 its global scale.
        rotation: as in `Part`.
        memo: belongs to the cache's part and outlives the step: a backend keeps there what it knows of the
            buffers.
        more: rows that came behind those of the packed base, its scales and its zeros.
    """

    __slots__ = ("_part", "base", "fixed", "memo", "more", "packed_tokens", "rotation", "scheme", "shape")

    def __init__(
        self,
        base: tuple[Span, Span, Span, Span, Span],
        shape: tuple[int, int, int, int],
        packed_tokens: int,
        scheme: Scheme,
        fixed: Tensor | None,
        rotation: Tensor | None,
        memo: dict[str, object],
        more: int = 0,
    ) -> None:
        self.base, self.shape, self.packed_tokens, self.more = base, shape, packed_tokens, more
        self.scheme, self.fixed, self.rotation, self.memo = scheme, fixed, rotation, memo
        self._part: Part | None = None

    def and_one(self) -> HeldPart:
        """The same with one more token packed, a row in each buffer."""
        batch, heads, tokens, dim = self.shape
        return HeldPart(
            self.base, (batch, heads, tokens + 1, dim), self.packed_tokens + 1, self.scheme, self.fixed,
            self.rotation, self.memo, self.more + 1,
        )  # fmt: skip

    @property
    def spans(self) -> tuple[Span, Span, Span, Span, Span]:
        """Where sinks, tail, packed, scales and zeros are."""
        sinks, tail, *growing = self.base
        return (sinks, tail, *(span.longer(self.more) for span in growing)) if self.more else self.base

    def as_part(self) -> Part:
        """Return views of the rows; they keep their values until the cache is cropped."""
        if self._part is None:
            sinks, tail, *_ = self.spans
            self._part = Part(sinks.view, self._blocks(), tail.view, self.rotation)
        return self._part

    def _blocks(self) -> MXBlocks | None:
        _, _, packed, scales, zeros = self.spans
        if not self.packed_tokens:
            return None
        batch, heads, _, dim = self.shape
        return MXBlocks(
            packed.view,
            self.fixed if scales.buffer is None else scales.view,
            self.scheme,
            torch.Size((batch, heads, self.packed_tokens, dim)),
            self.scheme.axis.dim,
            self.fixed if self.scheme.scale is ScaleFormat.E4M3 else None,
            zeros.view,
        )


def part_of(held: Part | HeldPart) -> Part:
    """Return a part with its views."""
    return held if isinstance(held, Part) else held.as_part()
