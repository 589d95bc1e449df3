"""One KV head from the side: how large each channel is over the tokens, and each token over the channels.

Also where an outlier channel comes from: the bias of k_proj, and the partner that RoPE turns it with.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch

from mxviz._outliers_survey import survey
from mxviz.capture import Capture
from mxviz.outliers import ChannelOutlier

BAND = (0.05, 0.95)
"""Quantiles that a band runs between; linear interpolation."""

AGREE = 0.02
"""Relative difference at which two lengths are the same; bfloat16 keys differ by about 0.005."""


class Side(NamedTuple):
    """|x| along one axis, each `[n]` float32: largest, median (mean of two middles), and 5 % and 95 %.

    NaN where nothing is finite; `at` is the index along the other axis where the largest stands.
    """

    amax: np.ndarray
    median: np.ndarray
    low: np.ndarray
    high: np.ndarray
    at: np.ndarray


class HeadProfile(NamedTuple):
    """One KV head, seen along its channels and along its tokens.

    Args:
        channels: |x| of each channel over the tokens.
        tokens: |x| of each token over the channels that are no outliers.
        apart: largest |x| of the outlier channels at each token, `[tokens]`; None where there are none.
        median: median |x| of the layer's part, all heads.
        marked: the outlier channels of this head, largest ratio first.
        bias: |k_proj bias| on each channel, `[channels]`; None for values and where there is none.
        not_finite: NaN and infinite numbers of this head.
    """

    channels: Side
    tokens: Side
    apart: np.ndarray | None
    median: float
    marked: list[ChannelOutlier]
    bias: np.ndarray | None
    not_finite: int


@lru_cache(maxsize=32)
def head_profile(capture: Capture, layer: int, head: int, part: str) -> HeadProfile:
    """Return a head's profile; the last 32 answers are kept.

    Raises:
        ValueError: for a part, layer or head that was not recorded.
    """
    x = capture.part(part, layer)
    if not 0 <= head < x.shape[0]:
        raise ValueError(f"there is no KV head {head}; layer {layer} has heads 0 to {x.shape[0] - 1}")
    found = survey(capture, part)
    marked = [row for row in found.channels if (row.layer, row.head) == (layer, head)]
    size = x[head].float().abs().numpy()
    broken = ~np.isfinite(size)
    size = np.where(broken, np.float32(np.nan), size) if broken.any() else size
    out = [row.channel for row in marked]
    rest = np.delete(np.arange(size.shape[1]), out)
    beside = _side(size[:, rest], 1)
    bias = key_bias(capture, part, layer)
    return HeadProfile(
        channels=_side(size, 0),
        tokens=beside._replace(at=rest[beside.at] if rest.size else beside.at),
        apart=np.fmax.reduce(size[:, out], 1) if out else None,
        median=found.medians[layer],
        marked=marked,
        bias=None if bias is None else np.abs(bias[head]),
        not_finite=int(broken.sum()),
    )


def _side(size: np.ndarray, axis: int) -> Side:
    """Summarise |x| (NaN where it is not finite) over an axis."""
    count = size.shape[1 - axis]
    if size.shape[axis] == 0:
        nothing = np.full(count, np.nan, np.float32)
        return Side(nothing, nothing, nothing, nothing, np.zeros(count, int))
    filled = np.where(np.isnan(size), -1, size)
    wanted = [BAND[0], 0.5, BAND[1]]
    if (filled >= 0).all():
        low, median, high = np.quantile(size, wanted, axis=axis).astype(np.float32)
    else:
        low, median, high = _nan_quantiles(size, wanted, axis)
    amax = filled.max(axis)
    return Side(np.where(amax < 0, np.nan, amax), median, low, high, filled.argmax(axis))


def _nan_quantiles(size: np.ndarray, wanted: list[float], axis: int) -> np.ndarray:
    rows = np.moveaxis(size, axis, -1)
    real = [row[~np.isnan(row)] for row in rows]
    return np.array(
        [np.quantile(row, wanted) if row.size else [np.nan] * len(wanted) for row in real], np.float32
    ).T


def key_bias(capture: Capture, part: str, layer: int) -> np.ndarray | None:
    """Return the k_proj bias of a layer, `[kv_heads, head_dim]` float32; None for values or without one."""
    bias = capture.key_bias.get(layer) if part == "key" else None
    return None if bias is None else bias.float().numpy()


class Pairing(NamedTuple):
    """Which channels RoPE turns together.

    Args:
        partner: of each channel the one it is turned with; None where it is not turned.
        measured: whether the keys before RoPE were recorded and agree; otherwise half a head_dim is assumed.
    """

    partner: tuple[int | None, ...]
    measured: bool


@lru_cache(maxsize=256)
def rope_pairing(capture: Capture, layer: int) -> Pairing | None:
    """Return the pairing of a layer's keys, None where it is not known.

    RoPE turns channel i with i + width/2 and keeps the length of the pair. Where keys before RoPE were
    recorded, the width is the first of head_dim and its usual fractions at which all lengths agree (up to
    one factor, which YaRN applies). Where they were not, the half-split over the whole head_dim is assumed,
    as in Llama, Qwen, Mistral and Gemma.
    """
    after = capture.part("key", layer).float()
    head_dim, before = after.shape[-1], capture.keys_pre_rope.get(layer)
    if head_dim % 2:
        return None
    if before is None:
        return Pairing(_half_split(head_dim, head_dim), False)
    tokens = min(after.shape[1], before.shape[1])
    both = after[:, :tokens], before.float()[:, :tokens]
    if tokens > 1 and float((both[0] - both[1]).norm()) <= AGREE * float(both[0].norm()):
        return Pairing((None,) * head_dim, True)  # a layer without RoPE
    for share in (1.0, 0.75, 0.5, 0.4, 0.25, 0.125):
        width = int(head_dim * share) // 2 * 2
        if width and _lengths_agree(*both, width):
            return Pairing(_half_split(head_dim, width), True)
    return None


def _half_split(head_dim: int, width: int) -> tuple[int | None, ...]:
    turned = tuple((channel + width // 2) % width for channel in range(width))
    return turned + (None,) * (head_dim - width)


def _lengths_agree(after: torch.Tensor, before: torch.Tensor, width: int) -> bool:
    half = width // 2
    a, b = (torch.hypot(x[..., :half], x[..., half:width]).double().flatten() for x in (after, before))
    rest = after[..., width:] - before[..., width:]
    factor = float(a.dot(b) / b.dot(b)) if b.any() else 1.0
    off = float((a - factor * b).norm()), float(rest.norm())
    return off[0] <= AGREE * float(a.norm()) and off[1] <= AGREE * float(after[..., width:].norm())


class Origin(NamedTuple):
    """What the k_proj bias has to do with a channel's peak.

    Args:
        bias: its value on the channel, with its sign.
        reaches: how far the bias alone reaches, as a share of the peak: RoPE turns a channel and its partner
            into each other and keeps the length of the pair, so lengths are compared, at the token of the
            peak. Above 1 the rest of the key works against the bias there.
    """

    bias: float
    reaches: float | None


def origin(capture: Capture, layer: int, head: int, channel: int) -> Origin | None:
    """Return what the k_proj bias contributes to a key channel's peak; None where there is no bias."""
    bias = key_bias(capture, "key", layer)
    if bias is None:
        return None
    pairing = rope_pairing(capture, layer)
    partner = pairing.partner[channel] if pairing else None
    pair = [channel] if partner is None else [channel, partner]
    x = capture.part("key", layer)[head][:, pair].float().numpy()
    size = np.where(np.isfinite(x[:, 0]), np.abs(x[:, 0]), -1)
    there = float(np.linalg.norm(x[int(size.argmax())]))
    alone = float(np.linalg.norm(bias[head, pair]))
    known = np.isfinite(there) and there > 0
    return Origin(float(bias[head, channel]), alone / there if known else None)
