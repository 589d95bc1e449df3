"""A page in a real Chromium, and a stopwatch that runs inside it: from a key or a click to a figure drawn."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, Page
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg

from tests.browser import CHROMIUM_ARGS, Server

_STOPWATCH = """
name => {
    const plot = () => [...document.querySelectorAll('.stPlotlyChart .js-plotly-plot')]
        .find(p => p.layout && p.layout.meta && p.layout.meta.figure === name)
    const few = v => v && (v.bdata ? v.bdata.slice(0, 400) : Array.isArray(v) ? v.slice(0, 40) : v)
    const look = p => p && JSON.stringify([p.layout.title.text, p.layout.annotations.map(a => a.text),
        p.layout.xaxis.range, p.layout.coloraxis && p.layout.coloraxis.colorscale,
        p.data.filter(t => t.type !== 'heatmap').map(t => [few(t.x), few(t.y)])])
    const drawn = p => p._fullLayout && p.querySelector(name === 'rulers' ? '.scatterlayer .trace' :
        '.heatmaplayer image')
    const before = look(plot())
    let start = null
    const begin = () => { if (start === null) start = performance.now() }
    const kinds = ['keydown', 'pointerdown']
    for (const kind of kinds) window.addEventListener(kind, begin, { capture: true })
    window.mxvizTook = null
    const watch = () => {
        const p = plot()
        if (start === null || !p || look(p) === before || !drawn(p)) return requestAnimationFrame(watch)
        for (const kind of kinds) window.removeEventListener(kind, begin, { capture: true })
        requestAnimationFrame(() => { window.mxvizTook = performance.now() - start })
    }
    watch()
}
"""
"""Notes the first key or click from now on, and the frame after a figure has changed and is drawn."""

_IDLE = """
() => document.querySelector('[data-testid=stApp]').dataset.testScriptState === 'notRunning' &&
    !document.querySelector('[data-stale=true]')
"""
_NAME = re.compile(r'"figure":"(\w+)"')


class Watched:
    """A page, and what it receives through its web socket."""

    def __init__(self, browser: Browser, url: str) -> None:
        self.page: Page = browser.new_page(viewport={"width": 1280, "height": 900})
        self.figures: dict[str, list[int]] = {}
        self.received: list[int] = []
        self.page.on("websocket", lambda socket: socket.on("framereceived", self._take))
        self.page.goto(url)

    def took(self, figure: str, act: Callable[[Page], None]) -> float:
        """Return the seconds from the key or the click in `act` until a figure is drawn anew."""
        self.page.evaluate(_STOPWATCH, figure)
        act(self.page)
        self.page.wait_for_function("window.mxvizTook !== null", timeout=60_000)
        seconds = self.page.evaluate("window.mxvizTook") / 1e3
        self.settle()
        return seconds

    def settle(self) -> None:
        """Wait until the server has nothing more to say, and the browser has drawn it."""
        self.page.wait_for_timeout(60)
        self.page.wait_for_function(_IDLE, timeout=120_000)
        self.page.wait_for_timeout(150)

    def _take(self, frame: str | bytes) -> None:
        self.received.append(len(frame))
        message = ForwardMsg.FromString(frame) if isinstance(frame, bytes) else ForwardMsg()
        spec = message.delta.new_element.plotly_chart.spec
        if spec and (found := _NAME.search(spec)):
            self.figures.setdefault(found[1], []).append(len(spec))


@contextmanager
def chromium(playwright, path: str | None) -> Iterator[Browser]:
    """A browser that has seen nothing yet."""
    browser = playwright.chromium.launch(executable_path=path, args=CHROMIUM_ARGS)
    try:
        yield browser
    finally:
        browser.close()


_FLOOR = """
import numpy, plotly.graph_objects, streamlit
streamlit.set_page_config(layout="wide")
streamlit.plotly_chart(plotly.graph_objects.Figure(plotly.graph_objects.Heatmap(z=numpy.eye(8))))
"""


@contextmanager
def serve_floor(folder: Path) -> Iterator[Server]:
    """Serve a page of Streamlit's with one Plotly figure and nothing else: no page paints sooner."""
    script, log = folder / "floor.py", folder / "floor.txt"
    script.write_text(_FLOOR)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = [f"--server.port={port}", "--server.address=127.0.0.1", "--server.headless=true"]
    options += ["--server.fileWatcherType=none", "--browser.gatherUsageStats=false"]
    command = [sys.executable, "-m", "streamlit", "run", str(script), *options]
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
    server = Server(f"http://127.0.0.1:{port}", process, log)
    try:
        while "URL" not in server.text():  # it says its address when it listens
            if process.poll() is not None:
                raise RuntimeError(f"the floor's server stopped at once:\n{server.text()}")
            time.sleep(0.1)
        yield server
    finally:
        process.terminate()
        process.wait(10)
