"""Outliers: which channels, tokens and single numbers tower over the rest, and where they come from."""

from __future__ import annotations

import streamlit as st

from mxviz._outliers_list import KINDS
from mxviz._pictures_outliers import channel_picture, surface_picture, token_picture
from mxviz.capture import PARTS, Capture
from mxviz.figures import Figure, alt_text
from mxviz.figures.theme import is_compact
from mxviz.views import gallery, outlier_advice, outlier_list, pages, permalink, style, viewport
from mxviz.views import place as places


def page() -> None:
    """Draw the page."""
    st.html(
        '<header class="mx-head"><h1>Who needs the long ruler?</h1>'
        "<p>A few channels of a KV cache are large at every token, some tokens are loud or nearly silent, "
        "and now and then one number stands alone. What is large sets the scale of all that share a block "
        "with it.</p></header>"
    )
    width = viewport.width()
    run, capture = gallery.chosen()
    if capture is not None:
        explore(capture, run, width)
    else:
        st.info("No recorded run is here. Fill a cache on the first page; its outliers appear here.")


@permalink.fragment
def explore(capture: Capture, run: str, width: int) -> None:
    """List the outliers of a run, draw the head of the one that is chosen, and say what exempts them.

    Args:
        capture: the run.
        run: its name, for what is remembered of it.
        width: CSS pixels to lay figures out for.
    """
    kind = _controls(capture, run, width)
    part = places.get(capture, run).part
    kind = outlier_list.show(capture, run, part, kind, st.session_state[_find_key(run)], width)
    place = places.get(capture, run)
    where = {name: getattr(place, name) for name in ("layer", "head", "part")}
    look = {"theme": style.theme().name, "width": width}
    if kind == "tokens":
        figure = token_picture(capture, token=place.token, **where, **look)
    else:
        token = place.token if kind == "single values" else None
        figure = channel_picture(capture, channel=place.channel, token=token, **where, **look)
    _show(figure, "figure-outliers-profile")
    pages.link("microscope", "See this place under the microscope")
    outlier_advice.show(capture, run, part)
    with st.expander("For talks: the head as a 3-D surface"):
        if st.toggle("Draw it", key="outliers-surface"):
            look["width"] = width - 34  # the fold's own margins
            _show(surface_picture(capture, **where, **look), "figure-outliers-surface")


def _show(figure: Figure, key: str) -> None:
    st.plotly_chart(figure, theme=None, width="stretch", key=key, alt=alt_text(figure), config=style.CHART)


def _controls(capture: Capture, run: str, width: int) -> str:
    """Draw the choice of part and list and the field to find by name; return the kind of the list."""
    row = st.container(horizontal=not is_compact(width), gap="large")
    part_key, find_key, kind_key = f"outliers-part-{run}", _find_key(run), "outliers-kind"
    st.session_state[part_key] = places.get(capture, run).part  # other pages may have moved it
    st.session_state.setdefault(find_key, "")
    st.session_state.setdefault(kind_key, KINDS[0])

    def other_kind() -> None:
        st.session_state[find_key] = ""

    def other_part() -> None:
        places.put(capture, run, part=st.session_state[part_key])

    def find() -> None:
        kind, text = st.session_state[kind_key], st.session_state[find_key]
        st.session_state[kind_key] = outlier_list.search(capture, run, kind, text)

    with row:
        st.segmented_control(
            *("Part", PARTS), format_func=lambda p: f"{p}s", required=True, key=part_key, on_change=other_part
        )
        st.segmented_control(
            *("What stands out", KINDS),
            **{"required": True, "key": kind_key, "on_change": other_kind, "persist_state": "session"},
        )
        st.text_input(
            "Find a channel or a token",
            placeholder="31, ruler, token 5",
            **{"key": find_key, "on_change": find, "persist_state": "session"},
        )
    return st.session_state[kind_key]


def _find_key(run: str) -> str:
    return f"outliers-find-{run}"
