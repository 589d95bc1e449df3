"""Beams, crops, padding, refusals and devices."""

from __future__ import annotations

import copy

import pytest
import torch
from cache_cases import config, fill, mx, reachable_bytes, same, sliding, states, stored

from mxviz.cache import MXCache, RoundTripCache
from mxviz.quantize import quantize


@pytest.mark.parametrize(
    "recipe", ["mxfp4;residual=16", "k=nvfp4:axis=token;v=aint4;sink=4", "int4@channel;rotate=1", "none"]
)
def test_beams_are_reordered_without_quantizing_again(recipe):  # G1
    k, v = states(80, batch=2)
    cache = mx(recipe, record=True)
    fill(cache, k, v, [70, *[1] * 10])
    before, keys = stored(cache), cache.layers[0].keys
    other = copy.deepcopy(cache)

    cache.reorder_cache(torch.tensor([1, 0]))
    assert same(stored(cache), [t.flip(0) for t in before])
    assert torch.equal(cache.layers[0].keys, keys.flip(0))
    assert torch.equal(cache.recorded(0)[0], k.flip(0))
    assert same(stored(other), before), "a deep copy is independent"

    other.batch_repeat_interleave(2)
    assert torch.equal(other.layers[0].keys, keys[[0, 0, 1, 1]])
    other.batch_select_indices(torch.tensor([3, 1]))
    assert torch.equal(other.layers[0].keys, keys[[1, 0]])
    other.batch_select_indices(torch.tensor([False, True]))
    assert torch.equal(other.layers[0].keys, keys[:1])
    other.update(k[:1, :, :1], v[:1, :, :1], 0)
    assert (
        other.get_seq_length() == 81 and reachable_bytes(other) == other.allocated_bytes + other.record_bytes
    )


def test_one_config_serves_two_caches_unchanged():  # G1
    of = config(layers=2)
    before = copy.deepcopy(of.to_dict())
    first, second = mx("mxfp4;skip=1", of=of), mx("nvfp4", of=of)
    fill(first, *states(3), [3])
    assert of.to_dict() == before and second.get_seq_length() == 0


@pytest.mark.parametrize("recipe", ["mxfp4;residual=8", "mxfp4:axis=token", "none", "int4@tensor;sink=4"])
def test_crop_and_reset(recipe):
    k, v = states(100)
    cache, shorter = mx(recipe), mx(recipe)
    fill(cache, k, v, [40, 60])
    kept = cache.layers[0].keys
    cache.crop(-30)
    assert cache.get_seq_length() == cache.tokens_held == 70
    assert torch.equal(cache.layers[0].keys, kept[:, :, :70])
    cache.crop(0)
    assert cache.get_seq_length() == 70
    cache.crop(50)  # the older way: the length that stays
    assert torch.equal(cache.layers[0].keys, kept[:, :, :50])
    cache.update(k[:, :, 50:], v[:, :, 50:], 0)
    assert torch.equal(cache.layers[0].keys[:, :, :32], kept[:, :, :32])
    cache.reset()
    assert cache.get_seq_length() == cache.nbytes == cache.allocated_bytes == reachable_bytes(cache) == 0
    for c in (cache, shorter):
        fill(c, k, v, [100])
    assert same(stored(cache), stored(shorter))


@pytest.mark.parametrize("recipe", ["mxfp4;residual=8", "mxfp4:axis=token", "nvfp4;sink=4", "none"])
def test_a_recorded_past_is_cropped_without_a_trace(recipe):
    k, v = states(120)
    for make in (mx, lambda r: sliding(r, window=64)):
        cache, plain = make(recipe), make(recipe)
        cache.update(k[:, :, :50], v[:, :, :50], 0)
        cache.activate_past_recording()
        for start in (50, 70, 90):
            rejected = torch.full((1, 2, 10, 32), 9.0)
            cache.update(*(torch.cat((x[:, :, start : start + 20], rejected), dim=2) for x in (k, v)), 0)
            cache.crop(-10)
        fill(plain, k[:, :, :110], v[:, :, :110], [50, 20, 20, 20])
        assert cache.get_seq_length() == 110 and same(stored(cache), stored(plain))
        assert cache.nbytes == plain.nbytes


def test_a_window_cannot_bring_back_what_it_left_behind():
    cache = sliding("mxfp4", window=8)
    fill(cache, *states(20), [20])
    with pytest.raises(ValueError, match="activate_past_recording"):
        cache.crop(-5)


