"""Every figure that can be drawn of a capture, by name: which function draws it, and what it can be told.

Titles, and what a reader sees, stand in `mxviz.figures.FIGURES` under the same names.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from mxviz.capture import PARTS, Capture
from mxviz.figures import Figure
from mxviz.figures.overview import MEASURES as OF_HEADS
from mxviz.figures.race import MEASURES as OF_SCHEMES
from mxviz.formats import Recipe
from mxviz.outliers import channel_outliers

Place = dict[str, Any]
"""What a figure is told, by the names in `Drawn.takes`."""


class Drawn(NamedTuple):
    """How a figure is drawn.

    Args:
        adaptor: `module:function` in mxviz: a capture, a place and theme, width, height in; a figure out.
        takes: what it can be told beside recipe and baseline.
        needs: what a capture must hold: `effect`, `queries`, `values`.
        measures: what it can show, the usual one first.
        looks: whether it can look through another recipe and baseline than the run's own.
    """

    adaptor: str
    takes: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    measures: tuple[str, ...] = ()
    looks: bool = True

    @property
    def options(self) -> tuple[str, ...]:
        """Everything it can be told."""
        return (*self.takes, *(("recipe", "baseline") if self.looks else ()))


_HEAD = ("layer", "head", "part")

PICTURES = {
    "scales": Drawn("pictures:_scales", _HEAD),
    "outliers": Drawn("pictures:_outliers", _HEAD),
    "error": Drawn("pictures:_error", _HEAD),
    "overview": Drawn("_pictures_overview:overview", ("measure", "part"), measures=tuple(OF_HEADS)),
    "head": Drawn("_pictures_head:head", (*_HEAD, "token", "channel")),
    "cuts": Drawn("_pictures_head:cuts", ("layer", "part")),
    "rulers": Drawn("_pictures_rulers:rulers", (*_HEAD, "token", "channel")),
    "channels": Drawn("_pictures_outliers:channel_picture", (*_HEAD, "channel", "token"), looks=False),
    "tokens": Drawn("_pictures_outliers:token_picture", (*_HEAD, "token"), looks=False),
    "surface": Drawn("_pictures_outliers:surface_picture", _HEAD, looks=False),
    "divergence": Drawn("_pictures_effect:divergence_picture", needs=("effect",), looks=False),
    "attention": Drawn(
        "_pictures_attention:attention_picture", ("layer", "query_head", "position"), ("queries",)
    ),
    "head-errors": Drawn("_pictures_attention:head_errors_picture", ("layer",), ("queries", "values")),
    "race": Drawn("_pictures_race:race_picture", ("measure", "part"), (), tuple(OF_SCHEMES), looks=False),
    "race-layers": Drawn("_pictures_race:layers_picture", ("schemes", "part"), looks=False),
}
"""Name to how it is drawn; the order is that of `mxviz.figures.FIGURES`."""

SCHEMES = ("mxfp4", "mxfp4:axis=token", "nvfp4", "fp4@tensor", "int4@tensor")
"""Schemes that are drawn layer by layer where none are named."""

_HELD: dict[str, tuple[Callable[[Capture], bool], str]] = {
    "effect": (lambda c: {"micro", "single"} <= c.effect.keys(), "the effect on the next token"),
    "queries": (lambda c: bool(c.queries.keys() & c.keys.keys()), "the queries of a layer"),
    "values": (lambda c: bool(c.values), "values beside the keys"),
}


def entry(name: str) -> Drawn:
    """Return how a figure is drawn; ValueError lists the names."""
    if name not in PICTURES:
        raise ValueError(f"no figure {name!r}; expected one of: {', '.join(PICTURES)}")
    return PICTURES[name]


def lacking(capture: Capture, name: str, measure: str | None = None) -> str | None:
    """Return the sentence that says what a capture lacks for a figure, or None where it can be drawn."""
    needs = (*entry(name).needs, *(("effect",) if measure == "kl" else ()))
    for held, what in (_HELD[need] for need in needs):
        if not held(capture):
            return (
                f"the figure {name} needs {what}, which this capture does not hold; a run to the end has it: "
                "mxviz run --model smollm2 --prompt TEXT --out run.safetensors"
            )
    return None


def available(capture: Capture) -> list[str]:
    """Return the names of the figures that a capture can give."""
    return [name for name in PICTURES if lacking(capture, name) is None]


def draw(capture: Capture, name: str, place: Place, **size: Any) -> Figure:
    """Draw a figure at a place that `place_of` returned; size is theme, width and height."""
    module, function = entry(name).adaptor.split(":")
    return getattr(import_module(f"mxviz.{module}"), function)(capture, **place, **size)


def place_of(capture: Capture, name: str, **given: Any) -> Place:
    """Return all that a figure is told: what was given, and for the rest where the largest outlier is.

    Args:
        capture: the run.
        name: a name of `PICTURES`.
        given: some of layer, head, part, token, channel, query_head, position, measure, schemes, recipe and
            baseline; None counts as not given.

    Raises:
        ValueError: for an unknown figure, an option that means nothing to it, a place that was not recorded,
            or a capture that lacks what the figure needs.
    """
    drawn, given = entry(name), {option: value for option, value in given.items() if value is not None}
    strange = [option.replace("_", "-") for option in given if option not in drawn.options]
    if strange:
        known = ", ".join(option.replace("_", "-") for option in drawn.options) or "nothing"
        raise ValueError(f"the figure {name} takes no {strange[0]}; it takes: {known}")
    if said := lacking(capture, name, given.get("measure")):
        raise ValueError(said)
    place = {option: given.get(option) for option in drawn.options}
    for option, default in (("recipe", capture.recipe), ("baseline", capture.baseline)):
        if option in place:
            place[option] = str(Recipe.parse(place[option] or default))
    if drawn.measures:
        place["measure"] = place["measure"] or drawn.measures[0]
    if "schemes" in place:
        place["schemes"] = tuple(place["schemes"] or SCHEMES)
    if "part" in place:
        place["part"] = _part(capture, place["part"] or "key")
    if "query_head" in place or "queries" in drawn.needs:
        return place | _query(capture, place)
    return place | _numbers(capture, name, place)


@lru_cache(maxsize=16)
def default_place(capture: Capture, part: str = "key") -> tuple[int, int]:
    """Return the layer and KV head of the largest outlier channel; the first ones where none stands out."""
    worst = max(channel_outliers(capture, part), key=lambda row: row.ratio_to_median, default=None)
    return (worst.layer, worst.head) if worst else (capture.layers[0], 0)


def _part(capture: Capture, part: str) -> str:
    if part not in PARTS:
        raise ValueError(f"unknown part {part!r}; expected one of: {', '.join(PARTS)}")
    if part == "value" and not capture.values:
        raise ValueError("this capture holds keys alone; look at part key")
    return part


def _query(capture: Capture, place: Place) -> Place:
    from mxviz._pictures_attention import default_query

    own = zip(("layer", "query_head", "position"), default_query(capture, place["layer"]), strict=True)
    return {option: i if place[option] is None else place[option] for option, i in own if option in place}


def _numbers(capture: Capture, name: str, place: Place) -> Place:
    """Fill in layer and head, and for the rulers token and channel; say which index is not there."""
    if "layer" not in place:
        return {}
    part = place["part"]
    layer, head = default_place(capture, part) if None in (place["layer"], place.get("head", 0)) else (0, 0)
    layer = layer if place["layer"] is None else place["layer"]
    x = capture.part(part, layer)
    found = {"layer": layer}
    if "head" in place:
        found["head"] = head if place["head"] is None else place["head"]
    for option, count in zip(("head", "token", "channel"), x.shape, strict=True):
        index = found.get(option, place.get(option))
        if index is not None and not 0 <= index < count:
            raise ValueError(f"{option} {index} does not exist in layer {layer}; expected 0 to {count - 1}")
    if name == "rulers":
        token, channel = _largest(x[found["head"]], place["token"], place["channel"])
        found |= {"token": token, "channel": channel}
    return found


def _largest(x: Tensor, token: int | None, channel: int | None) -> tuple[int, int]:
    """Return where a head is largest: anywhere, or in the token or the channel that was given."""
    size = x.float().abs().nan_to_num(0.0, 0.0, 0.0).numpy()
    if token is None and channel is None:
        token, channel = np.unravel_index(int(size.argmax()), size.shape)
    elif channel is None:
        channel = size[token].argmax()
    elif token is None:
        token = size[:, channel].argmax()
    return int(token), int(channel)
