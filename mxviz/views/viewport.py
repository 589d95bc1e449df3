"""How wide the visitor's window is: the one thing Python cannot know, told by four lines of script."""

from __future__ import annotations

import streamlit as st

from mxviz.figures.theme import COMPACT_BELOW

WIDE = 1056
"""Width of the page's column on a desktop, CSS pixels."""

_NAME = "mxviz_viewport"
_SCRIPT = """
export default function({ setStateValue, data }) {
  const tell = () => {
    const width = window.innerWidth < data.below ? Math.max(320, Math.round(window.innerWidth / 20) * 20) : 0
    if (window.mxvizWidth !== width) { window.mxvizWidth = width; setStateValue('width', width) }
  }
  let timer
  const later = () => { clearTimeout(timer); timer = setTimeout(tell, 250) }
  window.mxvizWidth = data.known
  tell()
  window.addEventListener('resize', later)
  return () => window.removeEventListener('resize', later)
}
"""


def width() -> int:
    """Return the CSS pixels that figures are laid out for; a narrow window costs one more run of the page."""
    known = (st.session_state.get("viewport") or {}).get("width") or 0
    mount = st.components.v2.component(_NAME, js=_SCRIPT)
    found = mount(
        key="viewport", data={"below": COMPACT_BELOW, "known": known}, on_width_change=lambda: None, height=1
    )
    return int(found.width) - 32 if found.width else WIDE
