"""What hostile inputs are made of, how many were tried, and that none of them was executed."""

from __future__ import annotations

import builtins
import os
import resource
import struct
from collections import Counter
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

ROUNDS = int(os.environ.get("MXVIZ_FUZZ", "0")) or None
"""Inputs a reader, where a long run is wanted: MXVIZ_FUZZ=20000 python -m pytest tests/test_hostile.py"""

TRIED: Counter[str] = Counter()
REFUSED: Counter[str] = Counter()
MOST_MIB = 400
"""What reading a small hostile file may add to the process."""

OWNED = "mxviz_was_owned"
PICKLE = f"cbuiltins\nexec\n(Vimport builtins; builtins.{OWNED} = 1\ntR.".encode()
"""A pickle that would leave a mark on whoever opens it."""

EXTREMES = [
    0,
    1,
    255,
    2**15,
    2**16 - 1,
    2**31 - 1,
    2**31,
    2**32 - 1,
    10**9,
    2**53,
    2**63 - 1,
    2**63,
    2**64 - 1,
]
WORDS = [
    "<script>alert(1)</script>",
    "<b>bold</b>&amp;",
    "$\\frac{1}{2}$ $$x$$",
    "%{x} %{customdata[0]}",
    "\u202egnp.exe\u202c",
    "مرحبا שלום",
    "\x00\x07\x1b[31m\x7f\x9b",
    "\ud800",
    "\udfff\ufffe\uffff",
    "👩‍👩‍👧‍👦\u200d",
    "a\u0301" * 40,
    "\r\n\u2028\u2029\u0085",
    ":red[x] [a](javascript:alert(1)) ![](x)",
    "</style></p><img src=x onerror=alert(1)>",
]


def rounds(usual: int) -> settings:
    """Return hypothesis' settings for so many inputs, or for as many as the environment asks for."""
    health = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture]
    same = {"derandomize": ROUNDS is None, "database": None}  # a long run tries new ones each time
    return settings(max_examples=ROUNDS or usual, deadline=None, suppress_health_check=health, **same)


@st.composite
def damaged(draw, base: bytes) -> bytes:
    """A file with some of its bytes changed, taken out, put in or cut off."""
    data = bytearray(base)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(0, min(len(data), 4096) - 1)) | st.integers(0, max(0, len(data) - 1)))
        kind = draw(st.sampled_from(("number", "bytes", "cut", "drop", "double", "pickle")))
        if kind == "number":
            width = draw(st.sampled_from("BHIQ"))
            value = draw(st.sampled_from(EXTREMES)) % (1 << 8 * struct.calcsize(width))
            data[at : at + struct.calcsize(width)] = struct.pack(f"<{width}", value)
        elif kind == "bytes":
            data[at : at + 8] = draw(st.binary(min_size=1, max_size=8))
        elif kind == "cut":
            del data[at:]
        elif kind == "drop":
            del data[at : at + draw(st.integers(1, 64))]
        elif kind == "double":
            data[at:at] = data[at : at + draw(st.integers(1, 64))]
        else:
            data[at:at] = PICKLE
    return bytes(data)


def refused_calmly(reader: str, work: Callable[[], object]) -> object | None:
    """Do something with hostile input: it works, or it is a ValueError of one line."""
    TRIED[reader] += 1
    try:
        return work()
    except ValueError as error:
        REFUSED[reader] += 1
        said = str(error)
        assert said and "\n" not in said and "\r" not in said and len(said) < 1200, said[:2000]
        said.encode("utf-8")
    finally:
        assert not hasattr(builtins, OWNED), "something in a file was executed"
    return None


@contextmanager
def told_how_many(config):
    """Say at the end, past pytest's capture, how many inputs each reader was given meanwhile."""
    before = TRIED.copy()
    yield
    terminal, capture = (config.pluginmanager.getplugin(n) for n in ("terminalreporter", "capturemanager"))
    counts = sorted((name, n) for name, n in (TRIED - before).items() if n)
    said = ", ".join(f"{name} {n:,} ({REFUSED[name]:,} refused)" for name, n in counts)
    if terminal is not None and capture is not None:
        with capture.global_and_fixture_disabled():
            terminal.write_line(f"\nhostile inputs tried, 0 crashes: {said}")


def peak_mib() -> int:
    """The most memory this process ever had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def now_mib() -> int:
    """What it has now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() >> 20


@contextmanager
def bounded(most_mib: int = MOST_MIB):
    """Hold what is done within so much new memory."""
    before = peak_mib()
    yield
    grown = peak_mib() - before
    assert grown < most_mib, f"{grown} MiB were taken"
