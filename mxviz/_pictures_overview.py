"""The whole cache of a capture at a glance: every layer and KV head, by one measure."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from mxviz.analysis import layer_overview
from mxviz.capture import Capture
from mxviz.cuts import loudness, mean_exponents
from mxviz.figures import Figure
from mxviz.figures.overview import MEASURES, overview_map, said
from mxviz.formats import Recipe
from mxviz.pictures import short_name

_OVERVIEWS = 16  # a few kB each


def overview(
    capture: Capture,
    measure: str = "ratio",
    part: str = "key",
    recipe: str | None = None,
    baseline: str | None = None,
    *,
    opened: tuple[str, int, int] | None = None,
    theme: str = "light",
    width: int = 1280,
    height: int | None = None,
) -> Figure:
    """Draw every recorded layer and KV head of a capture by one measure.

    Args:
        measure: a name of `mxviz.figures.overview.MEASURES`.
        part: `key` or `value`: what the sentence is about; both are drawn.
        opened: part, layer and KV head to ring.

    Raises:
        ValueError: for an unknown measure or theme, or a recipe that does not parse.
    """
    if measure not in MEASURES:
        raise ValueError(f"unknown measure {measure!r}; expected one of: {', '.join(MEASURES)}")
    recipe, baseline = (
        str(Recipe.parse(recipe or capture.recipe)),
        str(Recipe.parse(baseline or capture.baseline)),
    )
    own = _OF_THEIR_OWN.get(measure, _stats)
    tables = {name: own(capture, name, recipe, baseline) for name in parts(capture)}
    return overview_map(
        {name: table[measure] for name, table in tables.items()},
        list(capture.layers),
        measure,
        title=sentence(capture, tables[part][measure], measure, part),
        subtitle=f"{short_name(capture.model)} · {MEASURES[measure].about}",
        opened=opened,
        span=_common(tables, measure),
        **{"theme": theme, "width": width, "height": height},
    )


def parts(capture: Capture) -> tuple[str, ...]:
    """Return what was recorded: keys, and mostly values."""
    return ("key", "value") if capture.values else ("key",)


@lru_cache(maxsize=_OVERVIEWS)
def _stats(capture: Capture, part: str, recipe: str, baseline: str) -> dict[str, np.ndarray]:
    return layer_overview(capture, part, recipe, baseline)._asdict()


@lru_cache(maxsize=_OVERVIEWS)
def _loudness(capture: Capture, part: str, *_: str) -> dict[str, np.ndarray]:
    return {"ratio": loudness(capture, part)}


@lru_cache(maxsize=_OVERVIEWS)
def _exponents(capture: Capture, part: str, recipe: str, _: str) -> dict[str, np.ndarray]:
    return {"exponent": mean_exponents(capture, part, recipe)}


_OF_THEIR_OWN = {"ratio": _loudness, "exponent": _exponents}
"""Measures that cost less than `layer_overview`, which quantizes every layer twice; the first view is one."""


def sentence(capture: Capture, table: np.ndarray, measure: str, part: str) -> str:
    """Name the layer and head where a measure is at its worst, and how bad it is there."""
    kind = MEASURES[measure].kind
    real = np.where(np.isfinite(table), table, np.nan)
    if np.isnan(real).all():
        return f"There is nothing to measure here: the {part}s are all zero, or stored exactly"
    row, head = np.unravel_index(int((np.nanargmin if kind == "db" else np.nanargmax)(real)), real.shape)
    layer, value = capture.layers[row], float(real[row, head])
    place = f"Layer {layer}, KV head {head}"
    lane = "one scale" if measure.startswith("single") else "a scale per block"
    if kind == "times":
        return f"{place} holds the loudest {part} channel: {said(value, kind)} the median"
    if kind == "share":
        return f"{place} loses most: {said(value, kind)} of its {part}s become zero under {lane}"
    if kind == "db":
        return f"{place} suffers most under {lane}: its {part}s stand {said(value, kind)} above their error"
    return f"{place} needs the longest rulers for its {part}s: {2.0**value:.3g} in the mean"


def _common(tables: dict[str, dict[str, np.ndarray]], measure: str) -> tuple[float, float] | None:
    """Return one span of colours for both lanes' SQNR, so that the two can be compared."""
    if MEASURES[measure].kind != "db":
        return None
    both = np.concatenate(
        [t[name].ravel() for t in tables.values() for name in ("micro_sqnr", "single_sqnr")]
    )
    both = both[np.isfinite(both)]
    return (float(both.min()), float(both.max())) if both.size else None
