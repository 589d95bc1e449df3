"""The attention function "mxviz" in transformers' models: same logits as unpacking, and nothing unpacked."""

from __future__ import annotations

import ast
import copy
import importlib.util
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from transformers import (
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    DynamicCache,
    Gemma2Config,
    Gemma2ForCausalLM,
    GptOssConfig,
    GptOssForCausalLM,
)

from mxviz import _cache_attention, ops
from mxviz.cache import MXCache
from tests import tiny

RECIPES = [
    "mxfp4",
    "mxint8;sink=4;residual=8",
    "k=mxfp4:axis=token;v=nvfp4;sink=2;residual=5;rotate=1",
    "kivi2",
    "k=int4@channel;v=none;skip=0",
    "k=mxfp6_e2m3;v=fp8_e4m3@token;rotate=1",
]
KINDS = ["sliding_attention", "full_attention"]


@pytest.fixture(autouse=True)
def _no_grad():
    with torch.no_grad():
        yield


def gemma2():
    """Scores capped so low that it shows."""
    return tiny._model(
        Gemma2ForCausalLM, Gemma2Config, head_dim=32, sliding_window=8, layer_types=KINDS,
        query_pre_attn_scalar=4, attn_logit_softcapping=1.5,
    )  # fmt: skip


def gpt_oss():
    """Learned sinks that take a good part of the weight."""
    model = tiny._model(
        GptOssForCausalLM, GptOssConfig, head_dim=32, sliding_window=8, layer_types=KINDS,
        num_local_experts=2, num_experts_per_tok=1,
    )  # fmt: skip
    for layer in model.model.layers:
        layer.self_attn.sinks.normal_(2)
    return model


STOCK = dict.fromkeys(tiny.MODELS, "sdpa") | {"gemma2": "eager", "gpt_oss": "eager"}
MAKERS = {**tiny.MODELS, "gemma2": gemma2, "gpt_oss": gpt_oss}


def run(model, attention: str, cache, chunks, **more) -> torch.Tensor:
    """Feed chunks of tokens; return the last logits of each, `[chunks, batch, vocabulary]`."""
    model.set_attn_implementation(attention)
    return torch.stack([model(ids, past_key_values=cache, **more).logits[:, -1] for ids in chunks])


def chunks(*sizes: int, batch: int = 1) -> list[torch.Tensor]:
    return [tiny.prompt(n, batch=batch, seed=i) for i, n in enumerate(sizes)]


def close(got: torch.Tensor, want: torch.Tensor, tolerance: float = 1e-5) -> bool:
    return float((got - want).abs().max() / want.abs().max()) <= tolerance


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("recipe", ["mxfp4", "k=mxfp4:axis=token;v=nvfp4;sink=2;rotate=1"])
def test_logits_equal_those_of_unpacking(name, recipe):
    """A prompt, single steps, several tokens at once (past the window too), single steps again."""
    model, text = MAKERS[name](), chunks(37, *[1] * 6, 11, 1, 1, batch=2)
    of = copy.deepcopy(model.config)
    if name == "mistral":
        recipe = recipe.replace(":axis=token", "")  # a window of 8 would keep keys along tokens exact
    want = run(model, STOCK[name], MXCache(of, recipe), text)
    cache = MXCache(of, recipe)
    assert close(run(model, "mxviz", cache, text), want)
    cut = "token" in recipe and name in (
        "gemma3",
        "gemma2",
        "gpt_oss",
    )  # a window may cut a block along tokens
    assert cache.summary()["attention"] == ("packed in 1 of 2 layers" if cut else "packed")


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_every_kind_of_recipe(recipe, backend):
    model, text = tiny.llama(), chunks(3, 1, 40, 1, 70, 1, 1)
    want = run(model, "sdpa", MXCache(model.config, recipe, backend=backend), text)
    cache = MXCache(model.config, recipe, backend=backend)
    assert close(run(model, "mxviz", cache, text), want)
    assert cache.attention == "packed"


