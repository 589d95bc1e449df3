"""A choice: what the switches of one run are set to, and how one of them changes it. No widgets here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from mxviz import looks
from mxviz.capture import PARTS, Capture
from mxviz.formats import SCHEMES, Axis, Recipe, ScaleRule

FROZEN = "frozen"
BASELINES = looks.REACHES | {FROZEN: "frozen by the prompt"}
"""Baselines that belong to a recipe, and what to call them."""


class Choice(NamedTuple):
    """What the switches of a run are set to.

    Args:
        recipe: canonical string; so is baseline.
        follows: the name in `BASELINES` that makes the baseline of any recipe; None for one of its own.
        before_rope: whether keys before RoPE are looked at.
        said: one line about the last change, or nothing.
        typed: what was typed and could not be read.
    """

    recipe: str
    baseline: str
    follows: str | None
    before_rope: bool = False
    said: str = ""
    typed: str = ""

    @property
    def parsed(self) -> Recipe:
        return Recipe.parse(self.recipe)

    @property
    def settled(self) -> Choice:
        """The choice without what was said about it."""
        return self._replace(said="", typed="")


Change = Callable[[Choice, object], Choice]


def own(capture: Capture) -> Choice:
    """Return a run's own recipe and baseline."""
    recipe, baseline = Recipe.parse(capture.recipe), Recipe.parse(capture.baseline)
    return Choice(str(recipe), str(baseline), looks.reach_of(recipe, baseline))


def changed(capture: Capture, choice: Choice, change: Change, value: object) -> Choice:
    """Return the choice after a change; the one there was, and why in one line, where it does not fit."""
    try:
        new = change(choice.settled, value)
        for text in (new.recipe, new.baseline):
            looks.fitting(capture, text)
        return new
    except ValueError as error:
        typed = value if change is set_text else ""
        return choice._replace(said=" ".join(str(error).split()), typed=typed)


def set_scheme(choice: Choice, name: str) -> Choice:
    """Another element format and scale, the options kept as far as they apply; or any recipe."""
    if name not in SCHEMES:
        return set_text(choice, name)
    recipe = choice.parsed
    both = {part: looks.with_scheme(recipe.scheme(part), name) for part in PARTS}
    return _with(choice, replace(recipe, **both))


def set_text(choice: Choice, text: str) -> Choice:
    """Any recipe at all."""
    recipe = Recipe.parse(text)
    bare = [f"{part}s" for part in PARTS if recipe.scheme(part).is_none]
    new = _with(choice, recipe)
    return new._replace(said=f"{bare[0]} stay uncompressed; k= and v= name both") if len(bare) == 1 else new


def set_baseline(choice: Choice, name: str) -> Choice:
    """What the recipe is compared with: one of `BASELINES`, or any recipe."""
    if name in BASELINES:
        return choice._replace(baseline=str(_baseline(choice.parsed, name)), follows=name)
    return choice._replace(baseline=str(Recipe.parse(name)), follows=None)


def set_before_rope(choice: Choice, on: bool) -> Choice:
    """Look at keys before RoPE, or at those that the cache holds."""
    return choice._replace(before_rope=bool(on))


def set_field(name: str) -> Change:
    """Return the change of a recipe's `sink`, `residual`, `skip` or `rotate`."""
    kind = {"skip": lambda layers: tuple(sorted(layers)), "rotate": bool}.get(name, int)
    return lambda choice, value: _with(choice, replace(choice.parsed, **{name: kind(value)}))


def set_option(field: str, parts: tuple[str, ...]) -> Change:
    """Return the change of the `axis`, `rule` or `block` of some parts' schemes."""
    kind = {"axis": Axis, "rule": ScaleRule}.get(field, int)
    return lambda choice, value: _with(
        choice, looks.with_option(choice.parsed, parts, **{field: kind(value)})
    )


def _with(choice: Choice, recipe: Recipe) -> Choice:
    """The choice with another recipe, and the baseline that belongs to it where there is one."""
    new = choice._replace(recipe=str(recipe))
    if choice.follows is None:
        return new
    try:
        return new._replace(baseline=str(_baseline(recipe, choice.follows)))
    except ValueError as error:
        return new._replace(said=f"{error}; the baseline stays {choice.baseline}")


def _baseline(recipe: Recipe, name: str) -> Recipe:
    return looks.baseline_of(recipe, "tensor" if name == FROZEN else name)
