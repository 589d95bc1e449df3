"""The reference as a backend: always there, on every device, and what the others are measured by."""

from __future__ import annotations

import torch
from torch import Tensor

from mxviz import quantize as _reference
from mxviz.backends import Part
from mxviz.formats import Scheme
from mxviz.quantize import MXBlocks


def missing() -> str | None:
    """Return None: plain torch is always there."""
    return None


def supports(device_type: str) -> bool:
    """Every device torch has."""
    return True


def quantize(x: Tensor, scheme: Scheme, axis: int, frozen: Tensor | None) -> MXBlocks:
    """See `mxviz.quantize.quantize`."""
    return _reference.quantize(x, scheme, axis, frozen=frozen)


def dequantize(blocks: MXBlocks, dtype: torch.dtype) -> Tensor:
    """See `mxviz.quantize.MXBlocks.dequantize`."""
    return blocks.dequantize(dtype)


def attend(
    query: Tensor,
    key: Part,
    value: Part,
    *,
    scaling: float,
    mask: Tensor | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """See `mxviz.ops.attend`: unpack, then plain float32."""
    if key.shape[2] != value.shape[2]:
        raise ValueError(
            f"{key.shape[2]} keys and {value.shape[2]} values came; expected one value for each key"
        )
    weights = attention_weights(
        query, key.unpacked(torch.float32), scaling=scaling, mask=mask, softcap=softcap, sinks=sinks
    )
    return weighted(weights, value.unpacked(torch.float32)).to(query.dtype)


def attention_weights(
    query: Tensor,
    key: Tensor,
    *,
    scaling: float,
    mask: Tensor | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Return the softmax weights, float32 `[batch, heads, queries, tokens]`; see `mxviz.ops.attend`.

    Raises:
        ValueError: where heads or the mask's length do not fit.
    """
    heads, tokens = key.shape[1:3]
    if query.shape[1] % heads:
        raise ValueError(f"{query.shape[1]} query heads came; expected a multiple of the {heads} KV heads")
    if mask is not None and mask.shape[-1] != tokens:
        raise ValueError(f"a mask over {mask.shape[-1]} tokens came; expected one over the {tokens} held")
    key = key.float().repeat_interleave(query.shape[1] // heads, dim=1)
    scores = query.float() @ key.mT * scaling
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype is torch.bool else scores + mask
    lonely = (scores == -torch.inf).all(-1, keepdim=True)
    if sinks is not None:
        logits = sinks.float().view(1, -1, 1, 1).expand(*scores.shape[:3], 1)
        scores = torch.cat((scores, logits), dim=-1)
    return torch.softmax(scores, -1)[..., :tokens].masked_fill(lonely, 0)


def weighted(weights: Tensor, value: Tensor) -> Tensor:
    """Return the sums of values `[batch, kv_heads, tokens, width]` by weight, float32."""
    return weights @ value.float().repeat_interleave(weights.shape[1] // value.shape[1], dim=1)
