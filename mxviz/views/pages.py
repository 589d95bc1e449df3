"""The pages of the app. A page's module is imported when it is first opened: no page waits for another."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

import streamlit as st

from mxviz.views import jobs, permalink, permalink_bar, present

PAGES = {
    "microscope": "Microscope",
    "outliers": "Outliers",
    "effect": "Effect",
    "race": "Race",
    "run": "Run",
    "lesson": "Lesson",
    "planner": "Planner",
    "studio": "Studio",
}
"""Path in the address, which is the module's name too, and title; the first one opens at the root."""


def all_pages() -> list[st.Page]:
    """Return the pages for `st.navigation`, and let pages find each other in `st.session_state["pages"]`."""
    first = next(iter(PAGES))
    pages = [
        st.Page(_opener(name), title=title, url_path=name, default=name == first)
        for name, title in PAGES.items()
    ]
    st.session_state["pages"] = dict(zip(PAGES, pages, strict=True))
    return pages


def link(name: str, label: str) -> None:
    """Draw a link to another page; nothing where a page is drawn alone and there is no other."""
    page = st.session_state.get("pages", {}).get(name)
    if page is not None:
        st.page_link(page, label=label, icon=":material/arrow_forward:")


def _opener(name: str) -> Callable[[], None]:
    def page() -> None:
        jobs.warming()
        permalink.opened(name)
        present.frame(name)
        permalink_bar.show(name)
        import_module(f"mxviz.views.{name}").page()
        permalink.write()
        jobs.start_warming()

    return page
