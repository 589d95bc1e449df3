"""Looks: a capture through another recipe than its own, and what that changes; the sums behind the switches.

Nothing here generates: the keys and values are those the exact lane left behind.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import torch

from mxviz._cache_scales import fixed_scales
from mxviz._hadamard import rotate as turn
from mxviz._hadamard import split
from mxviz.capture import PARTS, Capture
from mxviz.formats import SCHEMES, Recipe, Scheme
from mxviz.metrics import (
    ErrorSums,
    RoundTrip,
    error_stats,
    error_sums,
    layer_trip,
    pool,
    recipe_of,
    round_trip,
    sinks_of,
)

REACHES = {
    "tensor": "per tensor",
    "head": "per head",
    "token": "per token",
    "channel": "per channel",
    "one": "fixed at 1.0",
}
"""What one float32 scale of a baseline may be shared by: the word behind the `@`, and what to call it."""


class Cost(NamedTuple):
    """What a recipe costs keys or values, all recorded layers pooled.

    Args:
        bits: bits an element of codes and scales; None where nothing is packed. A skipped layer counts not.
        sqnr_db: dB; None without signal, infinite for a perfect copy.
        flushed: share of non-zero elements that became zero, 0 to 1; None where there are none.
        clipped: share of finite elements beyond their ruler, 0 to 1; None where there are none.
        clipped_blocks: blocks (or other reaches of a scale) that hold one of them.
        blocks: how many there are; 0 where nothing is packed.
    """

    bits: float | None
    sqnr_db: float | None
    flushed: float | None
    clipped: float | None
    clipped_blocks: int
    blocks: int


@lru_cache(maxsize=4)
def before_rope(capture: Capture) -> Capture:
    """Return the capture with its keys as they were before RoPE, cut to the tokens held, and the layers that
    have them; the same object at every call.

    Raises:
        ValueError: where none was recorded.
    """
    if not capture.keys_pre_rope:
        raise ValueError(
            "this run has no keys before RoPE: the model's layers could not be hooked, or the file was saved "
            "without them; make a run of your own with a Llama, Qwen, Mistral or Gemma"
        )
    layers = [layer for layer in capture.layers if layer in capture.keys_pre_rope]
    return replace(
        capture,
        keys={layer: capture.keys_pre_rope[layer][:, : capture.tokens_held] for layer in layers},
        values={layer: capture.values[layer] for layer in layers if layer in capture.values},
    )


def fitting(capture: Capture, recipe: Recipe | str) -> Recipe:
    """Return a recipe that can be applied to a capture.

    Raises:
        ValueError: for one that does not parse, skips a layer the model does not have, or rotates a head_dim
            without a Hadamard matrix.
    """
    recipe = recipe_of(capture, recipe)
    for tensors in (capture.keys, capture.values) if recipe.rotate else ():
        for x in tensors.values():
            split(x.shape[-1])
    return recipe


def with_scheme(scheme: Scheme, name: str) -> Scheme:
    """Return the scheme of another name with this one's options, as far as they apply to it.

    A block size that was this scheme's default becomes the other's.

    Raises:
        ValueError: for a name that does not exist.
    """
    other, mine = Scheme.parse(name), SCHEMES[scheme.name]
    kept = {
        field: getattr(scheme, field)
        for field in _OPTION_OF
        if takes(other, field) and getattr(scheme, field) != getattr(mine, field)
    }
    return replace(other, **kept)


def with_option(recipe: Recipe, parts: tuple[str, ...] = PARTS, **options: object) -> Recipe:
    """Return a recipe whose blocked schemes have other options: `axis`, `rule` or `block`; see `Scheme`.

    Raises:
        ValueError: where it applies to none of these parts.
    """
    changed = {}
    for part in parts:
        scheme = recipe.scheme(part)
        fits = {name: value for name, value in options.items() if takes(scheme, name)}
        if fits:
            changed[part] = replace(scheme, **fits)
    if not changed:
        what = " and ".join(f"the {part}s' scheme {recipe.scheme(part)}" for part in parts)
        raise ValueError(f"{', '.join(options)} does not apply to {what}; choose one that has it, as mxfp4")
    return replace(recipe, **changed)


def takes(scheme: Scheme, field: str) -> bool:
    """Return whether `axis`, `rule` or `block` means anything to a scheme."""
    return _OPTION_OF[field] in scheme.options


_OPTION_OF = {"axis": "axis", "rule": "scale", "block": "block"}  # a field of Scheme: its name in the grammar


def baseline_of(recipe: Recipe, reach: str) -> Recipe:
    """Return a recipe's single-scale baseline: its twin, with one scale for what `reach` says.

    Args:
        reach: a name of `REACHES`.

    Raises:
        ValueError: for aint2, which has no twin, and for integers with a scale fixed at 1.0.
    """
    twin = recipe.twin()
    return replace(twin, key=_reaching(twin.key, reach), value=_reaching(twin.value, reach))


def reach_of(recipe: Recipe, baseline: Recipe) -> str | None:
    """Return the name in `REACHES` that makes this baseline of this recipe, or None."""
    for reach in REACHES:
        try:
            if baseline_of(recipe, reach) == baseline:
                return reach
        except ValueError:
            continue
    return None


def _reaching(scheme: Scheme, reach: str) -> Scheme:
    if scheme.is_none:
        return scheme
    name = f"{scheme.element.name}@{reach}"
    if name not in SCHEMES:
        raise ValueError(
            f"there is no {name}: a scale fixed at 1.0 suits floats alone, as an integer would hold almost "
            "none of these numbers; choose another baseline"
        )
    return SCHEMES[name]


def frozen_trip(capture: Capture, recipe: Recipe, part: str, layer: int) -> RoundTrip:
    """Round-trip one recorded layer as a growing cache would: what spans later tokens is set by the prompt.

    NVFP4's global scale and the scales of `@tensor`, `@head` and `@channel` are taken over the prompt's
    tokens, sinks included; what comes later and lies beyond them clips. Other schemes are not changed. Else
    as `mxviz.metrics.layer_trip`, `[kv_heads, tokens, head_dim]`.
    """
    scheme = recipe.scheme(part)
    if layer in recipe.skip or not scheme.is_frozen_while_generating:
        return layer_trip(capture, recipe, part, layer)
    x = capture.part(part, layer).float()
    prompt = x[:, : max(1, capture.prompt_tokens)]
    scales = fixed_scales(turn(prompt) if recipe.rotate else prompt, scheme)
    sink = sinks_of(capture, recipe, layer)
    return round_trip(x, scheme, sink=sink, rotate=recipe.rotate, frozen=scales)


class LayerCost(NamedTuple):
    """What adds up to a `Cost`: sums, scales that clip, scales, stored bits, stored elements of a layer."""

    sums: ErrorSums
    clipped_blocks: int = 0
    blocks: int = 0
    bits: float = 0.0
    elements: int = 0


def cost_layers(capture: Capture, part: str) -> tuple[int, ...]:
    """Return the layers that `cost` counts."""
    return capture.layers if capture.values or part == "key" else ()


@lru_cache(maxsize=2048)
def layer_cost(capture: Capture, recipe: str, part: str, layer: int, frozen: bool = False) -> LayerCost:
    """Count one layer for `cost`, which adds them up; a page counts them one by one to stay awake."""
    parsed = fitting(capture, recipe)
    trip = (frozen_trip if frozen else layer_trip)(capture, parsed, part, layer)
    sums = error_sums(capture.part(part, layer).float(), trip)
    if trip.blocks is None:
        return LayerCost(sums)
    of_layer, size = clipped_blocks(trip), trip.blocks.shape.numel()
    bits = parsed.scheme(part).bits_per_element(trip.x_hat.shape[-1]) * size
    return LayerCost(sums, int(of_layer.sum()), of_layer.numel(), bits, size)


@lru_cache(maxsize=64)
def cost(capture: Capture, recipe: str, part: str, frozen: bool = False) -> Cost:
    """Return what a recipe costs the keys or values of a capture, all recorded layers pooled.

    Args:
        capture: the run.
        recipe: its string.
        part: `key` or `value`.
        frozen: whether the prompt alone sets the scales that span later tokens; see `frozen_trip`. Without
            it, they are taken over all tokens.
    """
    counted = [layer_cost(capture, recipe, part, layer, frozen) for layer in cost_layers(capture, part)]
    sums = [row.sums for row in counted]
    clipped, blocks, bits, elements = (
        sum(getattr(row, name) for row in counted) for name in LayerCost._fields[1:]
    )
    stats = error_stats(pool(sums))
    return Cost(
        bits / elements if elements else None,
        stats["sqnr_db"],
        stats["flushed"],
        stats["clipped"],
        clipped,
        blocks,
    )


def clipped_blocks(trip: RoundTrip) -> torch.Tensor:
    """Return which scales of a layer have an element beyond them, bool, shaped like the scales.

    Raises:
        ValueError: where nothing was packed.
    """
    if trip.blocks is None:
        raise ValueError("nothing was packed, so no block can clip")
    scheme, axis = trip.blocks.scheme, trip.blocks.axis
    mask = trip.clipped[..., trip.clipped.shape[-2] - trip.blocks.shape[-2] :, :]  # behind the sinks
    if not scheme.is_blocked:
        return mask.sum(scheme.reach.dims, keepdim=True) > 0
    rows = mask.movedim(axis, -1)
    rows = torch.nn.functional.pad(rows, (0, -rows.shape[-1] % scheme.block))
    return rows.unflatten(-1, (-1, scheme.block)).any(-1).movedim(-1, axis)
