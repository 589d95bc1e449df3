"""Where the outliers sit: channels that are large at every token, tokens that are large in some channel.

An outlier channel (LLM.int8, arXiv 2208.07339; KIVI, arXiv 2402.02750) sets the scale of all that shares a
ruler with it. Everything here is measured against the median |x| of a layer's keys (or values).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from mxviz.capture import Capture

RATIO_LIMIT = 10.0
"""How often the median |x| a channel must peak to be called an outlier.

A Gaussian's largest of 10⁸ values is 8.5 times its median magnitude, and tame layers of Qwen2.5 stay near 8;
SmolLM2's marked key channels peak at 13 to 20, Qwen2.5's wild ones at 130.
"""

SHARE_LIMIT = 0.5
"""Share of tokens at which a channel must exceed half of that ratio to be called an outlier channel.

RoPE turns a channel and its partner into each other; even where it turns fast, |x| of a constant outlier
stays above half its peak at two thirds of the tokens. In SmolLM2 the marked key channels reach 0.8 to 1.0,
values stay below but for a handful, and a spike at one or two tokens is not a channel.
"""


class ChannelOutlier(NamedTuple):
    """One channel of one KV head that stands out.

    Args:
        part: `key` or `value`.
        layer: layer number.
        head: KV head.
        channel: index along head_dim.
        amax: its largest finite |x|.
        ratio_to_median: amax over the median |x| of the layer's part, all heads and tokens.
        share_of_tokens: share of tokens at which it exceeds half the limit times the median.
        partner: the channel RoPE turns it with (half a head_dim away); None for values.
    """

    part: str
    layer: int
    head: int
    channel: int
    amax: float
    ratio_to_median: float
    share_of_tokens: float
    partner: int | None


class TokenOutlier(NamedTuple):
    """One token that stands out in few channels, as attention sinks do."""

    part: str
    layer: int
    head: int
    token: int
    channel: int
    amax: float
    ratio_to_median: float


class Magnitudes(NamedTuple):
    """|x| of a layer's part and its medians (the lower of two middles).

    Args:
        size: |x|, `[kv_heads, tokens, head_dim]` float32, 0 where x is not finite.
        median: of all finite elements.
        of_head: `[kv_heads]`.
        of_token: `[kv_heads, tokens]`.
        of_channel: `[kv_heads, head_dim]`.
    """

    size: Tensor
    median: float
    of_head: Tensor
    of_token: Tensor
    of_channel: Tensor


def median_magnitude(x: Tensor) -> float:
    """Return the median |x| over finite elements (the lower of two middles), 0 where there are none."""
    magnitude = x.float().abs()
    if not magnitude.numel():
        return 0.0
    if not magnitude.amax().isfinite():
        magnitude = magnitude[magnitude.isfinite()]
    return float(lower_median(magnitude.flatten(), 0)) if magnitude.numel() else 0.0


def finite_amax(x: Tensor) -> float:
    """Return the largest finite |x|, 0 where there is none."""
    return float(_finite_magnitude(x).max()) if x.numel() else 0.0


def magnitudes(x: Tensor) -> Magnitudes:
    """Return |x| `[kv_heads, tokens, head_dim]` and the medians that every list below is measured against."""
    size = _finite_magnitude(x)
    if not x.numel():
        empty = (size.new_zeros(shape) for shape in (x.shape[:1], x.shape[:2], x.shape[::2]))
        return Magnitudes(size, 0.0, *empty)
    medians = (lower_median(size.flatten(1), -1), lower_median(size, -1), lower_median(size, -2))
    return Magnitudes(size, median_magnitude(x), *medians)


def channel_outliers(
    capture: Capture, part: str, limit: float = RATIO_LIMIT, share: float = SHARE_LIMIT
) -> list[ChannelOutlier]:
    """Return the outlier channels of all recorded layers, largest ratio first.

    Args:
        capture: what was recorded.
        part: `key` or `value`.
        limit: smallest ratio of a channel's amax to the layer's median |x|.
        share: smallest share of tokens at which |x| exceeds half of `limit` times the median.
    """
    found = []
    for layer in capture.layers:
        found += layer_channel_outliers(capture.part(part, layer), part, layer, limit, share)
    return sorted(found, key=lambda row: (-row.ratio_to_median, row.layer, row.head, row.channel))


def token_outliers(capture: Capture, part: str, limit: float = RATIO_LIMIT) -> list[TokenOutlier]:
    """Return the tokens whose largest |x| exceeds `limit` medians outside any outlier channel.

    One row a layer, head and token, with the channel where the peak is; largest ratio first.
    """
    found = []
    for layer in capture.layers:
        seen = magnitudes(capture.part(part, layer))
        found += layer_token_outliers(seen, part, layer, channels_of(seen, part, layer, limit), limit)
    return sorted(found, key=lambda row: (-row.ratio_to_median, row.layer, row.head, row.token))


def layer_channel_outliers(
    x: Tensor, part: str, layer: int, limit: float = RATIO_LIMIT, share: float = SHARE_LIMIT
) -> list[ChannelOutlier]:
    """Return one layer's outlier channels by head and channel; x is `[kv_heads, tokens, head_dim]`."""
    return channels_of(magnitudes(x), part, layer, limit, share)


def channels_of(
    seen: Magnitudes, part: str, layer: int, limit: float = RATIO_LIMIT, share: float = SHARE_LIMIT
) -> list[ChannelOutlier]:
    """Return the outlier channels of a layer that was measured, by head and channel."""
    size, median = seen.size, seen.median
    if median == 0:
        return []
    amax = size.amax(-2)  # [kv_heads, head_dim]
    shares = (size > limit / 2 * median).double().mean(-2)
    head_dim = size.shape[-1]
    return [
        ChannelOutlier(
            part,
            layer,
            head,
            channel,
            float(amax[head, channel]),
            float(amax[head, channel]) / median,
            float(shares[head, channel]),
            (channel + head_dim // 2) % head_dim if part == "key" else None,
        )
        for head, channel in ((amax >= limit * median) & (shares >= share)).nonzero().tolist()
    ]


def layer_token_outliers(
    seen: Magnitudes, part: str, layer: int, channels: list[ChannelOutlier], limit: float = RATIO_LIMIT
) -> list[TokenOutlier]:
    """Return one layer's loud tokens, by head and token; `channels` are its outlier channels."""
    if seen.median == 0:
        return []
    peaks, at = without(seen.size, channels).max(-1)
    rows = []
    for head, token in (peaks > limit * seen.median).nonzero().tolist():
        peak = float(peaks[head, token])
        rows.append(TokenOutlier(part, layer, head, token, int(at[head, token]), peak, peak / seen.median))
    return rows


def without(size: Tensor, channels: list[ChannelOutlier]) -> Tensor:
    """Return |x| with the outlier channels set to 0; a copy where there are any."""
    if not channels:
        return size
    size = size.clone()
    for row in channels:
        size[row.head, :, row.channel] = 0.0
    return size


def _finite_magnitude(x: Tensor) -> Tensor:
    magnitude = x.float().abs()
    if magnitude.numel() and not magnitude.amax().isfinite():
        magnitude = torch.where(magnitude.isfinite(), magnitude, 0.0)
    return magnitude


def lower_median(magnitude: Tensor, axis: int) -> Tensor:
    """Return the lower middle along an axis; NumPy's partition takes a tenth of torch's time."""
    middle = (magnitude.shape[axis] - 1) // 2
    last = np.ascontiguousarray(np.moveaxis(magnitude.numpy(), axis, -1))
    return torch.from_numpy(np.partition(last, middle)[..., middle].copy())
