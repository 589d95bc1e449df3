"""Rotation, sinks, and the round trip in one pass."""

from __future__ import annotations

import pytest
import torch
from cache_cases import config, fill, mx, reachable_bytes, states

from mxviz._hadamard import hadamard, rotate, unrotate
from mxviz.cache import RoundTripCache
from mxviz.quantize import quantize


def test_sinks_are_bit_exact():  # Q6
    k, v = states(50)
    cache = mx("mxfp4;sink=4")
    fill(cache, k, v, [2, 1, 47])
    keys = cache.layers[0].keys
    assert torch.equal(keys[:, :, :4], k[:, :, :4]) and not torch.equal(keys[:, :, 4:], k[:, :, 4:])


@pytest.mark.parametrize("n", [1, 2, 12, 20, 24, 40, 64, 80, 96, 128])
def test_hadamard_is_orthonormal(n):
    matrix = hadamard(n)
    assert torch.allclose(matrix @ matrix.T, torch.eye(n), atol=1e-5)
    assert torch.allclose(matrix.abs(), torch.full((n, n), n**-0.5))
    x = torch.randn(3, 5, n)
    assert torch.allclose(rotate(x), x @ matrix, atol=1e-5)
    assert torch.allclose(unrotate(rotate(x)), x, atol=1e-5)


def test_rotation_turns_what_is_packed_alone():
    k, v = states(60)
    cache = mx("mxfp4;sink=4;residual=8;rotate=1")
    fill(cache, k, v, [30, 30])
    keys = cache.layers[0].keys
    assert torch.equal(keys[:, :, :4], k[:, :, :4]) and torch.equal(keys[:, :, 52:], k[:, :, 52:])
    assert torch.equal(cache.blocks(0, "key").packed, quantize(rotate(k[:, :, 4:52]), "mxfp4").packed)
    plain = mx("mxfp4;sink=4;residual=8")
    fill(plain, k, v, [30, 30])
    error = [(c.layers[0].keys - k).square().mean() for c in (cache, plain)]
    assert error[0] < error[1] * 0.8, "K has an outlier channel"


@pytest.mark.parametrize("scheme", ["mxfp4", "nvfp4", "aint4:axis=token", "int4@tensor", "mxfp4;residual=16"])
def test_round_trip_is_quantize_and_dequantize_of_the_whole(scheme):
    k, v = states(45, batch=2)
    bare = scheme.partition(";")[0]
    cache = RoundTripCache(config(layers=2), f"{scheme};sink=4;skip=1", backend="reference")
    keys, values = cache.update(k, v, 0)
    for got, x in ((keys, k), (values, v)):
        assert torch.equal(got[:, :, :4], x[:, :, :4])
        assert torch.equal(got[:, :, 4:], quantize(x[:, :, 4:], bare).dequantize())
    keys, values = cache.update(k, v, 1)
    assert keys is k and values is v
    assert cache.get_seq_length() == 0 and reachable_bytes(cache) == 0


def test_round_trip_of_none_is_its_input_and_rotation_holds():
    k, v = states(20)
    keys, values = RoundTripCache(config(), "none").update(k, v, 0)
    assert keys is k and values is v
    keys, _ = RoundTripCache(config(), "mxfp4;rotate=1", backend="reference").update(k, v, 0)
    assert torch.equal(keys, unrotate(quantize(rotate(k), "mxfp4").dequantize()))
