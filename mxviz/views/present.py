"""Presenting: one picture a screen in large type, no chrome, and a clicker's keys from view to view.

`present=1` (or `white`) in the address is black on white, `present=black` white on black. The views of a talk
are links, one a line, kept for the session; without any, the keys go through the steps of the lesson.
"""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from urllib.parse import parse_qs, urlsplit

import streamlit as st

from mxviz._paths import ASSETS
from mxviz.views import permalink, style
from mxviz.views.permalink_table import FIELDS

MOST_VIEWS = 100
"""Views of a talk."""

_LINES = "talk-links"
_FLIPPED = {"light": "black", "dark": "white"}


_KEYS = "mxviz_present"


@cache
def _asset(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")


def frame(page: str) -> None:
    """Take away the chrome of a page and listen to the keys, if the address says that it is presented; else
    show the talk that is being put together."""
    if style.ground() is None:
        _talk()
        return
    if st.session_state.pop("talk-go", False) and (views := _views()):
        _open(*views[0])
    st.html(f"<style>:root {{ --mx-wide: {style.PRESENTED}px; }}\n{_asset('present.css')}</style>")
    mount = st.components.v2.component(_KEYS, js=_asset("present.js"))
    pressed = mount(key="present-keys", on_key_change=lambda: None, height=1).key
    if pressed in ("next", "back"):
        _move(page, 1 if pressed == "next" else -1)
    elif pressed == "flip":
        st.query_params["present"] = _FLIPPED[style.ground()]
        st.rerun()
    elif pressed == "leave":
        leave()
        st.rerun()


def start() -> None:
    """Present what is looked at, or the first view of the talk."""
    st.session_state["talk-at"] = 0
    st.query_params["present"] = "1"


def leave() -> None:
    """Show the page with its controls again."""
    del st.query_params["present"]


def add(page: str) -> None:
    """Put the view that is looked at at the end of the talk."""
    held = [*_lines(), permalink.link(page, permalink.address(page))]
    st.session_state[_LINES] = "\n".join(held[:MOST_VIEWS])


def _talk() -> None:
    """Draw the views of the talk, if there are any: links that can be moved, taken out and pasted in."""
    if not st.session_state.get(_LINES):
        return
    views = len(_views())
    with st.expander("Your talk", key="talk"):
        st.text_area(
            "A link on each line, in the order of the talk", key=_LINES, height=120, persist_state="session"
        )
        st.caption(
            f"{views} view{'s' * (views != 1)}. → and Page Down go on, ← and Page Up go back, B turns black "
            "and white, Esc leaves."
        )
        st.button("Present the talk", key="talk-start", on_click=_start_talk, disabled=not views)


def _start_talk() -> None:
    start()
    st.session_state["talk-go"] = True


def _lines() -> list[str]:
    return [line.strip() for line in (st.session_state.get(_LINES) or "").splitlines() if line.strip()]


def _views() -> list[tuple[str, permalink.Said]]:
    """Return page and what is said of it for each view of the talk; lines that are no links are left out."""
    views = []
    for line in _lines()[:MOST_VIEWS]:
        with suppress(ValueError):
            parts = urlsplit(line)
            page = parts.path.rstrip("/").rpartition("/")[2] or next(iter(FIELDS))
            if page in FIELDS:
                views.append((page, parse_qs(parts.query, keep_blank_values=True, max_num_fields=1000)))
    return views


def _move(page: str, by: int) -> None:
    """Go to the next view of the talk; without one, to the next step of the lesson, answer after question."""
    views = _views()
    if views:
        at = st.session_state.get("talk-at", 0) + by
        if 0 <= at < len(views):
            st.session_state["talk-at"] = at
            _open(*views[at])
    elif page == "lesson":
        from mxviz.views import lesson

        lesson.move(by)


def _open(page: str, said: permalink.Said) -> None:
    present = st.query_params.get("present", "1")
    permalink.put(page, said)
    st.switch_page(
        st.session_state["pages"][page], query_params={**permalink.address(page), "present": present}
    )
