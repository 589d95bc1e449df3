"""Rows: what was measured, and where. Every measurement is a row that is appended to a CSV file."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np
import torch

import mxviz
from benchmarks._timing import machine

RESULTS = Path(__file__).parent / "results"
PACKAGES = ("torch", "transformers", "numba", "numpy", "torchao", "optimum-quanto", "hqq")


class Row(NamedTuple):
    """One measurement: median and 20th and 80th percentile over rounds, and the same of a ratio.

    Args:
        benchmark: the file it goes to, such as `decode`.
        setting: what it was measured at, such as `2048 tokens` or a scheme.
        name: the contender.
        unit: of median, p20 and p80.
        ratio: to whatever the benchmark compares with, taken round by round; None without.
        rounds: how many were counted.
        note: what a reader should know; the first line of the error where nothing was measured.
    """

    benchmark: str
    setting: str
    name: str
    unit: str
    median: float | None = None
    p20: float | None = None
    p80: float | None = None
    ratio: float | None = None
    ratio_p20: float | None = None
    ratio_p80: float | None = None
    rounds: int = 0
    note: str = ""

    def line(self) -> str:
        """Return the row as a line to read."""
        head = f"{self.benchmark:9}{self.setting:34} {self.name:36}"
        if self.median is None:
            return f"{head} {self.note}"
        spread = "" if self.p20 is None else f" ({self.p20:.3f} to {self.p80:.3f})"
        ratio = "" if self.ratio is None else f"  ratio {self.ratio:.3f}"
        more = "" if self.ratio_p20 is None else f" ({self.ratio_p20:.3f} to {self.ratio_p80:.3f})"
        return f"{head} {self.median:.3f} {self.unit}{spread}{ratio}{more}"


NUMBERS = ("median", "p20", "p80", "ratio", "ratio_p20", "ratio_p80")


class Where(NamedTuple):
    """Where and when rows come from: the same for all rows of one call, apart from the run."""

    date: str
    run: int
    machine: str
    cores: int
    threads: int
    versions: str


def where(date: str, run: int) -> Where:
    """Describe this machine; a package that is not installed is said to be `not here`."""
    here = machine()
    versions = "; ".join([f"mxviz {mxviz.__version__}", *(f"{name} {_version(name)}" for name in PACKAGES)])
    return Where(
        date,
        run,
        here["cpu"],
        os.cpu_count() or 0,
        torch.get_num_threads(),
        f"python {here['python']}; {versions}",
    )


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not here"


def timed_row(
    benchmark: str,
    setting: str,
    name: str,
    unit: str,
    values: Sequence[float],
    ratios: Sequence[float] = (),
    note: str = "",
) -> Row:
    """Make a row of one value a round, and one ratio a round where there are any."""
    centre = [float(x) for x in np.percentile(values, (50, 20, 80))]
    ratio = [float(x) for x in np.percentile(ratios, (50, 20, 80))] if len(ratios) else [None] * 3
    return Row(benchmark, setting, name, unit, *centre, *ratio, rounds=len(values), note=note)


def append(rows: Iterable[Row], place: Where, folder: Path) -> None:
    """Append rows to `folder/<benchmark>.csv`; a new file begins with the names of the columns."""
    folder.mkdir(parents=True, exist_ok=True)
    for row in rows:
        path = folder / f"{row.benchmark}.csv"
        new = not path.exists()
        with path.open("a", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            if new:
                writer.writerow(Where._fields + Row._fields)
            writer.writerow([_text(value) for value in (*place, *row)])


def _text(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def latest(benchmark: str, folder: Path) -> tuple[dict[str, str], list[Row]]:
    """Return the rows of the newest call, the median over its runs, and where they come from.

    Returns:
        The columns of `Where` as text, with `runs` for their number, and the rows; both empty without a file.
    """
    path = folder / f"{benchmark}.csv"
    if not path.exists():
        return {}, []
    with path.open(newline="", encoding="utf-8") as file:
        read = list(csv.DictReader(file))
    if not read:
        return {}, []
    newest = max(line["date"] for line in read)
    lines = [line for line in read if line["date"] == newest]
    place = {key: lines[0][key] for key in Where._fields}
    place["runs"] = str(len({line["run"] for line in lines}))
    return place, over_runs([_row(line) for line in lines])


def _row(line: dict[str, str]) -> Row:
    numbers = {key: float(line[key]) if line[key] else None for key in NUMBERS}
    texts = {key: line[key] for key in ("benchmark", "setting", "name", "unit", "note")}
    return Row(**texts, **numbers, rounds=int(line["rounds"]))


def over_runs(rows: Iterable[Row]) -> list[Row]:
    """Merge rows of the same setting and name: every number becomes its median over the runs."""
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.benchmark, row.setting, row.name), []).append(row)
    return [_merged(group) for group in groups.values()]


def _merged(group: list[Row]) -> Row:
    values = {key: [x for x in (getattr(row, key) for row in group) if x is not None] for key in NUMBERS}
    return group[0]._replace(
        **{key: median(found) if found else None for key, found in values.items()},
        rounds=sum(row.rounds for row in group),
        note=next((row.note for row in group if row.note), ""),
    )
