"""The hall: many visitors, one machine. Work waits for a seat in the order it came; who sits takes turns.

A turn is the whole machine's: two models that compute at once on the same cores are slower than one after
the other. So every loaded model's lock is the hall.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import count

SEATS = 4
"""Works that take turns; more would make all of them slow and hold more caches at once."""

MOST_WAITING = 60
LONGEST_WAIT_S = 600.0
MOST_OF_A_VISITOR = 2
"""Works of one session that sit or wait: a run and a measurement."""

_FORGOTTEN_S = 1.0  # who asked for the turn and has not come back for so long is passed over


@dataclass(eq=False)
class Visitor:
    """A piece of work in the hall: whose it is, and whether it has a seat."""

    session: str
    came: float
    seated: bool = False


@dataclass(eq=False)
class _Asking:
    """A thread that wants the turn or has it; `seen` is infinite while it stands and waits."""

    session: str
    number: int
    seen: float = math.inf


class Hall:
    """Seats, a line before them, and a turn that goes round; to the engine it is the model's lock.

    The turn goes to the session that has had none for the longest, so a session with two works has no more of
    it than one with one.

    Args:
        seats: works that take turns.
        most_waiting: works that may stand in line.
        longest_wait_s: seconds one may stand there.
    """

    def __init__(
        self,
        seats: int = SEATS,
        most_waiting: int = MOST_WAITING,
        longest_wait_s: float = LONGEST_WAIT_S,
    ) -> None:
        self.seats, self.most_waiting, self.longest_wait_s = seats, most_waiting, longest_wait_s
        self._changed = threading.Condition()
        self._visitors: list[Visitor] = []
        self._asking: dict[int, _Asking] = {}
        self._holder: tuple[int, _Asking] | None = None
        self._served: dict[str, int] = {}
        self._numbers = count(1)
        self._session = threading.local()

    # Seats and the line

    def enter(self, session: str) -> Visitor:
        """Take a seat, or a place in the line.

        Raises:
            ValueError: where the line is full, or the session has its share already.
        """
        with self._changed:
            if sum(v.session == session for v in self._visitors) >= MOST_OF_A_VISITOR:
                raise ValueError("your run and your measurement are under way; let one end, or stop it")
            waiting = sum(not v.seated for v in self._visitors)
            if waiting >= self.most_waiting:
                raise ValueError(f"{waiting} runs wait already, and no more fit; try again in a minute")
            visitor = Visitor(session, time.monotonic())
            self._visitors.append(visitor)
            self._seat()
            return visitor

    def leave(self, visitor: Visitor) -> None:
        """Give the seat, or the place in the line, to who comes next."""
        with self._changed:
            self._visitors.remove(visitor)
            if not any(v.session == visitor.session for v in self._visitors):
                self._served.pop(visitor.session, None)
            self._asking.pop(threading.get_ident(), None)
            self._seat()

    @contextmanager
    def seat(self, visitor: Visitor, should_stop: Callable[[], bool]) -> Iterator[None]:
        """Wait for the seat of a visitor who has entered; leave at the end. This thread then asks for turns
        in the name of its session.

        Raises:
            ValueError: for a stop, or a wait that was too long.
        """
        try:
            while not visitor.seated:
                if should_stop():
                    raise ValueError("stopped before its turn came; nothing was recorded")
                if time.monotonic() - visitor.came > self.longest_wait_s:
                    minutes = round(self.longest_wait_s / 60)
                    raise ValueError(f"no seat came free within {minutes} minutes; try again later")
                with self._changed:
                    self._changed.wait(0.1)
            self._session.name = visitor.session
            yield
        finally:
            self._session.name = None
            self.leave(visitor)

    def words(self, visitor: Visitor) -> str:
        """Return what a visitor waits for, or nothing for one who is alone."""
        with self._changed:
            before = [v for v in self._visitors if not v.seated]
            others = sum(v.seated for v in self._visitors) - visitor.seated
            if not visitor.seated and visitor in before:
                ahead = before.index(visitor)
                first = f"{_runs(ahead)} before yours" if ahead else "yours is the next run"
                return f"{first}, {others} under way"
        return f"taking turns with {_runs(others, 'other ')}" if others else ""

    def _seat(self) -> None:
        free = self.seats - sum(v.seated for v in self._visitors)
        for visitor in [v for v in self._visitors if not v.seated][: max(0, free)]:
            visitor.seated = True
        self._changed.notify_all()

    # Turns: a lock, for the engine

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Wait for the turn; who comes back within a second of a wait in vain has kept its place."""
        me, end = threading.get_ident(), math.inf if timeout < 0 else time.monotonic() + timeout
        with self._changed:
            if me not in self._asking:
                session = getattr(self._session, "name", None) or f"thread {me}"
                self._asking[me] = _Asking(session, next(self._numbers))
            asking = self._asking[me]
            asking.seen = math.inf
            while self._holder is not None or self._next() is not asking:
                left = end - time.monotonic()
                if not blocking or left <= 0:
                    asking.seen = time.monotonic()
                    self._changed.notify_all()
                    return False
                self._changed.wait(min(left, _FORGOTTEN_S / 2))
            self._holder = (me, self._asking.pop(me))
        return True

    def release(self) -> None:
        """Give the turn back.

        Raises:
            RuntimeError: where nobody has it.
        """
        with self._changed:
            if self._holder is None:
                raise RuntimeError("nobody has the turn")
            session = self._holder[1].session
            if any(v.session == session for v in self._visitors):
                self._served[session] = next(self._numbers)
            self._holder = None
            self._changed.notify_all()

    def locked(self) -> bool:
        """Whether somebody has the turn."""
        return self._holder is not None

    def hand_on(self, aside: Callable[[], AbstractContextManager] = nullcontext) -> None:
        """Let the others have a turn, where this thread has it and somebody waits.

        Args:
            aside: puts things as the others expect them, and back again.
        """
        with self._changed:
            waited_for = self._has_the_turn() and self._next() is not None
        if waited_for:
            self.step_out(lambda: True, aside)

    def step_out(
        self, until: Callable[[], bool], aside: Callable[[], AbstractContextManager] = nullcontext
    ) -> None:
        """Give the turn back, where this thread has it; ask for it again when something has come true."""
        if not self._has_the_turn():
            return
        with aside():
            self.release()
            while not until():
                time.sleep(0.05)
            self.acquire()

    def _has_the_turn(self) -> bool:
        return self._holder is not None and self._holder[0] == threading.get_ident()

    def _next(self) -> _Asking | None:
        now = time.monotonic()
        here = [a for a in self._asking.values() if now - a.seen < _FORGOTTEN_S]
        return min(here, key=lambda a: (self._served.get(a.session, 0), a.number), default=None)


def _runs(number: int, other: str = "") -> str:
    return f"{number} {other}run{'' if number == 1 else 's'}"


HALL = Hall()
"""The one of this process."""
