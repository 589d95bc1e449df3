"""Timing that holds up beside other work on the machine, and rows that say where they were measured."""

from __future__ import annotations

import csv
import platform
import random
import time
from collections.abc import Callable, Collection, Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch


class Timing(NamedTuple):
    """Milliseconds of one contender."""

    median: float
    p20: float
    p80: float


def interleaved(contenders: dict[str, Callable[[], object]], seconds: float = 2.0) -> dict[str, Timing]:
    """Time functions in turns, so that whatever else the machine does meets all of them alike.

    Args:
        contenders: functions by name; each runs once before anything is timed.
        seconds: about how long to go on; every function is timed five times at least.
    """
    for run in contenders.values():
        run()
    taken: dict[str, list[float]] = {name: [] for name in contenders}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or min(map(len, taken.values())) < 5:
        for name, run in contenders.items():
            start = time.perf_counter()
            run()
            taken[name].append(1e3 * (time.perf_counter() - start))
    return {name: Timing(*np.percentile(ms, (50, 20, 80))) for name, ms in taken.items()}


def in_rounds(
    contenders: dict[str, Callable[[], float]], rounds: int, may_fail: Collection[str] = (), seed: int = 0
) -> tuple[dict[str, list[float]], dict[str, str]]:
    """Call every contender once a round, in a new order each round; a first round is not counted.

    Args:
        contenders: functions by name that return milliseconds.
        may_fail: names whose errors are caught; such a contender is left out from then on.

    Returns:
        Milliseconds by name, one a round, and the first line of the error by name of what failed.
    """
    order, shuffle = list(contenders), random.Random(seed).shuffle
    taken: dict[str, list[float]] = {name: [] for name in contenders}
    failed: dict[str, str] = {}
    for turn in range(rounds + 1):
        shuffle(order)
        for name in [name for name in order if name not in failed]:
            try:
                ms = contenders[name]()
            except Exception as error:
                if name not in may_fail:
                    raise
                failed[name] = f"{type(error).__name__}: {error}".splitlines()[0].strip()
                continue
            if turn:
                taken[name].append(ms)
    return {name: ms for name, ms in taken.items() if name not in failed}, failed


def stopwatch(run: Callable[[], object]) -> Callable[[], float]:
    """Return a function that runs `run` and returns the milliseconds it took."""

    def timed() -> float:
        start = time.perf_counter()
        run()
        return 1e3 * (time.perf_counter() - start)

    return timed


def machine() -> dict[str, str]:
    """What a row has to say about where it comes from."""
    return {
        "cpu": _cpu_name(),
        "threads": str(torch.get_num_threads()),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numba": _version("numba"),
        "mxviz": _version("mxviz"),
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "-"


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    found = {k.strip(): v.strip() for k, _, v in (line.partition(":") for line in lines)}
    name = found.get("model name") or platform.processor() or platform.machine()
    family = [found[k] for k in ("cpu family", "model") if k in found]
    return f"{name} ({'/'.join(family)})" if family else name


def write(rows: Iterable[dict[str, object]], path: Path | None) -> None:
    """Write rows as CSV to a file, or to standard output."""
    rows = list(rows)
    with open(path, "w", newline="") if path else open(1, "w", newline="", closefd=False) as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
