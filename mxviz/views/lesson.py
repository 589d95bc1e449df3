"""The lesson: one step a screen, told with the chef's prep bowl; predict, reveal, why."""

from __future__ import annotations

import streamlit as st

from mxviz._pictures_lesson_words import FACTS
from mxviz.capture import Capture
from mxviz.views import gallery, jobs, lesson_check, lesson_steps, permalink, style, viewport

WILD, MILD = "qwen-code", "smollm2-chat"
"""The recorded runs that the lesson looks at: one with an outlier channel, and a milder one."""

STEPS = tuple(FACTS)
"""The steps in order, by the names of their texts; the last is the check."""

_STYLE = """<style>
.st-key-lesson h1 { font-size: clamp(1.6rem, 3.6vw, 2.5rem); line-height: 1.15; padding: 0;
  letter-spacing: -0.02em; }
.st-key-lesson h3 { font-size: clamp(1.15rem, 2vw, 1.45rem); padding: 0.4rem 0 0; }
.st-key-lesson [data-testid="stMarkdownContainer"] p, .st-key-lesson [data-testid="stMarkdownContainer"] li {
  font-size: clamp(1.05rem, 1.6vw, 1.25rem); line-height: 1.5; max-width: 56rem; overflow-wrap: anywhere; }
.st-key-lesson [data-testid="stSliderThumbValue"] p { font-size: 1rem !important; line-height: 1.2; }
.st-key-lesson [data-testid="stWidgetLabel"] p { color: var(--ink) !important; }
.st-key-lesson [data-testid="stRadio"] label:has(input:disabled) p { color: var(--muted) !important; }
.st-key-lesson button p { font-size: 1.05rem !important; }
.mx-step { color: var(--muted); font-size: 1.05rem; margin: 0; white-space: nowrap; }
.mx-verdict { font-size: clamp(1.15rem, 2vw, 1.5rem); font-weight: 650; margin: 0.6rem 0 0; }
</style>"""


def page() -> None:
    """Draw the page."""
    jobs.warming()
    width = viewport.width()
    wild, mild = gallery.recorded(WILD), gallery.recorded(MILD)
    if wild is None or mild is None:
        st.info("The lesson looks at two recorded runs, and one of them is not in assets/gallery.")
        return
    _lesson(wild, mild, width)
    jobs.start_warming()


@permalink.fragment
def _lesson(wild: Capture, mild: Capture, width: int) -> None:
    """Draw the step one is at, and the way to the others."""
    step = _at()
    st.html(_STYLE)
    with st.container(key="lesson"):
        size = {"theme": style.theme().name, "width": width}
        if style.ground() is not None:
            lesson_steps.show_on_stage(STEPS[step - 1], wild, mild, size)
            return
        _ways(step)
        show = lesson_check.show if step == len(STEPS) else lesson_steps.show
        show(STEPS[step - 1], wild, mild, size)
        if step < len(STEPS) and st.session_state[f"lesson-revealed-{STEPS[step - 1]}"]:
            st.button("Next step", key="lesson-on", type="primary", on_click=_go, args=(step + 1,))


def _at() -> int:
    """Return the step, counted from 1: the address's, else the one that was left."""
    asked = st.query_params.get("step")
    if asked in map(str, range(1, len(STEPS) + 1)):
        st.session_state["lesson-step"] = int(asked)
    return st.session_state.get("lesson-step", 1)


def _go(step: int) -> None:
    st.session_state["lesson-step"] = step
    st.query_params["step"] = str(step)


def move(by: int) -> None:
    """Go on as a talk does, each answer after its question; or back."""
    step, last = _at(), len(STEPS) - 1  # the check at the end is for one alone
    key = "lesson-revealed-{}".format
    if step <= last and st.session_state.get(key(STEPS[step - 1]), False) == (by < 0):
        st.session_state[key(STEPS[step - 1])] = by > 0
        return
    there = min(max(step + by, 1), last)
    if there != step:
        st.session_state[key(STEPS[there - 1])] = by < 0
        _go(there)


def _ways(step: int) -> None:
    """Draw Back and Next; the arrow keys press them, except inside a field that has arrows of its own."""
    with st.container(
        key="lesson-ways", horizontal=True, vertical_alignment="center", horizontal_alignment="distribute"
    ):
        st.button(
            "Back", key="lesson-back", shortcut="Left", disabled=step == 1, on_click=_go, args=(step - 1,)
        )
        st.html(f'<p class="mx-step">Step {step} of {len(STEPS)}</p>', width="content")
        last = step == len(STEPS)
        st.button("Next", key="lesson-next", shortcut="Right", disabled=last, on_click=_go, args=(step + 1,))
