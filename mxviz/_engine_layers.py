"""A recipe taken apart: the recipes that store one layer's keys or values alone, and what a map suggests.

Nothing here runs a model. The effects of these recipes are measured by `mxviz._engine_sensitivity`, or were
recorded: then a capture carries them under their canonical strings, and `recorded` puts them together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from mxviz.capture import PARTS, Capture
from mxviz.formats import SCHEMES, Recipe

HALF = 0.5
"""Share of the summed KL that the layers of a suggested skip= hold."""
MOST_SKIPPED = 0.25
"""Share of the layers that a suggestion exempts at most."""


class Measured(NamedTuple):
    """One recipe over one text: mean KL(exact‖quantized) in nats, and the share of equal first choices.

    Args:
        recipe: its canonical string.
        kl: mean over positions, nats; those that are not finite are left out.
        top1: 0 to 1.
        bits: bits per element over all layers, keys and values alike, exact ones at 16; scales included,
            those of a whole tensor left out.
    """

    recipe: str
    kl: float
    top1: float
    bits: float


@dataclass(frozen=True, eq=False)
class Sensitivity:
    """What was measured over one text.

    Args:
        recipe: the recipe that was taken apart.
        tokens: of the text that was measured, from its first one.
        kl: `key` and `value` to mean KL in nats with that layer alone quantized, `[layers]` float64; NaN
            where it stays exact anyway.
        whole: the recipe itself, as measured on the same tokens.
        suggestions: what the map suggests, each measured; may be empty.
    """

    recipe: str
    tokens: int
    kl: dict[str, np.ndarray]
    whole: Measured
    suggestions: dict[str, Measured]


def only(recipe: Recipe, layers: int, part: str, layer: int) -> Recipe:
    """Return the recipe that stores one layer's keys or values as `recipe` does, and the rest exactly."""
    rest = tuple(other for other in range(layers) if other != layer)
    return replace(part_alone(recipe, part), skip=rest)


def part_alone(recipe: Recipe, part: str) -> Recipe:
    """Return the recipe with keys, or values, alone; its sinks and skipped layers stay as they are."""
    other = "value" if part == "key" else "key"
    return replace(recipe, **{other: SCHEMES["none"]})


def parts_of(recipe: Recipe) -> list[str]:
    """Return which of keys and values a recipe quantizes."""
    return [part for part in PARTS if not recipe.scheme(part).is_none]


def taken_apart(recipe: Recipe, layers: int) -> Iterator[tuple[str, int, Recipe]]:
    """Yield part, layer and the recipe of that layer's part alone, for each that a recipe quantizes."""
    for part in parts_of(recipe):
        for layer in range(layers):
            if layer not in recipe.skip:
                yield part, layer, only(recipe, layers, part, layer)


def is_one_layer(recipe: Recipe, layers: int) -> bool:
    """Whether a recipe is one of `taken_apart`'s: of a model of several layers it stores part of one."""
    return layers > 2 and len(recipe.skip) == layers - 1 and len(parts_of(recipe)) == 1


def suggested(recipe: Recipe, kl: dict[str, np.ndarray]) -> dict[str, Recipe]:
    """Return what a map suggests: exempt the few layers that hold most of the KL; store one part alone.

    Args:
        recipe: what was taken apart.
        kl: as in `Sensitivity`.
    """
    parts = parts_of(recipe)
    cost = sum(np.nan_to_num(kl[part]) for part in parts)
    order, most = np.argsort(-cost, kind="stable"), max(1, int(MOST_SKIPPED * len(cost)))
    held = np.cumsum(cost[order])
    few = order[: min(most, 1 + int(np.searchsorted(held, HALF * held[-1])))]
    found = {}
    if held[-1] > 0 and len(few) < len(cost):
        found["skip"] = replace(recipe, skip=tuple(sorted({*recipe.skip, *map(int, few)})))
    if len(parts) == len(PARTS):
        found |= {f"{part}-only": part_alone(recipe, part) for part in PARTS}
    return found


def bits_of(recipe: Recipe, layers: int, head_dim: int) -> float:
    """Return bits per element over all layers, keys and values alike, exact ones at 16."""
    skipped = len(recipe.skip) / layers
    stored = [recipe.scheme(part).bits_per_element(head_dim) or 16.0 for part in PARTS]
    return skipped * 16.0 + (1 - skipped) * sum(stored) / len(stored)


def recorded(capture: Capture, recipe: Recipe | str) -> Sensitivity | None:
    """Put a map together from the effects that a capture carries; None where it carries no layer's.

    Args:
        capture: a run; effects are of its whole text.
        recipe: what was taken apart.
    """
    recipe, layers = Recipe.parse(recipe), int(capture.shape.get("layers") or len(capture.layers))
    head_dim = capture.part("key", capture.layers[0]).shape[-1]
    kl = {part: np.full(layers, np.nan) for part in PARTS}
    for part, layer, alone in taken_apart(recipe, layers):
        if (row := _row(capture, alone, layers, head_dim)) is not None:
            kl[part][layer] = row.kl
    whole = _row(capture, recipe, layers, head_dim)
    if whole is None or not any(np.isfinite(x).any() for x in kl.values()):
        return None
    rows = {name: _row(capture, way, layers, head_dim) for name, way in suggested(recipe, kl).items()}
    suggestions = {name: row for name, row in rows.items() if row is not None}
    return Sensitivity(str(recipe), len(capture.token_ids), kl, whole, suggestions)


def recorded_rows(capture: Capture, recipes: Iterable[str]) -> list[Measured]:
    """Return what a capture carries of some recipes, in their order; effects are of its whole text."""
    layers = int(capture.shape.get("layers") or len(capture.layers))
    head_dim = capture.part("key", capture.layers[0]).shape[-1]
    rows = [_row(capture, Recipe.parse(recipe), layers, head_dim) for recipe in recipes]
    return [row for row in rows if row is not None]


def _row(capture: Capture, recipe: Recipe, layers: int, head_dim: int) -> Measured | None:
    """Return what a capture knows of a recipe: as `Measured`, or None."""
    own = {capture.recipe: "micro", capture.baseline: "single"}
    tables = capture.effect.get(str(recipe), capture.effect.get(own.get(str(recipe), "")))
    if tables is None:
        return None
    nats = tables["kl"].double()
    nats = nats[nats.isfinite()]
    kl = float(nats.mean()) if nats.numel() else float("nan")
    top1 = float(tables["top1"].double().mean())
    return Measured(str(recipe), kl, top1, bits_of(recipe, layers, head_dim))
