"""The journal: a line of JSON for each piece of work in public mode, without prompts, texts or file names."""

from __future__ import annotations

import hashlib
import json
import logging
import secrets
import sys
import traceback
from datetime import UTC, datetime

from mxviz.views.limits import limits

_SALT = secrets.token_bytes(16)


def write(event: str, session: str, **numbers: str | float | int | None) -> None:
    """Write a line on standard error, in public mode.

    Args:
        event: `run` or `measurement`.
        session: told as a number that means nothing outside this process.
        numbers: what it took; names of models and of ends, no words of a visitor.
    """
    if not limits().public:
        return
    who = hashlib.blake2b(session.encode(), key=_SALT, digest_size=4).hexdigest()
    said = {"at": datetime.now(UTC).isoformat(timespec="seconds"), "event": event, "visitor": who, **numbers}
    print(json.dumps(said), file=sys.stderr, flush=True)


def failed(kind: str, error: BaseException) -> None:
    """Log an error that nobody foresaw; in public mode without its text, which may quote a prompt."""
    log = logging.getLogger("mxviz")
    if not limits().public:
        log.error("a %s failed", kind, exc_info=error)
        return
    where = traceback.extract_tb(error.__traceback__)
    places = " < ".join(f"{frame.name}:{frame.lineno}" for frame in reversed(where[-6:]))
    log.error("a %s failed: %s at %s", kind, type(error).__name__, places)
