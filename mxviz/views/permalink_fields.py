"""What an address can say of a view, a page at a time; nothing in it is trusted, and nothing is drawn here.

A field has a name in the address. It reads what is looked at from the session's state as texts, and puts
texts of an address into it; a text that names nothing here is a ValueError, and then the default stays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, MutableMapping
from math import isfinite
from typing import Any, NamedTuple

from mxviz import looks
from mxviz.capture import Capture
from mxviz.views import choice as choices
from mxviz.views import place as places

MOST_CHARACTERS = 20_000
"""Of a text in a link: a prompt; everything else is shorter."""

_RECIPE_CHARACTERS = 300
_MOST_VALUES = 16  # of a field that may have several

State = MutableMapping[str, Any]


class View(NamedTuple):
    """What is looked at: a run's name, its capture (None where the page has none), the session's state."""

    run: str
    capture: Capture | None
    state: State


Read = Callable[[str, View], Any]


def _can(view: View) -> str:
    return "-".join(str(bool(of)) for of in (view.capture.effect, view.capture.queries, view.capture.values))


def _step(view: View) -> str:
    from mxviz._pictures_lesson_words import FACTS

    return tuple(FACTS)[view.state.get("lesson-step", 1) - 1]


NAMES: dict[str, Callable[[View], Any]] = {
    "run": lambda view: view.run,
    "layer": lambda view: view.state.get(f"attention-layer-{view.run}"),
    "values": lambda view: bool(view.capture.values),
    "can": _can,
    "figure": lambda view: view.state.get(f"studio-figure-{_can(view)}"),
    "step": _step,
}
"""What stands in the keys of widgets that belong to a run, a layer, a figure or a step."""


class _Key(dict):
    def __init__(self, view: View) -> None:
        self.view = view

    def __missing__(self, name: str) -> Any:
        return NAMES[name](self.view)


class Field(NamedTuple):
    """A name in the address, how it is read from the state, put into it, and set back to its default.

    `of_run` says that it means nothing without the run that it was said of.
    """

    name: str
    get: Callable[[View], list[str]]
    put: Callable[[View, list[str]], None]
    reset: Callable[[View], None]
    of_run: bool = False
    many: bool = False


# How a text of an address is read


def one_of(options: Iterable | Callable[[View], Iterable]) -> Read:
    """Read one of a few values by how it is written."""

    def read(text: str, view: View) -> Any:
        known = {str(value): value for value in (options(view) if callable(options) else options)}
        if text not in known:
            raise ValueError(f"{text[:40]!r}; expected one of {len(known)} values")
        return known[text]

    return read


def number(low: float, high: float, kind: type = int) -> Read:
    """Read a number within limits."""

    def read(text: str, view: View) -> float:
        value = kind(text[:30])
        if not (isfinite(value) and low <= value <= high):
            raise ValueError(f"{value}; expected {low} to {high}")
        return value

    return read


def words(most: int) -> Read:
    """Read any text that is not longer than that."""

    def read(text: str, view: View) -> str:
        if len(text) > most:
            raise ValueError(f"a text of {len(text):,} characters; expected at most {most:,}")
        return text

    return read


def _yes(text: str, view: View | None) -> bool:
    if text not in ("0", "1"):
        raise ValueError(f"{text[:40]!r}; expected 0 or 1")
    return text == "1"


# Fields


def field(name: str, key: str, read: Read, default: Any = None, many: bool = False) -> Field:
    """Return the field of a widget that keeps its value under `key`, in which {run} and the like stand for
    what is looked at; a value that is the widget's default is left out of the address."""

    def at(view: View) -> str:
        return key.format_map(_Key(view))

    def get(view: View) -> list[str]:
        value = view.state.get(at(view), default)
        if value is None or value == default:
            return []
        values = value if many else [value]
        return [str(int(v)) if isinstance(v, bool) else str(v) for v in values]

    def put(view: View, texts: list[str]) -> None:
        values = [read(text, view) for text in texts[:_MOST_VALUES]]
        view.state[at(view)] = values if many else values[0]

    def reset(view: View) -> None:
        if default is not None:
            view.state[at(view)] = default
        else:
            view.state.pop(at(view), None)

    return Field(name, get, put, reset, "{run}" in key, many)


