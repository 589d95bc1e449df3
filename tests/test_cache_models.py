"""The caches inside models: greedy text, logits and masks against transformers' own DynamicCache."""

from __future__ import annotations

import copy
import warnings

import pytest
import tiny
import torch
from cache_cases import reachable_bytes
from transformers import DynamicCache, Qwen3NextConfig, Qwen3NextForCausalLM

from mxviz.cache import MXCache, RoundTripCache
from mxviz.formats import SCHEMES


@pytest.fixture(scope="module")
def models():
    return {name: make() for name, make in tiny.MODELS.items()}


@pytest.fixture(autouse=True)
def _quiet():
    """`past_key_values` is on its way out in favour of `cache`, which older releases do not take."""
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore", FutureWarning)
        yield


def mx(model, recipe: str, **options) -> MXCache:
    return MXCache(model.config, recipe, backend="reference", **options)


def greedy(model, ids, cache, new: int = 24, **more):
    """Greedy ids and logits `[new, batch, vocabulary]`."""
    made = model.generate(
        ids,
        past_key_values=cache,
        max_new_tokens=new,
        do_sample=False,
        return_dict_in_generate=True,
        output_logits=True,
        **more,
    )
    return made.sequences, torch.stack(made.logits)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("name", tiny.MODELS)
def test_recipe_none_equals_dynamic_cache_bit_for_bit(models, name, batch):
    model, ids = models[name], tiny.prompt(21, batch=batch)
    cache, stock = mx(model, "none"), DynamicCache(config=model.config)
    got, want = greedy(model, ids, cache, 40), greedy(model, ids, stock, 40)
    assert torch.equal(got[0], want[0]) and torch.equal(got[1], want[1])
    assert cache.get_seq_length() == stock.get_seq_length() == 60
    for ours, theirs in zip(cache.layers, stock.layers, strict=True):
        assert torch.equal(ours.keys, theirs.keys) and torch.equal(ours.values, theirs.values)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_recipe_none_equals_dynamic_cache_in_half_precision(dtype):
    model, ids = tiny.gemma3(dtype=dtype), tiny.prompt(12, batch=2)
    got, want = greedy(model, ids, mx(model, "none")), greedy(model, ids, DynamicCache(config=model.config))
    assert torch.equal(got[0], want[0]) and torch.equal(got[1], want[1])


@pytest.mark.parametrize("name", tiny.MODELS)
def test_beams_equal_dynamic_cache(models, name):
    model, ids = models[name], tiny.prompt(9, batch=2)
    cache, stock = mx(model, "none"), DynamicCache(config=model.config)
    got, want = greedy(model, ids, cache, 12, num_beams=3), greedy(model, ids, stock, 12, num_beams=3)
    assert torch.equal(got[0], want[0])


