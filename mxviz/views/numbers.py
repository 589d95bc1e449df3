"""A row of numbers: each with its unit, and something to hold it against."""

from __future__ import annotations

from functools import lru_cache

import streamlit as st

from mxviz.capture import Capture
from mxviz.formats import Axis, Recipe
from mxviz.page import numbers_html
from mxviz.report import bytes_per_token, report

_report = lru_cache(maxsize=8)(report)


def show(capture: Capture) -> None:
    """Show bytes, bits, error and effect of the micro-scaled cache beside the single-scale one."""
    st.html(numbers_html(capture, _report(capture)))
    if waiting := _waiting(capture):
        st.caption(waiting)


def _waiting(capture: Capture) -> str | None:
    """Say what of the micro-scaled cache is exact for now, where its blocks run along tokens."""
    recipe = Recipe.parse(capture.recipe)
    parts = [f"{part}s" for part in ("key", "value") if recipe.scheme(part).axis is Axis.TOKEN]
    held = capture.storage.get("micro", {}).get("tokens_held") or 0
    later = bytes_per_token(capture, recipe)
    if not parts or not held or later is None:
        return None
    block = recipe.scheme(parts[0].removesuffix("s")).block
    open_tokens = min(held, recipe.residual + max(0, held - recipe.sink - recipe.residual) % block)
    return (
        f"Blocks of {' and '.join(parts)} run along tokens, so the newest {open_tokens} of {held:,} tokens "
        "in the micro-scaled lane's cache, which holds that lane's own text, wait uncompressed until "
        f"{block} have come together. In a long text that no longer counts: "
        f"{later:,.0f} bytes per token."
    )
