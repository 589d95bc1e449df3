"""Where one looks: part, layer, KV head, token and channel, remembered for each run, shared by all pages."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache, wraps
from typing import NamedTuple

import numpy as np
import streamlit as st
from streamlit.errors import StreamlitAPIException

from mxviz.capture import Capture
from mxviz.pictures import default_place


class Place(NamedTuple):
    """One number of a cache: `part` is `key` or `value`; the rest are indices, `layer` a layer's number."""

    part: str
    layer: int
    head: int
    token: int
    channel: int


def get(capture: Capture, run: str) -> Place:
    """Return where one looks in this run; at first, its largest value in its wildest channel."""
    place = st.session_state.setdefault("places", {}).get(run)
    return first(capture) if place is None else _held(capture, place)


def put(capture: Capture, run: str, **changes: object) -> None:
    """Look elsewhere. `put(capture, run, layer=8)` keeps the rest; what does not exist there is held inside.

    Call it in a widget's callback, or before the widgets that show the place are drawn.
    """
    st.session_state.setdefault("places", {})[run] = _held(capture, get(capture, run)._replace(**changes))


ALL = "all figures"


def figure(name: str) -> Callable[[Callable], Callable]:
    """Make a function that draws a fragment, which any control can `redraw` by its name.

    A control that is pressed while something is being drawn cuts that short. What was not drawn to its end
    is therefore remembered, and redrawn after what the control changes. `ALL` is the fragment that holds the
    others.
    """

    def fragment(draw: Callable) -> Callable:
        @st.fragment(key=name)
        @wraps(draw)
        def drawn(*args: object) -> None:
            waiting = st.session_state.setdefault("not-drawn", {})
            waiting[name] = True
            draw(*args)
            waiting.pop(name, None)
            if name == ALL:
                waiting.clear()

        return drawn

    return fragment


def redraw(*figures: str) -> None:
    """Redraw these figures, in this order, and nothing else; the last call of a widget's callback.

    On a page that lacks one of them Streamlit redraws what it does by itself.
    """
    waiting = st.session_state.setdefault("not-drawn", {})
    waiting |= dict.fromkeys(figures, True)
    with suppress(StreamlitAPIException):
        st.rerun(ALL if ALL in waiting else [*figures, *(name for name in waiting if name not in figures)])


def largest(capture: Capture, part: str, layer: int, head: int) -> tuple[int, int]:
    """Return token and channel of the largest finite value of a head."""
    x = capture.part(part, layer)[head].float().abs().nan_to_num(0.0, 0.0, 0.0).numpy()
    token, channel = np.unravel_index(int(x.argmax()), x.shape)
    return int(token), int(channel)


@lru_cache(maxsize=16)
def first(capture: Capture) -> Place:
    """Return where one looks at first: the largest value of the wildest channel."""
    layer, head = default_place(capture, "key")
    return Place("key", layer, head, *largest(capture, "key", layer, head))


def _held(capture: Capture, place: Place) -> Place:
    """The place itself where it exists, else the nearest that does."""
    part = place.part if place.part in ("key", "value") and (place.part == "key" or capture.values) else "key"
    layer = min(capture.layers, key=lambda known: abs(known - place.layer))
    heads, tokens, channels = capture.part(part, layer).shape
    inside = [max(0, min(int(i), n - 1)) for i, n in zip(place[2:], (heads, tokens, channels), strict=True)]
    return Place(part, layer, *inside)
