"""What a head can be measured by: the name, the colours and the words of each measure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mxviz.figures._traces import number
from mxviz.figures.error import percent


@dataclass(frozen=True)
class Measure:
    """What is shown of every head: its name, its unit, and how its colours run.

    Args:
        title: for people.
        bar: for the colour bar, where there is little room.
        about: one sentence that says how to read it.
        kind: `times` (logarithmic), `db` (a low number is a loss), `share` (0 to 1) or `exponent` (log2).
    """

    title: str
    bar: str
    about: str
    kind: str


MEASURES = {
    "ratio": Measure(
        "loudest value, times the median",
        "times the median",
        "The largest |x| of a head over the median |x| of its layer. A Gaussian's is near 5.",
        "times",
    ),
    "micro_flushed": Measure(
        "became zero, a scale per block",
        "became zero",
        "Share of a head's values that the micro-scaled cache stores as zero.",
        "share",
    ),
    "single_flushed": Measure(
        "became zero, one scale",
        "became zero",
        "Share of a head's values that the single-scale cache stores as zero.",
        "share",
    ),
    "micro_sqnr": Measure(
        "signal over error, a scale per block",
        "SQNR",
        "SQNR of a head, which its largest values rule: 6 dB more is half the error.",
        "db",
    ),
    "single_sqnr": Measure(
        "signal over error, one scale",
        "SQNR",
        "SQNR of a head, which its largest values rule: 6 dB more is half the error.",
        "db",
    ),
    "exponent": Measure(
        "mean shared scale",
        "mean scale",
        "The geometric mean of a head's scales: how long its rulers are.",
        "exponent",
    ),
}
"""Measure by name; pages and commands take them from here."""


def said(value: float, kind: str) -> str:
    """Return a number of a measure in words: 127 times, 18.2 dB, 95.2 %, 2^-1; n/a for NaN."""
    if np.isnan(value):
        return "n/a"
    if kind == "db":
        return "exact" if np.isinf(value) else f"{value:.1f} dB".replace("-", "−")
    if kind == "share":
        return percent(value)
    if kind == "exponent":
        return f"2<sup>{value:.1f}</sup> = {number(2.0**value)}".replace("-", "−")
    return f"{number(value)} times"
