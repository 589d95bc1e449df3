"""What quantization does to attention: where one query looks, and what a head then hands on.

Queries are the exact model's own, as recorded after RoPE, so a number here is one layer's damage alone:
errors of earlier layers do not pass through. Weights are softmax(q·k · scaling) over the tokens up to the
query, computed in float64; scaling is head_dim^-½ unless the capture's shape says otherwise
(`attention_scaling`). No soft cap and no learned sink logit is assumed.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from mxviz.capture import Capture
from mxviz.formats import Recipe
from mxviz.metrics import layer_trip, recipe_of

MOST_POSITIONS = 512
"""Queries that `output_error` looks at; of a longer text, so many evenly spread ones."""


class AttentionView(NamedTuple):
    """One query of one head, over exact, micro-scaled and single-scale keys and values.

    Args:
        tokens: texts of the tokens it may look at: 0 to its own position.
        exact: its attention weights, `[tokens]` float64, of sum 1; so are micro and single.
        micro_moved: total variation distance ½·Σ|micro − exact|: the share of attention that went
            elsewhere, 0 to 1. NaN where keys are not finite.
        single_moved: the same for the baseline.
        micro_error: relative L2 error ‖ô − o‖/‖o‖ of the head's output at this position, keys and values
            quantized; NaN where the capture holds no values.
        single_error: the same for the baseline.
        kv_head: the KV head that this query head shares.
        micro_text: the recipe; single_text: the baseline.
        assumed: what the weights rest on, in one sentence.
    """

    tokens: list[str]
    exact: np.ndarray
    micro: np.ndarray
    single: np.ndarray
    micro_moved: float
    single_moved: float
    micro_error: float
    single_error: float
    kv_head: int
    micro_text: str
    single_text: str
    assumed: str


class OutputErrors(NamedTuple):
    """Relative L2 error of each query head's output, `[query_heads]` float64, over so many positions."""

    micro: np.ndarray
    single: np.ndarray
    positions: int


def query_layers(capture: Capture) -> tuple[int, ...]:
    """Return the layers whose queries and keys were both recorded, ascending; often none, or a few."""
    return tuple(sorted(capture.queries.keys() & capture.keys.keys()))


def attention_view(
    capture: Capture,
    layer: int,
    query_head: int,
    position: int,
    recipe: Recipe | str | None = None,
    baseline: Recipe | str | None = None,
) -> AttentionView:
    """Return where one query looks under three caches; recipe and baseline default to the capture's own.

    Args:
        capture: a run with queries of this layer.
        layer: its number.
        query_head: 0 to query heads − 1; several share a KV head.
        position: the token that asks, 0 to tokens held − 1.

    Raises:
        ValueError: for a layer without queries, a head or position that is not there, or a bad recipe.
    """
    queries, group = _queries(capture, layer)
    if not 0 <= query_head < queries.shape[0]:
        raise ValueError(
            f"query head {query_head} does not exist in layer {layer}; expected 0 to {queries.shape[0] - 1}"
        )
    if not 0 <= position < capture.tokens_held:
        raise ValueError(f"position {position} was not recorded; expected 0 to {capture.tokens_held - 1}")
    kv_head, at = query_head // group, torch.tensor([position])
    query, factor = queries[query_head, at].double(), scaling(capture, layer)
    weights, outputs = {}, {}
    recipes = _recipes(capture, recipe, baseline)
    for lane, stored in recipes.items():
        key, value = _stored(capture, layer, stored)
        weights[lane] = _weights(query, key[kv_head, : position + 1], at, factor)
        outputs[lane] = None if value is None else weights[lane] @ value[kv_head, : position + 1]
    arrays = {lane: weight[0].numpy() for lane, weight in weights.items()}
    return AttentionView(
        tokens=list(capture.token_texts[: position + 1]),
        **arrays,
        **{f"{x}_moved": float(np.abs(arrays[x] - arrays["exact"]).sum() / 2) for x in ("micro", "single")},
        **{f"{x}_error": float(_relative(outputs[x], outputs["exact"])) for x in ("micro", "single")},
        kv_head=kv_head,
        micro_text=str(recipes["micro"]),
        single_text=str(recipes["single"]),
        assumed=_assumed(capture, layer, factor),
    )


