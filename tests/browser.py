"""A served app and a real Chromium, for tests that look at the page as a person does."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CHROMIUM_ARGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


class Server:
    """A running app: where it listens, its process and its log."""

    def __init__(self, url: str, process: subprocess.Popen, log: Path) -> None:
        self.url, self.process, self.log = url, process, log

    def text(self) -> str:
        """What the server has written so far."""
        return self.log.read_text(encoding="utf-8", errors="replace")


@contextmanager
def serve(log: Path, *arguments: str, base_path: str = "", **environment: str) -> Iterator[Server]:
    """Start `python -m mxviz app` (what `make run` starts) on a free port; stop it at the end."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "mxviz", "app", "--port", str(port), *arguments],
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**os.environ, **environment},
        )
    server = Server(f"http://127.0.0.1:{port}{base_path}", process, log)
    try:
        _wait_until_healthy(server)
        yield server
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_until_healthy(server: Server, limit_s: float = 60) -> None:
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        if server.process.poll() is not None:
            raise RuntimeError(f"the server stopped at once:\n{server.text()}")
        try:
            with urllib.request.urlopen(f"{server.url}/_stcore/health", timeout=2):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    raise RuntimeError(f"the server did not answer within {limit_s} s:\n{server.text()}")
