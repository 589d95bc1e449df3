"""The race's third number: what many recipes do to the next token, over one text."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from torch import Tensor

from mxviz._engine_effect import measure
from mxviz.formats import Recipe
from mxviz.models import Loaded

BATCH = 4
"""Recipes that share one exact pass; the model's lock is let go of, and results are told, after so many."""

Tables = dict[str, dict[str, Tensor]]


def measure_race(
    loaded: Loaded,
    ids: Iterable[int],
    recipes: Iterable[str | Recipe],
    *,
    backend: str = "auto",
    said: Callable[[int, int], None] = lambda done, total: None,
    found: Callable[[Tables], None] = lambda tables: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Tables:
    """Measure recipes teacher-forced over one text, as `mxviz.engine.measure` does.

    The result fits `Capture.effect`: `replace(capture, effect=capture.effect | measure_race(…))`.

    Args:
        loaded: the model.
        ids: the text; every position counts.
        recipes: what to measure; each once, `none` not at all.
        backend: what quantizes.
        said: told before each pass how many of how many are done.
        found: told the tables of every few recipes as soon as they are there.
        should_stop: asked before every layer of a pass, and while another run has the model.

    Returns:
        Canonical recipe string to `kl` (nats, `[positions]`), `top1` (bool, `[positions]`) and `nll` (nats,
        `[positions - 1]`). Where it was stopped, those that were done.

    Raises:
        ValueError: for a recipe that does not parse or fit the model, or a text of fewer than two tokens.
    """
    text = tuple(ids)
    if len(text) < 2:
        raise ValueError(f"a text of {len(text)} token(s) is too short to measure; give at least 2")
    parsed = {str(recipe): recipe for recipe in map(Recipe.parse, recipes) if not recipe.is_none}
    names, tables = list(parsed), {}
    batches = [names[i : i + BATCH] for i in range(0, len(names), BATCH)]
    total, before = len(names) + len(batches), 0
    for batch in batches:
        if not _locked(loaded, should_stop):
            break
        try:
            effect = measure(
                loaded.model,
                text,
                {"exact": Recipe.parse("none")} | {name: parsed[name] for name in batch},
                backend=backend,
                said=lambda done, before=before: said(before + done, total),
                should_stop=should_stop,
            )
        finally:
            loaded.lock.release()
        if effect is None:
            break
        # Clones made here are ordinary tensors; those of inference mode may not be used everywhere.
        new = {name: {key: x.clone() for key, x in effect.tables[name].items()} for name in batch}
        tables |= new
        found(new)
        before += len(batch) + 1
    return tables


def _locked(loaded: Loaded, should_stop: Callable[[], bool]) -> bool:
    """Take the model's lock; False where it was stopped meanwhile."""
    while not loaded.lock.acquire(timeout=0.1):
        if should_stop():
            return False
    return True
