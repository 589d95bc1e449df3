"""The whole cache at a glance: click a head, or choose it with the keyboard."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import streamlit as st

from mxviz import _pictures_overview as pictures
from mxviz.capture import Capture
from mxviz.figures import Figure, alt_text
from mxviz.figures.overview import MEASURES
from mxviz.formats import Recipe
from mxviz.views import place, style
from mxviz.views.switches import Look

_picture = lru_cache(maxsize=16)(pictures.overview)


@place.figure("overview")
def show(look: Look, run: str, width: int) -> None:
    """Draw the controls and the map; either opens a head.

    Args:
        look: what is looked at, and through what.
        run: a name of its own for the run, so that every run remembers where one looked.
        width: CSS pixels to lay the figure out for.
    """
    st.html('<div class="mx-section"><h2>The whole cache</h2></div>')
    measure = _controls(look.capture, run)
    seen = place.get(look.capture, run)
    figure = _drawn(look, seen, measure, style.theme().name, width)
    st.plotly_chart(
        figure,
        theme=None,
        width="stretch",
        key="figure-overview",
        alt=alt_text(figure),
        config=style.CHART,
        on_select=lambda: _clicked(look.capture, run),
        selection_mode="points",
    )


def prepare(capture: Capture, width: int) -> None:
    """Draw the map that a first visit opens on, and keep it."""
    recipes = (str(Recipe.parse(text)) for text in (capture.recipe, capture.baseline))
    _drawn(Look(capture, *recipes), place.first(capture), next(iter(MEASURES)), "light", width)


def _drawn(look: Look, seen: place.Place, measure: str, theme: str, width: int) -> Figure:
    return _picture(
        look.capture,
        measure,
        seen.part,
        look.recipe,
        look.baseline,
        opened=(seen.part, seen.layer, seen.head),
        theme=theme,
        width=width,
    )


def _controls(capture: Capture, run: str) -> str:
    seen = place.get(capture, run)
    heads = capture.part(seen.part, seen.layer).shape[0]
    first, second, third, fourth = st.columns([1.3, 2.4, 2.6, 1.7], vertical_alignment="bottom")
    with first:
        follow(
            st.segmented_control, "Part", capture, run, "part", _open,
            options=pictures.parts(capture), format_func=lambda part: f"{part}s", required=True,
        )  # fmt: skip
    with second:
        measure = st.selectbox(
            "Colour shows",
            list(MEASURES),
            key="measure",
            format_func=lambda name: MEASURES[name].title,
            on_change=lambda: place.redraw("overview"),
            persist_state="session",
        )
    with third:
        if len(capture.layers) > 1:
            follow(st.select_slider, "Layer", capture, run, "layer", _open, options=capture.layers)
    with fourth:
        if heads <= 8:
            follow(
                st.segmented_control, "KV head", capture, run, "head", _open,
                options=range(heads), required=True,
            )  # fmt: skip
        else:
            follow(st.select_slider, "KV head", capture, run, "head", _open, options=range(heads))
    return measure


def follow(
    widget: Any, label: str, capture: Capture, run: str, field: str, change: Any, **options: Any
) -> None:
    """Draw a widget that shows one field of the place and, on a change, calls `change(capture, run, …)`."""
    key = f"{field}-{run}"
    st.session_state[key] = getattr(place.get(capture, run), field)
    widget(
        label,
        key=key,
        on_change=lambda: change(capture, run, **{field: st.session_state[key]}),
        **options,
    )


def open_head(capture: Capture, run: str, **where: Any) -> None:
    """Open a head at its largest value, from where the detail starts."""
    place.put(capture, run, **where)
    seen = place.get(capture, run)
    token, channel = place.largest(capture, seen.part, seen.layer, seen.head)
    place.put(capture, run, token=token, channel=channel)


def _open(capture: Capture, run: str, **where: Any) -> None:
    """Open a head, and redraw what shows it: first where the choice was made, then the rest."""
    open_head(capture, run, **where)
    place.redraw("overview", "head", "block", "layer")


def point(key: str) -> list | None:
    """Return the custom data of the point that was clicked in a figure, or None."""
    points = st.session_state[key]["selection"]["points"]
    return list(points[0]["customdata"]) if points and points[0].get("customdata") else None


def _clicked(capture: Capture, run: str) -> None:
    if cell := point("figure-overview"):
        _open(capture, run, part=cell[0], layer=int(cell[1]), head=int(cell[2]))
