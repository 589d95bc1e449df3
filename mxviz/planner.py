"""The planner: what a KV cache takes under a recipe, to the byte, and the longest context on a card.

The bytes are those of `MXCache.nbytes` once a prompt of so many tokens came in, without a model: codes,
scales, zeros, scales that are set once, and what stays exact in 16 bit. A recurrent state is left out.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache

from mxviz._planner_configs import Layer, Shape, read_json, shape_of
from mxviz._planner_known import Card, Known, cards, known_models
from mxviz.formats import Axis, Reach, Recipe, ScaleFormat, Scheme

__all__ = [
    "GIB",
    "Card",
    "Known",
    "Layer",
    "Shape",
    "bytes_per_token",
    "cache_bytes",
    "cards",
    "known_models",
    "longest_context",
    "read_json",
    "row_bytes",
    "shape_of",
    "stays_exact",
]

GIB = 2**30
EXACT_BYTES = 2
"""Bytes of a number that stays exact: bfloat16 or float16."""

MOST_TOKENS = 10**9
"""Beyond this many tokens no limit is looked for."""


def cache_bytes(layers: Sequence[Layer], recipe: Recipe | str, tokens: int, batch: int = 1) -> int:
    """Return the bytes that `MXCache.nbytes` gives after a prompt of so many tokens, in 16 bit.

    Token by token it comes to the same, but for a layer whose window can hold a block of one part (keys or
    values) and not one of the other.

    Args:
        layers: as `shape_of` gives them.
        recipe: what keys and values are stored as.
        tokens: a sequence, padding included.
        batch: sequences.

    Raises:
        ValueError: for a recipe that does not parse, skips a layer the model does not have or quantizes
            nothing of it, or a negative number.
    """
    if tokens < 0 or batch < 0:
        raise ValueError(f"{tokens} tokens × batch {batch} cannot be; expected 0 or more")
    return batch * _bytes(_groups(layers, _parsed(layers, recipe)), tokens)


def bytes_per_token(layers: Sequence[Layer], recipe: Recipe | str) -> Fraction:
    """Return the bytes each further token of one sequence adds, once windows are full.

    A whole number but for blocks along tokens, which are packed a block at a time: then the mean.
    """
    recipe = _parsed(layers, recipe)
    groups, period = _groups(layers, recipe), _period(recipe)
    start = _settled(layers, recipe)
    return Fraction(_bytes(groups, start + period) - _bytes(groups, start), period)


def longest_context(layers: Sequence[Layer], recipe: Recipe | str, room: int, batch: int = 1) -> int | None:
    """Return how many tokens fit into `room` bytes, at every length on the way there too.

    Returns:
        Tokens a sequence; 0 where not even one fits, None where the cache does not outgrow the room within
        `MOST_TOKENS` (each layer slides, or the room is vast).
    """
    recipe = _parsed(layers, recipe)
    groups, period = _groups(layers, recipe), _period(recipe)

    def fits(tokens: int) -> bool:  # an open block is larger than a packed one, so look back over a block
        first = max(1, tokens - period + 1)
        return max(batch * _bytes(groups, t) for t in range(first, tokens + 1)) <= room

    if fits(MOST_TOKENS):
        return None
    low, high = 0, MOST_TOKENS
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


@lru_cache(maxsize=256)
def row_bytes(scheme: Scheme, width: int) -> tuple[Fraction, Fraction]:
    """Return the bytes of codes and of scales that a packed token takes in a head of `width` channels.

    Scales that are set once for a sequence are left out.
    """
    if scheme.is_none:
        return Fraction(width * EXACT_BYTES), Fraction(0)
    unit = _unit(scheme)
    codes = Fraction(width * unit * scheme.element.bits, 8 * unit) if unit > 1 else _ceil_bytes(scheme, width)
    each = scheme.scale.bits // 8
    if scheme.is_blocked:
        return codes, Fraction(width * each, unit) if unit > 1 else Fraction(-(-width // scheme.block) * each)
    return codes, Fraction(each if scheme.reach is Reach.TOKEN else 0)


def _ceil_bytes(scheme: Scheme, width: int) -> Fraction:
    """Each row of codes begins at a byte."""
    return Fraction(-(-width * scheme.element.bits // 8))


def _set_once(scheme: Scheme, layer: Layer, width: int) -> int:
    """Bytes of scales that all tokens of a sequence share in one layer: NVFP4's, or single ones."""
    if scheme.is_none or scheme.reach is Reach.TOKEN:
        return 0
    if scheme.is_blocked:
        return 4 if scheme.scale is ScaleFormat.E4M3 else 0
    spread = {Reach.HEAD: layer.heads, Reach.CHANNEL: layer.heads * width}
    return scheme.scale.bits // 8 * spread.get(scheme.reach, 1)


