"""The planner: what a KV cache takes under a recipe, to the byte, and the longest context on a card.

The bytes are those of `MXCache.nbytes` once a prompt of so many tokens came in, without a model: codes,
scales, zeros, scales that are set once, and what stays exact in 16 bit. A recurrent state is left out.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import NamedTuple

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
    "cache_curve",
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
    return cache_curve(layers, recipe, [tokens], batch)[0]


def cache_curve(
    layers: Sequence[Layer], recipe: Recipe | str, contexts: Iterable[int], batch: int = 1
) -> list[int]:
    """Return `cache_bytes` at many contexts; arguments and errors are its own."""
    parts = _parts(layers, _parsed(layers, recipe))
    return [batch * _bytes(parts, tokens) for tokens in contexts]


def bytes_per_token(layers: Sequence[Layer], recipe: Recipe | str) -> Fraction:
    """Return the bytes each further token of one sequence adds, once windows are full.

    A whole number but for blocks along tokens, which are packed a block at a time: then the mean.
    """
    recipe = _parsed(layers, recipe)
    parts, period = _parts(layers, recipe), _period(recipe)
    start = _settled(layers, recipe)
    return Fraction(_bytes(parts, start + period) - _bytes(parts, start), period)


def longest_context(layers: Sequence[Layer], recipe: Recipe | str, room: int, batch: int = 1) -> int | None:
    """Return how many tokens fit into `room` bytes, at every length on the way there too.

    Returns:
        Tokens a sequence; 0 where not even one fits, None where the cache does not outgrow the room within
        `MOST_TOKENS` (each layer slides, or the room is vast).
    """
    recipe = _parsed(layers, recipe)
    parts, period = _parts(layers, recipe), _period(recipe)

    def fits(tokens: int) -> bool:  # an open block is larger than a packed one, so look back over a block
        first = max(1, tokens - period + 1)
        return max(batch * _bytes(parts, t) for t in range(first, tokens + 1)) <= room

    if fits(MOST_TOKENS):
        return None
    low, high = 0, MOST_TOKENS
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


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


def stays_exact(layer: Layer, recipe: Recipe) -> bool:
    """Return whether a layer is exact whatever the recipe says: its window holds no more than exact parts, or
    it has a second state."""
    quantized = [scheme for scheme in (recipe.key, recipe.value) if not scheme.is_none]
    if not layer.packs or not quantized:
        return True
    if layer.window is None:
        return False
    return all(layer.window < recipe.residual + _unit(scheme) for scheme in quantized)


class _Part(NamedTuple):
    """The keys (or values) of layers that hold the same: bytes of one sequence, all these layers together.

    Args:
        exact: bytes of an exact token.
        packed: bytes of `unit` packed tokens; 0 where nothing is packed.
        once: bytes of scales that all tokens share.
        unit: tokens that are packed at once.
        sink: first tokens that stay exact.
        residual: newest tokens that stay exact.
        window: the sliding window in tokens, None where every token stays.
    """

    exact: int
    packed: int
    once: int
    unit: int
    sink: int
    residual: int
    window: int | None


def _parts(layers: Sequence[Layer], recipe: Recipe) -> list[_Part]:
    skip = set(recipe.skip)
    groups = Counter((layer, i in skip) for i, layer in enumerate(layers) if layer.heads)
    found = []
    for (layer, skipped), count in groups.items():
        exact = skipped or stays_exact(layer, recipe)
        for scheme, width in ((recipe.key, layer.key_dim), (recipe.value, layer.value_dim)):
            rows = count * layer.heads
            if exact or scheme.is_none:
                found.append(_Part(rows * width * EXACT_BYTES, 0, 0, 1, 0, 0, layer.window))
                continue
            unit, sink = _unit(scheme), 0 if layer.window else recipe.sink
            packed = rows * int(unit * sum(row_bytes(scheme, width)))
            once = count * _set_once(scheme, layer, width)
            row = rows * width * EXACT_BYTES
            found.append(_Part(row, packed, once, unit, sink, recipe.residual, layer.window))
    return found


def _bytes(parts: Sequence[_Part], tokens: int) -> int:
    """Bytes of one sequence."""
    total = 0
    for part in parts:
        exact, packed = _split(part, tokens)
        total += exact * part.exact + packed // part.unit * part.packed + (part.once if tokens else 0)
    return total


def _split(part: _Part, tokens: int) -> tuple[int, int]:
    """How many tokens are held exact and how many packed: sinks, then packed, then the residual and an open
    block; under a window no sinks, and whole blocks go once they lie outside of it."""
    unit, window = part.unit, part.window
    sinks = min(part.sink, tokens)
    rest = tokens - sinks
    if window:
        rest -= max(0, rest - window) // unit * unit
    packed = max(0, rest - part.residual) // unit * unit if part.packed else 0
    tail = rest - packed
    if window:
        excess = max(0, rest - (window - 1))
        gone = min(excess, packed)
        packed, tail = packed - gone // unit * unit, tail - (excess - gone)
    return sinks + tail, packed
