"""Runs in the background: a thread of its own for each, so that a click elsewhere loses nothing."""

from __future__ import annotations

import contextlib
import logging
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

import streamlit as st
from streamlit.runtime.scriptrunner import add_script_run_ctx, get_script_run_ctx

from mxviz import ops
from mxviz.capture import Capture
from mxviz.views.tabs import Stoppable

if TYPE_CHECKING:  # their libraries take seconds to import, and a first page needs neither
    from mxviz.engine import Conversation, Progress, Settings
    from mxviz.models import Loaded

IMPORTS = threading.RLock()
"""Held by whoever imports the engine or the models: transformers makes its names when they are first asked
for, and fails where two threads do that at once."""

BUILT_IN = "smollm2"
"""The catalogue's name of the built-in model."""


@st.cache_resource(max_entries=1, show_spinner=False)
def loaded(name: str) -> Loaded:
    """Load a model once for everybody; another model takes its place."""
    with IMPORTS:
        from mxviz.models import load

    return load(name)


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


@st.cache_resource(show_spinner=False)
def warming() -> Warming:
    """Return the thread that warms up, one a server; not started yet."""
    return Warming()


def start_warming() -> None:
    """Start the warm-up once; call it when the page has been drawn."""
    with contextlib.suppress(RuntimeError):  # it was started before
        warming().start()


@dataclass
class Job(Stoppable):
    """One run: its thread, what it has said so far, and how to stop it.

    `note` is what it waits for while there is no progress yet; `started` a time of `time.monotonic`;
    `conversation` what it goes on from, and then what a next one can go on from.
    """

    model: str
    settings: Settings
    conversation: Conversation | None = None
    progress: Progress | None = None
    capture: Capture | None = None
    error: str | None = None
    done: bool = False
    note: str | None = None

    def run(self) -> None:
        """Load the model, run the lanes and keep the capture or the one line that says what is wrong."""
        try:
            model = self._model()
            if model is not None:
                with IMPORTS:
                    from mxviz.engine import Conversation

                self.conversation = self.conversation or Conversation(model, self.settings)
                listening = {"on_progress": self._take, "should_stop": self.should_stop}
                self.capture = self.conversation.ask(self.settings.prompt, **listening)
        except ValueError as error:
            self.error = " ".join(str(error).split())
        except MemoryError:
            self.error = "out of memory; use a shorter prompt, fewer tokens or a smaller model"
        except Exception:  # a page shows one calm line; the log has the rest
            logging.getLogger(__name__).exception("a run failed")
            self.error = "the run failed for a reason of its own; the server's log says which"
        finally:
            self.done = True

    def _model(self) -> Loaded | None:
        """The model, None where Stop was pressed before it was there."""
        there = warming().model_is_there
        if self.model == BUILT_IN and warming().is_alive() and not there.is_set():
            self.note = "converting the built-in model, once ever: about half a minute"
            while not there.wait(0.2):
                if self.should_stop():
                    return None
        self.note = f"loading {self.model}"
        return loaded(self.model)

    def _take(self, progress: Progress) -> None:
        self.progress = progress


def start(model: str, settings: Settings, conversation: Conversation | None = None) -> Job:
    """Start a run for this session, or the next turn of one."""
    job = Job(model, settings, conversation, session=get_script_run_ctx().session_id)
    thread = threading.Thread(target=job.run, daemon=True, name="mxviz-run")
    add_script_run_ctx(thread, get_script_run_ctx())
    thread.start()
    return job
