"""Measuring in the background: a thread that can be stopped, for one session, and ends with its tab."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import streamlit as st
from streamlit.runtime.scriptrunner import add_script_run_ctx, get_script_run_ctx

from mxviz.views import limits
from mxviz.views.tabs import Stoppable

_KEPT = 8  # results a session keeps

Work = Callable[[str, Callable[[int, int], None], Callable[[], bool]], Any]
"""Called with the model's name, `said(done, total)` and `should_stop()`; gives None where it was stopped."""


@dataclass
class Measuring(Stoppable):
    """One measurement: what it is kept as, how far it is, and how to stop it."""

    kept_as: tuple[str, str]
    model: str
    work: Work
    done: int = 0
    total: int = 0
    result: Any = None
    over: bool = False

    def run(self) -> None:
        """Do the work; keep its result, or the one line that says what is wrong."""
        listed = self.model if self.model in limits.offered() else "another"
        try:
            self.carry_out("measurement", self._work, model=listed, what=self.kept_as[0])
        finally:
            self.over = True

    def _work(self) -> None:
        self.result = self.work(self.model, self._said, self.should_stop)

    def words(self) -> str:
        """Return how far it is and how long it may still take."""
        if self.visitor is not None and not self.visitor.seated:
            return self.waits()
        if not self.done:
            return f"loading {self.model}, and the exact pass"
        left = (time.monotonic() - self.started) / self.done * (self.total - self.done)
        return f"pass {self.done + 1} of {self.total}; about {about(left)} left"

    def _said(self, done: int, total: int) -> None:
        if done <= 1:
            self.started = time.monotonic()  # loading is over: only passes tell how long passes take
        self.done, self.total = done, total
        self.breathe()


def about(seconds: float) -> str:
    """Return a time in words, no finer than one knows it."""
    return f"{max(5, 5 * round(seconds / 5))} s" if seconds < 55 else f"{max(1, round(seconds / 60))} min"


def current() -> Measuring | None:
    """Return this session's measurement that is under way."""
    job = st.session_state.get("measuring")
    return job if job is not None and not job.over else None


def pending() -> bool:
    """Whether a measurement is under way, or over and not collected yet: it may end at any moment."""
    return st.session_state.get("measuring") is not None


def start(kept_as: tuple[str, str], model: str, work: Work) -> None:
    """Start a measurement for this session, one at a time."""
    if pending():
        return
    job = Measuring(kept_as, model, work, session=get_script_run_ctx().session_id)
    try:
        limits.check_model(model)
        limits.RATE.check(job.session)
    except ValueError as error:
        st.session_state["measuring-error"] = str(error)
        return
    thread = threading.Thread(target=job.run, daemon=True, name="mxviz-measuring")
    add_script_run_ctx(thread, get_script_run_ctx())
    st.session_state["measuring"] = job
    thread.start()


def collect() -> None:
    """Take over what a finished measurement left."""
    job = st.session_state.get("measuring")
    if job is None or not job.over:
        return
    st.session_state["measuring"] = None
    st.session_state["measuring-error"] = job.error
    if job.result is not None:
        kept = st.session_state.setdefault("measured", {})
        kept[job.kept_as] = job.result
        while len(kept) > _KEPT:
            kept.pop(next(iter(kept)))


def kept(kept_as: tuple[str, str]) -> Any:
    """Return what was measured under this name in this session, or None."""
    return st.session_state.get("measured", {}).get(kept_as)
