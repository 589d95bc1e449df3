"""Runs in the background: a thread of its own for each, so that a click elsewhere loses nothing."""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import time
from dataclasses import dataclass, field

import streamlit as st
from streamlit import runtime
from streamlit.runtime.scriptrunner import add_script_run_ctx, get_script_run_ctx

from mxviz import ops
from mxviz.capture import Capture
from mxviz.engine import Progress, Settings, run
from mxviz.models import DEFAULT, Loaded, load

# A thread that lets go of the interpreter for every small array (reading a GGUF file does) gets it back only
# after this long from one that computes in Python (Numba's compiler does); 5 ms each time would take minutes.
sys.setswitchinterval(0.0005)

GRACE_S = 2.0
"""How long a tab may be out of sight (a network blip) before its run is stopped."""


@st.cache_resource(max_entries=1, show_spinner=False)
def loaded(name: str) -> Loaded:
    """Load a model once for everybody; another model takes its place."""
    return load(name)


@st.cache_resource(show_spinner=False)
def warming() -> threading.Thread:
    """Return the thread, one a server, that does what a first run would otherwise wait for; not started yet.

    That is Numba's compilation (once ever) and the built-in model (converted once ever). Until it is done the
    reference does the kernels' work, so that the first page waits for neither.
    """

    def begin() -> None:
        # The model first: a run that is asked for meanwhile waits for the same load, not beside the compiler.
        with contextlib.suppress(ValueError):  # no built-in model here: the page says so when it is asked for
            loaded(DEFAULT)
        ops.warm_up()

    ops.postpone()
    thread = threading.Thread(target=begin, daemon=True, name="mxviz-warm-up")
    add_script_run_ctx(thread, get_script_run_ctx())
    return thread


def start_warming() -> None:
    """Start the warm-up once; call it when the page has been drawn."""
    with contextlib.suppress(RuntimeError):  # it was started before
        warming().start()


@dataclass
class Job:
    """One run: its thread, what it has said so far, and how to stop it."""

    model: str
    settings: Settings
    session: str
    stop: threading.Event = field(default_factory=threading.Event)
    progress: Progress | None = None
    capture: Capture | None = None
    error: str | None = None
    done: bool = False
    _checked: float = 0.0
    _missing_since: float | None = None

    def should_stop(self) -> bool:
        """Whether Stop was pressed or the tab that asked is gone."""
        now = time.monotonic()
        if not self.stop.is_set() and now - self._checked > 0.2:
            self._checked = now
            if not runtime.exists() or runtime.get_instance().is_active_session(self.session):
                self._missing_since = None
            else:
                self._missing_since = self._missing_since or now
                if now - self._missing_since > GRACE_S:
                    self.stop.set()
        return self.stop.is_set()

    def run(self) -> None:
        """Load the model, run the lanes and keep the capture or the one line that says what is wrong."""
        try:
            self.capture = run(
                loaded(self.model), self.settings, on_progress=self._take, should_stop=self.should_stop
            )
        except ValueError as error:
            self.error = " ".join(str(error).split())
        except MemoryError:
            self.error = "out of memory; use a shorter prompt, fewer tokens or a smaller model"
        except Exception:  # a page shows one calm line; the log has the rest
            logging.getLogger(__name__).exception("a run failed")
            self.error = "the run failed for a reason of its own; the server's log says which"
        finally:
            self.done = True

    def _take(self, progress: Progress) -> None:
        self.progress = progress


def start(model: str, settings: Settings) -> Job:
    """Start a run for this session."""
    job = Job(model, settings, get_script_run_ctx().session_id)
    thread = threading.Thread(target=job.run, daemon=True, name="mxviz-run")
    add_script_run_ctx(thread, get_script_run_ctx())
    thread.start()
    return job
