"""From a plan (a model, a recipe, a context, a card) to its sentence and its figure."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from mxviz._pictures_race_table import recipe_words
from mxviz.figures import Figure
from mxviz.figures._traces import number
from mxviz.figures.planner import Cache, Place, context_words, memory_lines, rounded_down
from mxviz.formats import Recipe
from mxviz.planner import GIB, Card, Layer, cache_bytes, cache_curve, longest_context

ABOUT = (
    "Each line is the memory a cache needs as the context grows, on top of the weights: it may grow until it "
    "meets the card. Micro-scaling and one scale for everything cost almost the same memory; what they lose "
    "is another matter, and the other pages show it."
)
"""What a reader sees in the figure."""

_BEYOND = 8  # the axis ends at so many times the context that is looked at, or where the last line meets
_POINTS = 240


class Plan(NamedTuple):
    """What is asked.

    Args:
        title: the model's name, plain text.
        layers: what each of its layers caches.
        recipe: canonical string of what the cache is stored as.
        tokens: context of each sequence.
        batch: sequences.
        card: what it has to fit on, or None.
        weights: bytes of the weights, None where nobody said.
        kept: bytes kept free for everything else.
        context: tokens the model was made for, None where its config does not say.
    """

    title: str
    layers: tuple[Layer, ...]
    recipe: str
    tokens: int
    batch: int = 1
    card: Card | None = None
    weights: int | None = None
    kept: int = 0
    context: int | None = None

    @property
    def room(self) -> int | None:
        """Bytes that are left for the cache; None without a card."""
        return None if self.card is None else self.card.memory - (self.weights or 0) - self.kept


class Lane(NamedTuple):
    """One way to store the cache: its meaning colour, its name, what is exact, its recipe, bytes at the
    context, and what fits."""

    lane: str
    name: str
    exact: str
    recipe: str
    size: int
    fits: int | None


@lru_cache(maxsize=64)
def lanes(plan: Plan) -> tuple[Lane, ...]:
    """Return uncompressed, the recipe, and its single-scale baseline where there is one.

    Raises:
        ValueError: for a recipe that does not parse or does not suit the model.
    """
    recipe = Recipe.parse(plan.recipe)
    blocked = recipe.key.is_blocked or recipe.value.is_blocked
    ways = {"none": ("exact", "uncompressed")}
    if not recipe.is_none:
        ways[str(recipe)] = ("micro" if blocked else "single", short_words(recipe))
        twin = _twin(recipe)
        if blocked and twin is not None:
            ways[str(twin)] = ("single", short_words(twin))
    found = []
    for text, (lane, name) in ways.items():
        size = cache_bytes(plan.layers, text, plan.tokens, plan.batch)
        room = plan.room
        fits = None if room is None else longest_context(plan.layers, text, room, plan.batch)
        found.append(Lane(lane, name, exact_words(Recipe.parse(text)), text, size, fits))
    return tuple(found)


def short_words(recipe: Recipe) -> str:
    """Return a recipe's name without its exact parts: MXFP4, keys along tokens."""
    return recipe_words(Recipe(recipe.key, recipe.value))


def exact_words(recipe: Recipe) -> str:
    """Return what a recipe keeps exact, to be put behind its name; empty where nothing."""
    kept = [f"first {recipe.sink}"] if recipe.sink else []
    kept += [f"newest {recipe.residual}"] if recipe.residual else []
    kept += [f"layers {', '.join(map(str, recipe.skip))}"] if recipe.skip else []
    return f" ({' and '.join(kept)} exact)" if kept else ""


def _twin(recipe: Recipe) -> Recipe | None:
    try:
        return recipe.twin()
    except ValueError:  # aint2 has none
        return None


def answer(plan: Plan) -> tuple[tuple[str, str], ...]:
    """Return the answer as one sentence in pieces: each a text and a lane (its colour), or no lane.

    Raises:
        ValueError: as `lanes`.
    """
    exact, *rest = lanes(plan)
    batch = f" in each of {plan.batch} sequences" if plan.batch > 1 else ""
    pieces = [(f"At {context_words(plan.tokens)} tokens{batch} this cache takes ", "")]
    pieces.append((f"{size_words(exact.size)} uncompressed", exact.lane))
    chosen = exact
    if rest:
        chosen = rest[0]
        pieces += [(", ", ""), (f"{size_words(chosen.size)} as {chosen.name}{chosen.exact}", chosen.lane)]
    return (*pieces, *_fitting(plan, exact, chosen), (".", ""))


