"""Presenting: one picture a screen in large type, no chrome, and a clicker's keys from view to view.

`present=1` (or `white`) in the address is black on white, `present=black` white on black. The views of a talk
are links, one a line, kept for the session; without any, the keys go through the steps of the lesson.
"""

from __future__ import annotations

from contextlib import suppress
from urllib.parse import parse_qs, urlsplit

import streamlit as st

from mxviz.views import permalink, style
from mxviz.views.permalink_table import FIELDS

MOST_VIEWS = 100
"""Views of a talk."""

_LINES = "talk-links"
_FLIPPED = {"light": "black", "dark": "white"}

_STYLE = """<style>
header[data-testid="stHeader"], .stCaption, .mx-key, .mx-head, .modebar-container {
  display: none !important; }
.stElementContainer:has(.stCode, .stSelectbox, .stSlider, .stButtonGroup, .stButton, .stTextInput,
  .stNumberInput, .stTextArea, .stCheckbox, .stMultiSelect, .stDataFrame, .stPageLink, .stFileUploader,
  .stDownloadButton, .stRadio, .stAlert, .stChatInput, .stPopover, .mx-change,
  .mx-section, .mx-head, .mx-key, [data-testid="stCaptionContainer"], [data-testid="stDataFrame"]),
.stLayoutWrapper:has(> .stExpander), .stLayoutWrapper:has(> .stHorizontalBlock):not(:has(.stPlotlyChart)),
  .stExpander { display: none !important; }
.stElementContainer:has(> .stBidiComponent), .stElementContainer:has(> .stHtml > style:only-child) {
  position: absolute; }
.stApp, .stMain { background: var(--paper) !important; color: var(--ink); }
.stMain { cursor: none; }
.stMainBlockContainer { max-width: none; padding: 8px 16px; }
.stMainBlockContainer .stVerticalBlock { gap: 8px; }
.stMainBlockContainer [data-testid="stMarkdownContainer"] { color: var(--ink); }
.stMainBlockContainer h1 { font-size: 38px !important; line-height: 1.15; color: var(--ink); }
.stMainBlockContainer p, .stMainBlockContainer li, .stMainBlockContainer .mx-text {
  font-size: 26px !important; line-height: 1.35; max-width: none !important; }
.stMainBlockContainer h3 { font-size: 30px !important; }
.stElementContainer:has(.stPlotlyChart):not(.st-key-studio-sheet *) { width: WIDTHpx !important;
  min-width: WIDTHpx; max-width: none; }
.st-key-studio-frame { border: 0 !important; max-width: none !important; }
</style>"""

_KEYS = "mxviz_present"
_SCRIPT = """
export default function({ setTriggerValue }) {
  const known = { ArrowRight: 'next', PageDown: 'next', ' ': 'next', ArrowLeft: 'back', PageUp: 'back',
    Escape: 'leave', b: 'flip', B: 'flip', '.': 'flip' }
  const press = event => {
    const what = event.ctrlKey || event.metaKey || event.altKey ? undefined : known[event.key]
    if (!what) return
    event.preventDefault()
    event.stopPropagation()
    setTriggerValue('key', what)
  }
  const fit = () => {
    const apart = chart => !chart.closest('.st-key-studio-sheet')
    const charts = [...document.querySelectorAll('.stPlotlyChart')].filter(apart)
    const said = [...document.querySelectorAll('.st-key-lesson .stHtml h1, .st-key-lesson .stMarkdown')]
    const texts = said.reduce((sum, text) => sum + text.offsetHeight + 8, 0)
    for (const chart of charts) {
      const width = chart.offsetWidth, height = chart.offsetHeight
      if (!height || !chart.querySelector('.main-svg')) continue
      const scale = Math.min((window.innerWidth - 32) / width, (window.innerHeight - 24 - texts) / height)
      const aside = Math.max(0, (window.innerWidth - 32 - width * scale) / 2)
      const style = { transformOrigin: '0 0', transform: `translateX(${aside}px) scale(${scale})`,
        marginBottom: `${height * (scale - 1)}px` }
      if (chart.style.transform !== style.transform) Object.assign(chart.style, style)
    }
  }
  window.addEventListener('keydown', press, true)
  const timer = setInterval(fit, 200)
  return () => {
    clearInterval(timer)
    window.removeEventListener('keydown', press, true)
    const set = ['transform', 'transformOrigin', 'marginBottom']
    for (const chart of document.querySelectorAll('.stPlotlyChart'))
      for (const name of set) chart.style[name] = ''
  }
}
"""


