"""The attention function "mxviz" in transformers' models: same logits as unpacking, and nothing unpacked."""

from __future__ import annotations

import copy

import pytest
import tiny
import torch
from attention_cases import MAKERS, RECIPES, STOCK, chunks, close, run
from transformers import DynamicCache

from mxviz import ops
from mxviz.cache import MXCache


@pytest.fixture(autouse=True)
def _no_grad():
    with torch.no_grad():
        yield


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
    # A sum taken in another order may turn the rounding of one later number: a step of it, no more.
    assert close(run(model, "mxviz", cache, text), want, 1e-4 if backend == "auto" else 1e-5)
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
