"""The pages of the app. A page's module is imported when it is first opened: no page waits for another."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

import streamlit as st

from mxviz.views import glossary, jobs, permalink, permalink_bar, present, style

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
"""Path in the address, which is the module's name too, and title; the first one opens at the root, where
its own path leads as well."""


ROOT = "root"
"""What Streamlit knows the page at the root by; no address shows it."""


def all_pages() -> list[st.Page]:
    """Return the pages for `st.navigation`, and let pages find each other in `st.session_state["pages"]`."""
    first = next(iter(PAGES))
    pages = [
        st.Page(_opener(name), title=title, url_path=ROOT if name == first else name, default=name == first)
        for name, title in PAGES.items()
    ]
    st.session_state["pages"] = dict(zip(PAGES, pages, strict=True))
    return [*pages, st.Page(_to_the_root, title=PAGES[first], url_path=first, visibility="hidden")]


def _to_the_root() -> None:
    """Open the first page, with all that its address says."""
    said = [(name, text) for name in st.query_params for text in st.query_params.get_all(name)]
    st.switch_page(st.session_state["pages"][next(iter(PAGES))], query_params=said)


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
        with st.container(horizontal=True, vertical_alignment="center", key="page-top"):
            if style.ground() is None:
                st.html('<p class="mx-nav">Pages: » at the top</p>', width="content")
                glossary.show(name)
            permalink_bar.show(name)
        import_module(f"mxviz.views.{name}").page()
        permalink.write()
        jobs.start_warming()

    return page
