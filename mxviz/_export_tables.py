"""The numbers behind every figure, as a table: column names, and rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import numpy as np

from mxviz._pictures_registry import Place
from mxviz.capture import Capture
from mxviz.pictures import see

Table = tuple[list[str], Iterator[tuple]]


def table(capture: Capture, name: str, place: Place) -> Table:
    """Return the numbers behind a figure.

    Args:
        capture: the run.
        name: a name of `mxviz._pictures_registry.PICTURES`.
        place: what the figure is told, as `place_of` returns it.
    """
    return _TABLES[name](capture, **place)


def _scales(capture: Capture, **place: Any) -> Table:
    view = see(capture, **place)[0]
    names = ["block", "channel"] if view.axis == "token" else ["token", "block"]
    cells = product(*map(range, view.scales.shape))
    return [*names, "scale", "byte"], ((i, j, view.scales[i, j], view.scale_bytes[i, j]) for i, j in cells)


def _values(capture: Capture, *, token: int | None = None, channel: int | None = None, **place: Any) -> Table:
    """Every number of a head, and what both rulers make of it."""
    view = see(capture, **place)[0]
    cells = product(*map(range, view.x.shape))
    names = ["token", "text", "channel", "x", "micro", "single"]
    return names, (
        (i, view.tokens[i], j, view.x[i, j], view.micro[i, j], view.single[i, j]) for i, j in cells
    )


def _overview(capture: Capture, measure: str, part: str, recipe: str, baseline: str) -> Table:
    from mxviz._pictures_overview import _OF_THEIR_OWN, _stats, parts

    own = _OF_THEIR_OWN.get(measure, _stats)
    found = {name: own(capture, name, recipe, baseline) for name in parts(capture)}
    cells = [
        (name, layer, head, found[name][measure][row, head])
        for name in parts(capture)
        for row, layer in enumerate(capture.layers)
        for head in range(found[name][measure].shape[1])
    ]
    return ["part", "layer", "head", measure], iter(cells)


def _cuts(capture: Capture, **place: Any) -> Table:
    from mxviz._pictures_head import cut_name, see_cuts

    rows = see_cuts(capture, *(place[name] for name in ("layer", "part", "recipe", "baseline")))
    return ["scheme", "name", "flushed"], ((str(scheme), cut_name(scheme), share) for scheme, share in rows)


def _rulers(capture: Capture, **place: Any) -> Table:
    from mxviz import _pictures_rulers as rulers

    columns = rulers.table(rulers.see_block(capture, **place))
    return list(columns), zip(*columns.values(), strict=True)


def _channels(capture: Capture, layer: int, head: int, part: str, **_: Any) -> Table:
    from mxviz._outliers_profile import head_profile

    profile = head_profile(capture, layer, head, part)
    bias = profile.bias if profile.bias is not None else np.full(len(profile.channels.amax), np.nan)
    names = ["channel", "largest", "median", "low_5", "high_95", "largest_at_token", "bias"]
    return names, ((i, *row) for i, row in enumerate(zip(*profile.channels, bias, strict=True)))


def _tokens(capture: Capture, layer: int, head: int, part: str, **_: Any) -> Table:
    from mxviz._outliers_profile import head_profile

    profile = head_profile(capture, layer, head, part)
    apart = profile.apart if profile.apart is not None else np.full(len(profile.tokens.amax), np.nan)
    names = [
        *("token", "text", "largest", "median", "low_5", "high_95", "largest_at_channel"),
        "largest_of_outlier_channels",
    ]
    rows = enumerate(zip(*profile.tokens, apart, strict=True))
    return names, ((i, capture.token_texts[i], *row) for i, row in rows)


def _surface(capture: Capture, layer: int, head: int, part: str) -> Table:
    x = capture.part(part, layer)[head].float().numpy()
    cells = product(*map(range, x.shape))
    return ["token", "text", "channel", "x"], ((i, capture.token_texts[i], j, x[i, j]) for i, j in cells)


def _divergence(capture: Capture) -> Table:
    from mxviz._pictures_effect import effect_view

    view = effect_view(capture)
    columns = {"token": range(len(view.tokens)), "text": view.tokens}
    columns |= {f"kl_{lane}": view.kl[lane] for lane in view.kl}
    columns |= {f"first_choice_changed_{lane}": view.changed[lane] for lane in view.changed}
    columns |= {f"probability_{lane}": view.chance[lane] for lane in view.chance}
    return list(columns), zip(*columns.values(), strict=True)


def _attention(capture: Capture, **place: Any) -> Table:
    from mxviz._pictures_attention import view_of

    order = ("layer", "query_head", "position", "recipe", "baseline")
    view = view_of(capture, *(place[name] for name in order))
    rows = zip(view.tokens, view.exact, view.micro, view.single, strict=True)
    return ["token", "text", "exact", "micro", "single"], ((i, *row) for i, row in enumerate(rows))


def _head_errors(capture: Capture, **place: Any) -> Table:
    from mxviz._pictures_attention import errors_of

    layer = place["layer"]
    errors = errors_of(capture, layer, place["recipe"], place["baseline"])
    group = len(errors.micro) // capture.part("key", layer).shape[0]
    rows = enumerate(zip(errors.micro, errors.single, strict=True))
    return ["query_head", "kv_head", "micro", "single"], ((i, i // group, *row) for i, row in rows)


def _race(capture: Capture, **_: Any) -> Table:
    from mxviz._pictures_race_table import table as race_table

    rows = race_table(capture)
    names = list(rows[0])
    return names, (tuple(row[name] for name in names) for row in rows)


def _race_layers(capture: Capture, schemes: tuple[str, ...], part: str) -> Table:
    from mxviz._pictures_race_words import layer_values

    found = layer_values(capture, schemes, part)
    cells = ((layer, name, line[i]) for name, line in found.items() for i, layer in enumerate(capture.layers))
    return ["layer", "scheme", "sqnr_db"], cells


_TABLES: dict[str, Callable[..., Table]] = {
    "scales": _scales,
    "outliers": _values,
    "error": _values,
    "overview": _overview,
    "head": _values,
    "cuts": _cuts,
    "rulers": _rulers,
    "channels": _channels,
    "tokens": _tokens,
    "surface": _surface,
    "divergence": _divergence,
    "attention": _attention,
    "head-errors": _head_errors,
    "race": _race,
    "race-layers": _race_layers,
}
