"""A layer at a glance: what each way of cutting it into blocks flushes, and how long its rulers are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from mxviz.capture import Capture
from mxviz.formats import SCHEMES, Axis, Recipe, Scheme
from mxviz.metrics import kept_trip, layer_trip, recipe_of
from mxviz.outliers import finite_amax, median_magnitude
from mxviz.quantize import decode_scale


def flushed_by_cut(
    capture: Capture, layer: int, part: str, recipe: Recipe | str, baseline: Recipe | str
) -> list[tuple[Scheme, float | None]]:
    """Return the share of a layer's part that becomes zero (0 to 1) under each way to cut it.

    First one scale for all (the baseline's, and that of integers as wide), then a scale per block along
    channels and along tokens. Sinks and rotation are the recipe's, and no layer is skipped; None is a share
    of nothing.
    """
    recipe, baseline = recipe_of(capture, recipe), recipe_of(capture, baseline)
    micro, single = recipe.scheme(part), baseline.scheme(part)
    ways = [] if single.is_none else [single]
    integers = SCHEMES.get(f"int{single.element.bits}@tensor") if ways and not single.is_blocked else None
    ways += [integers] if integers else []
    ways += [replace(micro, axis=axis) for axis in Axis] if micro.is_blocked else [micro]
    shares = []
    for scheme in dict.fromkeys(way for way in ways if not way.is_none):
        trip = kept_trip(capture, replace(recipe, key=scheme, value=scheme, skip=()), part, layer)
        non_zero = int(trip.stored_from.count_nonzero())
        shares.append((scheme, int(trip.flushed.count_nonzero()) / non_zero if non_zero else None))
    return shares


def loudness(capture: Capture, part: str) -> np.ndarray:
    """Return the largest finite |x| of each head over the median |x| of its layer's part.

    Returns:
        `[layers, kv_heads]` float64, NaN where that median is 0: `ratio` of `mxviz.analysis.layer_overview`,
        which quantizes everything besides.
    """
    rows = []
    for layer in capture.layers:
        x = capture.part(part, layer)
        median = median_magnitude(x)
        rows.append([finite_amax(head) / median if median else np.nan for head in x])
    return np.array(rows)


def mean_exponents(capture: Capture, part: str, recipe: Recipe | str | None = None) -> np.ndarray:
    """Return the mean log2 of each head's scales, `[layers, kv_heads]` float64.

    NVFP4's global scale is part of it; NaN where a head has no scale, or none but those of blocks of zeros.
    """
    recipe = recipe_of(capture, capture.recipe if recipe is None else recipe)
    return np.stack([_exponents(capture, recipe, part, layer) for layer in capture.layers])


def _exponents(capture: Capture, recipe: Recipe, part: str, layer: int) -> np.ndarray:
    blocks, heads = layer_trip(capture, recipe, part, layer).blocks, capture.part(part, layer).shape[0]
    if blocks is None:
        return np.full(heads, np.nan)
    scale = decode_scale(blocks.scales, blocks.scheme).double()
    if blocks.global_scale is not None:
        scale = scale * blocks.global_scale
    scale = scale.expand(heads, *scale.shape[1:]).flatten(1)
    known = scale.isfinite() & (scale > 2.0**-127)  # E8M0's byte 0 is a block of zeros
    total = torch.where(known, scale, 1.0).log2().sum(1)
    return (total / known.sum(1)).numpy()  # 0/0 is NaN
