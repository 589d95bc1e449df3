"""Layers whose attention slides."""

from __future__ import annotations

import pytest
import tiny
import torch
from cache_cases import fill, mx, reachable_bytes, same, sliding, states, stored

from mxviz.cache import MXCache


@pytest.mark.parametrize("recipe", ["none", "fp8_e4m3@one", "mxint8"])
def test_a_window_of_eight(recipe):  # G6
    cache = sliding(recipe)
    steps = [10 + i / 10 for i in range(10)]
    x = torch.tensor(steps).view(1, 1, 10, 1).expand(1, 2, 10, 32)
    tolerance = 0 if recipe == "none" else 0.7
    keys, _ = cache.update(x[:, :, :6], x[:, :, :6], 0)
    for t in range(6, 10):
        assert cache.get_mask_sizes(1, 0) == (min(t + 1, 8), max(0, t - 7))
        keys, _ = cache.update(x[:, :, t : t + 1], x[:, :, t : t + 1], 0)
        want = x[:, :, max(0, t - 7) : t + 1]
        assert keys.shape == want.shape and (keys - want).abs().max() <= tolerance
    assert cache.get_seq_length() == 10 and cache.tokens_held == 7


@pytest.mark.parametrize(
    "recipe", ["mxfp4", "mxfp4:axis=token", "mxfp4:axis=token;residual=16", "int4@token", "none"]
)
def test_windows_hold_what_transformers_holds(recipe):
    cache, full = sliding(recipe, window=80), mx(recipe)
    k, v = states(400)
    start = 0
    for n in (3, 200, 1, 1, 50, *[1] * 100, 45):
        chunk = k[:, :, start : start + n], v[:, :, start : start + n]
        length, offset = cache.get_mask_sizes(n, 0)
        keys, values = cache.update(*chunk, 0)
        all_keys, all_values = full.update(*chunk, 0)
        start += n
        assert keys.shape[2] == length and offset + length == start
        assert torch.equal(keys, all_keys[:, :, offset:]) and torch.equal(values, all_values[:, :, offset:])
        assert cache.tokens_held == min(start, 79)
        assert torch.equal(cache.layers[0].keys, full.layers[0].keys[:, :, -79:])
    assert reachable_bytes(cache) == cache.allocated_bytes < full.allocated_bytes


def test_sinks_are_ignored_where_a_window_slides():
    with_sinks, without = sliding("mxfp4;sink=4"), sliding("mxfp4")
    for cache in (with_sinks, without):
        fill(cache, *states(20), [20])
    assert same(stored(with_sinks), stored(without))


def test_a_window_that_would_quantize_nothing_is_refused_or_marked():
    for recipe in ("mxfp4:axis=token", "mxfp4;residual=8", "kivi4"):
        with pytest.raises(ValueError, match="window of 8 tokens"):
            sliding(recipe)
    assert not sliding("k=mxfp4:axis=token;v=mxfp4").not_quantized
    assert not sliding("none").not_quantized
    cache = MXCache(tiny.gemma3().config, "mxfp4:axis=token")
    assert list(cache.not_quantized) == [0] and "window of 8" in cache.not_quantized[0]
