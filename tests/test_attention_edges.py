"""The attention function "mxviz" where it must step back, or where others run beside it."""

from __future__ import annotations

import ast
import copy
import importlib.util
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import tiny
import tiny_text
import torch
from attention_cases import MAKERS, RECIPES, chunks, close, run
from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

from mxviz import _cache_attention, ops
from mxviz.cache import MXCache
from mxviz.engine import Settings
from mxviz.engine import run as run_engine
from mxviz.kernels.cpu.tiles import Held


@pytest.fixture(autouse=True)
def _no_grad():
    with torch.no_grad():
        yield


def test_a_mask_of_the_wrong_length_raises():  # G8
    model = tiny.llama()
    cache = MXCache(model.config, "mxfp4")
    run(model, "mxviz", cache, chunks(9), attention_mask=torch.ones(1, 9))
    for tokens in (1, 9, 11):
        with pytest.raises(ValueError, match=r"\[batch, 10\] for the 9 tokens that are held"):
            run(model, "mxviz", cache, chunks(1), attention_mask=torch.ones(1, tokens))
    run(model, "mxviz", cache, chunks(1), attention_mask=torch.ones(1, 10))
    assert cache.tokens_held == 10


def test_eight_threads_at_once_give_what_one_gives():
    model = tiny.llama()
    model.set_attn_implementation("mxviz")
    recipes = [RECIPES[i % len(RECIPES)] for i in range(8)]

    def text(number: int) -> torch.Tensor:
        with torch.no_grad():
            cache = MXCache(model.config, recipes[number])
            ids = tiny.prompt(30, seed=number)
            return model.generate(ids, past_key_values=cache, max_new_tokens=25, do_sample=False)

    alone = [text(i) for i in range(8)]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(2):
            assert all(torch.equal(a, b) for a, b in zip(alone, pool.map(text, range(8)), strict=True))


@pytest.mark.parametrize("name", ["llama", "gpt_oss"])
def test_weights_are_given_when_asked_and_said_once(name):
    model, text = MAKERS[name](), chunks(12, 1)
    model.set_attn_implementation("eager")
    stock, ours = MXCache(model.config, "mxfp4"), MXCache(model.config, "mxfp4")
    want = [model(ids, past_key_values=stock, output_attentions=True).attentions for ids in text]
    model.set_attn_implementation("mxviz")
    _cache_attention._report.cache_clear()
    with pytest.warns(UserWarning, match="output_attentions") as said:
        got = [model(ids, past_key_values=ours, output_attentions=True).attentions for ids in text]
    assert len([w for w in said if "packed cache" in str(w.message)]) == 1
    for a, b in zip(got, want, strict=True):
        assert all(torch.allclose(x, y, atol=1e-5) for x, y in zip(a, b, strict=True))


def test_gradients_are_not_lost():
    model, text = tiny.llama(), chunks(12, 1)
    model.set_attn_implementation("mxviz")
    _cache_attention._report.cache_clear()
    grads = {}
    for attention in ("sdpa", "mxviz"):
        cache = MXCache(model.config, "mxfp4")
        run(model, attention, cache, text[:1])
        model.zero_grad()
        with torch.enable_grad():
            model(text[1], past_key_values=cache).logits.sum().backward()
        grads[attention] = model.model.layers[0].self_attn.q_proj.weight.grad.clone()
    assert torch.equal(*grads.values()) and grads["sdpa"].abs().sum() > 0


def test_families_that_read_what_update_returns_get_tensors():
    of = DeepseekV3Config(
        vocab_size=128, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=4, first_k_dense_replace=2, q_lora_rank=32, kv_lora_rank=32, qk_rope_head_dim=16,
        qk_nope_head_dim=16, v_head_dim=32, n_routed_experts=4, n_group=1, topk_group=1,
    )  # fmt: skip
    model, text = DeepseekV3ForCausalLM(of).eval(), chunks(20, 1, 3)
    want = run(model, "sdpa", MXCache(of, "mxfp4"), text)
    cache = MXCache(of, "mxfp4")
    assert torch.equal(run(model, "mxviz", cache, text), want)
    assert cache.attention == "unpacked"


def test_switching_back_and_forth_on_one_cache():
    """No pass takes packed parts that did not begin with this attention function, whatever went before."""
    model, text = tiny.gemma3(), chunks(12, *[1] * 6)
    want = run(model, "sdpa", MXCache(model.config, "mxfp4"), text)
    cache = MXCache(model.config, "mxfp4")
    for i, ids in enumerate(text):
        attention = ("mxviz", "sdpa", "eager")[i % 3]
        assert close(run(model, attention, cache, [ids])[0], want[i])


def test_a_mask_that_is_ready_made_goes_with_tensors():
    """No mask is asked for then, and nothing tells how the pass attends; one before began at this place."""
    model, text = tiny.llama(), chunks(12, 1, 1)
    cache, stock = MXCache(model.config, "mxfp4"), MXCache(model.config, "mxfp4")
    run(model, "mxviz", cache, text[:2])
    cache.crop(-1)
    mask = torch.zeros(1, 1, 1, 13)
    mask[..., :5] = -torch.inf
    got = run(model, "mxviz", cache, text[2:], attention_mask=mask)
    assert cache.attention == "unpacked"
    want = run(model, "sdpa", stock, [text[0], text[2]], attention_mask=None)
    assert not close(got[0], want[1], 1e-3)
    cache.crop(-1)
    assert torch.equal(run(model, "sdpa", cache, text[2:], attention_mask=mask), got)


