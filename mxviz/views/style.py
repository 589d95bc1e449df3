"""The look of the pages: one stylesheet, and HTML made of escaped text alone."""

from __future__ import annotations

import html

import streamlit as st

from mxviz._paths import ASSETS
from mxviz.figures.theme import THEMES, Theme


def theme() -> Theme:
    """Return the figure theme that matches the page's."""
    kind = st.context.theme.type
    return THEMES["dark" if kind == "dark" else "light"]


def apply() -> None:
    """Put the stylesheet on the page, with the meaning colours of the page's theme."""
    colours = theme()
    names = ("ink", "muted", "grid", "paper", "exact", "micro", "single", "outlier")
    variables = "".join(f"--{name}: {getattr(colours, name)};" for name in names)
    css = (ASSETS / "app.css").read_text(encoding="utf-8")
    st.html(f"<style>:root {{ {variables} }}\n{css}</style>")


def literal(text: str) -> str:
    """Escape text for HTML: a model's words are shown, never interpreted; control characters as pictures."""
    return html.escape("".join(c if ord(c) > 31 or c in "\n\t" else chr(0x2400 + ord(c)) for c in text))
