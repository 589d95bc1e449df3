"""The acceptance: the built-in model over a text of our own, measured again with the independent oracle.

The oracle's cache quantizes what the model hands it in NumPy, compares the bytes with ours layer by layer,
and hands back its own decoded keys and values; from the logits the divergence is computed anew.
"""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import numpy as np
import oracle
import pytest
import torch
from transformers import DynamicCache

from mxviz import models, ops
from mxviz._engine_steps import forward
from mxviz.engine import measure
from mxviz.formats import Recipe, ScaleFormat

RIGHT_KL = {  # recipe: KL in nats that SmolLM2 showed over another text of 650 tokens
    "int8@tensor": 0.003,
    "fp8_e4m3@tensor": 0.006,
    "mxfp8_e4m3": 0.011,
    "int4@tensor": 0.86,
    "fp4@tensor": 0.34,
    "mxfp4": 0.17,
    "k=mxfp4:axis=token;v=mxfp4": 0.12,
    "nvfp4": 0.08,
}
ROWS = {text: Recipe.parse(text) for text in RIGHT_KL}

pytestmark = [pytest.mark.model, pytest.mark.slow, pytest.mark.timeout(900)]


class OracleCache(DynamicCache):
    """Keeps what the oracle decodes, and counts the bytes in which it and ours agree.

    ours and the oracle get the same keys and values `[1, kv_heads, tokens, head_dim]`.
    """

    def __init__(self, recipe: Recipe) -> None:
        super().__init__()
        self.recipe, self.bytes_compared, self.layers_compared = recipe, 0, 0

    def update(self, key_states, value_states, layer_idx, *args, **kwargs):
        key, value = (
            self._decoded(x, str(self.recipe.scheme(part)))
            for part, x in (("key", key_states), ("value", value_states))
        )
        self.layers_compared += 1
        return super().update(key, value, layer_idx, *args, **kwargs)

    def _decoded(self, x: torch.Tensor, scheme: str) -> torch.Tensor:
        ours, theirs = ops.quantize(x, scheme), oracle.quantize(x.numpy(), scheme)
        pairs = [(ours.packed, theirs.packed), (ours.scales, theirs.scales)]
        pairs += [(ours.global_scale, theirs.global_scale)] if theirs.global_scale is not None else []
        for mine, right in pairs:
            assert mine.numpy().tobytes() == np.ascontiguousarray(right).tobytes(), scheme
            self.bytes_compared += right.nbytes
        return torch.from_numpy(np.ascontiguousarray(theirs.x_hat))


@pytest.fixture(scope="module")
def smollm2() -> models.Loaded:
    return models.load("smollm2", device="cpu")


@pytest.fixture(scope="module")
def text_ids(smollm2: models.Loaded) -> tuple[int, ...]:
    text = Path(__file__).parents[1] / "assets" / "text" / "kitchen.txt"
    return tuple(smollm2.tokenizer(text.read_text(encoding="utf-8")).input_ids)


@pytest.fixture(scope="module")
def engine_table(smollm2: models.Loaded, text_ids: tuple[int, ...]) -> dict[str, dict[str, torch.Tensor]]:
    with torch.inference_mode():
        return measure(smollm2.model, text_ids, {"exact": Recipe.parse("none"), **ROWS}).tables


@pytest.fixture(scope="module")
def oracle_table(smollm2: models.Loaded, text_ids: tuple[int, ...]) -> dict[str, tuple[float, float, int]]:
    """Recipe to mean KL in nats, top-1 agreement and bytes compared."""
    exact = log_probabilities(smollm2.model, text_ids, DynamicCache())
    found = {}
    for text, recipe in ROWS.items():
        cache = OracleCache(recipe)
        log_q = log_probabilities(smollm2.model, text_ids, cache)
        assert cache.layers_compared == 30
        nats = np.sum(np.exp(exact) * (exact - log_q), -1, dtype=np.float64)
        agreement = np.mean(exact.argmax(-1) == log_q.argmax(-1))
        found[text] = (float(nats.mean()), float(agreement), cache.bytes_compared)
    return found


def log_probabilities(model, ids: tuple[int, ...], cache: DynamicCache) -> np.ndarray:
    """Natural logarithms `[positions, vocabulary]`, in float64, of one pass over the whole text."""
    with torch.inference_mode():
        logits = forward(model, torch.tensor([ids]), cache, last_only=False)[0].numpy()
    logits = logits.astype(np.float64)
    logits -= logits.max(-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def test_the_text_is_long_enough(text_ids: tuple[int, ...]) -> None:
    assert 650 <= len(text_ids) <= 900


def test_bytes_agree_layer_by_layer_and_so_does_the_divergence(engine_table, oracle_table, text_ids) -> None:
    print(
        f"\nteacher-forced over {len(text_ids)} tokens; KL in nats, top-1 in %; bytes equal to the oracle's"
    )
    for text, (kl, agreement, compared) in oracle_table.items():
        mine = engine_table[text]
        engine_kl, engine_top1 = float(mine["kl"].double().mean()), float(mine["top1"].double().mean())
        print(
            f"{text:28} engine {engine_kl:.5f} {100 * engine_top1:5.1f}   "
            f"oracle {kl:.5f} {100 * agreement:5.1f}   {compared:,} bytes"
        )
    for text, (kl, agreement, compared) in oracle_table.items():
        mine, scale = engine_table[text], ROWS[text].key.scale
        tolerance = 0.02 if scale is ScaleFormat.E8M0 else 0.15
        assert float(mine["kl"].double().mean()) == pytest.approx(kl, rel=tolerance), text
        assert float(mine["top1"].double().mean()) == pytest.approx(agreement, abs=0.02), text
        assert compared > 2 * 30 * len(text_ids) * 192 * 4 // 8


def test_what_stood_apart_stands_in_the_same_order(engine_table) -> None:
    kl = {text: float(engine_table[text]["kl"].double().mean()) for text in RIGHT_KL}
    apart = [(a, b) for a, b in combinations(sorted(RIGHT_KL, key=RIGHT_KL.get), 2)]
    checked = [(a, b) for a, b in apart if RIGHT_KL[b] > 1.2 * RIGHT_KL[a]]
    assert len(checked) == 28  # all of them are more than 20 % apart
    for smaller, larger in checked:
        assert kl[smaller] < kl[larger], (smaller, larger, kl)