@pytest.mark.parametrize("axis", ["channel", "token"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_scheme_generates(models, scheme, axis):
    recipe = f"{scheme}:axis={axis}" if SCHEMES[scheme].is_blocked else scheme
    model = models["gemma3"]
    cache = mx(model, recipe)
    sequences, logits = greedy(model, tiny.prompt(70), cache, 4)
    assert sequences.shape == (1, 74) and logits.isfinite().all()
    exact = greedy(model, tiny.prompt(70), DynamicCache(config=model.config), 4)[1]
    assert torch.equal(logits[0], exact[0]), "the prompt attends to its own exact K and V"
    assert torch.equal(logits, exact) == (scheme == "none")
    assert cache.get_seq_length() == 73


def test_the_first_new_token_sees_an_exact_prompt(models):  # Q6
    model, ids = models["llama"], tiny.prompt(30)
    cache = mx(model, "mxfp4;sink=4", record=True)
    got, want = greedy(model, ids, cache, 8), greedy(model, ids, DynamicCache(config=model.config), 8)
    assert torch.equal(got[1][0], want[1][0]) and not torch.equal(got[1][1], want[1][1])
    keys, values = cache.recorded(1)
    assert torch.equal(cache.layers[1].keys[:, :, :4], keys[:, :, :4])
    assert torch.equal(cache.layers[1].values[:, :, :4], values[:, :, :4])
    assert reachable_bytes(cache) == cache.allocated_bytes + cache.record_bytes


@pytest.mark.parametrize("recipe", ["mxfp4", "k=aint4:axis=token;v=int4@tensor"])
def test_a_flipped_byte_changes_the_next_logits(models, recipe):
    model, ids = models["llama"], tiny.prompt(40)
    cache = mx(model, recipe)
    model(ids, past_key_values=cache)
    twin = copy.deepcopy(cache)
    before = model(ids[:, :1], past_key_values=cache).logits
    twin.blocks(0, "key").packed[0, 0, 3, 0] ^= 0x77
    assert not torch.equal(model(ids[:, :1], past_key_values=twin).logits, before)


def test_continuing_a_chat_equals_one_token_at_a_time(models):  # G8
    for name in tiny.MODELS:
        model, cache, single = models[name], mx(models[name], "none"), mx(models[name], "none")
        held = tiny.prompt(0)
        for turn in range(3):
            held = torch.cat((held, tiny.prompt(11, seed=turn)), dim=1)
            held, logits = greedy(model, held, cache, 6)
        steps = [
            model(held[:, t : t + 1], past_key_values=single).logits[:, 0] for t in range(held.shape[1] - 1)
        ]
        assert torch.equal(torch.stack(steps[-6:]).argmax(-1), held[:, -6:].T)
        assert torch.allclose(torch.stack(steps[-6:]), logits, atol=1e-4)


def test_deep_copies_are_independent(models):  # G8
    model, ids = models["qwen2"], tiny.prompt(40)
    cache = mx(model, "mxfp4:axis=token;residual=8")
    model(ids, past_key_values=cache)
    one, two = copy.deepcopy(cache), copy.deepcopy(cache)
    texts = [
        greedy(model, torch.cat((ids, tiny.prompt(5, seed=s)), 1), c, 10)[0] for s, c in ((1, one), (2, two))
    ]
    again = greedy(model, torch.cat((ids, tiny.prompt(5, seed=1)), 1), cache, 10)[0]
    assert torch.equal(texts[0], again) and not torch.equal(texts[1][:, 45:], again[:, 45:])


def test_left_padding_gives_each_its_own_text(models):  # G7
    for name in tiny.MODELS:
        model, long, short = models[name], tiny.prompt(20, seed=1), tiny.prompt(1, seed=2)
        batch = torch.cat((torch.cat((torch.zeros_like(long[:, 1:]), short), 1), long))
        mask = (batch != 0).long()
        cache = mx(model, "none")
        cache.set_padding(mask)
        both, logits = greedy(model, batch, cache, 10, attention_mask=mask)
        for row, ids in enumerate((short, long)):
            alone, own = greedy(model, ids, mx(model, "none"), 10)
            assert torch.equal(both[row, -10:], alone[0, -10:])
            assert torch.allclose(logits[:, row], own[:, 0], atol=1e-4)


@pytest.mark.parametrize("recipe", ["mxfp4", "nvfp4", "int8@tensor"])
def test_padded_and_quantized_rows_keep_their_text(models, recipe):  # G7
    model, long, short = models["llama"], tiny.prompt(20, seed=1), tiny.prompt(5, seed=2)
    batch = torch.cat((torch.cat((torch.zeros_like(long[:, 5:]), short), 1), long))
    cache = mx(model, recipe)
    cache.set_padding(batch != 0)
    both, logits = greedy(model, batch, cache, 10, attention_mask=(batch != 0).long())
    for row, ids in enumerate((short, long)):
        alone, own = greedy(model, ids, mx(model, recipe), 10)
        assert torch.equal(both[row, -10:], alone[0, -10:])
        assert torch.allclose(logits[:, row], own[:, 0], atol=1e-3)


def test_padding_is_repeated_with_the_beams(models):
    model, ids = models["llama"], tiny.prompt(12, batch=2)
    ids[0, :5] = 0
    cache = mx(model, "nvfp4")
    cache.set_padding(ids != 0)
    greedy(model, ids, cache, 6, num_beams=2, attention_mask=(ids != 0).long())
    assert cache.layers[0].keys.shape[0] == 4 and (cache.layers[0].keys[:2, :, :5] == 0).all()


def test_assisted_decoding_rolls_back(models):
    model, ids = models["llama"], tiny.prompt(12)
    want = model.generate(ids, max_new_tokens=20, do_sample=False)
    cache = mx(model, "none")
    got = model.generate(
        ids, past_key_values=cache, max_new_tokens=20, do_sample=False, assistant_model=tiny.llama(seed=3)
    )
    assert torch.equal(got, want)


def test_linear_layers_pass_through_and_are_marked():  # G12
    sizes = {f"linear_{n}": 2 for n in ("num_key_heads", "num_value_heads")}
    sizes |= {f"linear_{n}_head_dim": 16 for n in ("key", "value")}
    kinds = ["linear_attention", "full_attention"]
    of = Qwen3NextConfig(
        vocab_size=128, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=32, layer_types=kinds, num_experts=2, num_experts_per_tok=1,
        moe_intermediate_size=32, shared_expert_intermediate_size=32, **sizes,
    )  # fmt: skip
    model = Qwen3NextForCausalLM(of).eval()
    cache = mx(model, "mxfp4")
    sequences, _ = greedy(model, tiny.prompt(20), cache, 4)
    assert list(cache.not_quantized) == [0] and "LinearAttention" in cache.not_quantized[0]
    assert sequences.shape == (1, 24) and cache.bits_per_element == 4.25
    assert reachable_bytes(cache) == cache.allocated_bytes
    with pytest.raises(ValueError, match="LinearAttention"):
        cache.blocks(0, "key")
    of.layer_types = ["linear_attention"] * 2
    with pytest.raises(ValueError, match="quantize nothing"):
        MXCache(of, "mxfp4")


@pytest.mark.parametrize("name", tiny.MODELS)
def test_round_trip_of_none_changes_no_logit(models, name):
    model, ids = models[name], tiny.prompt(40)
    exact = model(ids, use_cache=False).logits
    assert torch.equal(model(ids, past_key_values=RoundTripCache(model.config, "none")).logits, exact)
    rough = model(ids, past_key_values=RoundTripCache(model.config, "mxfp4", "reference")).logits
    fine = model(ids, past_key_values=RoundTripCache(model.config, "mxint8", "reference")).logits
    assert 0 < (fine - exact).abs().mean() < (rough - exact).abs().mean()
