"""All outliers of a capture in one pass: channels, loud and quiet tokens, single values."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from mxviz.capture import Capture
from mxviz.outliers import (
    RATIO_LIMIT,
    ChannelOutlier,
    Magnitudes,
    TokenOutlier,
    channels_of,
    layer_token_outliers,
    magnitudes,
    without,
)

QUIET_LIMIT = 5.0
"""How often its head's median |x| exceeds that of a token that is called quiet.

Attention sinks (StreamingLLM, arXiv 2309.17453) show in a cache by what they lack: in Qwen2.5 and SmolLM2 the
median of the first token lies 20 to 30 times below its head's in most heads, while the medians of tokens of
a Gaussian, 64 channels wide, stay within a third of each other.
"""


class QuietToken(NamedTuple):
    """One token whose keys (or values) are small in most channels, as those of attention sinks are.

    Args:
        part, layer, head, token: where.
        median: the token's median |x| over the channels of the head.
        share_of_median: that over the median |x| of the head.
    """

    part: str
    layer: int
    head: int
    token: int
    median: float
    share_of_median: float


class ValueOutlier(NamedTuple):
    """One number that towers over its own channel, its own token and its layer.

    Args:
        part, layer, head, token, channel: where.
        value: the number, with its sign.
        ratio: |value| over the largest of the median |x| of its channel, of its token and of the layer.
    """

    part: str
    layer: int
    head: int
    token: int
    channel: int
    value: float
    ratio: float


class Survey(NamedTuple):
    """The outliers of a part of all recorded layers, and what every token and channel is measured by.

    Args:
        channels: outlier channels, largest ratio first.
        tokens: tokens that are loud outside the outlier channels, largest ratio first.
        quiet: tokens that are quiet, quietest first.
        values: single values, largest ratio first.
        medians: layer to the median |x| of its part.
        not_finite: layer to how many of its numbers are NaN or infinite; layers without any are left out.
        channel_amax: layer to `[kv_heads, head_dim]`, largest finite |x|.
        token_amax: layer to `[kv_heads, tokens]`, the same outside the outlier channels.
        head_median: layer to `[kv_heads]`.
        token_median: layer to `[kv_heads, tokens]`, over all channels.
    """

    channels: list[ChannelOutlier]
    tokens: list[TokenOutlier]
    quiet: list[QuietToken]
    values: list[ValueOutlier]
    medians: dict[int, float]
    not_finite: dict[int, int]
    channel_amax: dict[int, np.ndarray]
    token_amax: dict[int, np.ndarray]
    head_median: dict[int, np.ndarray]
    token_median: dict[int, np.ndarray]


@lru_cache(maxsize=8)
def survey(capture: Capture, part: str) -> Survey:
    """Return the outliers of a capture's keys or values; the last eight answers are kept.

    Raises:
        ValueError: for a part that is neither `key` nor `value`.
    """
    found = Survey([], [], [], [], {}, {}, {}, {}, {}, {})
    for layer in capture.layers:
        _add(found, capture.part(part, layer), part, layer)
    place = lambda row: row[1:-1]  # noqa: E731
    found.channels.sort(key=lambda row: (-row.ratio_to_median, place(row)))
    found.tokens.sort(key=lambda row: (-row.ratio_to_median, place(row)))
    found.quiet.sort(key=lambda row: (row.share_of_median, place(row)))
    found.values.sort(key=lambda row: (-row.ratio, place(row)))
    return found


def _add(found: Survey, x: Tensor, part: str, layer: int) -> None:
    seen = magnitudes(x)
    channels = channels_of(seen, part, layer)
    found.channels.extend(channels)
    found.tokens.extend(layer_token_outliers(seen, part, layer, channels))
    found.quiet.extend(layer_quiet_tokens(seen, part, layer))
    found.values.extend(layer_value_outliers(x, seen, part, layer, channels))
    found.medians[layer] = seen.median
    found.channel_amax[layer] = seen.size.amax(-2).numpy()
    found.token_amax[layer] = without(seen.size, channels).amax(-1).numpy()
    found.head_median[layer] = seen.of_head.numpy()
    found.token_median[layer] = seen.of_token.numpy()
    if broken := not_finite(x):
        found.not_finite[layer] = broken


def not_finite(x: Tensor) -> int:
    """Return how many numbers of x are NaN or infinite."""
    if not x.numel() or x.float().abs().amax().isfinite():
        return 0
    return int((~x.isfinite()).sum())


def layer_quiet_tokens(
    seen: Magnitudes, part: str, layer: int, limit: float = QUIET_LIMIT
) -> list[QuietToken]:
    """Return one layer's quiet tokens, by head and token."""
    if not seen.size.numel():
        return []
    of_head = seen.of_head[:, None]
    share = seen.of_token / of_head
    return [
        QuietToken(part, layer, head, token, float(seen.of_token[head, token]), float(share[head, token]))
        for head, token in (seen.of_token * limit < of_head).nonzero().tolist()
    ]


def layer_value_outliers(
    x: Tensor,
    seen: Magnitudes,
    part: str,
    layer: int,
    channels: list[ChannelOutlier],
    limit: float = RATIO_LIMIT,
) -> list[ValueOutlier]:
    """Return one layer's single values that tower over their surroundings, outside its outlier channels."""
    if seen.median == 0:
        return []
    around = torch.maximum(seen.of_token[:, :, None], seen.of_channel[:, None, :]).clamp(min=seen.median)
    ratio = without(seen.size, channels) / around
    return [
        ValueOutlier(part, layer, *at, float(x[tuple(at)]), float(ratio[tuple(at)]))
        for at in (ratio > limit).nonzero().tolist()
    ]
