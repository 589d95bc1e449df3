"""The race of a capture as rows: what a page lists, and the short names of schemes and recipes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from mxviz.capture import PARTS, Capture
from mxviz.formats import Axis, Reach, Recipe, Scheme
from mxviz.looks import REACHES, cost
from mxviz.race import Row, measured, race

Effects = Mapping[str, Mapping[str, float | None]]
"""Canonical recipe to `kl_mean` (nats) and `top1_agreement`; see `mxviz.race.measured`."""


@lru_cache(maxsize=8)
def rows(capture: Capture) -> tuple[Row, ...]:
    """Return `mxviz.race.race` of a capture, kept."""
    return tuple(race(capture))


def all_effects(capture: Capture, effects: Effects | None = None) -> dict[str, Mapping[str, float | None]]:
    """Return what the capture carries and what was measured since, by canonical recipe."""
    return {text: found for text, found in {**measured(capture), **(effects or {})}.items() if _parses(text)}


def table(capture: Capture, effects: Effects | None = None) -> list[dict[str, object]]:
    """Return a row a scheme and a row a measured recipe that is more than one scheme, for a page.

    Shares are percent, 0 to 100; SQNR is in dB and KL in nats; None where there is nothing to say.
    """
    known = all_effects(capture, effects)
    made = [_table_row(str(row["scheme"]), Scheme.parse(row["scheme"]), row, known) for row in rows(capture)]
    for text in known:
        recipe = Recipe.parse(text)
        if not recipe.is_none and text != str(recipe.key):
            bits = {"bits_per_element": bits_of(capture, recipe)}
            made.append(_table_row(text, recipe, bits | _costs(capture, text), known))
    return made


def _costs(capture: Capture, recipe: str) -> Row:
    found = {part: cost(capture, recipe, part)._asdict() for part in PARTS}
    names = ("sqnr_db", "flushed", "clipped")
    return {f"{part}_{name}": found[part][name] for part in PARTS for name in names}


def _table_row(text: str, stored: Scheme | Recipe, row: Row, known: Mapping) -> dict[str, object]:
    effect = known.get(text, {})
    scheme = stored.key if isinstance(stored, Recipe) else stored
    line = {
        "scheme": text,
        "name": recipe_words(stored) if isinstance(stored, Recipe) else words(stored),
        "axis": f"{scheme.axis.value}s" if scheme.is_blocked else "no blocks",
        "bits": row["bits_per_element"],
        "KL": effect.get("kl_mean"),
        "same top token": _percent(effect.get("top1_agreement")),
    }
    for part in PARTS:
        line[f"SQNR {part}s"] = row[f"{part}_sqnr_db"]
        line[f"flushed {part}s"] = _percent(row[f"{part}_flushed"])
        line[f"clipped {part}s"] = _percent(row[f"{part}_clipped"])
    return line


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def bits_of(capture: Capture, recipe: Recipe) -> float | None:
    """Return the bits per element of keys and values together, of a layer that stays exact 16; None where
    keys or values are not packed at all."""
    parts = PARTS if capture.values else PARTS[:1]
    width = capture.part("key", capture.layers[0]).shape[-1]
    found = [recipe.scheme(part).bits_per_element(width) for part in parts]
    if None in found:
        return None
    exact = len(recipe.skip) / int(capture.shape.get("layers") or len(capture.layers))
    return 16 * exact + (1 - exact) * sum(found) / len(found)


def words(scheme: Scheme) -> str:
    """Return a short name for a mark: MXFP4, MXFP4 along tokens, INT4 per head."""
    if scheme.is_none or scheme.is_blocked:
        return scheme.label + (" along tokens" if scheme.is_blocked and scheme.axis is Axis.TOKEN else "")
    base = scheme.element.name.upper().replace("_", " ")
    return f"{base} {'scale 1.0' if scheme.reach is Reach.ONE else REACHES[scheme.reach.value]}"


def recipe_words(recipe: Recipe) -> str:
    """Return a short name for a recipe; its string where nothing shorter tells it."""
    if str(recipe) == str(recipe.key):
        return words(recipe.key)
    key, value = recipe.key, recipe.value
    bare = Recipe(key, value) == recipe
    if bare and key.name == value.name and key.axis is Axis.TOKEN and value.axis is Axis.CHANNEL:
        return f"{value.label}, keys along tokens"
    return str(recipe)


def name_of(text: str) -> str:
    """Return the short name of a scheme or recipe; what cannot be read, as it came."""
    try:
        return recipe_words(Recipe.parse(text))
    except ValueError:
        return text


def about_bits(capture: Capture) -> str:
    """Say what the bits of a race leave out, at this run's length."""
    tokens = capture.tokens_held
    width = capture.part("key", capture.layers[0]).shape[-1]
    return (
        "Bits count codes and scales, and 16 for each layer that a recipe keeps exact. A scale per token "
        f"costs 32 / {width} bits more; one per channel would cost 32 / {tokens:,} bits at this run's "
        f"{tokens:,} tokens and is left out, like those of a head or tensor: they vanish with length. All "
        "scales are taken over the whole run, the kindest way; while generating, scales that span later "
        "tokens are set by the prompt. KL is of keys and values together."
    )


def _parses(text: str) -> bool:
    try:
        return Recipe.parse(text) is not None
    except ValueError:
        return False
