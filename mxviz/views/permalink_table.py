"""Which fields an address has on which page. What a page cannot draw without is imported when it is read."""

from __future__ import annotations

from collections.abc import Iterable

from mxviz.views.permalink_fields import (
    LOOK,
    MOST_CHARACTERS,
    NAMES,
    PLACE,
    WINDOW,
    Field,
    View,
    field,
    flag,
    number,
    one_of,
    words,
)


def _runs(view: View) -> Iterable[str]:
    from mxviz.views import gallery

    return gallery.recorded_names()


def _measures(view: View) -> Iterable[str]:
    from mxviz.figures.overview import MEASURES

    return MEASURES


def _kinds(view: View) -> Iterable[str]:
    from mxviz._outliers_list import KINDS

    return KINDS


def _query_layers(view: View) -> Iterable[int]:
    from mxviz.attention import query_layers

    return query_layers(view.capture)


def _query_heads(view: View) -> Iterable[int]:
    layer = view.state.get(f"attention-layer-{view.run}")
    queries = view.capture.queries.get(layer)
    return () if queries is None else range(queries.shape[0])


def _tokens(view: View) -> Iterable[int]:
    return range(view.capture.tokens_held)


def _parts(view: View) -> Iterable[str]:
    return ("key", "value") if view.capture.values else ("key",)


def _schemes(view: View) -> Iterable[str]:
    from mxviz.race import race_schemes

    return map(str, race_schemes())


def _figures(view: View) -> Iterable[str]:
    from mxviz._pictures_registry import available

    return available(view.capture)


def _shows(view: View) -> Iterable[str]:
    from mxviz._pictures_registry import entry, lacking

    name = NAMES["figure"](view)
    return () if name is None else [m for m in entry(name).measures if lacking(view.capture, name, m) is None]


def _sizes(view: View) -> Iterable[str]:
    from mxviz._export_sheet import SIZES

    return SIZES


def _grounds(view: View) -> Iterable[str]:
    from mxviz._export_sheet import GROUNDS

    return GROUNDS


def _models(view: View) -> Iterable[str]:
    from mxviz import lesson

    return lesson.MODELS


def _times(view: View) -> Iterable[int]:
    from mxviz._lesson_saboteur import TIMES

    return TIMES


def _rulers(view: View) -> Iterable[int]:
    from mxviz._lesson_saboteur import RULERS

    return RULERS


def _lengths(view: View) -> Iterable[int]:
    from mxviz.views.lesson_steps import LENGTHS

    return LENGTHS


_FIGURE = "studio-figure-{can}"

RUN = field("run", "run", one_of(_runs))
"""What is looked at, first of all: the rest is said of it."""

_SEEN = (RUN, *PLACE, *LOOK)
_QUERY = (
    field("at", "attention-layer-{run}", one_of(_query_layers)),
    field("query", "attention-head-{run}-{layer}", one_of(_query_heads)),
    field("asked", "attention-position-{run}", one_of(_tokens)),
)

FIELDS: dict[str, tuple[Field, ...]] = {
    "microscope": (
        *_SEEN,
        field("colour", "measure", one_of(_measures)),
        WINDOW,
        flag("near", "zoom", True),
    ),
    "outliers": (
        *_SEEN,
        field("list", "outliers-kind", one_of(_kinds), "channels"),
        field("find", "outliers-find-{run}", words(200), ""),
        flag("surface", "outliers-surface"),
    ),
    "effect": (
        *_SEEN,
        field("see", "effect-see", one_of(("Words", "Attention", "Layer by layer")), "Words"),
        field("cache", "effect-lane", one_of(("micro", "single", "both")), "both"),
        field("around", "effect-token-{run}", one_of(_tokens)),
        field("stored", "layers-lane", one_of(("single", "micro")), "single"),
        *_QUERY,
    ),
    "race": (
        RUN,
        *LOOK,
        field("by", "race-by", one_of(("kl", "flushed", "sqnr")), "kl"),
        field("of", "race-part-{values}", one_of(_parts), "key"),
        field("lines", "race-lines-{run}", one_of(_schemes), many=True),
    ),
    "run": (
        RUN,
        field("model", "model", words(300)),
        field("prompt", "prompt", words(MOST_CHARACTERS)),
        field("store", "recipe", words(300)),
        field("against", "baseline", words(300)),
        field("new", "length", number(1, 4096), 48),
        field("seed", "seed", number(0, 2**31 - 1), 0),
        field("temperature", "temperature", number(0.0, 5.0, float), 0.0),
        field("top_p", "top_p", number(0.01, 1.0, float), 1.0),
        flag("raw", "raw"),
    ),
    "lesson": (
        field("step", "lesson-step", one_of(range(1, 10))),
        flag("shown", "lesson-revealed-{step}"),
        field("model", "lesson-model", one_of(_models)),
        field("held", "lesson-tokens", one_of(_lengths)),
        field("times", "lesson-times", one_of(_times)),
        field("rulers", "lesson-rulers", one_of(_rulers)),
    ),
    "planner": (),  # Streamlit binds its widgets to the address itself
    "studio": (
        *_SEEN,
        field("figure", _FIGURE, one_of(_figures)),
        field("shows", "studio-measure-{figure}", one_of(_shows)),
        field("schemes", "studio-schemes", one_of(_schemes), many=True),
        field("at", "studio-layer-{run}", one_of(_query_layers)),
        field("asked", "studio-position-{run}", one_of(_tokens)),
        field("size", "studio-size", one_of(_sizes)),
        field("ground", "studio-ground", one_of(_grounds), "light"),
        field("title", "studio-title", words(300), ""),
        field("caption", "studio-caption", words(500), ""),
        field("fonts", "studio-fonts", number(0.5, 2.0, float), 1.0),
        flag("source", "studio-provenance"),
    ),
}
"""The fields of each page, in the order in which they are read: a later one may depend on those before."""

BOUND = "plan-"
"""How names in the address begin that Streamlit itself binds to widgets."""

OTHERS = {"theme": ("light", "dark"), "present": ("1", "white", "black")}
"""Names that every page knows, and their texts: the theme, and on which ground it is presented."""

KNOWN = {one.name for fields in FIELDS.values() for one in fields} | set(OTHERS)
