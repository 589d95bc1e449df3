"""Capture × recipe → plain NumPy tables for pages and figures, which never see torch.

Scales are taken over the whole recorded tensor, the kindest baseline; sinks and skipped layers stay exact
and the residual is ignored, as in the effect measurement.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mxviz.capture import Capture
from mxviz.formats import Axis, Recipe, Scheme
from mxviz.metrics import (
    RoundTrip,
    cut,
    error_stats,
    error_sums,
    kept_trip,
    layer_trip,
    recipe_of,
    sinks_of,
)
from mxviz.outliers import finite_amax, layer_channel_outliers, median_magnitude
from mxviz.quantize import decode_scale
from mxviz.race import race as race
from mxviz.race import race_schemes as race_schemes


class HeadView(NamedTuple):
    """One KV head of one layer under the micro-scaled recipe and its baseline.

    Args:
        tokens: token texts, literal, one a row of x.
        x: `[tokens, head_dim]` float32, as the model produced it.
        scales: the micro-scaled lane's decoded scales, float32; `[tokens, blocks]` for axis=channel,
            `[blocks, head_dim]` for axis=token, block 0 beginning at token `sink`. NaN where the block is
            broken or the token stays exact; NVFP4's include its global scale.
        scale_bytes: the same as stored, int16; -1 where no scale byte is stored.
        axis: `channel` or `token`, the way blocks run; of a single-scale recipe, `channel`.
        block: elements in a block; None for single-scale schemes and `none`.
        sink: first tokens that stay exact.
        micro: what the recipe's bytes decode to, `[tokens, head_dim]` float32.
        single: what the baseline's decode to.
        micro_clipped: bool `[tokens, head_dim]`, likewise micro_flushed, single_clipped, single_flushed;
            counted rotated where the recipe rotates.
        single_scales: the baseline's scales, float32, 1 in each direction that shares one.
        micro_stats: sqnr_db, mse, flushed, clipped of this head; see `mxviz.metrics.error_stats`.
        single_stats: the same for the baseline.
        micro_text: the recipe's scheme in words, rule included.
        single_text: the baseline's.
        amax: largest finite |x| of this head.
        median: median |x| of the whole layer's part.
        not_finite: NaN and infinite elements of x in this head.
        marked_channels: outlier channels of this head, ascending.
    """

    tokens: list[str]
    x: np.ndarray
    scales: np.ndarray
    scale_bytes: np.ndarray
    axis: str
    block: int | None
    sink: int
    micro: np.ndarray
    single: np.ndarray
    micro_clipped: np.ndarray
    micro_flushed: np.ndarray
    single_clipped: np.ndarray
    single_flushed: np.ndarray
    single_scales: np.ndarray
    micro_stats: dict[str, float | None]
    single_stats: dict[str, float | None]
    micro_text: str
    single_text: str
    amax: float
    median: float
    not_finite: int
    marked_channels: list[int]


class LayerOverview(NamedTuple):
    """Every recorded layer and KV head at a glance; tables are `[layers, kv_heads]` float64, NaN for n/a.

    Args:
        layers: layer numbers, one a row.
        amax: largest finite |x|.
        ratio: amax over the median |x| of the layer's part.
        micro_sqnr, single_sqnr: dB; infinite where the copy is perfect.
        micro_flushed, single_flushed: shares of non-zero elements, 0 to 1.
        micro_clipped, single_clipped: shares of finite elements, 0 to 1.
    """

    layers: list[int]
    amax: np.ndarray
    ratio: np.ndarray
    micro_sqnr: np.ndarray
    single_sqnr: np.ndarray
    micro_flushed: np.ndarray
    single_flushed: np.ndarray
    micro_clipped: np.ndarray
    single_clipped: np.ndarray


def head_view(
    capture: Capture,
    layer: int,
    head: int,
    part: str,
    recipe: Recipe | str | None = None,
    baseline: Recipe | str | None = None,
) -> HeadView:
    """Return everything a page shows of one head; recipe and baseline default to the capture's own.

    Raises:
        ValueError: for a part, layer or head that was not recorded, or a recipe that does not parse.
    """
    recipe, baseline = _recipes(capture, recipe, baseline)
    x = capture.part(part, layer)
    if not 0 <= head < x.shape[0]:
        raise ValueError(f"KV head {head} does not exist in layer {layer}; expected 0 to {x.shape[0] - 1}")
    micro = kept_trip(capture, recipe, part, layer)
    single = kept_trip(capture, baseline, part, layer)
    micro_head, single_head, x_head = cut(micro, head), cut(single, head), x[head].float()
    scheme = recipe.scheme(part)
    sink, single_sink = (sinks_of(capture, lane, layer) for lane in (recipe, baseline))
    scales, scale_bytes = _scale_tables(micro, scheme, head, sink)
    single_scales, _ = _scale_tables(single, baseline.scheme(part), head, single_sink)
    return HeadView(
        tokens=list(capture.token_texts[: x.shape[1]]),
        x=x_head.numpy(),
        scales=scales,
        scale_bytes=scale_bytes,
        axis=scheme.axis.value,
        block=scheme.block if scheme.is_blocked else None,
        sink=min(sink, x.shape[1]),
        micro=micro_head.x_hat.numpy(),
        single=single_head.x_hat.numpy(),
        micro_clipped=micro_head.clipped.numpy(),
        micro_flushed=micro_head.flushed.numpy(),
        single_clipped=single_head.clipped.numpy(),
        single_flushed=single_head.flushed.numpy(),
        single_scales=single_scales,
        micro_stats=error_stats(error_sums(x_head, micro_head)),
        single_stats=error_stats(error_sums(x_head, single_head)),
        micro_text=_words(recipe, part, layer),
        single_text=_words(baseline, part, layer),
        amax=finite_amax(x_head),
        median=median_magnitude(x),
        not_finite=int((~x_head.isfinite()).sum()),
        marked_channels=[row.channel for row in layer_channel_outliers(x, part, layer) if row.head == head],
    )


def relative_error(x: np.ndarray, x_hat: np.ndarray) -> np.ndarray:
    """Return |x − x̂| / |x|, held at 1 and in float32, for the maps of what is lost.

    0/0 gives 0 (nothing was lost), a non-zero x̂ for x = 0 gives 1, and NaN stays NaN.
    """
    noise, signal = np.abs(x.astype(np.float64) - x_hat), np.abs(x.astype(np.float64))
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(noise == 0, 0.0, noise / signal)
    return np.minimum(ratio, 1.0).astype(np.float32)


def layer_overview(
    capture: Capture,
    part: str,
    recipe: Recipe | str | None = None,
    baseline: Recipe | str | None = None,
) -> LayerOverview:
    """Return amax, SQNR, flushed and clipped of every recorded layer and KV head."""
    recipe, baseline = _recipes(capture, recipe, baseline)
    rows = [_overview_row(capture, part, layer, recipe, baseline) for layer in capture.layers]
    return LayerOverview(list(capture.layers), *np.array(rows, dtype=np.float64).transpose(2, 0, 1))


def _recipes(
    capture: Capture, recipe: Recipe | str | None, baseline: Recipe | str | None
) -> tuple[Recipe, Recipe]:
    return (
        recipe_of(capture, capture.recipe if recipe is None else recipe),
        recipe_of(capture, capture.baseline if baseline is None else baseline),
    )


def _overview_row(
    capture: Capture, part: str, layer: int, recipe: Recipe, baseline: Recipe
) -> list[tuple[float, ...]]:
    """One layer's numbers of `LayerOverview`, a tuple a head."""
    x = capture.part(part, layer).float()
    trips = [layer_trip(capture, lane, part, layer) for lane in (recipe, baseline)]
    median = median_magnitude(x)
    row = []
    for head in range(x.shape[0]):
        stats = [error_stats(error_sums(x[head], cut(trip, head))) for trip in trips]
        amax = finite_amax(x[head])
        numbers = [lane[name] for name in ("sqnr_db", "flushed", "clipped") for lane in stats]
        ratio = amax / median if median else np.nan
        row.append((amax, ratio, *(np.nan if n is None else n for n in numbers)))
    return row


