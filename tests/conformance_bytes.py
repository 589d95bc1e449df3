"""How many bytes a cache has to hold, and how far off what it packed is, without the cache's own sums."""

from __future__ import annotations

import math

import torch

from mxviz._cache_layers import MXLayer
from mxviz.cache import MXCache
from mxviz.formats import Axis, Recipe, ScaleFormat, Scheme
from tests.conformance_models import Family


def expected_bytes(family: Family, recipe: Recipe, seen: int, batch: int, itemsize: int) -> int:
    """Bytes of K and V after `seen` tokens, from bits per element, sinks, residual and windows alone."""
    total = 0
    for window in family.windows:
        if window == 0:
            continue
        for scheme, width in ((recipe.key, family.key), (recipe.value, family.value)):
            exact, packed, oldest = _split(scheme, recipe, seen, window)
            rows = batch * family.heads
            total += rows * exact * width * itemsize
            if packed and quantizes(recipe, window):
                total += rows * _packed_bytes(scheme, packed, width)
            if scheme.scale is ScaleFormat.E4M3 and quantizes(recipe, window):
                total += 4 * batch  # NVFP4's global scale
            assert oldest >= 0
    return total


def unit_of(scheme: Scheme) -> int:
    """Tokens that are packed together."""
    return scheme.block if scheme.is_blocked and scheme.axis is Axis.TOKEN else 1


def quantizes(recipe: Recipe, window: int | None) -> bool:
    """A window that holds no more than what stays exact is not quantized."""
    schemes = [s for s in (recipe.key, recipe.value) if not s.is_none]
    if not schemes:
        return False
    return window is None or any(window >= recipe.residual + unit_of(scheme) for scheme in schemes)


def _split(scheme: Scheme, recipe: Recipe, seen: int, window: int | None) -> tuple[int, int, int]:
    """Tokens held exact, tokens held packed, and the position of the oldest that is held."""
    held = seen if window is None else min(seen, window - 1)
    if scheme.is_none or not quantizes(recipe, window):
        return held, 0, seen - held
    sink = min(recipe.sink, seen) if window is None else 0
    unit, oldest = unit_of(scheme), max(seen - held, sink)
    end = sink + max(0, seen - sink - recipe.residual) // unit * unit  # packed up to here
    begin = sink + (oldest - sink) // unit * unit  # a block goes once it is wholly outside the window
    if end <= begin or end <= oldest:
        return held, 0, oldest
    return sink + seen - end, end - begin, oldest


def _packed_bytes(scheme: Scheme, tokens: int, width: int) -> int:
    """Codes, scales and zero points of one head."""
    along, across = (tokens, width) if unit_of(scheme) > 1 else (width, tokens)
    blocks = math.ceil(along / scheme.block)
    codes = math.ceil(along * scheme.element.bits / 8)
    per_block = {ScaleFormat.E8M0: 1, ScaleFormat.E4M3: 1, ScaleFormat.FLOAT16_ZERO: 4}[scheme.scale]
    return across * (codes + blocks * per_block)


def worst_sqnr(held: MXCache) -> tuple[float, float]:
    """Lowest and highest SQNR in dB of what is packed of K and V, over the layers."""
    found = []
    for index, layer in enumerate(held.layers):
        if not isinstance(layer, MXLayer):
            continue
        for store, stored, came in zip(
            layer.stores, (layer.keys, layer.values), held.recorded(index), strict=True
        ):
            packed = store.packed_tokens - store.gone
            if packed:
                first = len(store.sinks)
                rows = slice(first, first + packed)
                want = came[:, :, -store.held :][:, :, rows].double()
                off = stored[:, :, rows].double() - want
                found.append(10 * torch.log10(want.square().sum() / off.square().sum()).item())
    return min(found), max(found)
