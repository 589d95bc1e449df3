"""The line above each page: copy the link of what is seen; and what a link cannot hold."""

from __future__ import annotations

import streamlit as st

from mxviz.views import gallery, permalink, present, style
from mxviz.views.permalink_table import FIELDS

_NAME = "mxviz_link"
_HTML = (
    '<p><span role="status"></span>'
    '<button type="button"></button><button type="button">Add to talk</button>'
    '<button type="button">Present</button></p>'
)
_CSS = """
p { display: flex; justify-content: flex-end; align-items: center; gap: 0.8rem; margin: 0; height: 2rem; }
button { font: inherit; font-size: 0.9rem; color: var(--st-link-color); background: none; cursor: pointer;
  border: 1px solid var(--st-border-color); border-radius: 0.375rem; padding: 0.25rem 0.7rem; }
button:hover, button:focus-visible { border-color: var(--st-link-color); }
button:focus-visible { outline: 2px solid var(--st-link-color); outline-offset: 1px; }
span { font-size: 0.85rem; color: var(--st-text-color); overflow: hidden; white-space: nowrap;
  text-overflow: ellipsis; user-select: all; }
"""
_SCRIPT = """
export default function({ parentElement, data, setTriggerValue }) {
  const [button, add, present] = parentElement.querySelectorAll('button')
  const told = parentElement.querySelector('span')
  add.onclick = () => setTriggerValue('asked', 'add')
  present.onclick = () => setTriggerValue('asked', 'present')
  button.textContent = data.label
  const link = () => {
    const found = new URL(data.link ? new URL(data.link, document.baseURI) : window.location.href)
    found.searchParams.delete('embed_options')
    return found.href
  }
  const byHand = text => {
    const field = document.createElement('textarea')
    field.value = text
    document.body.append(field)
    field.select()
    const done = document.execCommand('copy')
    field.remove()
    button.focus()
    return done
  }
  let timer
  const copy = async () => {
    const text = link()
    let done = false
    try { await navigator.clipboard.writeText(text); done = true } catch { done = byHand(text) }
    told.textContent = done ? 'Copied' : text
    clearTimeout(timer)
    timer = setTimeout(() => { told.textContent = '' }, done ? 4000 : 60000)
  }
  button.addEventListener('click', copy)
  return () => { clearTimeout(timer); button.removeEventListener('click', copy) }
}
"""


def show(page: str) -> None:
    """Draw the button; where what is looked at is in no link, say so and offer the link to its settings."""
    if style.ground() is not None:
        return
    _turn()
    run, capture = gallery.looked_at() if FIELDS[page] and page != "lesson" else ("", None)
    own = capture is not None and run not in gallery.RUNS
    settings = permalink.settings_link(capture) if own else None
    label = "Copy link" if not own else "Copy link to its settings" if settings else "Copy link to this page"
    mount = st.components.v2.component(_NAME, html=_HTML, css=_CSS, js=_SCRIPT)
    mount(key="link", data={"label": label, "link": settings}, on_asked_change=lambda: _asked(page))
    if own:
        st.caption(_MORE[settings is not None])


def _asked(page: str) -> None:
    asked = st.session_state["link"]["asked"]
    if asked == "add":
        present.add(page)
    elif asked == "present":
        present.start()


_MORE = {
    True: "No link can hold a run of your own; this one opens the Run page with its settings.",
    False: "No link can hold an opened file; this one opens the page with a recorded run.",
}

_TURN = "mxviz_theme"
_TURN_SCRIPT = """
export default function({ data }) {
  const wanted = new URL(window.location.href), option = data.theme + '_theme'
  if (wanted.searchParams.getAll('embed_options').includes(option)) return
  wanted.searchParams.set('embed_options', option)
  wanted.searchParams.set('theme', data.theme)
  window.location.replace(wanted)
}
"""


def _turn() -> None:
    """Open the address again in the theme it asks for, by the name that Streamlit reads."""
    theme = st.session_state.get("link-theme")
    if theme is None or theme == style.own_theme():
        st.session_state["link-theme"] = None
    else:
        st.components.v2.component(_TURN, js=_TURN_SCRIPT)(key="theme-turn", data={"theme": theme}, height=1)
