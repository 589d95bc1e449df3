"""What Python cannot know and a few lines of script tell: how wide the window is, and when it has drawn."""

from __future__ import annotations

import streamlit as st

from mxviz.views import style

WIDE = 1056
"""Width of the page's column on a desktop, CSS pixels."""

_NAME = "mxviz_viewport"
_SCRIPT = """
export default function({ setStateValue, data }) {
  const column = () => {
    const block = document.querySelector('[data-testid="stMainBlockContainer"]')
    if (!block) return Math.max(320, window.innerWidth - 32)
    const style = getComputedStyle(block)
    return block.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight)
  }
  const tell = () => {
    const found = column(), width = found < data.below ? Math.max(280, Math.floor(found / 20) * 20) : 0
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
    """Return the CSS pixels that figures are laid out for: the page's column, held to steps of 20.

    A window that is narrower than the column on a desktop costs one more run of the page.
    """
    known = (st.session_state.get("viewport") or {}).get("width") or 0
    mount = st.components.v2.component(_NAME, js=_SCRIPT)
    found = mount(
        key="viewport", data={"below": WIDE, "known": known}, on_width_change=lambda: None, height=1
    )
    if style.ground() is not None:
        return style.PRESENTED
    return int(found.width) if found.width else WIDE


_DRAWN = "mxviz_drawn"
_DRAWN_SCRIPT = """
export default function({ setStateValue, data }) {
  let timer
  const look = () => {
    if (document.querySelector('.stPlotlyChart .js-plotly-plot .main-svg')) setStateValue('drawn', true)
    else timer = setTimeout(look, 40)
  }
  if (!data.known) look()
  return () => clearTimeout(timer)
}
"""


def has_drawn() -> bool:
    """Whether this visitor's browser has drawn a figure; where it has not, it soon asks for the rest.

    A browser draws all figures that came together before it shows one. So a first visit gets one first.
    """
    if st.session_state.get("drawn"):
        return True
    mount = st.components.v2.component(_DRAWN, js=_DRAWN_SCRIPT)
    found = mount(key="has-drawn", data={"known": False}, on_drawn_change=lambda: None, height=1)
    st.session_state["drawn"] = bool(found.drawn)
    return st.session_state["drawn"]
