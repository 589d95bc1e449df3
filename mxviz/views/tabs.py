"""Work that belongs to a tab: it waits its turn, ends when Stop is pressed, and when the tab is gone."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

from streamlit import runtime

from mxviz.views import journal, memory
from mxviz.views.hall import HALL, Visitor

GRACE_S = 5.0
"""How long a tab may be out of sight (a network blip) before its work ends; it has no turn in that time."""

STEPS_A_TURN = 2
"""Tokens that a run writes before others have a turn."""


def is_open(session: str) -> bool:
    """Whether a session's tab is still there; without a server nobody has left.

    Streamlit drops a session from its active ones as soon as the tab's connection ends.
    """
    return not runtime.exists() or runtime.get_instance().is_active_session(session)


@dataclass(kw_only=True)
class Stoppable:
    """Work for one session, in a thread of its own, that asks now and then whether to go on.

    `error` is the one line that says what went wrong; `started` a time of `time.monotonic`.
    """

    session: str
    stop: threading.Event = field(default_factory=threading.Event)
    started: float = field(default_factory=time.monotonic)
    error: str | None = None
    visitor: Visitor | None = None
    _steps: int = 0
    _checked: float = 0.0
    _missing_since: float | None = None

    def carry_out(self, kind: str, work: Callable[[], None], **told: str | float | None) -> None:
        """Wait for a seat and do the work; keep one line for whatever is wrong, and write the journal.

        Args:
            kind: `run` or `measurement`.
            work: what is done.
            told: what the journal says of it besides.
        """
        came, seated, ended = time.monotonic(), None, "done"
        try:
            self.visitor = HALL.enter(self.session)
            with HALL.seat(self.visitor, self.should_stop):
                seated = time.monotonic()
                memory.check_room(0, f"another {kind}", "wait until others are done")
                work()
        except ValueError as error:
            self.error, ended = " ".join(str(error).split()), "refused"
        except Exception as error:  # a page shows one calm line; the log has the rest
            if memory.ran_out(error):
                ended = "out of memory"
                self.error = f"out of memory; the {kind} ended: use a shorter text or a smaller model"
            else:
                ended = "failed"
                self.error = f"the {kind} failed for a reason of its own; the server's log says which"
                journal.failed(kind, error)
        finally:
            ended = "stopped" if self.stop.is_set() and ended != "failed" else ended
            now = time.monotonic()
            seconds = {"waited_s": (seated or now) - came, "worked_s": now - (seated or now)}
            rounded = {name: round(value, 2) for name, value in seconds.items()}
            journal.write(kind, self.session, ended=ended, **rounded, **told)

    def waits(self) -> str:
        """Return what it waits for in the hall, or nothing."""
        return "" if self.visitor is None else HALL.words(self.visitor)

    def breathe(self, aside: Callable[[], AbstractContextManager] = nullcontext) -> None:
        """Between two steps: let others have a turn; stand aside while the tab is out of sight.

        Raises:
            MemoryError: where little memory is left.
        """
        memory.check_still_free()
        self._steps += 1
        if not is_open(self.session):
            HALL.step_out(lambda: self.should_stop() or is_open(self.session), aside)
        elif self._steps % STEPS_A_TURN == 0:
            HALL.hand_on(aside)

    def should_stop(self) -> bool:
        """Whether Stop was pressed or the tab that asked is gone."""
        now = time.monotonic()
        if not self.stop.is_set() and now - self._checked > 0.2:
            self._checked = now
            if is_open(self.session):
                self._missing_since = None
            else:
                self._missing_since = self._missing_since or now
                if now - self._missing_since > GRACE_S:
                    self.stop.set()
        return self.stop.is_set()
