"""Scales that outlive an append, and padding that must not move any."""

from __future__ import annotations

import torch
from torch import Tensor

from mxviz._scales import reach_dims, set_global_scale, single_scale
from mxviz.formats import Axis, Reach, ScaleFormat, Scheme


def is_scaled_per_row(scheme: Scheme) -> bool:
    """Whether every token brings scales of its own, as against one set that all share."""
    return scheme.is_blocked or scheme.reach is Reach.TOKEN


def tokens_packed_at_once(scheme: Scheme) -> int:
    """How many tokens must be there before any can be packed: a block where blocks run along tokens."""
    return scheme.block if scheme.is_blocked and scheme.axis is Axis.TOKEN else 1


def fixed_scales(x: Tensor, scheme: Scheme) -> Tensor | None:
    """Return the scales that later tokens share, from a first update `[batch, kv_heads, tokens, head_dim]`.

    NVFP4's global scale `[B, 1, 1, 1]`, or the float32 scales of a single-scale scheme; taken over all of x,
    sinks and residual included, so that they are there before anything is packed. None where there are none.
    """
    if scheme.scale is ScaleFormat.E4M3:
        return set_global_scale(x.float(), None)
    if scheme.is_none or is_scaled_per_row(scheme):
        return None
    unbroken = torch.zeros((), dtype=torch.bool, device=x.device)
    return single_scale(x.float(), scheme, reach_dims(scheme.reach, x.dim()), unbroken, None).stored


def fill_pads(x: Tensor, pads: Tensor, block: int) -> Tensor:
    """Give padding in a block along tokens a value of the block's own, so that it moves neither amax nor the
    range of a zero point; a block of nothing but padding stays zero. The last block may be short.
    """
    short = (0, 0, 0, -x.shape[-2] % block)
    low = torch.nn.functional.pad(x.masked_fill(pads, torch.inf), short, value=torch.inf)
    low = low.unflatten(-2, (-1, block)).amin(-2)
    low = torch.where(low == torch.inf, 0.0, low).to(x.dtype)
    return torch.where(pads, low.repeat_interleave(block, dim=-2)[..., : x.shape[-2], :], x)
