"""Whether somebody else's cache can be used here, found out where it cannot stop the benchmark."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from importlib.util import find_spec

_PACKAGES = {
    "QuantizedCache quanto 4-bit": "optimum.quanto",
    "QuantizedCache HQQ 4-bit": "hqq",
}

# quanto compiles an extension at its first use, and waits without end for a lock that an earlier, interrupted
# compilation left behind.
_TRY_QUANTO = """
import torch
from optimum.quanto import MaxOptimizer, qint4, quantize_weight
x = torch.randn(1, 1, 64, 64)
quantize_weight(x, qint4, 0, *MaxOptimizer()(x, qint4, 0, 64), 64).dequantize()
"""
SECONDS = 300


@cache
def why_missing(name: str) -> str | None:
    """Return why a cache of transformers cannot be used here, None where it can."""
    package = _PACKAGES.get(name)
    if package is None:
        return None
    if not _is_here(package):
        return f"not here: {package} is not installed"
    return _why_quanto_fails() if package == "optimum.quanto" else None


def _is_here(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:  # of the package around it
        return False


def _why_quanto_fails() -> str | None:
    try:
        done = subprocess.run(
            [sys.executable, "-c", _TRY_QUANTO], capture_output=True, text=True, timeout=SECONDS
        )
    except subprocess.TimeoutExpired:
        return (
            f"not here: quanto's extension was not compiled within {SECONDS} s (a stale lock in its folder?)"
        )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return f"not here: quanto's extension does not work: {last}"
    return None
