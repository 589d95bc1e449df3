"""Attention over stored keys and values against plain float64 NumPy, and against a model's own attention."""

from __future__ import annotations

import numpy as np
import oracle
import pytest
import tiny_text
import torch
from made_capture import HEAD_DIM, HEADS, TOKENS, made_capture

from mxviz import attention
from mxviz.attention import attention_view, output_error, query_layers
from mxviz.engine import Settings, run

QUERY_HEADS = 4
RECIPE, BASELINE = "k=mxfp4:axis=token;v=mxfp4;sink=3", "fp4@tensor;sink=3"


def asked(**changes):
    """A made capture with queries of layer 1, at one position more than there are keys."""
    g = torch.Generator().manual_seed(3)
    queries = {1: torch.randn(QUERY_HEADS, TOKENS + 1, HEAD_DIM, generator=g)}
    return made_capture(RECIPE, BASELINE, **{"queries": queries, **changes})


def stored(x: np.ndarray, recipe: str, part: str) -> np.ndarray:
    """What the oracle gives back of `[kv_heads, tokens, dim]`, the first three tokens exact."""
    if recipe is None:
        return x.astype(np.float64)
    scheme = {"key": "mxfp4:axis=token", "value": "mxfp4"}[part] if recipe == RECIPE else "fp4@tensor"
    back = x.astype(np.float64)
    back[:, 3:] = oracle.quantize(x[:, 3:], scheme).x_hat
    return back


def by_hand(capture, head: int, position: int, recipe: str | None, factor: float = HEAD_DIM**-0.5):
    """Weights and output of one query, in float64 NumPy."""
    q = capture.queries[1][head, position].numpy().astype(np.float64)
    kv = head // (QUERY_HEADS // HEADS)
    k, v = (stored(capture.part(p, 1).numpy(), recipe, p)[kv, : position + 1] for p in ("key", "value"))
    scores = k @ q * factor
    weights = np.exp(scores - scores.max())
    weights /= weights.sum()
    return weights, weights @ v


@pytest.mark.parametrize(("head", "position"), [(0, 0), (1, 5), (2, 40), (3, TOKENS - 1)])
def test_weights_moved_share_and_output_error_are_those_of_numpy(head: int, position: int) -> None:
    capture = asked()
    view = attention_view(capture, 1, head, position)
    exact, out = by_hand(capture, head, position, None)
    np.testing.assert_allclose(view.exact, exact, rtol=1e-9)
    for lane, recipe in (("micro", RECIPE), ("single", BASELINE)):
        weights, output = by_hand(capture, head, position, recipe)
        np.testing.assert_allclose(getattr(view, lane), weights, rtol=1e-9)
        moved = np.abs(weights - exact).sum() / 2
        np.testing.assert_allclose(getattr(view, f"{lane}_moved"), moved, rtol=1e-9, atol=1e-12)
        error = np.linalg.norm(output - out) / np.linalg.norm(out)
        np.testing.assert_allclose(getattr(view, f"{lane}_error"), error, rtol=1e-9, atol=1e-12)
    assert view.kv_head == head // 2
    assert view.tokens == [f"t{i}" for i in range(position + 1)]
    assert (view.micro_text, view.single_text) == (RECIPE, BASELINE)
    if position < 3:
        assert view.micro_moved == 0 and view.single_error == 0  # the sinks are exact
    elif position > 10:
        assert 0 < view.micro_moved < 1 and 0 < view.single_moved < 1


def test_output_error_of_every_head_is_that_of_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    capture = asked()
    for positions in (TOKENS, 7):
        monkeypatch.setattr(attention, "MOST_POSITIONS", positions)
        found = output_error(capture, 1)
        at = np.unique(np.linspace(0, TOKENS - 1, positions).round().astype(int))
        assert found.positions == len(at) == positions
        for lane, recipe in (("micro", RECIPE), ("single", BASELINE)):
            for head in range(QUERY_HEADS):
                rows = [
                    (by_hand(capture, head, i, recipe)[1], by_hand(capture, head, i, None)[1]) for i in at
                ]
                noise = sum(np.square(a - b).sum() for a, b in rows)
                signal = sum(np.square(b).sum() for _, b in rows)
                np.testing.assert_allclose(getattr(found, lane)[head], np.sqrt(noise / signal), rtol=1e-9)


def test_other_recipes_and_a_recorded_scaling() -> None:
    capture = asked(shape=made_capture().shape | {"attention_scaling": 0.5})
    view = attention_view(capture, 1, 0, 30, "none", "k=none;v=fp4@tensor")
    np.testing.assert_allclose(view.exact, by_hand(capture, 0, 30, None, 0.5)[0], rtol=1e-9)
    assert view.micro_moved == view.micro_error == view.single_moved == 0 < view.single_error
    assert "× 0.5," in view.assumed
    assert "0.158" in attention_view(asked(), 1, 0, 30).assumed


def test_the_weights_are_the_models_own() -> None:
    loaded = tiny_text.loaded("qwen2")
    capture = run(loaded, Settings("hello there", max_new_tokens=4))
    loaded.model.set_attn_implementation("eager")
    ids = torch.tensor([capture.token_ids[: capture.tokens_held]])
    with torch.inference_mode():
        own = loaded.model(ids, output_attentions=True).attentions
    last = capture.tokens_held - 1
    for layer in query_layers(capture):
        for head in range(own[layer].shape[1]):
            view = attention_view(capture, layer, head, last)
            np.testing.assert_allclose(view.exact, own[layer][0, head, last], rtol=1e-3, atol=1e-4)
    assert query_layers(capture) == (0, 1)


def test_what_is_not_there_is_said() -> None:
    capture = asked()
    assert query_layers(capture) == (1,) and query_layers(made_capture()) == ()
    with pytest.raises(ValueError, match="no queries of layer 0 were recorded; layers with queries: 1"):
        attention_view(capture, 0, 0, 5)
    with pytest.raises(ValueError, match="layers with queries: none"):
        output_error(made_capture(), 1)
    with pytest.raises(ValueError, match="query head 4 does not exist in layer 1; expected 0 to 3"):
        attention_view(capture, 1, 4, 5)
    with pytest.raises(ValueError, match=f"position {TOKENS} was not recorded; expected 0 to {TOKENS - 1}"):
        attention_view(capture, 1, 0, TOKENS)
    with pytest.raises(ValueError, match="do not belong together"):
        attention_view(asked(queries={1: torch.zeros(3, TOKENS, HEAD_DIM)}), 1, 0, 5)
    sliding = asked(shape=made_capture().shape | {"sliding_layers": [1]})
    assert "slides" in attention_view(sliding, 1, 0, 5).assumed


def test_keys_that_are_not_finite_give_nan_and_no_values_no_output() -> None:
    keys = {i: x.clone() for i, x in made_capture().keys.items()}
    keys[1][0, 20, 3] = float("nan")
    broken = attention_view(asked(keys=keys), 1, 0, 30)
    assert np.isnan(broken.micro_moved) and np.isnan(broken.micro_error)
    other_head = attention_view(asked(keys=keys), 1, 2, 30)
    assert 0 < other_head.micro_moved < 1 and np.isnan(other_head.single_moved)  # one scale for both heads
    keys_alone = attention_view(asked(values={}), 1, 0, 30)
    assert keys_alone.micro_moved > 0 and np.isnan(keys_alone.micro_error)
