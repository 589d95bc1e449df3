"""The look of the pages: one stylesheet, in the meaning colours of the page's theme."""

from __future__ import annotations

import streamlit as st

from mxviz.figures.theme import THEMES, Theme
from mxviz.page import stylesheet

CHART = {"displaylogo": False, "modeBarButtonsToRemove": ["lasso2d", "select2d", "autoScale2d"]}
"""Plotly's options of every chart that can be zoomed."""


def theme() -> Theme:
    """Return the figure theme that matches the page's."""
    return THEMES["dark" if st.context.theme.type == "dark" else "light"]


def apply() -> None:
    """Put the stylesheet on the page."""
    st.html(f"<style>{stylesheet(theme())}</style>")
