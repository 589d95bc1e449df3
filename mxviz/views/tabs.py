"""Work that belongs to a tab: it ends when Stop is pressed, or when the tab is gone."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

from streamlit import runtime

GRACE_S = 2.0
"""How long a tab may be out of sight (a network blip) before its work is stopped."""


def is_open(session: str) -> bool:
    """Whether a session's tab is still there; without a server nobody has left."""
    return not runtime.exists() or runtime.get_instance().is_active_session(session)


@dataclass(kw_only=True)
class Stoppable:
    """Work for one session, in a thread of its own, that asks now and then whether to go on."""

    session: str
    stop: threading.Event = field(default_factory=threading.Event)
    started: float = field(default_factory=time.monotonic)
    _checked: float = 0.0
    _missing_since: float | None = None

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
