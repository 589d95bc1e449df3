"""The microscope: ask a model, read three answers, look into the cache that gave them."""

from __future__ import annotations

import streamlit as st

from mxviz.views import ask, gallery, head, jobs, lanes, numbers, viewport


def page() -> None:
    """Draw the page."""
    jobs.warming()
    st.html(
        '<header class="mx-head"><h1>What does a small ruler save?</h1>'
        "<p>A language model keeps every token it has read in its KV cache. mxviz really stores that cache "
        "in 4 to 8 bits, once with a scale for each small block and once with one scale for everything, "
        "and shows what each of them lost.</p></header>"
    )
    ask.panel()
    if not ask.running():
        _look()
    jobs.start_warming()


def _look() -> None:
    """Show the run that is looked at: its texts, its numbers and its pictures."""
    run, capture = gallery.chosen()
    if capture is None:
        st.info("Press Generate to fill a cache; the pictures appear here.")
        return
    lanes.show(capture)
    numbers.show(capture)
    head.explore(capture, run, viewport.width())
