"""Three texts side by side, and the place where they part."""

from __future__ import annotations

import os

import streamlit as st

from mxviz.capture import LANES, Capture
from mxviz.engine import Progress, Settings
from mxviz.formats import Recipe
from mxviz.views.style import literal

TITLES = {"exact": "Exact", "micro": "Micro-scaled", "single": "One scale"}


def show(capture: Capture) -> None:
    """Show the three texts of a capture, the first divergence marked."""
    st.html(f'<p class="mx-prompt"><span>Prompt</span> {literal(_shortened(capture.prompt))}</p>')
    schemes = {"exact": "uncompressed", "micro": capture.recipe, "single": capture.baseline}
    texts = {lane: capture.lanes[lane].text for lane in LANES}
    where = {lane: capture.first_divergence(lane) for lane in LANES}
    _cards(texts, schemes, where)
    if capture.notes:
        st.caption(" · ".join(capture.notes).replace("$", r"\$"))


def show_live(progress: Progress, settings: Settings) -> None:
    """Show the texts so far of a run that is under way."""
    recipe = Recipe.parse(settings.recipe)
    schemes = {"exact": "uncompressed", "micro": str(recipe), "single": settings.baseline}
    _cards({lane: progress.texts.get(lane, "") for lane in LANES}, schemes, {})


def _cards(texts: dict[str, str], schemes: dict[str, str], where: dict[str, int | None]) -> None:
    cards = "".join(
        f'<section class="mx-lane mx-{lane}"><h3>{TITLES[lane]}</h3>'
        f'<p class="mx-scheme">{literal(schemes[lane])}</p>'
        f'<p class="mx-text">{_marked(texts["exact"], texts[lane])}</p>'
        f'<p class="mx-where">{_said(lane, where)}</p></section>'
        for lane in LANES
    )
    st.html(f'<div class="mx-lanes">{cards}</div>')


def _marked(exact: str, text: str) -> str:
    """Escape a text and mark what follows its first difference from the exact one."""
    same = len(os.path.commonprefix([exact, text]))
    if same == len(text) == len(exact) or text == exact[: len(text)]:
        return literal(text)
    return f"{literal(text[:same])}<mark>{literal(text[same:])}</mark>"


def _said(lane: str, where: dict[str, int | None]) -> str:
    if lane == "exact" or lane not in where:
        return ""
    if where[lane] is None:
        return "the same tokens as exact"
    return f"◆ differs from new token {where[lane] + 1} on"


def _shortened(text: str, limit: int = 400) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"
