"""The planner's sum in words: every factor with its number, so that it can be checked by hand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from fractions import Fraction

from mxviz._pictures_planner import Plan, lanes, short_words, size_words
from mxviz.formats import Axis, Recipe
from mxviz.planner import Layer, bytes_per_token, row_bytes, stays_exact


def formula(plan: Plan) -> list[str]:
    """Return the sum in words, with its numbers: a line a kind of layer, then the total.

    Raises:
        ValueError: as `lanes`.
    """
    recipe = Recipe.parse(plan.recipe)
    said = []
    for layer, count in Counter(layer for layer in plan.layers if layer.heads).items():
        said += _of_layers(layer, count, recipe)
    if not recipe.is_none:
        said += _exact_parts(recipe)
    for lane in lanes(plan)[: 1 if recipe.is_none else 2]:
        each = bytes_per_token(plan.layers, lane.recipe)
        said.append(
            f"In all, {lane.name}: {plan.tokens:,} tokens × batch {plan.batch} take {lane.size:,} bytes = "
            f"{size_words(lane.size)}; each further token of a sequence adds {_n(each)} bytes."
        )
    if plan.card is not None:
        said.append(
            f"Left for it: {size_words(plan.card.memory)} of {plan.card.name} less {_less(plan)} is "
            f"{size_words(max(0, plan.room))}."
        )
    return said


def _less(plan: Plan) -> str:
    weights = (
        "no weights, as none are known," if plan.weights is None else f"{size_words(plan.weights)} of weights"
    )
    return weights + (f" and {size_words(plan.kept)} kept free" if plan.kept else "")


def _of_layers(layer: Layer, count: int, recipe: Recipe) -> Iterator[str]:
    heads = f"{layer.heads} KV head{'s' * (layer.heads > 1)}"
    slide = "sliding " if layer.window else ""
    bare = count * layer.heads * (layer.key_dim + layer.value_dim) * 2
    end = f", for at most {layer.window - 1:,} tokens" if layer.window else ""
    yield (
        f"Uncompressed: {count} {slide}layers × {heads} × ({layer.key_dim} key + {layer.value_dim} value "
        f"channels) × 2 bytes = {bare:,} bytes a token{end}."
    )
    if recipe.is_none:
        return
    if stays_exact(layer, recipe):
        yield f"These {slide}layers stay uncompressed under any recipe such as this."
        return
    rows = [row_bytes(recipe.key, layer.key_dim), row_bytes(recipe.value, layer.value_dim)]
    parts = " + ".join(f"({_n(codes)} bytes of codes + {_n(scales)} of scales)" for codes, scales in rows)
    total = count * layer.heads * sum(map(sum, rows))
    yield (
        f"{short_words(recipe)}: {count} {slide}layers × {heads} × [{parts}] = {_n(total)} bytes a packed "
        f"token{end}."
    )


def _exact_parts(recipe: Recipe) -> Iterator[str]:
    open_block = max(
        (s.block for s in (recipe.key, recipe.value) if s.is_blocked and s.axis is Axis.TOKEN), default=0
    )
    kept = [f"the first {recipe.sink} tokens (not in sliding layers)"] if recipe.sink else []
    kept += [f"the newest {recipe.residual}"] if recipe.residual else []
    kept += [f"an open block of up to {open_block - 1} tokens"] if open_block else []
    kept += [f"layers {', '.join(map(str, recipe.skip))}"] if recipe.skip else []
    if kept:
        yield f"Exact, in 16 bit: {'; '.join(kept)}."


def _n(value: Fraction | int) -> str:
    return f"{int(value):,}" if value == int(value) else f"{float(value):,.2f}"
