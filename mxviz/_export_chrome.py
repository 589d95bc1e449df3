"""Chrome draws figures: in a process of its own, without MathJax, and within a time limit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from mxviz.figures import Figure

REMEDY = (
    "no Chrome or Chromium was found, which .svg, .png and .pdf need: `apt-get install chromium` (or set "
    "BROWSER_PATH to one); .html export works without it"
)
SECONDS = 60.0
"""Time limit of one figure; each further one in the same call adds a quarter of it."""


class ExportError(RuntimeError):
    """A file could not be written; the message is one line that says what to do."""


def find_browser() -> str | None:
    """Return the Chrome or Chromium that exports will use, or None where there is none."""
    if find_spec("choreographer") is None:
        return None
    from choreographer.browsers.chromium import Chromium

    path = os.environ.get("BROWSER_PATH") or Chromium.find_browser(skip_local=False)
    return path if path and os.access(path, os.X_OK) else None


_DRAW = """
import asyncio, json, os, signal, sys, threading
out = os.fdopen(os.dup(1), "wb")
os.dup2(2, 1)  # whatever a library prints must not end up in the picture
import kaleido
from kaleido.errors import ChromeNotFoundError
jobs, seconds = json.load(sys.stdin)

def give_up():
    try:
        os.killpg(chrome.subprocess.pid, signal.SIGKILL)
    finally:
        os._exit(5)

async def draw():
    async with chrome:
        return [await chrome.calc_fig(figure, options) for figure, options in jobs]

try:
    chrome = kaleido.Kaleido(mathjax=False, timeout=None)
    watch = threading.Timer(seconds, give_up)
    watch.daemon = True
    watch.start()
    for picture in asyncio.run(draw()):
        out.write(len(picture).to_bytes(8, "big") + picture)
    out.flush()
except ChromeNotFoundError:
    os._exit(3)
except Exception as error:
    said = str(error.args[0] if error.args else type(error).__name__)
    print(said.strip().split(chr(10))[0], file=sys.stderr, flush=True)
    os._exit(4)
os._exit(0)
"""
_NO_CHROME, _TOO_LONG = 3, 5
_GRACE = 10.0
"""Seconds for Python itself to start and to end, on top of those for Chrome."""


def render(figures: Sequence[tuple[Figure, Mapping[str, Any]]], timeout: float) -> list[bytes]:
    """Return what Chrome draws of some figures, all with one start of it.

    A process of its own drives Chrome: a browser that hangs can be ended whole, and neither a notebook's
    event loop nor a web page's threads are in the way.

    Args:
        figures: each with Kaleido's options: `format` (svg, png or pdf), `width`, `height`, `scale`.
        timeout: seconds for the first figure; each further one adds a quarter.

    Raises:
        ExportError: where Chrome is missing, fails, or takes too long.
    """
    if find_spec("kaleido") is None:
        raise ExportError("kaleido is not installed: `pip install kaleido`; .html export works without it")
    kind, seconds = figures[0][1]["format"], timeout * (1 + (len(figures) - 1) / 4)
    jobs = ", ".join(f"[{fig.to_json()}, {json.dumps(dict(options))}]" for fig, options in figures)
    command = [sys.executable, "-P", "-c", _DRAW]
    try:
        done = subprocess.run(
            command, input=f"[[{jobs}], {seconds}]".encode(), capture_output=True, timeout=seconds + _GRACE
        )
    except subprocess.TimeoutExpired:
        done = subprocess.CompletedProcess(command, _TOO_LONG)
    if done.returncode == _NO_CHROME:
        raise ExportError(REMEDY)
    if done.returncode == _TOO_LONG:
        raise ExportError(
            f"Chrome did not finish the .{kind} within {seconds:g} s; .html export works without it"
        )
    if done.returncode or not done.stdout:
        said = (done.stderr.decode(errors="replace").strip().splitlines() or ["it ended without a word"])[-1]
        raise ExportError(f"Chrome could not draw the .{kind}: {said.rstrip('.')}; .html works without it")
    return _parts(done.stdout)


def _parts(stream: bytes) -> list[bytes]:
    """Cut a stream of pictures, each behind its length in eight bytes."""
    found, at = [], 0
    while at < len(stream):
        end = at + 8 + int.from_bytes(stream[at : at + 8], "big")
        found.append(stream[at + 8 : end])
        at = end
    return found
