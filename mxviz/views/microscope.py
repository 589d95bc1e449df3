"""The microscope: from the whole cache to a head, from a head to a block, from a block to a value."""

from __future__ import annotations

from contextlib import suppress

import streamlit as st

from mxviz.capture import Capture
from mxviz.formats import Recipe
from mxviz.views import before_after, gallery, head, inspector, overview, pages, place, switches, viewport

_ROOM = """<style>.st-key-numbers { min-height: 14rem; }
@media (max-width: 640px) { .st-key-numbers { min-height: 50rem; } }</style>"""
"""Kept free for the numbers of all layers, so that nothing moves away from a pointer when they come."""


def page() -> None:
    """Draw the page."""
    st.html(
        '<header class="mx-head"><h1>Every scale, every outlier, every loss</h1>'
        "<p>A KV cache, from the whole of it down to one stored number: once with a scale for each small "
        "block, once with one scale for everything.</p></header>"
    )
    width = viewport.width()
    run, capture = gallery.chosen()
    if capture is None:
        st.info("There is no run to look at yet; make one on the Run page.")
    else:
        _look(capture, run, width)
    pages.link("effect", "Did it matter? What this cache did to the next word")
    pages.link("run", "Ask a model, and look at your own run")


def prepare() -> None:
    """Draw what the page opens on, before there is a visitor who would wait for it; nothing without a run."""
    with suppress(ValueError):
        capture = gallery._load(next(iter(gallery.RUNS)))
        overview.prepare(capture, viewport.WIDE)


@place.figure(place.ALL)
def _look(capture: Capture, run: str, width: int) -> None:
    """Draw everything of one run; a switch redraws this, any other control the figures that it changes.

    Figures come first, and the numbers of all layers, which take longest, last.
    """
    st.html(_ROOM + _words(capture))
    whole = st.container()
    if not viewport.has_drawn():  # nothing that the first figure would have to wait for
        with whole:
            overview.show(switches.chosen(capture, run), run, width)
        return
    st.html('<div class="mx-section"><h2>What you look through</h2></div>')
    look = switches.choose(capture, run, numbers=False)
    numbers = st.container(key="numbers")
    with whole:
        overview.show(look, run, width)
    head.show(look, run, width)
    head.show_layer(look, run, width)
    inspector.show(look, run, width)
    with numbers:
        before_after.show(capture, look)


def _words(capture: Capture) -> str:
    """Return the size of a run in one line of words, every number with something to hold it against."""
    layers, (heads, tokens, channels) = len(capture.layers), capture.part("key", capture.layers[0]).shape
    stored = [
        Recipe.parse(text).key.bits_per_element(channels) for text in (capture.recipe, capture.baseline)
    ]
    micro, single = ("uncompressed" if bits is None else f"{bits:.4g} bits" for bits in stored)
    text = (
        f"{layers} layers × {heads} KV heads × {tokens:,} tokens × {channels} channels make "
        f"{layers * heads * tokens * channels:,} keys: {micro} each micro-scaled, {single} with one scale, "
        "16 bits uncompressed"
    )
    return f'<p class="mx-key">{text}</p>'
