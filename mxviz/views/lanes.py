"""Three texts side by side, and the place where they part."""

from __future__ import annotations

import streamlit as st

from mxviz._engine_settings import Progress, Settings
from mxviz.capture import LANES, Capture, Turn
from mxviz.page import capture_lanes_html, lanes_html, prompt_html


def show(capture: Capture) -> None:
    """Show the three texts of a capture, the first divergence marked."""
    st.html(prompt_html(capture.prompt) + capture_lanes_html(capture))
    st.caption(
        "One different token says little: greedy texts part at the first near-tie. The numbers below are "
        f"measured over the whole exact text, {len(capture.token_ids):,} tokens; the cache holds "
        f"{capture.tokens_held:,} of them, for the newest is stored when it is read."
    )
    if capture.notes:
        st.caption(" · ".join(capture.notes).replace("$", r"\$"))


def show_turn(turn: Turn, capture: Capture) -> None:
    """Show one turn of a conversation."""
    where = {lane: turn.first_divergence(lane) for lane in LANES}
    texts = {lane: turn.lanes[lane].text for lane in LANES}
    st.html(prompt_html(turn.prompt) + lanes_html(texts, _schemes(capture.recipe, capture.baseline), where))


def show_live(progress: Progress, settings: Settings) -> None:
    """Show the texts so far of a run that is under way."""
    recipes = settings.recipes()
    st.html(prompt_html(settings.prompt))
    texts = {lane: progress.texts.get(lane, "") for lane in LANES}
    st.html(lanes_html(texts, _schemes(str(recipes["micro"]), str(recipes["single"]))))


def _schemes(recipe: str, baseline: str) -> dict[str, str]:
    return {"exact": "uncompressed", "micro": recipe, "single": baseline}