def flag(name: str, key: str, default: bool = False) -> Field:
    """Return the field of something that is on or off."""
    return field(name, key, _yes, default)


def _place_field(name: str, allowed: Callable[[View, places.Place], Iterable], kind: type = int) -> Field:
    def get(view: View) -> list[str]:
        if view.run not in view.state.get("places", {}):
            return []
        return [str(getattr(places.get(view.capture, view.run), name))]

    def put(view: View, texts: list[str]) -> None:
        seen = places.get(view.capture, view.run)
        value = one_of(lambda _: allowed(view, seen))(texts[0], view)
        places.put(view.capture, view.run, **{name: value})
        if name in ("layer", "head"):  # a link that says no more opens it where it is largest
            seen = places.get(view.capture, view.run)
            token, channel = places.largest(view.capture, seen.part, seen.layer, seen.head)
            places.put(view.capture, view.run, token=token, channel=channel)

    def reset(view: View) -> None:
        view.state.get("places", {}).pop(view.run, None)

    return Field(name, get, put, reset, True)


def _reach(axis: int) -> Callable[[View, places.Place], Iterable]:
    return lambda view, seen: range(view.capture.part(seen.part, seen.layer).shape[axis])


PLACE = (
    _place_field("part", lambda view, _: ("key", "value") if view.capture.values else ("key",)),
    _place_field("layer", lambda view, _: view.capture.layers),
    _place_field("head", _reach(0)),
    _place_field("token", _reach(1)),
    _place_field("channel", _reach(2)),
)
"""Where one looks; in this order, as each depends on those before it."""


def _look_field(name: str, said: Callable[[choices.Choice], str], change: choices.Change) -> Field:
    def get(view: View) -> list[str]:
        choice = view.state.get("looks", {}).get(view.run)
        own = choices.own(view.capture)
        return [] if choice is None or choice.settled == own else [text for text in [said(choice)] if text]

    def put(view: View, texts: list[str]) -> None:
        kept = view.state.setdefault("looks", {})
        text = words(_RECIPE_CHARACTERS)(texts[0], view)
        new = change(kept.get(view.run, choices.own(view.capture)).settled, text)
        for recipe in (new.recipe, new.baseline):
            looks.fitting(view.capture, recipe)
        if new.before_rope:
            looks.before_rope(view.capture)  # says where a run has none
        kept[view.run] = new

    def reset(view: View) -> None:
        view.state.get("looks", {}).pop(view.run, None)

    return Field(name, get, put, reset, True)


LOOK = (
    _look_field("recipe", lambda choice: choice.recipe, choices.set_text),
    _look_field("baseline", lambda choice: choice.follows or choice.baseline, choices.set_baseline),
    _look_field(
        "rope",
        lambda choice: "1" if choice.before_rope else "",
        lambda choice, text: choices.set_before_rope(choice, _yes(text, None)),
    ),
)
"""Through what one looks, against what, and whether at keys before RoPE (`rope=1`)."""


def _window_get(view: View) -> list[str]:
    window = view.state.get("windows", {}).get(view.run)
    return [] if window is None else [f"{window[0]}-{window[1]}"]


def _window_put(view: View, texts: list[str]) -> None:
    first, _, last = texts[0].partition("-")
    within = number(0, view.capture.tokens_held - 1)
    first, last = within(first, view), within(last, view)
    if first >= last:
        raise ValueError(f"tokens {first} to {last}")
    view.state.setdefault("windows", {})[view.run] = (first, last)


def _window_reset(view: View) -> None:
    view.state.get("windows", {}).pop(view.run, None)


WINDOW = Field("tokens", _window_get, _window_put, _window_reset, True)
"""The tokens in sight in the head's maps, as first-last."""
