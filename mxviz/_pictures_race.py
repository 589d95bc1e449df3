"""The race of a capture: every scheme by its bits and by what it loses, as figures."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mxviz import _pictures_race_words as told
from mxviz._pictures_race_table import Effects, all_effects, bits_of, recipe_words, rows, words
from mxviz.capture import PARTS, Capture
from mxviz.figures import Figure
from mxviz.figures.race import MEASURES, Entry, Line, race_layers, race_map
from mxviz.formats import Kind, Recipe, Scheme
from mxviz.pictures import short_name
from mxviz.race import pareto

ABOUT = {
    "race": "Each mark is one scheme: the further left, the fewer bits it costs. The grey line is the Pareto "
    "front: for every scheme off it there is one that costs no more and loses less by this measure.",
    "race_layers": "Each line is one scheme, layer by layer. Where lines part, it matters in that layer how "
    "the scales are shared; where all of them are bad, its numbers are hard to store for any. SQNR sums "
    "squares, so where one channel towers it tells how that channel was stored; the flushed share counts "
    "every number once.",
}
"""What a reader sees in the figures."""

LANDMARKS = (
    *("mxfp4", "nvfp4", "int4@tensor", "mxfp8_e4m3", "int8@tensor", "mxint8", "mxfp6_e2m3"),
    *("k=mxfp4:axis=token;v=mxfp4", "nvfp4:axis=token", "fp8_e4m3@tensor", "fp4@one"),
)
"""What a reader looks for first, by string."""

_ABOUT_BITS = "scales of a whole tensor, head or channel left out: they vanish with length"


def race_picture(
    capture: Capture,
    measure: str = "sqnr",
    part: str = "key",
    *,
    effects: Effects | None = None,
    theme: str = "light",
    width: int = 1280,
    height: int | None = None,
) -> Figure:
    """Draw every scheme of a capture by its bits per element and what it loses.

    Args:
        measure: `sqnr` or `flushed` of one part, or `kl` of recipes for both.
        part: `key` or `value`; KL does not depend on it.
        effects: more recipes whose effect was measured, beside those that the capture carries.

    Raises:
        ValueError: for an unknown measure or theme, or KL where none was measured.
    """
    entries = effect_entries(capture, effects) if measure == "kl" else scheme_entries(capture, measure, part)
    sign = 1 if MEASURES[measure].more else -1
    front = pareto([(entry.bits, sign * entry.value) for entry in entries.values()])
    own = {capture.recipe, capture.baseline}
    if measure != "kl":
        own = {str(Recipe.parse(text).scheme(part)) for text in own}
    title = told.effect_sentence(entries) if measure == "kl" else told.loss_sentence(capture, measure, part)
    what = f"{part}s of all {len(capture.layers)} recorded layers" if measure != "kl" else _kl_words(capture)
    return race_map(
        list(entries.values()),
        measure,
        title=title,
        subtitle=f"{short_name(capture.model)} · {what}; {_ABOUT_BITS}",
        front=front,
        marked=[i for i, name in enumerate(entries) if name in own],
        named=[i for name in LANDMARKS for i, known in enumerate(entries) if known == name],
        **{"theme": theme, "width": width, "height": height},
    )


def layers_picture(
    capture: Capture,
    schemes: Sequence[str],
    part: str = "key",
    measure: str = "sqnr",
    *,
    theme: str = "light",
    width: int = 1280,
    height: int | None = None,
) -> Figure:
    """Draw what some schemes lose layer by layer.

    Args:
        measure: `sqnr` in dB or `flushed` in percent.

    Raises:
        ValueError: for a scheme that does not parse, or an unknown part, measure or theme.
    """
    if measure not in told.LINES:
        raise ValueError(f"no lines of {measure!r}; expected one of: {', '.join(told.LINES)}")
    found = told.layer_values(capture, tuple(schemes), part, told.LINES[measure])
    dashes, lines = ("solid", "dash", "dot", "dashdot", "longdash"), []
    for name, values in found.items():
        scheme = Scheme.parse(name)
        used = sum(line.single == (not scheme.is_blocked) for line in lines)
        dash = dashes[used % len(dashes)]
        held = [np.nan if v is None or np.isinf(v) else v * told.TIMES[measure] for v in values]
        lines.append(Line(words(scheme), held, not scheme.is_blocked, dash))
    return race_layers(
        lines,
        list(capture.layers),
        measure,
        title=told.lines_sentence(lines, capture.layers, part, measure),
        subtitle=f"{short_name(capture.model)} · {part}s, all KV heads of a layer together",
        **{"theme": theme, "width": width, "height": height},
    )


def scheme_entries(capture: Capture, measure: str, part: str) -> dict[str, Entry]:
    """Return an entry a scheme, by its string; `measure` is `sqnr` (dB) or `flushed` (percent)."""
    if part not in PARTS or measure not in ("sqnr", "flushed"):
        raise ValueError(
            f"no race of {part!r} by {measure!r}; expected key or value by: {', '.join(MEASURES)}"
        )
    entries = {}
    for row in rows(capture):
        scheme = Scheme.parse(row["scheme"])
        sqnr, flushed, clipped = (row[f"{part}_{name}"] for name in ("sqnr_db", "flushed", "clipped"))
        value = sqnr if measure == "sqnr" else None if flushed is None else 100 * flushed
        said = f"SQNR {_n(sqnr, '.1f', ' dB')} · flushed {_n(flushed, '.1%')} · clipped {_n(clipped, '.1%')}"
        entries[row["scheme"]] = _entry(words(scheme), scheme, row["bits_per_element"], value, said)
    return entries


def effect_entries(capture: Capture, effects: Effects | None = None) -> dict[str, Entry]:
    """Return an entry a recipe whose effect was measured, by its string; the value is KL in nats."""
    entries = {}
    for text, found in all_effects(capture, effects).items():
        recipe = Recipe.parse(text)
        top1 = f"same top token at {_n(found['top1_agreement'], '.1%')}"
        bits = bits_of(capture, recipe)
        if not recipe.is_none and bits is not None:
            scheme = recipe.value if recipe.key.is_none else recipe.key
            entries[text] = _entry(recipe_words(recipe), scheme, bits, found["kl_mean"], top1)
    return entries


def _kl_words(capture: Capture) -> str:
    return f"keys and values, teacher-forced over {len(capture.token_ids):,} tokens"


def _entry(name: str, scheme: Scheme, bits: float, value: float | None, said: str) -> Entry:
    integer = scheme.element.kind is not Kind.FLOAT
    along = scheme.axis.value if scheme.is_blocked else None
    held = np.nan if value is None or not np.isfinite(value) else value
    return Entry(name, bits, held, not scheme.is_blocked, integer, along, said)


def _n(value: float | None, form: str, unit: str = "") -> str:
    return "n/a" if value is None else format(value, form).replace("%", " %") + unit
