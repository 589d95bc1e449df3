"""The same text with and without a cache, timed on request on this machine and drawn as it grows."""

from __future__ import annotations

import streamlit as st

from mxviz import _pictures_lesson as pictures
from mxviz._models_catalogue import CATALOGUE, is_here
from mxviz._pictures_lesson_words import TOKENS
from mxviz.figures import alt_text
from mxviz.views import jobs, measuring

STEPS = TOKENS
"""Tokens that are written each way: as many as the arithmetic above is about."""

_KEPT = ("lesson", "cook")


def section(size: dict) -> None:
    """Offer to run the built-in model both ways, show it while it grows, and what came of it.

    Args:
        size: theme and width of the figure.
    """
    measuring.collect()
    if measuring.pending():
        _live(size)
        return
    if error := st.session_state.get("measuring-error"):
        st.error(error.replace("$", r"\$"), icon=":material/info:")
    steps = measuring.kept(_KEPT)
    if steps:
        _chart(steps, size)
    name = CATALOGUE[jobs.BUILT_IN].title
    if not is_here(jobs.BUILT_IN):
        st.caption(f"{name} is not installed here, so nothing can be timed; the picture above is arithmetic.")
        return
    words = "Cook it again" if steps else f"Cook it for real: {name} writes {STEPS} tokens both ways"
    st.button(words, key="lesson-cook", on_click=_start)


def _start() -> None:
    st.session_state["measuring-error"] = None
    done = st.session_state["lesson-cooking"] = []

    def work(model, said, should_stop):
        with jobs.IMPORTS:
            from mxviz._engine_lesson import cook

        there = jobs.warming().model_is_there
        while jobs.warming().is_alive() and not there.wait(0.2):  # it is being converted, once ever
            if should_stop():
                return None

        def told(step):
            done.append(step)
            said(len(done), STEPS)

        return cook(jobs.loaded(model), STEPS, told=told, should_stop=should_stop)

    measuring.start(_KEPT, jobs.BUILT_IN, work)


@st.fragment(run_every=1.0)
def _live(size: dict) -> None:
    """Draw what was timed so far; leave the fragment when it is over."""
    job = measuring.current()
    if job is None:
        st.rerun(scope="app")
    if job.kept_as != _KEPT:
        st.caption("Another measurement of yours is under way on another page; it has to end first.")
        return
    bar, stop = st.columns([5, 1], vertical_alignment="center")
    words = f"step {job.done + 1} of {STEPS}" if job.done else f"loading {CATALOGUE[jobs.BUILT_IN].title}"
    bar.progress(min(1.0, job.done / STEPS), words)
    stop.button("Stop", key="lesson-stop", on_click=job.stop.set, width="stretch")
    if steps := list(st.session_state.get("lesson-cooking", ())):
        _chart(steps, size)


def _chart(steps: list, size: dict) -> None:
    figure = pictures.cooked_picture(steps, STEPS, CATALOGUE[jobs.BUILT_IN].title, **size)
    st.plotly_chart(
        figure,
        theme=None,
        width="stretch",
        key="figure-lesson-cooked",
        alt=alt_text(figure),
        config={"displaylogo": False, "displayModeBar": False},
    )
