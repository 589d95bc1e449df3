"""Limits: what a visitor may ask for; in public mode little, and of this machine's files nothing."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from mxviz._models_catalogue import CATALOGUE, is_here
from mxviz._schemes import quoted

if TYPE_CHECKING:
    from mxviz._engine_settings import Settings

PUBLIC = "MXVIZ_PUBLIC"
"""The environment variable that says, with the value 1, that strangers come here; `mxviz app --public` sets
it."""


class Limits(NamedTuple):
    """What one visitor, and all of them, may ask for.

    Args:
        public: whether strangers come here.
        new_tokens: of one answer.
        prompt_characters: of one prompt.
        held_tokens: of a whole conversation; None is the model's context.
        upload_megabytes: of a file.
        upload_numbers: of a tensor in it.
        starts_a_minute: runs and measurements of one tab; None is as many as one likes.
        all_starts_a_minute: of all tabs together.
        idle_talk_s: seconds after which a conversation's caches are freed though its tab is open.
    """

    public: bool = False
    new_tokens: int = 4096
    prompt_characters: int = 400_000
    held_tokens: int | None = None
    upload_megabytes: int = 200
    upload_numbers: int = 1 << 26
    starts_a_minute: int | None = None
    all_starts_a_minute: int | None = None
    idle_talk_s: float = 4 * 3600.0


_PRIVATE = Limits()
PUBLIC_LIMITS = Limits(True, 256, 4_000, 2_048, 20, 1 << 22, 6, 120, 600.0)


def limits() -> Limits:
    """Return the limits that hold in this process."""
    return PUBLIC_LIMITS if os.environ.get(PUBLIC) == "1" else _PRIVATE


def offered() -> list[str]:
    """Return the models that are offered: the catalogue; in public mode those of it that are here."""
    return [name for name in CATALOGUE if not limits().public or is_here(name)]


def check_model(name: str) -> None:
    """Refuse, in public mode, every model that is not offered: paths and hub ids above all.

    Raises:
        ValueError: for such a name.
    """
    if limits().public and name not in offered():
        listed = ", ".join(offered()) or "none at all"
        raise ValueError(f"{quoted(name)} is not offered here; choose one of: {listed}")


def check_settings(settings: Settings) -> None:
    """Refuse a run that asks for more than its share.

    Raises:
        ValueError: for a prompt or an answer that is too long.
    """
    most = limits()
    if settings.max_new_tokens > most.new_tokens:
        raise ValueError(
            f"{settings.max_new_tokens:,} new tokens are too many here; expected at most {most.new_tokens:,}"
        )
    if len(settings.prompt) > most.prompt_characters:
        raise ValueError(
            f"a prompt of {len(settings.prompt):,} characters is too long here; expected at most "
            f"{most.prompt_characters:,}"
        )


def check_held(tokens: int) -> None:
    """Refuse a conversation that would hold too many tokens.

    Raises:
        ValueError: for one.
    """
    most = limits().held_tokens
    if most is not None and tokens > most:
        raise ValueError(
            f"this conversation would hold {tokens:,} tokens; at most {most:,} are kept here, so start a new "
            "run or ask for fewer new tokens"
        )


class Rate:
    """How often things were started in the last minute, by a tab and by all."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._times: dict[str, deque[float]] = {}

    def check(self, session: str) -> None:
        """Count a start of a session.

        Raises:
            ValueError: where it, or all together, have had theirs; that start does not count.
        """
        most, now = limits(), time.monotonic()
        with self._lock:
            for name in list(self._times):
                times = self._times[name]
                while times and now - times[0] > 60:
                    times.popleft()
                if not times:
                    del self._times[name]
            own = len(self._times.get(session, ()))
            every = sum(map(len, self._times.values()))
            if most.starts_a_minute is not None and own >= most.starts_a_minute:
                raise ValueError(f"{own} starts within a minute are enough; wait a little")
            if most.all_starts_a_minute is not None and every >= most.all_starts_a_minute:
                raise ValueError("many people start runs just now; wait a minute")
            self._times.setdefault(session, deque()).append(now)


RATE = Rate()
"""The one of this process."""
