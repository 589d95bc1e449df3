"""The load benchmark's arithmetic; its run with real browsers is `python -m benchmarks.load`."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from benchmarks import load


def found(**changes) -> dict:
    good = {
        "runs": {"lost": 0},
        "log_errors": [],
        "browser_errors": [],
        "tokens": {"slowest_to_mean": 0.9},
        "memory_mib": {"growth": 0.01},
    }
    return good | changes


@pytest.mark.parametrize(
    ("changes", "minutes", "missed"),
    [
        ({}, 10, []),
        ({"runs": {"lost": 1}}, 10, ["lost runs"]),
        ({"log_errors": ["Traceback"]}, 10, ["errors"]),
        ({"browser_errors": ["x is undefined"]}, 10, ["errors"]),
        ({"tokens": {"slowest_to_mean": 0.69}}, 10, ["fairness"]),
        ({"tokens": {"slowest_to_mean": None}}, 10, ["fairness"]),
        ({"memory_mib": {"growth": 0.06}}, 10, ["memory"]),
        ({"memory_mib": {"growth": 0.06}}, 2, []),  # too short to say
    ],
)
def test_what_was_missed_is_named(changes, minutes, missed):
    assert load._missed(found(**changes), SimpleNamespace(minutes=minutes)) == missed


def test_shares_and_quantiles():
    assert load._share([80, 100, 120]) == 0.8 and load._share([0, 0]) is None
    assert load._quantile([1.0, 2.0, 3.0, 4.0], 0.5) == 3.0 and load._quantile([], 0.5) is None
    assert load._quantile(list(range(100)), 0.95) == 95


def test_memory_and_threads_of_a_process():
    mib, threads = load._process(os.getpid())
    assert mib > 20 and threads >= 1


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("Traceback (most recent call last):", True),
        ("2026 ERROR  x", True),
        ("ValueError: no", False),
        ("Uvicorn server started", False),
        ("Exception in ASGI application", True),
    ],
)
def test_what_counts_as_an_error_of_the_log(line, wrong):
    assert bool(load._WRONG.search(line)) is wrong
