"""Three texts side by side, and the place where they part."""

from __future__ import annotations

import streamlit as st

from mxviz.capture import LANES, Capture
from mxviz.engine import Progress, Settings
from mxviz.page import capture_lanes_html, lanes_html, prompt_html


def show(capture: Capture) -> None:
    """Show the three texts of a capture, the first divergence marked."""
    st.html(prompt_html(capture.prompt) + capture_lanes_html(capture))
    st.caption(
        "One different token says little: greedy texts part at the first near-tie. The numbers below are "
        "measured over the whole exact text."
    )
    if capture.notes:
        st.caption(" · ".join(capture.notes).replace("$", r"\$"))


def show_live(progress: Progress, settings: Settings) -> None:
    """Show the texts so far of a run that is under way."""
    schemes = {lane: str(recipe) for lane, recipe in settings.recipes().items()} | {"exact": "uncompressed"}
    st.html(prompt_html(settings.prompt))
    st.html(lanes_html({lane: progress.texts.get(lane, "") for lane in LANES}, schemes))