def test_the_families_named_hand_on_what_update_returns():
    """Read in transformers' source: between `update` and the attention function nothing touches K or V."""
    found = [f for f in _cache_attention.FAMILIES if importlib.util.find_spec(module_of(f))]
    assert len(found) >= 25
    for family in found:
        tree = ast.parse(Path(importlib.util.find_spec(module_of(family)).origin).read_text(encoding="utf-8"))
        passes = [f for f in ast.walk(tree) if isinstance(f, ast.FunctionDef) and calls(f, "update")]
        assert passes, family
        for function in passes:
            (update,), (attend,) = calls(function, "update"), calls(function, "attention_interface")
            names = [n for n in ast.walk(function) if isinstance(n, ast.Name)]
            read = [
                n for n in names if n.id in ("key_states", "value_states") and isinstance(n.ctx, ast.Load)
            ]
            behind = len([n for n in read if n.lineno > update.end_lineno])
            assert behind == OTHER_WAYS.get(family, 2), family
            assert [ast.unparse(a) for a in attend.args[:4]] == [
                "self",
                "query_states",
                "key_states",
                "value_states",
            ]


OTHER_WAYS = {"gpt2": 4}
"""Reads of K and V behind `update` where a family has a second way to attend, taken under "eager" alone."""


def module_of(family: str) -> str:
    name = family.removesuffix("_text")
    return f"transformers.models.{name}.modeling_{name}"


def calls(function: ast.FunctionDef, name: str) -> list[ast.Call]:
    """Calls of a function or method of this name with three arguments or more."""
    found = [n for n in ast.walk(function) if isinstance(n, ast.Call) and len(n.args) >= 3]
    return [n for n in found if getattr(n.func, "attr", getattr(n.func, "id", None)) == name]


@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_the_engine_attends_packed_and_leaves_the_model_as_it_was(backend, monkeypatch):
    loaded, seen = tiny_text.loaded(), []

    def attend(*args, **options):
        seen.append(args[0].shape[2])
        return plain(*args, **options)

    plain = ops.attend
    monkeypatch.setattr(ops, "attend", attend)
    run_engine(loaded, Settings(prompt="two ladybugs", max_new_tokens=5, effect=False, backend=backend))
    steps = 4 * 2 * loaded.model.config.num_hidden_layers  # of the two lanes that are packed
    assert seen == ([1] * steps if backend == "auto" else [])
    assert loaded.model.config._attn_implementation == "sdpa"


def _step(model, cache, ids, token: int) -> torch.Tensor:
    with torch.no_grad():
        return model(ids[:, token : token + 1], past_key_values=cache).logits[0, -1]


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("recipe", ["mxfp4", "kivi4", "k=mxfp4:axis=token;v=mxfp4", "nvfp4", "int4@tensor"])
def test_a_copy_reads_and_writes_memory_of_its_own(recipe, backend):
    model, ids = tiny.llama(), tiny.prompt(90)
    model.set_attn_implementation("mxviz")
    cache, alone = (MXCache(model.config, recipe, backend=backend) for _ in range(2))
    with torch.no_grad():
        for held in (cache, alone):
            model(ids[:, :40], past_key_values=held)
    for token in range(40, 44):  # what knows of the buffers is there now
        for held in (cache, alone):
            _step(model, held, ids, token)
    twin = copy.deepcopy(cache)
    for token in range(44, 60):
        right = _step(model, alone, ids, token)
        assert torch.allclose(_step(model, twin, ids, token), right, atol=1e-5)
        assert torch.allclose(_step(model, cache, ids, token), right, atol=1e-5)
    del cache
    for token in range(60, 90):
        assert torch.allclose(_step(model, twin, ids, token), _step(model, alone, ids, token), atol=1e-5)


@pytest.mark.parametrize("recipe", ["int4@tensor", "fp4@one", "int4@head", "fp8_e4m3@channel", "int4@token"])
def test_what_was_learned_of_one_packed_token_serves_more(recipe):
    model, ids = tiny.llama(), tiny.prompt(60)
    model.set_attn_implementation("mxviz")
    caches = [MXCache(model.config, f"{recipe};sink=4", backend=b) for b in ("cpu", "reference")]
    with torch.no_grad():
        for cache in caches:
            model(ids[:, :4], past_key_values=cache)
    for token in range(4, 60):
        a, b = (_step(model, cache, ids, token) for cache in caches)
        assert torch.allclose(a, b, atol=1e-5), token
        for cache in caches:  # the same scales at the same address: what was learned is used again
            for layer in cache.layers:
                for store in layer.stores:
                    if store.fixed is not None and store.packed_tokens > 1:
                        known = store.memo.get("cpu")
                        assert known is None or known.numbers[Held.SCALE_T] == 0
