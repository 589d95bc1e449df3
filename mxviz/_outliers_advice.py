"""Which layers an outlier channel does harm in, and the recipes that keep them from it."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from mxviz._outliers_survey import survey
from mxviz.capture import Capture
from mxviz.formats import Axis, Reach, Recipe, Scheme
from mxviz.metrics import recipe_of

EXACT_BITS = 16


class Way(NamedTuple):
    """One way out: what it does, what it costs, in words, and its recipe."""

    words: str
    recipe: str


class Advice(NamedTuple):
    """What outlier channels of a part mean under a recipe.

    Args:
        layers: layers in which a channel stands out.
        harmed: those of them in which a number as small as the median vanishes beside that channel.
        limit: how many times smaller than the largest that shares its scale a number vanishes; None where
            no largest sets a scale.
        safe: why nothing is harmed in spite of outlier channels, in words; empty where they do harm.
        ways: recipes that exempt them.
    """

    layers: tuple[int, ...]
    harmed: tuple[int, ...]
    limit: float | None
    safe: str
    ways: tuple[Way, ...]


def advice(capture: Capture, part: str, recipe: Recipe | str | None = None) -> Advice:
    """Return where outlier channels flush their neighbours under a recipe (the run's own), and ways out.

    Raises:
        ValueError: for an unknown part, or a recipe that does not parse or fit the model.
    """
    recipe = recipe_of(capture, capture.recipe if recipe is None else recipe)
    scheme, limit = recipe.scheme(part), flush_ratio(recipe.scheme(part))
    rows = survey(capture, part).channels
    layers = tuple(sorted({row.layer for row in rows}))
    reaches = {row.layer for row in rows if limit is not None and row.ratio_to_median >= limit}
    harmed = tuple(layer for layer in layers if layer in reaches)
    safe = _safe(recipe, scheme, part, harmed, limit) if layers else ""
    return Advice(layers, harmed, limit, safe, _ways(capture, recipe, part, harmed))


def flush_ratio(scheme: Scheme) -> float | None:
    """Return how many times the largest of its block must exceed a number that vanishes beside it, about.

    That is max_normal over half of the smallest step; a power-of-two scale moves it by up to the root of
    two either way. None where no block's largest sets a scale (`none`, `@one`).
    """
    if scheme.is_none or scheme.reach is Reach.ONE:
        return None
    return scheme.element.max_normal / (scheme.element.min_subnormal / 2)


def own_ruler(scheme: Scheme) -> bool:
    """Whether a channel shares its scales with itself alone."""
    return scheme.reach is Reach.CHANNEL or (scheme.is_blocked and scheme.axis is Axis.TOKEN)


def _safe(recipe: Recipe, scheme: Scheme, part: str, harmed: tuple[int, ...], limit: float | None) -> str:
    if scheme.is_none:
        return f"The recipe stores {part}s exactly, so nothing is lost beside these channels."
    if limit is None:
        return f"Under {scheme} the scale is fixed: a large channel is clipped and flushes nothing beside it."
    if own_ruler(scheme):
        return (
            f"The recipe gives each channel of the {part}s scales of its own, so an outlier channel harms "
            "itself alone."
        )
    if not harmed:
        return (
            f"Under {scheme} a number vanishes when it is about {limit:,.0f} times smaller than the largest "
            f"that shares its scale; no channel towers that far over the median {part}."
        )
    if set(harmed) <= set(recipe.skip):
        return f"The recipe keeps layer{'s' * (len(harmed) > 1)} {said(harmed)} exact."
    if recipe.rotate:
        return "The recipe rotates head_dim first, which spreads a large channel over all of them."
    return ""


def _ways(capture: Capture, recipe: Recipe, part: str, harmed: tuple[int, ...]) -> tuple[Way, ...]:
    scheme, ways = recipe.scheme(part), []
    if not harmed or scheme.is_none:
        return ()
    if scheme.is_blocked and not own_ruler(scheme):
        other = replace(recipe, **{part: replace(scheme, axis=Axis.TOKEN)})
        ways.append(
            Way(
                f"Cut {part}s along tokens: each channel gets scales of its own, at the same bits.",
                str(other),
            )
        )
    left = tuple(layer for layer in harmed if layer not in recipe.skip)
    if left:
        skip = tuple(sorted({*recipe.skip, *harmed}))
        layers = capture.shape.get("layers") or len(capture.layers)
        bits = scheme.bits_per_element(capture.part(part, capture.layers[0]).shape[-1])
        average = (len(skip) * EXACT_BITS + (layers - len(skip)) * bits) / layers
        ways.append(
            Way(
                f"Keep layer{'s' * (len(skip) > 1)} {said(skip)} exact: the {part}s then take {average:.2f} "
                f"bits per element on average instead of {bits:.2f}.",
                str(replace(recipe, skip=skip)),
            )
        )
    return tuple(ways)


def said(layers: tuple[int, ...]) -> str:
    """Return numbers as people list them: 1, 2 and 8; runs of three or more as 3–6."""
    runs: list[list[int]] = []
    for layer in layers:
        if runs and layer == runs[-1][-1] + 1:
            runs[-1].append(layer)
        else:
            runs.append([layer])
    parts = [
        text
        for run in runs
        for text in ([f"{run[0]}–{run[-1]}"] if len(run) > 2 else [str(layer) for layer in run])
    ]
    return parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1] if parts else ""