@pytest.mark.parametrize(
    "recipe",
    ["mxfp4", "nvfp4", "int4@tensor", "mxfp4:axis=token", "aint4:axis=token", "int8@channel;rotate=1"],
)
@pytest.mark.parametrize("left", [True, False])
def test_padding_never_alters_real_rows(recipe, left):  # G7
    k, v = states(64, batch=2)
    pads = slice(0, 40) if left else slice(24, 64)
    mask = torch.ones(2, 64)
    mask[1, pads] = 0
    k[1, :, pads], v[1, :, pads] = 1e6, torch.nan
    real = mask[1].bool()

    batched = mx(recipe)
    batched.set_padding(mask)
    fill(batched, k, v, [64])
    alone = [mx(recipe), mx(recipe)]
    fill(alone[0], k[:1], v[:1], [64])
    fill(alone[1], k[1:, :, real], v[1:, :, real], [24])
    for name in ("keys", "values"):
        got = getattr(batched.layers[0], name)
        assert torch.equal(got[:1], getattr(alone[0].layers[0], name))
        assert got.isfinite().all()
    if "token" not in recipe:  # along tokens, padding shifts where blocks begin
        for name in ("keys", "values"):
            assert torch.equal(
                getattr(batched.layers[0], name)[1:, :, real], getattr(alone[1].layers[0], name)
            )
    fixed = [c.layers[0].key.fixed for c in (batched, *alone)]
    assert fixed[0] is None or torch.equal(fixed[0], torch.cat(fixed[1:]))
    assert reachable_bytes(batched) == batched.allocated_bytes


def test_padding_inside_a_block_along_tokens_moves_no_zero_point():
    k, v = states(32)
    k = k + 50
    mask = torch.ones(1, 32)
    mask[0, :8] = 0
    cache = mx("aint4:axis=token")
    cache.set_padding(mask)
    cache.update(k, v, 0)
    want = quantize(k[:, :, 8:], "aint4:axis=token")
    assert torch.equal(cache.blocks(0, "key").zeros, want.zeros)
    assert torch.equal(cache.blocks(0, "key").scales, want.scales)
    assert torch.equal(cache.layers[0].keys[:, :, 8:], want.dequantize())


def test_a_padding_mask_of_the_wrong_length_raises():  # G8
    cache = mx()
    cache.set_padding(torch.tensor([[0, 1, 1]]))
    with pytest.raises(ValueError, match="mask of all tokens"):
        cache.update(*states(5), 0)
    fill(cache, *states(3), [3])
    with pytest.raises(ValueError, match="3 tokens that are held"):
        cache.set_padding(torch.ones(1, 2))
    with pytest.warns(UserWarning, match="sink=4"):
        mx("mxfp4;sink=4").set_padding(torch.tensor([[0, 1, 1], [1, 1, 1]]))


@pytest.mark.parametrize(
    ("recipe", "of", "says"),
    [
        ("mxfp4;skip=2", config(layers=2), "layers from 0 to 1"),
        ("mxfp4;skip=0,1", config(layers=2), "quantize nothing"),
        ("mxfp4;rotate=1", config(head_dim=72), "head_dim=72"),
        ("mxfp5", config(), "unknown scheme"),
        ("mxfp4", {"layers": 2}, "model.config"),
    ],
)
def test_what_cannot_be_done_is_refused_early(recipe, of, says):
    for make in (MXCache, RoundTripCache):
        with pytest.raises(ValueError, match=says):
            make(of, recipe)


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="unknown backend"):
        MXCache(config(), "mxfp4", backend="tpu")
    cache = mx()
    fill(cache, *states(3), [3])
    for wrong in (states(1, batch=2), states(1, heads=1), [x.bfloat16() for x in states(1)]):
        with pytest.raises(ValueError, match="this cache holds keys"):
            cache.update(*wrong, 0)
    with pytest.raises(ValueError, match="do not fit"):
        cache.update(states(1)[0], states(2)[1], 0)
    with pytest.raises(ValueError, match="record=True"):
        cache.recorded(0)
    with pytest.raises(ValueError, match="key, value"):
        cache.blocks(0, "query")
    with pytest.raises(ValueError, match="layers 0 to 0"):
        cache.blocks(7, "key")


@pytest.mark.parametrize(
    "recipe", ["mxfp4;sink=2;residual=4", "k=nvfp4;v=int4@tensor;rotate=1", "aint4:axis=token", "none"]
)
def test_buffers_stay_with_the_tensors_that_came(recipe):  # G13
    k, v = states(40)
    cache = mx(recipe, record=True)
    torch.set_default_device("meta")
    try:
        cache.set_padding(torch.ones(1, 40, device="cpu"))
        for start, n in ((0, 35), (35, 1), (36, 4)):
            given = cache.update(k[:, :, start : start + n], v[:, :, start : start + n], 0)
            assert all(x.device.type == "cpu" for x in given)
        cache.reorder_cache(torch.tensor([0], device="cpu"))
        cache.batch_repeat_interleave(2)
        cache.crop(-6)
    finally:
        torch.set_default_device(None)
    assert all(t.device.type == "cpu" for t in stored(cache))
    assert cache.layers[0].keys.shape == (2, 2, 34, 32)


def test_a_cache_filled_in_inference_mode_can_be_used_outside():
    k, v = states(70)
    cache = mx("k=nvfp4:axis=token;v=int4@tensor;residual=4")
    with torch.inference_mode():
        fill(cache, k[:, :, :40], v[:, :, :40], [39, 1])
    fill(cache, k[:, :, 40:], v[:, :, 40:], [10, 20])
    cache.crop(-3)
    cache.reorder_cache(torch.tensor([0]))
    assert cache.get_seq_length() == 67
