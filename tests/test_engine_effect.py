"""The measurement: KL and agreement against a plain computation, and what the probe takes."""

from __future__ import annotations

import pytest
import tiny
import tiny_text
import torch

from mxviz import _engine_effect as effect
from mxviz._engine_probe import Probe, turned
from mxviz._engine_steps import forward
from mxviz.cache import RoundTripCache
from mxviz.engine import Settings, run
from mxviz.formats import Recipe

IDS = tuple(tiny.prompt(41)[0].tolist())
RECIPES = {"exact": "none", "micro": "mxfp4;sink=2", "single": "fp4@tensor;sink=2"}


def _measured(model) -> effect.Effect:
    with torch.inference_mode():
        return effect.measure(model, IDS, {lane: Recipe.parse(text) for lane, text in RECIPES.items()})


def _plain(model, recipe: str) -> torch.Tensor:
    """Log-probabilities in float64 from all logits at once."""
    with torch.inference_mode():
        cache = RoundTripCache(model.config, recipe)
        logits = forward(model, torch.tensor([IDS]), cache, last_only=False)[0]
    return logits.double().log_softmax(-1)


@pytest.mark.parametrize("kind", tiny.MODELS)
@pytest.mark.parametrize("chunk", [128, 700, 2**22])  # one position at a time, five, all
def test_kl_agreement_and_nll_are_those_of_a_plain_computation(
    kind: str, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(effect, "_CHUNK_NUMBERS", chunk)
    model = tiny.MODELS[kind]()
    found = _measured(model)
    exact = _plain(model, "none")
    following = torch.tensor(IDS[1:])
    for lane, recipe in RECIPES.items():
        log_q, tables = _plain(model, recipe), found.tables[lane]
        nll = -log_q[:-1].gather(-1, following[:, None])[:, 0]
        torch.testing.assert_close(tables["nll"], nll.float(), rtol=1e-4, atol=1e-5)
        if lane != "exact":
            kl = (exact.exp() * (exact - log_q)).sum(-1)
            torch.testing.assert_close(tables["kl"], kl.float(), rtol=1e-3, atol=1e-6)
            assert torch.equal(tables["top1"], exact.argmax(-1) == log_q.argmax(-1))
            assert float(tables["kl"].mean()) > 1e-3
    assert found.tables["exact"].keys() == {"nll"}
    assert found.top_ids.shape == (len(IDS), effect.TOP)
    assert torch.equal(found.top_ids[:, 0], exact.argmax(-1))
    torch.testing.assert_close(found.top_logprobs[:, 0], exact.max(-1).values.float(), rtol=1e-4, atol=1e-5)


def test_a_model_that_caps_its_logits_behind_the_head() -> None:
    model = tiny.gemma3(final_logit_softcapping=2.0)
    kl = (_plain(model, "none").exp() * (_plain(model, "none") - _plain(model, RECIPES["micro"]))).sum(-1)
    torch.testing.assert_close(_measured(model).tables["micro"]["kl"], kl.float(), rtol=1e-3, atol=1e-6)


def test_only_a_few_positions_of_logits_exist_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(effect, "_CHUNK_NUMBERS", 4 * tiny.VOCABULARY)
    model, sizes = tiny.llama(), []
    model.lm_head.register_forward_hook(lambda _module, _args, out: sizes.append(out.shape[-2]))
    _measured(model)
    assert max(sizes) == 4


def test_a_stop_in_any_pass_measures_nothing_and_leaves_no_hook() -> None:
    recipes = {lane: Recipe.parse(text) for lane, text in RECIPES.items()}
    model = tiny.llama()
    for last, passes in enumerate([1, 1, 2, 2, 3, 3, 4]):
        calls, said = iter(range(1, 100)), []
        with torch.inference_mode():
            found = effect.measure(
                model,
                IDS,
                recipes,
                said=said.append,
                should_stop=lambda calls=calls, last=last: next(calls) > last,
            )
        assert found is None and said == list(range(passes))
        assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize("kind", tiny.MODELS)
def test_keys_before_rope_turn_into_the_recorded_keys(kind: str) -> None:
    loaded = tiny_text.loaded(kind)
    capture = run(loaded, Settings("hello there", max_new_tokens=4))
    positions = torch.arange(len(capture.token_ids))[None]
    hidden = torch.zeros(1, len(capture.token_ids), 1)
    rotary = loaded.model.model.rotary_emb
    for layer in capture.layers:
        kinds = getattr(loaded.model.config, "layer_types", None) if kind == "gemma3" else None
        angles = rotary(hidden, positions, kinds[layer]) if kinds else rotary(hidden, positions)
        made = turned(capture.keys_pre_rope[layer], *angles)[:, : capture.tokens_held]
        torch.testing.assert_close(made, capture.keys[layer], rtol=1e-3, atol=1e-4)
        assert not torch.allclose(capture.keys_pre_rope[layer][:, 1:-1], capture.keys[layer][:, 1:])


@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_queries_give_the_models_own_attention(kind: str) -> None:
    loaded = tiny_text.loaded(kind)
    capture = run(loaded, Settings("hello there", max_new_tokens=4))
    ids = torch.tensor([capture.token_ids[: capture.tokens_held]])
    loaded.model.set_attn_implementation("eager")
    with torch.inference_mode():
        attentions = loaded.model(ids, output_attentions=True).attentions
    for layer, query in capture.queries.items():
        tokens = capture.tokens_held
        key = capture.keys[layer].repeat_interleave(query.shape[0] // 2, dim=0)
        scores = query[:, :tokens] @ key.transpose(1, 2) * key.shape[-1] ** -0.5
        masked = scores.masked_fill(torch.ones(tokens, tokens).triu(1).bool(), -torch.inf)
        torch.testing.assert_close(masked.softmax(-1), attentions[layer][0], rtol=1e-3, atol=1e-4)
    assert set(capture.queries) == {0, 1}


def test_biased_keys_come_with_their_bias() -> None:
    loaded = tiny_text.loaded("qwen2")
    with torch.no_grad():
        for layer in loaded.model.model.layers:
            layer.self_attn.k_proj.bias.normal_(0, 3)
    capture = run(loaded, Settings("hello there", max_new_tokens=2))
    bias = loaded.model.model.layers[1].self_attn.k_proj.bias
    assert torch.equal(capture.key_bias[1].flatten(), bias.detach()) and capture.key_bias[1].shape == (2, 16)
    assert run(tiny_text.loaded("llama"), Settings("hello there", max_new_tokens=2)).key_bias == {}


def test_a_probe_keeps_nothing_it_cannot_prove() -> None:
    model = tiny.llama()
    probe = Probe(model, (0, 1), (0,))
    with torch.inference_mode(), probe.watching():
        model(torch.tensor([IDS]))
    other = {layer: torch.randn(2, len(IDS) - 1, 32) for layer in (0, 1)}
    assert probe.found(other) == ({}, {}, {})
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
