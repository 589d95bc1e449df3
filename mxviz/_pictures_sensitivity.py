"""From what was measured layer by layer, and recipe by recipe, to sentences and figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from mxviz._pictures_effect import share
from mxviz.figures import Figure
from mxviz.figures._nats import plain
from mxviz.figures.sensitivity import Rung, layer_map, recipe_ladder
from mxviz.formats import Recipe

if TYPE_CHECKING:
    from mxviz._engine_layers import Measured, Sensitivity

SPACE = "\N{NO-BREAK SPACE}"
COMPARED = (
    *("int8@tensor", "fp8_e4m3@tensor", "mxfp8_e4m3", "mxfp8_e4m3:scale=rceil"),
    *("int4@tensor", "fp4@tensor", "mxfp4", "k=mxfp4:axis=token;v=mxfp4", "nvfp4"),
)
"""Recipes that are worth seeing side by side on one text, 8 bits first."""

PAIRS = (
    ("int8@tensor", "int4@tensor", "one scale at 8 and at 4 bits"),
    ("fp8_e4m3@tensor", "mxfp8_e4m3", "one scale, and a scale per block by OCP's floor rule, which clips"),
    ("mxfp8_e4m3", "mxfp8_e4m3:scale=rceil", "the same blocks by floor, and by rceil, which never clips"),
    ("fp4@tensor", "mxfp4", "FP4 with one scale, and with one per 32"),
    ("mxfp4", "nvfp4", "a power of two per 32, and an E4M3 scale per 16"),
    ("mxfp4", "k=mxfp4:axis=token;v=mxfp4", "key blocks along channels, and along tokens"),
)
"""What to hold side by side, and what the two differ in."""

_PARTS = {"key": "keys", "value": "values"}


def skipped(found: Sensitivity) -> list[int]:
    """Return the layers that the map suggests to exempt, beyond those the recipe skips."""
    if "skip" not in found.suggestions:
        return []
    suggested = Recipe.parse(found.suggestions["skip"].recipe).skip
    return sorted(set(suggested) - set(Recipe.parse(found.recipe).skip))


def layer_map_picture(
    found: Sensitivity, model: str, *, theme: str = "light", width: int = 1280, height: int | None = None
) -> Figure:
    """Draw what each layer's keys and values cost alone, the suggested layers marked.

    Args:
        found: what `sensitivity` measured.
        model: its name, for the subtitle.
        theme: `light` or `dark`.
        width: CSS pixels; below 640 the figure is laid out for a phone. So is height.
    """
    return layer_map(
        found.kl["key"],
        found.kl["value"],
        title=layers_sentence(found),
        subtitle=f"{model} · {found.recipe}, one layer's keys or values at a time, the rest exact; mean "
        f"KL(exact‖quantized) over {found.tokens:,} tokens",
        marked=skipped(found),
        meaning=_meaning(found.recipe),
        theme=theme,
        width=width,
        height=height,
    )


def both_sentence(micro: Sensitivity, single: Sensitivity) -> str:
    """Say what the layer that costs most with one scale costs, and what it costs micro-scaled."""
    kl = {part: x for part, x in single.kl.items() if np.isfinite(x).any()}
    if not kl:
        return layers_sentence(micro)
    part = max(kl, key=lambda p: np.nanmax(kl[p]))
    layer = int(np.nanargmax(kl[part]))
    less = float(micro.kl[part][layer])
    told = f", micro-scaled by {_nats(less)}" if np.isfinite(less) else ""
    return (
        f"One scale for layer {layer}'s {_PARTS[part]} alone moves the next word by "
        f"{_nats(float(kl[part][layer]))}{told}"
    )


def layers_sentence(found: Sensitivity) -> str:
    """Say which layer's keys or values cost most, and how that compares with the whole recipe."""
    kl = {part: x for part, x in found.kl.items() if np.isfinite(x).any()}
    if not kl:
        return "No layer's keys or values gave a KL"
    part = max(kl, key=lambda p: np.nanmax(kl[p]))
    layer = int(np.nanargmax(kl[part]))
    return (
        f"Layer {layer}'s {_PARTS[part]} alone cost {_nats(float(kl[part][layer]))}, "
        f"all layers together {_nats(found.whole.kl)}"
    )


