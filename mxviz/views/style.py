"""The look of the pages: one stylesheet, in the meaning colours of the page's theme."""

from __future__ import annotations

import streamlit as st

from mxviz.figures.theme import THEMES, Theme
from mxviz.page import stylesheet

CHART = {"displaylogo": False, "modeBarButtonsToRemove": ["lasso2d", "select2d", "autoScale2d"]}
"""Plotly's options of every chart that can be zoomed."""


PRESENTED = 880
"""Width that a presented page is laid out for, CSS pixels; it is then enlarged to the screen's."""

_GROUNDS = {"1": "light", "white": "light", "black": "dark"}


def ground() -> str | None:
    """Return the theme that the page is presented in, None where it is not presented."""
    return _GROUNDS.get(st.query_params.get("present", ""))


def own_theme() -> str:
    """Return the name of the theme that the visitor's page has."""
    return "dark" if st.context.theme.type == "dark" else "light"


def theme() -> Theme:
    """Return the figure theme that matches the page's."""
    return THEMES[ground() or own_theme()]


def apply() -> None:
    """Put the stylesheet on the page."""
    st.html(f"<style>{stylesheet(theme())}</style>")
