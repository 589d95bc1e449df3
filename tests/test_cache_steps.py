"""A step like the last one takes a short way through store and attention: it must hold the same."""

from __future__ import annotations

import copy
import random

import pytest
import torch

from mxviz import ops
from mxviz.cache import MXCache
from tests.cache_cases import config, same, states, stored

RECIPES = ("mxfp4", "mxint8", "aint4", "nvfp4", "int4@token", "mxfp4;sink=4", "mxfp4;residual=5")
ALONG = ("k=mxfp4:axis=token;v=mxfp4", "mxfp6_e2m3;rotate=1")
ACTIONS = ("one", "one", "one", "one", "several", "crop", "copy", "reorder", "repeat", "look back")


@pytest.mark.parametrize("recipe", RECIPES + ALONG)
@pytest.mark.parametrize("seed", range(3))
def test_short_steps_hold_what_long_ones_do(recipe, seed):
    """`short` steps as under the attention function "mxviz", `long` as under any other."""
    if ops.why_missing("cpu"):
        pytest.fail(f"the cpu backend is missing: {ops.why_missing('cpu')}")
    draw, short, long = random.Random(seed), *(MXCache(config(), recipe, backend="cpu") for _ in range(2))
    batch, at = 2, 24
    k, v = states(400, batch=8, seed=seed)
    short.update(k[:batch, :, :at], v[:batch, :, :at], 0)
    long.update(k[:batch, :, :at], v[:batch, :, :at], 0)
    handed: list[tuple] = []
    for _ in range(60):
        match draw.choice(ACTIONS):
            case "one":
                at, part = at + 1, _update(short, long, k[:batch, :, at : at + 1], v[:batch, :, at : at + 1])
                handed = [*handed[-2:], (part, long.layers[0].keys.clone())]
                _attends(part, long, seed=at)
            case "several":
                _update(short, long, k[:batch, :, at : at + 3], v[:batch, :, at : at + 3])
                at += 3
            case "crop":
                short.crop(-2), long.crop(-2)
                handed = []  # views keep their values until a crop
            case "copy":
                short = copy.deepcopy(short)
            case "reorder":
                index = torch.tensor([draw.randrange(batch) for _ in range(batch)])
                short.reorder_cache(index), long.reorder_cache(index)
            case "repeat" if batch < 8:
                batch *= 2
                short.batch_repeat_interleave(2), long.batch_repeat_interleave(2)
            case "look back":
                for part, keys in handed:
                    assert torch.equal(ops.unpack(part.part, torch.float32, backend="cpu"), keys)
        assert same(stored(short), stored(long))


def _update(short: MXCache, long: MXCache, k: torch.Tensor, v: torch.Tensor):
    short.get_mask_sizes(k.shape[2], 0)
    short.begin_packed_pass(None, k.shape[2])
    long.update(k, v, 0)
    return short.update(k, v, 0)[0]


def _attends(key, long: MXCache, seed: int) -> None:
    """Attention over what was handed out, keys as values, against softmax over what the long way holds."""
    keys = long.layers[0].keys.double()
    query = torch.randn(keys.shape[0], 4, 1, 32, generator=torch.Generator().manual_seed(seed)) / 4
    found = ops.attend(query, key.part, key.part, scaling=0.2, backend="cpu").double()
    keys = keys.repeat_interleave(2, dim=1)
    wanted = (query.double() @ keys.mT * 0.2).softmax(-1) @ keys
    assert (found - wanted).norm() <= 1e-5 * wanted.norm()