@pytest.mark.parametrize("name", MAKERS)
def test_nothing_is_unpacked_while_decoding(name, monkeypatch):
    model = MAKERS[name]()
    cache = MXCache(model.config, "mxfp4;sink=4")
    run(model, "mxviz", cache, chunks(40))

    def refuse(*_args, **_options):
        raise AssertionError("K or V was unpacked")

    monkeypatch.setattr(ops, "dequantize", refuse)
    run(model, "mxviz", cache, chunks(1, 1, 9, 1))
    with pytest.raises(AssertionError, match="unpacked"):
        run(model, STOCK[name], cache, chunks(1))


@pytest.mark.parametrize("name", tiny.MODELS)
def test_exact_caches_are_those_of_transformers_to_the_bit(name):
    model, text = tiny.MODELS[name](), chunks(20, 1, 1, 9, 1)
    want = run(model, "sdpa", DynamicCache(config=model.config), text)
    assert torch.equal(run(model, "mxviz", MXCache(model.config, "none"), text), want)
    assert torch.equal(run(model, "mxviz", DynamicCache(config=model.config), text), want)
    assert torch.equal(run(model, "mxviz", None, text[:1])[0], want[0])


@pytest.mark.parametrize("recipe", ["mxfp4;sink=4", "kivi4"])
@pytest.mark.parametrize("beams", [1, 2])
def test_generated_texts_are_equal(recipe, beams):
    model, ids, texts = tiny.qwen2(), tiny.prompt(30, batch=2), []
    for attention in ("sdpa", "mxviz"):
        model.set_attn_implementation(attention)
        cache = MXCache(model.config, recipe)
        texts.append(
            model.generate(ids, past_key_values=cache, max_new_tokens=40, do_sample=False, num_beams=beams)
        )
        assert cache.attention == ("packed" if attention == "mxviz" else "unpacked")
    assert torch.equal(*texts)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype):
    model, text = tiny.llama(dtype=dtype), chunks(40, 1, 1, 6, 1)
    want = run(model, "sdpa", MXCache(model.config, "mxfp4;residual=8"), text)
    got = run(model, "mxviz", MXCache(model.config, "mxfp4;residual=8"), text)
    assert got.dtype is dtype and close(got.float(), want.float(), 0.03)


@pytest.mark.parametrize("recipe", ["none", "mxfp4", "nvfp4", "int8@tensor"])
@pytest.mark.parametrize("name", ["llama", "mistral"])
def test_padding_never_alters_real_rows(name, recipe):  # G7
    """The mask function tells the cache; nobody calls set_padding."""
    model, long, short = tiny.MODELS[name](), tiny.prompt(20, seed=1), tiny.prompt(5, seed=2)
    model.set_attn_implementation("mxviz")
    batch = torch.cat((torch.cat((torch.zeros_like(long[:, 5:]), short), 1), long))

    def greedy(ids, mask=None):
        cache = MXCache(model.config, recipe)
        out = model.generate(
            ids, past_key_values=cache, attention_mask=mask, max_new_tokens=12, do_sample=False,
            return_dict_in_generate=True, output_logits=True,
        )  # fmt: skip
        return cache, out.sequences[:, -12:], torch.stack(out.logits)

    cache, both, logits = greedy(batch, (batch != 0).long())
    for row, ids in enumerate((short, long)):
        alone, own, own_logits = greedy(ids)
        assert torch.equal(both[row], own[0])
        assert close(logits[:, row], own_logits[:, 0], 1e-4)
        fixed = cache.layers[0].key.fixed
        assert fixed is None or torch.equal(fixed[row : row + 1], alone.layers[0].key.fixed)


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
            assert len([n for n in read if n.lineno > update.end_lineno]) == 2, family
            assert [ast.unparse(a) for a in attend.args[:4]] == [
                "self",
                "query_states",
                "key_states",
                "value_states",
            ]


def module_of(family: str) -> str:
    name = family.removesuffix("_text")
    return f"transformers.models.{name}.modeling_{name}"


def calls(function: ast.FunctionDef, name: str) -> list[ast.Call]:
    """Calls of a function or method of this name with three arguments or more."""
    found = [n for n in ast.walk(function) if isinstance(n, ast.Call) and len(n.args) >= 3]
    return [n for n in found if getattr(n.func, "attr", getattr(n.func, "id", None)) == name]
