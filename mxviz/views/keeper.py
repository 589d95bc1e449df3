"""The keeper: frees what tabs left behind, and models that nobody uses."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mxviz.views import engines, tabs
from mxviz.views.limits import limits

if TYPE_CHECKING:
    from mxviz.engine import Conversation

GONE_S = 60.0
"""How long a tab may be out of sight before its caches are freed; Streamlit keeps its session for longer."""

EVERY_S = 5.0
COLLECT_S = 60.0
"""Seconds between collections of what hangs on itself; Streamlit would do one behind every redraw."""


@dataclass
class _Kept:
    """A conversation whose caches wait for a next turn, and the tab that may ask it."""

    conversation: weakref.ref
    session: str
    model: str
    used: float
    seen: float


class Keeper:
    """Looks round every few seconds, in one thread for everybody."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: list[_Kept] = []
        self._thread: threading.Thread | None = None

    def keep(self, conversation: Conversation, session: str, model: str) -> None:
        """Free the caches of a conversation once its tab has gone, or nobody has asked on for long."""
        now = time.monotonic()
        with self._lock:
            self._kept = [kept for kept in self._kept if kept.conversation() not in (None, conversation)]
            self._kept.append(_Kept(weakref.ref(conversation), session, model, now, now))

    def start(self) -> None:
        """Start looking round; it goes on for as long as the process."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, daemon=True, name="mxviz-keeper")
                self._thread.start()

    def look_round(self) -> None:
        """Free what is to be freed now."""
        now, idle_s = time.monotonic(), limits().idle_talk_s
        with self._lock:
            for kept in self._kept:
                kept.seen = now if tabs.is_open(kept.session) else kept.seen
            over = [k for k in self._kept if now - k.seen > GONE_S or now - k.used > idle_s]
            self._kept = [k for k in self._kept if k not in over and _is_open(k)]
            busy = {kept.model for kept in self._kept}
        for kept in over:
            if (conversation := kept.conversation()) is not None:
                conversation.close()
        engines.free_idle(busy)

    def _watch(self) -> None:
        collected = time.monotonic()
        while True:
            time.sleep(EVERY_S)
            self.look_round()
            if time.monotonic() - collected > COLLECT_S:
                gc.collect()
                collected = time.monotonic()


def _is_open(kept: _Kept) -> bool:
    conversation = kept.conversation()
    return conversation is not None and conversation.is_open


KEEPER = Keeper()
"""The one of this process."""