def suggestion_picture(
    found: Sensitivity, model: str, *, theme: str = "light", width: int = 1280, height: int | None = None
) -> Figure:
    """Draw the recipe beside what its map suggests, all of it measured; arguments as `layer_map_picture`."""
    rows = {"the recipe": found.whole, **{_said(name, found): row for name, row in found.suggestions.items()}}
    return recipe_ladder(
        [
            Rung(f"{name}, {row.recipe}", row.kl, _more(row), _meaning(row.recipe))
            for name, row in rows.items()
        ],
        title=suggestion_sentence(found),
        subtitle=f"{model} · each measured over {found.tokens:,} tokens; bits per element, exact "
        "layers and parts counted at 16",
        theme=theme,
        width=width,
        height=height,
    )


def suggestion_sentence(found: Sensitivity) -> str:
    """Say what exempting the worst layers does and what it costs, with both numbers; nothing is promised."""
    row = found.suggestions.get("skip")
    if row is None:
        return "No few layers hold most of the damage, so there is none to exempt"
    layers = skipped(found)
    named = f"layer{'s' if len(layers) > 1 else ''} {', '.join(map(str, layers))}"
    return (
        f"With {named} exact the KL is {_nats(row.kl)} instead of {_nats(found.whole.kl)}, "
        f"for {row.bits:.2f} bits per element instead of {found.whole.bits:.2f}"
    )


def parts_sentence(found: Sensitivity) -> str:
    """Say what keys alone and values alone cost; where a recipe has both, each was measured."""
    alone = {part: found.suggestions.get(f"{part}-only") for part in _PARTS}
    said = [f"{_PARTS[part]} alone cost {_nats(row.kl)}" for part, row in alone.items() if row is not None]
    told = f"In all layers, {', '.join(said)}, both together {_nats(found.whole.kl)}. " if said else ""
    return told + "KLs of single parts and layers do not add up, so each recipe is measured, none is summed."


def recipes_picture(
    rows: Sequence[Measured],
    model: str,
    tokens: int,
    *,
    theme: str = "light",
    width: int = 1280,
    height: int | None = None,
) -> Figure:
    """Draw measured recipes one below the other; arguments as `layer_map_picture`."""
    return recipe_ladder(
        [Rung(row.recipe, row.kl, _more(row), _meaning(row.recipe)) for row in rows],
        title=recipes_sentence(rows),
        subtitle=f"{model} · teacher-forced over {tokens:,} tokens of this text",
        theme=theme,
        width=width,
        height=height,
    )


def recipes_sentence(rows: Sequence[Measured]) -> str:
    """Say what one scale costs at 8 and at 4 bits; of other recipes, which costs least and most."""
    kl = {row.recipe: row.kl for row in rows if np.isfinite(row.kl)}
    if {"int8@tensor", "int4@tensor"} <= kl.keys():
        eight, four = _nats(kl["int8@tensor"]), _nats(kl["int4@tensor"])
        return f"One scale costs {eight} of KL with 8-bit integers, {four} with 4-bit ones"
    if not kl:
        return "None of these recipes gave a KL"
    least, most = min(kl, key=kl.get), max(kl, key=kl.get)
    return f"{least} moves the forecasts least, by {_nats(kl[least])}; {most} most, by {_nats(kl[most])}"


def findings(rows: Sequence[Measured]) -> list[str]:
    """Return what the measured recipes say about each other, a line a pair, both numbers in each."""
    kl = {row.recipe: row.kl for row in rows if np.isfinite(row.kl)}
    return [f"{a} {_nats(kl[a])}, {b} {_nats(kl[b])}: {what}" for a, b, what in PAIRS if {a, b} <= kl.keys()]


def _nats(kl: float) -> str:
    return f"{plain(kl, 2)}{SPACE}nats"


def _more(row: Measured) -> str:
    return f"same first choice {share(row.top1)}, {plain(row.bits)}{SPACE}bits"


def _said(name: str, found: Sensitivity) -> str:
    layers = ", ".join(map(str, skipped(found)))
    return {"skip": f"layers {layers} exact", "key-only": "keys only", "value-only": "values only"}[name]


def _meaning(recipe: str) -> str:
    """Return the meaning colour of a recipe: that of the first part it quantizes."""
    read = Recipe.parse(recipe)
    scheme = read.value if read.key.is_none else read.key
    return "exact" if scheme.is_none else "micro" if scheme.is_blocked else "single"
