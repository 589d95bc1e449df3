"""Run: ask a model, read what it writes from three caches, and what each of them cost."""

from __future__ import annotations

import streamlit as st

from mxviz.capture import LANES, Capture
from mxviz.page import literal
from mxviz.views import ask, gallery, lanes, numbers, pages, talk


def page() -> None:
    """Draw the page."""
    st.html(
        '<header class="mx-head"><h1>One answer from three caches</h1>'
        "<p>A language model keeps every token it has read in its KV cache. Here it writes three times: from "
        "the cache as it is, from one stored in a few bits with a scale for each small block, and from one "
        "with a single scale for everything.</p></header>"
    )
    ask.collect()
    name, capture = _with_texts()
    if not ask.running():
        ask.follow(capture)
    ask.panel()
    if not ask.running():
        _answers(name, capture)


def _answers(name: str, capture: Capture | None) -> None:
    """Show the run that is looked at: whose it is, its texts, its numbers, and how to go on."""
    if capture is None:
        st.info("Press Generate: three texts appear here.")
        return
    st.html(f'<div class="mx-section"><h2>{gallery.label(name)}</h2><p>{_whose(name, capture)}</p></div>')
    lanes.show(capture)
    talk.panel(name, capture)
    numbers.show(capture)
    pages.link("microscope", "Look into this cache: every scale, every outlier")
    pages.link("effect", "Did it matter? Every word, coloured by what it lost")


def _with_texts() -> tuple[str, Capture | None]:
    """What is looked at, if it has texts; a tensor has none, then the recorded chat stands in."""
    name, capture = gallery.looked_at()
    fresh = "run" not in st.session_state
    if capture is not None and not fresh and set(LANES) <= capture.lanes.keys():
        return name, capture
    return gallery.CHAT, gallery.recorded(gallery.CHAT)


def _whose(name: str, capture: Capture) -> str:
    """Say which model answered, when, and whether it is what is set above that was asked."""
    first = capture.turns[0].prompt if capture.turns else capture.prompt
    earlier = st.session_state.get("prompt", first).strip() != first.strip()
    said = literal(gallery.described(name, capture))
    if name in gallery.RUNS:
        said += ". Recorded earlier, nothing was computed just now"
    if earlier:
        said += (
            ". <strong>These answers are to the earlier prompt below</strong>: press Generate to ask yours"
        )
    if other := ask.other_model(capture):
        said += f". Generate asks another model than this one: {literal(other)}"
    return said + "."