def _scale_tables(trip: RoundTrip, scheme: Scheme, head: int, sink: int) -> tuple[np.ndarray, np.ndarray]:
    """One head's decoded scales (float32) and scale bytes (int16, -1 for none), shaped as in `HeadView`."""
    tokens, head_dim = trip.x_hat.shape[-2:]
    if trip.blocks is None:
        per_token = scheme.is_blocked and scheme.axis is Axis.CHANNEL
        shape = (tokens, -(-head_dim // scheme.block)) if per_token else (1, 1)
        return np.full(shape, np.nan, np.float32), np.full(shape, -1, np.int16)
    stored = trip.blocks.scales
    scales = decode_scale(stored, trip.blocks.scheme)
    if trip.blocks.global_scale is not None:
        scales = scales * trip.blocks.global_scale
    own = min(head, stored.shape[0] - 1)  # one scale for all heads has a first dimension of 1
    is_byte = not stored.dtype.is_floating_point
    table = scales[own].numpy()
    stored = stored[own].numpy().astype(np.int16) if is_byte else np.full(table.shape, -1, np.int16)
    exact_rows = tokens - table.shape[0] if table.shape[0] == tokens - sink else 0
    if scheme.axis is Axis.TOKEN:
        exact_rows = 0  # rows are blocks, the first of which begins behind the sinks
    before = ((exact_rows, 0), (0, 0))
    return np.pad(table, before, constant_values=np.nan), np.pad(stored, before, constant_values=-1)


def _words(recipe: Recipe, part: str, layer: int) -> str:
    text = "uncompressed, as the recipe skips this layer" if layer in recipe.skip else None
    return text or recipe.scheme(part).describe()