def frame(page: str) -> None:
    """Take away the chrome of a page and listen to the keys, if the address says that it is presented; else
    show the talk that is being put together."""
    if style.ground() is None:
        _talk()
        return
    if st.session_state.pop("talk-go", False) and (views := _views()):
        _open(*views[0])
    st.html(_STYLE.replace("WIDTH", str(style.PRESENTED)))
    mount = st.components.v2.component(_KEYS, js=_SCRIPT)
    pressed = mount(key="present-keys", on_key_change=lambda: None, height=1).key
    if pressed in ("next", "back"):
        _move(page, 1 if pressed == "next" else -1)
    elif pressed == "flip":
        st.query_params["present"] = _FLIPPED[style.ground()]
        st.rerun()
    elif pressed == "leave":
        leave()
        st.rerun()


def start() -> None:
    """Present what is looked at, or the first view of the talk."""
    st.session_state["talk-at"] = 0
    st.query_params["present"] = "1"


def leave() -> None:
    """Show the page with its controls again."""
    del st.query_params["present"]


def add(page: str) -> None:
    """Put the view that is looked at at the end of the talk."""
    held = [*_lines(), permalink.link(page, permalink.address(page))]
    st.session_state[_LINES] = "\n".join(held[:MOST_VIEWS])


def _talk() -> None:
    """Draw the views of the talk, if there are any: links that can be moved, taken out and pasted in."""
    if not st.session_state.get(_LINES):
        return
    views = len(_views())
    with st.expander("Your talk", key="talk"):
        st.text_area(
            "A link on each line, in the order of the talk", key=_LINES, height=120, persist_state="session"
        )
        st.caption(
            f"{views} view{'s' * (views != 1)}. → and Page Down go on, ← and Page Up go back, B turns black "
            "and white, Esc leaves."
        )
        st.button("Present the talk", key="talk-start", on_click=_start_talk, disabled=not views)


def _start_talk() -> None:
    start()
    st.session_state["talk-go"] = True


def _lines() -> list[str]:
    return [line.strip() for line in (st.session_state.get(_LINES) or "").splitlines() if line.strip()]


def _views() -> list[tuple[str, permalink.Said]]:
    """Return page and what is said of it for each view of the talk; lines that are no links are left out."""
    views = []
    for line in _lines()[:MOST_VIEWS]:
        with suppress(ValueError):
            parts = urlsplit(line)
            page = parts.path.rstrip("/").rpartition("/")[2] or next(iter(FIELDS))
            if page in FIELDS:
                views.append((page, parse_qs(parts.query, keep_blank_values=True, max_num_fields=1000)))
    return views


def _move(page: str, by: int) -> None:
    """Go to the next view of the talk; without one, to the next step of the lesson, answer after question."""
    views = _views()
    if views:
        at = st.session_state.get("talk-at", 0) + by
        if 0 <= at < len(views):
            st.session_state["talk-at"] = at
            _open(*views[at])
    elif page == "lesson":
        from mxviz.views import lesson

        lesson.move(by)


def _open(page: str, said: permalink.Said) -> None:
    present = st.query_params.get("present", "1")
    permalink.put(page, said)
    st.switch_page(
        st.session_state["pages"][page], query_params={**permalink.address(page), "present": present}
    )
