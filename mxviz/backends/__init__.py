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
