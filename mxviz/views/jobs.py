"""Runs in the background: a thread of its own for each, so that a click elsewhere loses nothing."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import streamlit as st
from streamlit.runtime.scriptrunner import add_script_run_ctx, get_script_run_ctx

from mxviz import ops
from mxviz.capture import Capture
from mxviz.views import engines, limits, memory
from mxviz.views.engines import IMPORTS, loaded
from mxviz.views.keeper import KEEPER
from mxviz.views.tabs import Stoppable

if TYPE_CHECKING:  # their libraries take seconds to import, and a first page needs neither
    from mxviz.engine import Conversation, Progress, Settings
    from mxviz.models import Loaded

BUILT_IN = "smollm2"
"""The catalogue's name of the built-in model."""


class Warming(threading.Thread):
    """Does, once a server, what a first run would otherwise wait for.

    That is the built-in model (converted once ever) and Numba's compilation (once ever), both in a process of
    their own, and the libraries of the engine. Until it is done the reference does the kernels' work.
    """

    def __init__(self) -> None:
        super().__init__(daemon=True, name="mxviz-warm-up")
        self.model_is_there = threading.Event()
        ops.postpone()

    def run(self) -> None:
        try:
            with IMPORTS:
                from mxviz import prepare

            prepare.prepare_apart("model")
            self.model_is_there.set()
            prepare.prepare_apart("kernels")
        finally:
            self.model_is_there.set()
            ops.warm_up()
        with IMPORTS:
            import mxviz.engine
            import mxviz.models  # noqa: F401
        if limits.limits().public and BUILT_IN in limits.offered():
            loaded(BUILT_IN)  # many will ask at once


@st.cache_resource(show_spinner=False)
def warming() -> Warming:
    """Return the thread that warms up, one a server; not started yet."""
    return Warming()


def start_warming() -> None:
    """Start the warm-up once; call it when the page has been drawn."""
    KEEPER.start()
    with contextlib.suppress(RuntimeError):  # it was started before
        warming().start()


@dataclass
class Job(Stoppable):
    """One run: its thread, what it has said so far, and how to stop it.

    `conversation` is what it goes on from, and then what a next one can go on from.
    """

    model: str
    settings: Settings
    conversation: Conversation | None = None
    progress: Progress | None = None
    capture: Capture | None = None
    done: bool = False
    loading: str | None = None
    _aside: Callable[[], AbstractContextManager] = nullcontext

    def run(self) -> None:
        """Load the model, run the lanes and keep the capture or the one line that says what is wrong."""
        listed = self.model if self.model in limits.offered() else "another"
        try:
            self.carry_out("run", self._work, model=listed, new_tokens=self.settings.max_new_tokens)
        finally:
            self.done = True

    @property
    def note(self) -> str | None:
        """What it waits for while there is no progress yet."""
        return self.waits() if self.visitor is not None and not self.visitor.seated else self.loading

    def _work(self) -> None:
        model = self._model()
        if model is None:
            return
        with IMPORTS:
            from mxviz._engine_pause import set_aside
            from mxviz.engine import Conversation
            from mxviz.models import encode

        self._aside = partial(set_aside, model.model)
        self.conversation = self.conversation or Conversation(model, self.settings)
        KEEPER.keep(self.conversation, self.session, self.model)
        self._check_size(model, encode)
        self.loading = "waiting for its first turn"
        listening = {"on_progress": self._take, "should_stop": self.should_stop}
        self.capture = self.conversation.ask(self.settings.prompt, **listening)
        engines.touch(self.model)

    def _check_size(self, model: Loaded, encode: Callable) -> None:
        turns = self.conversation.turns
        before = turns[-1].tokens_held.get("exact", 0) if turns else 0
        try:
            new = len(encode(model, self.settings.prompt, self.settings.raw).ids)
        except ValueError:
            return  # the engine refuses it, in words that fit the turn
        tokens = before + new + self.settings.max_new_tokens
        limits.check_held(tokens)
        memory.check_room(
            memory.of_run(model.model, tokens),
            f"a run over {tokens:,} tokens",
            "use a shorter prompt or fewer new tokens, or wait until others are done",
        )

    def _model(self) -> Loaded | None:
        """The model, None where Stop was pressed before it was there."""
        there = warming().model_is_there
        if self.model == BUILT_IN and warming().is_alive() and not there.is_set():
            self.loading = "converting the built-in model, once ever: about half a minute"
            while not there.wait(0.2):
                if self.should_stop():
                    return None
        self.loading = f"loading {self.model}"
        return loaded(self.model)

    def _take(self, progress: Progress) -> None:
        if progress.stage == "waiting":
            self.loading = self.waits() or "waiting for its first turn"
            return
        self.progress = progress
        self.breathe(self._aside)


def start(model: str, settings: Settings, conversation: Conversation | None = None) -> Job:
    """Start a run for this session, or the next turn of one; what it may not ask for is its error."""
    job = Job(model, settings, conversation, session=get_script_run_ctx().session_id)
    try:
        limits.check_model(model)
        limits.check_settings(settings)
        limits.RATE.check(job.session)
    except ValueError as error:
        job.error, job.done = str(error), True
        return job
    thread = threading.Thread(target=job.run, daemon=True, name="mxviz-run")
    add_script_run_ctx(thread, get_script_run_ctx())
    thread.start()
    return job