def _fitting(plan: Plan, exact: Lane, chosen: Lane) -> Iterator[tuple[str, str]]:
    """The second half of the sentence: what fits on the card."""
    if plan.card is None:
        return
    card = f"{plan.card.name} ({number(plan.card.label_gb)} GB)"
    if plan.room <= 0:
        yield f": there is no room for it on {card}, {beside(plan)}", ""
        return
    if chosen.fits is None:
        yield f": it never outgrows {card}, {beside(plan)}", ""
        return
    held = chosen.fits >= plan.tokens
    fits = f"it fits on {card}, {beside(plan)}, up to " if held else f"too much for {card}, which holds "
    yield f": {fits}", ""
    yield f"{rounded_down(chosen.fits):,} tokens", chosen.lane
    if not held:
        yield f", {beside(plan)}", ""
    if chosen is not exact and exact.fits is not None:
        yield "; uncompressed up to ", ""
        yield f"{rounded_down(exact.fits):,}", exact.lane


def beside(plan: Plan) -> str:
    """Say what lies on the card beside the cache."""
    weights = (
        "no weights counted" if plan.weights is None else f"beside {size_words(plan.weights)} of weights"
    )
    return weights + (f" and {size_words(plan.kept)} kept free" if plan.kept else "")


def size_words(size: float) -> str:
    """Return bytes in GiB, or in MiB or bytes where they are few."""
    for unit, many in (("GiB", GIB), ("MiB", 2**20)):
        if size >= many / 10:
            return f"{number(size / many)}\N{NO-BREAK SPACE}{unit}"
    return f"{size:,.0f} bytes"


def planner_picture(
    plan: Plan, *, theme: str = "light", width: int = 1280, height: int | None = None
) -> Figure:
    """Draw GiB against context for the recipe of a plan, its baseline and the uncompressed cache.

    Args:
        plan: what is asked.
        theme: `light` or `dark`.
        width: CSS pixels; below 640 the figure is laid out for a phone. So is height.

    Raises:
        ValueError: as `lanes`, and for an unknown theme.
    """
    found = lanes(plan)
    contexts = _contexts(plan, found)
    caches = []
    for lane in found:
        curve = np.array(cache_curve(plan.layers, lane.recipe, map(int, contexts), plan.batch)) / GIB
        caches.append(
            Cache(
                lane.name + ", with exact parts" * bool(lane.exact),
                curve,
                lane.lane,
                lane.fits,
                lane.size / GIB,
            )
        )
    memory = None if plan.card is None else plan.card.memory / GIB
    below = ((plan.weights or 0) + plan.kept) / GIB
    words = "weights and what is kept free" if plan.kept else "weights"
    place = Place("" if plan.card is None else plan.card.name, memory, below, words)
    look = {"theme": theme, "width": width, "height": height}
    return memory_lines(
        contexts, caches, place, at=plan.tokens, title=title(plan), subtitle=_subtitle(plan), **look
    )


def _contexts(plan: Plan, found: tuple[Lane, ...]) -> np.ndarray:
    """Contexts to draw: even steps of whole blocks, and where windows fill."""
    met = max((lane.fits for lane in found if lane.fits), default=0)
    last = 1.12 * max(plan.tokens, min(met, _BEYOND * plan.tokens))
    even = np.linspace(0, last, _POINTS) // 64 * 64
    windows = [layer.window - 1 for layer in set(plan.layers) if layer.window and layer.window - 1 < last]
    return np.unique(np.concatenate([even, windows, [plan.tokens]]))


def title(plan: Plan) -> str:
    """Say what the figure shows, from its numbers."""
    exact, *rest = lanes(plan)
    chosen = rest[0] if rest else exact
    name = plan.title.replace(" ", "\N{NO-BREAK SPACE}")
    if plan.card is None:
        sizes = f"{size_words(chosen.size)} as {chosen.name}, {size_words(exact.size)} uncompressed"
        sizes = sizes if rest else f"{size_words(exact.size)} uncompressed"
        return f"{context_words(plan.tokens)} tokens of {name} take {sizes}"
    if plan.room <= 0:
        return f"{name} leaves no room for a cache on {plan.card.name}"
    if chosen.fits is None:
        return f"The cache of {name} never outgrows {plan.card.name}"
    text = f"{rounded_down(chosen.fits):,} tokens of {name} fit on {plan.card.name}"
    if not rest:
        return text + " uncompressed"
    bare = "any number" if exact.fits is None else f"{rounded_down(exact.fits):,}"
    return f"{text} as {chosen.name}, {bare} uncompressed"


def _subtitle(plan: Plan) -> str:
    each = f", batch {plan.batch}: tokens of each sequence" if plan.batch > 1 else ""
    known = "the cache, no weights counted" if plan.weights is None else "weights and cache"
    return f"{known}{each}; activations and the runtime's own memory are not in it"
