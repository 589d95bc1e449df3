"""Which layers outlier channels do harm in, and the recipes that exempt them, ready to copy."""

from __future__ import annotations

import streamlit as st

from mxviz._outliers_advice import advice
from mxviz._outliers_words import harm_words
from mxviz.capture import Capture
from mxviz.page import literal


def show(capture: Capture, run: str, part: str) -> None:
    """Warn about the layers and offer ways out, under the recipe that the switches are set to."""
    choice = st.session_state.get("looks", {}).get(run)
    found = advice(capture, part, choice.recipe if choice else None)
    if not found.layers:
        return
    st.html('<div class="mx-section"><h2>What keeps them from harm</h2></div>')
    if found.safe:
        st.info(harm_words(found, part), icon=":material/check:")
    else:
        st.warning(harm_words(found, part), icon=":material/warning:")
    for way in found.ways:
        st.html(f'<div class="mx-section"><p>{literal(way.words)}</p></div>')
        st.code(way.recipe, language=None, wrap_lines=True)
