"""Torch wrappers around the kernels, one file a backend; `mxviz.ops` picks among them.

Each offers `missing() -> str | None` (why it cannot run here, in one line), `supports(device_type) -> bool`,
`quantize(x, scheme, axis, frozen) -> MXBlocks` and `dequantize(blocks, dtype) -> Tensor`; a backend that
attends without unpacking also `attend(query, key, value, *, scaling, mask, softcap, sinks) -> Tensor`.
"""

from __future__ import annotations

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
        held = [x.shape for x in (self.sink, self.blocks, self.tail) if x is not None]
        batch, heads, _, dim = held[0]
        return torch.Size((batch, heads, sum(shape[-2] for shape in held), dim))
