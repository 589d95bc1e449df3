"""The report of a run: one dict of plain numbers, the same for two runs of the same thing."""

from __future__ import annotations

from typing import Any

from mxviz.capture import LANES, PARTS, Capture
from mxviz.formats import Axis, Recipe, Scheme
from mxviz.metrics import effect_stats, json_safe, part_error
from mxviz.outliers import channel_outliers
from mxviz.quantize import packed_bytes

OUTLIERS_LISTED = 20
EXACT_BITS = 16  # the uncompressed lane is counted at bfloat16, whatever dtype it ran in


def report(capture: Capture) -> dict[str, Any]:
    """Return a capture's report, fit for JSON: what is not finite or was not measured is None.

    Bytes are those the run held, with the scales of generation. `error` pools all recorded layers of the
    exact lane's keys and values (SQNR in dB) with whole-tensor scales; `effect` is teacher-forced (KL in
    nats). Nothing timed is in it.
    """
    recipes = {"micro": Recipe.parse(capture.recipe), "single": Recipe.parse(capture.baseline)}
    lanes = {name: lane for name in LANES if (lane := capture.lanes.get(name)) is not None}
    return json_safe(
        {
            "model": capture.model,
            "recipe": capture.recipe,
            "baseline": capture.baseline,
            "prompt_tokens": capture.prompt_tokens,
            "new_tokens": len(capture.token_ids) - capture.prompt_tokens,
            "seed": capture.sampling.get("seed"),
            "lanes": {name: {"text": lane.text, "token_ids": lane.token_ids} for name, lane in lanes.items()},
            "first_divergence": {
                name: capture.first_divergence(name) if name in lanes else None for name in recipes
            },
            "tokens_held": {name: _stored(capture, name, "tokens_held") for name in LANES},
            "stored_bytes": {name: _stored(capture, name, "stored_bytes") for name in LANES},
            "bytes_per_token": {name: _held_per_token(capture, name) for name in LANES},
            "bits_per_element": {name: _stored(capture, name, "bits_per_element") for name in recipes},
            "error": {
                name: {part: part_error(capture, recipe, part) for part in PARTS}
                for name, recipe in recipes.items()
            },
            "effect": {name: _effect(capture, name) for name in recipes},
            "outliers": top_outliers(capture),
            "backend": capture.backend,
            "threads": capture.threads,
            "versions": capture.versions,
        }
    )


def bytes_per_token(capture: Capture, recipe: Recipe | None) -> float | int | None:
    """Return what one more token will cost once it is packed, over all layers, keys and values; in bytes.

    It counts KV heads and head_dim as stored; scales of a whole tensor, head or channel vanish with length.
    Skipped layers and uncompressed parts count in the model's dtype, None (the exact lane) at 16 bits.
    """
    shape = capture.shape
    if not {"layers", "kv_heads", "head_dim"} <= shape.keys():
        return None
    model_dtype = shape.get("model_dtype", shape.get("dtype"))
    exact = EXACT_BITS if recipe is None else _DTYPE_BITS.get(model_dtype, EXACT_BITS)
    bits = 0.0
    for part, width in (("key", shape["head_dim"]), ("value", shape.get("value_dim", shape["head_dim"]))):
        for layer in range(shape["layers"]):
            stays = recipe is None or layer in recipe.skip
            bits += shape["kv_heads"] * width * (exact if stays else _bits(recipe.scheme(part), width, exact))
    return int(bits / 8) if bits % 8 == 0 else bits / 8


def top_outliers(capture: Capture, count: int = OUTLIERS_LISTED) -> list[dict[str, Any]]:
    """Return the outlier channels of keys and values, largest ratio to their layer's median first."""
    rows = [row for part in PARTS for row in channel_outliers(capture, part)]
    rows.sort(key=lambda row: -row.ratio_to_median)
    kept = ("part", "layer", "head", "channel", "amax", "ratio_to_median")
    return [{name: getattr(row, name) for name in kept} for row in rows[:count]]


_DTYPE_BITS = {"float32": 32, "bfloat16": 16, "float16": 16}


def _bits(scheme: Scheme, width: int, exact: int) -> float:
    """Bits an element of a row costs, the row's short last block and last byte included."""
    if scheme.is_none:
        return exact
    if not scheme.is_blocked or scheme.axis is Axis.TOKEN:
        return scheme.bits_per_element(width)
    blocks = -(-width // scheme.block)
    return (8 * packed_bytes(width, scheme.element.bits) + blocks * scheme.scale.bits) / width


def _held_per_token(capture: Capture, lane: str) -> float | int | None:
    """Bytes held over tokens held: what is exact for now (sinks, residual, open block) is in it."""
    stored, tokens = _stored(capture, lane, "stored_bytes"), _stored(capture, lane, "tokens_held")
    if not stored or not tokens:
        return None
    return stored // tokens if stored % tokens == 0 else stored / tokens


def _stored(capture: Capture, lane: str, name: str) -> float | int | None:
    return capture.storage.get(lane, {}).get(name)


def _effect(capture: Capture, lane: str) -> dict[str, float | None]:
    tables = capture.effect.get(lane)
    if not tables:
        return dict.fromkeys(("kl_mean", "kl_p99", "top1_agreement"))
    return effect_stats(tables["kl"], tables["top1"])