def output_error(
    capture: Capture,
    layer: int,
    recipe: Recipe | str | None = None,
    baseline: Recipe | str | None = None,
) -> OutputErrors:
    """Return the relative L2 error of every query head's output, keys and values quantized.

    ‖Ô − O‖ / ‖O‖ over all positions, or over `MOST_POSITIONS` evenly spread ones; NaN without values.

    Raises:
        ValueError: for a layer without queries or a bad recipe.
    """
    queries, group = _queries(capture, layer)
    tokens = capture.tokens_held
    at = torch.tensor(np.unique(np.linspace(0, tokens - 1, min(tokens, MOST_POSITIONS)).round().astype(int)))
    asked, factor, found = queries[:, at], scaling(capture, layer), {}
    for lane, stored in _recipes(capture, recipe, baseline).items():
        key, value = _stored(capture, layer, stored)
        found[lane] = [
            None if value is None else _weights(q.double(), key[i // group], at, factor) @ value[i // group]
            for i, q in enumerate(asked)
        ]
    errors = {
        lane: np.array([_relative(a, b) for a, b in zip(found[lane], found["exact"], strict=True)])
        for lane in ("micro", "single")
    }
    return OutputErrors(errors["micro"], errors["single"], len(at))


def scaling(capture: Capture, layer: int) -> float:
    """Return what q·k is multiplied by: the recorded `attention_scaling`, else head_dim^-½."""
    return float(capture.shape.get("attention_scaling") or capture.part("key", layer).shape[-1] ** -0.5)


def _assumed(capture: Capture, layer: int, factor: float) -> str:
    said = f"softmax of q·k × {factor:.3g}, no soft cap and no sink logit assumed"
    if layer in capture.shape.get("sliding_layers", ()):
        said += "; this layer slides in the model, here it may look at every earlier token"
    return said


def _queries(capture: Capture, layer: int) -> tuple[Tensor, int]:
    """Return a layer's queries `[query_heads, positions, head_dim]` and how many heads share a KV head."""
    if layer not in query_layers(capture):
        known = ", ".join(map(str, query_layers(capture))) or "none"
        raise ValueError(f"no queries of layer {layer} were recorded; layers with queries: {known}")
    queries, keys = capture.queries[layer], capture.part("key", layer)
    heads, kv_heads = queries.shape[0], keys.shape[0]
    if queries.dim() != 3 or heads % kv_heads or queries.shape[-1] != keys.shape[-1]:
        raise ValueError(f"queries {list(queries.shape)} and keys {list(keys.shape)} do not belong together")
    if queries.shape[1] < keys.shape[1]:
        raise ValueError(f"queries at {queries.shape[1]} positions, but keys of {keys.shape[1]} tokens")
    return queries, heads // kv_heads


def _recipes(
    capture: Capture, recipe: Recipe | str | None, baseline: Recipe | str | None
) -> dict[str, Recipe | None]:
    return {
        "exact": None,
        "micro": recipe_of(capture, capture.recipe if recipe is None else recipe),
        "single": recipe_of(capture, capture.baseline if baseline is None else baseline),
    }


def _stored(capture: Capture, layer: int, recipe: Recipe | None) -> tuple[Tensor, Tensor | None]:
    """Return keys and values `[kv_heads, tokens, head_dim]` in float64 as a recipe gives them back."""
    return tuple(
        None
        if part == "value" and layer not in capture.values
        else (
            capture.part(part, layer) if recipe is None else layer_trip(capture, recipe, part, layer).x_hat
        ).double()
        for part in ("key", "value")
    )


def _weights(query: Tensor, key: Tensor, at: Tensor, factor: float) -> Tensor:
    """Return causal attention weights `[queries, tokens]` of queries that stand at positions `at`."""
    scores = query @ key.T * factor
    later = torch.arange(key.shape[0]) > at[:, None]
    return scores.masked_fill(later, -torch.inf).softmax(-1)


def _relative(output: Tensor | None, exact: Tensor | None) -> float:
    if output is None or exact is None:
        return float("nan")
    signal = float(exact.norm())
    return float((output - exact).norm()) / signal if signal else float("nan")