def _unit(scheme: Scheme) -> int:
    """Tokens that are packed at once."""
    return scheme.block if scheme.is_blocked and scheme.axis is Axis.TOKEN else 1


def _period(recipe: Recipe) -> int:
    return math.lcm(_unit(recipe.key), _unit(recipe.value))


def _settled(layers: Sequence[Layer], recipe: Recipe) -> int:
    """A length at which windows are full and exact parts are as long as they get, in whole blocks."""
    longest = max((layer.window or 0) for layer in layers) + recipe.sink + recipe.residual
    return (longest // _period(recipe) + 2) * _period(recipe)


def _parsed(layers: Sequence[Layer], recipe: Recipe | str) -> Recipe:
    recipe = Recipe.parse(recipe)
    if recipe.skip and recipe.skip[-1] >= len(layers):
        raise ValueError(
            f"skip={','.join(map(str, recipe.skip))} names a layer this model does not have; "
            f"expected layers from 0 to {len(layers) - 1}"
        )
    exact = [i in recipe.skip or stays_exact(layer, recipe) for i, layer in enumerate(layers) if layer.heads]
    if not recipe.is_none and all(exact):  # MXCache refuses it too
        raise ValueError(
            f"recipe {recipe} would quantize nothing: every layer of this model stays exact; use recipe none"
        )
    return recipe


_Groups = dict[tuple[Layer, Recipe | None], int]


def _groups(layers: Sequence[Layer], recipe: Recipe) -> _Groups:
    """How many layers hold the same; None in place of a recipe means exact."""
    skip = set(recipe.skip)
    return Counter(
        (layer, None if i in skip or stays_exact(layer, recipe) else recipe)
        for i, layer in enumerate(layers)
        if layer.heads
    )


def stays_exact(layer: Layer, recipe: Recipe) -> bool:
    """Return whether a layer is exact whatever the recipe says: its window holds no more than exact parts, or
    it has a second state."""
    quantized = [scheme for scheme in (recipe.key, recipe.value) if not scheme.is_none]
    if not layer.packs or not quantized:
        return True
    if layer.window is None:
        return False
    return all(layer.window < recipe.residual + _unit(scheme) for scheme in quantized)


def _bytes(groups: _Groups, tokens: int) -> int:
    """Bytes of one sequence."""
    total = Fraction(0)
    for (layer, recipe), count in groups.items():
        for part, width in (("key", layer.key_dim), ("value", layer.value_dim)):
            scheme = None if recipe is None else recipe.scheme(part)
            total += count * _part_bytes(layer, width, scheme, recipe, tokens)
    return int(total)


def _part_bytes(
    layer: Layer, width: int, scheme: Scheme | None, recipe: Recipe | None, tokens: int
) -> int | Fraction:
    """Bytes of the keys (or values) of one layer and one sequence."""
    if scheme is None:
        held = tokens if layer.window is None else min(tokens, layer.window - 1)
        return held * layer.heads * width * EXACT_BYTES
    exact, packed = _split(scheme, recipe, layer.window, tokens)
    rows = exact * width * EXACT_BYTES + packed * sum(row_bytes(scheme, width))
    return layer.heads * rows + (_set_once(scheme, layer, width) if tokens else 0)


def _split(scheme: Scheme, recipe: Recipe, window: int | None, tokens: int) -> tuple[int, int]:
    """How many tokens are held exact and how many packed: sinks, then packed, then the residual and an open
    block; under a window no sinks, and whole blocks go once they lie outside of it."""
    unit = _unit(scheme)
    sinks = 0 if window else min(recipe.sink, tokens)
    rest = tokens - sinks
    if window:
        rest -= max(0, rest - window) // unit * unit
    packed = 0 if scheme.is_none else max(0, rest - recipe.residual) // unit * unit
    tail = rest - packed
    if window:
        excess = max(0, rest - (window - 1))
        gone = min(excess, packed)
        packed, tail = packed - gone // unit * unit, tail - (excess - gone)
    return sinks + tail, packed
