"""python -m benchmarks.bench_app [--interactions N] [--tokens N …]: how quick the app is in a real Chromium.

First paint: from the address to the first figure with cells, of a server that was started just now and has
drawn for nobody, and again of a second visitor. Redraw: another layer is chosen with the arrow keys and the
time to the head's new figure is taken. Bytes are those the page receives through its web socket; memory is
the server's resident set.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from shutil import which

import numpy as np
import torch
from playwright.sync_api import Browser, Page, sync_playwright

from mxviz.capture import Capture
from mxviz.tensors import as_capture
from tests.browser import CHROMIUM_ARGS, Server, serve

LAYERS, HEADS, CHANNELS = 30, 3, 64  # SmolLM2-135M
_HEAD = """
(layer) => [...document.querySelectorAll('.stPlotlyChart .js-plotly-plot')].some(plot => {
    const meta = plot.layout && plot.layout.meta
    if (!meta || meta.figure !== 'head' || !plot.querySelector('.heatmaplayer image')) return false
    return layer === null || JSON.stringify(plot.layout.annotations).includes(`layer ${layer},`)
})
"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print one line for each thing measured."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_app", description=__doc__)
    parser.add_argument("--interactions", type=int, default=200)
    parser.add_argument("--tokens", type=int, nargs="*", default=[512, 8000])
    parser.add_argument("--starts", type=int, default=3)
    args = parser.parse_args(arguments)
    browser_path = which("chromium") or which("google-chrome")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path, args=CHROMIUM_ARGS)
        for start in range(args.starts):
            with serve(Path(folder) / f"log-{start}.txt") as server:
                first = _first_paint(browser, server)
                again = _first_paint(browser, server)
                print(
                    f"start {start + 1}: first paint {first:.2f} s, of a second visitor {again:.2f} s",
                    flush=True,
                )
        with serve(Path(folder) / "log.txt") as server:
            for tokens in args.tokens:
                path = Path(folder) / f"{tokens}-tokens.safetensors"
                made(tokens).save(path)
                _redraws(browser, server, path, args.interactions)


def made(tokens: int) -> Capture:
    """Return a capture of the built-in model's shape with a loud channel in every third layer."""
    x = np.random.default_rng(0).standard_normal((LAYERS, HEADS, tokens, CHANNELS), np.float32)
    x[::3, 0, :, 7] *= 60
    return as_capture(x, f"{tokens} tokens", "mxfp4", "fp4@tensor")


def _first_paint(browser: Browser, server: Server) -> float:
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    start = time.perf_counter()
    page.goto(server.url)
    page.wait_for_selector(".stPlotlyChart .heatmaplayer image", timeout=120_000)
    taken = time.perf_counter() - start
    page.wait_for_function(_HEAD, arg=None, timeout=120_000)
    page.close()
    return taken


def _redraws(browser: Browser, server: Server, path: Path, interactions: int) -> None:
    """Open a capture and walk through its layers, up and down."""
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    received: list[int] = []
    page.on("websocket", lambda socket: socket.on("framereceived", lambda data: received.append(len(data))))
    page.goto(server.url)
    page.wait_for_function(_HEAD, arg=None, timeout=120_000)
    _open(page, path)
    slider = page.get_by_role("slider", name="Layer")
    layer = int(slider.get_attribute("aria-valuenow") or 0)
    taken, sizes, memory = [], [], []
    for step in range(interactions + LAYERS):
        way = 1 if layer == 0 or (layer < LAYERS - 1 and step // (LAYERS - 1) % 2 == 0) else -1
        layer += way
        slider.focus()
        received.clear()
        start = time.perf_counter()
        page.keyboard.press("ArrowRight" if way > 0 else "ArrowLeft")
        page.wait_for_function(_HEAD, arg=layer, timeout=60_000, polling=10)
        if step >= LAYERS:  # the first walk fills the caches that every visitor's next look profits from
            taken.append(time.perf_counter() - start)
        page.wait_for_timeout(150)
        sizes.append(sum(received))
        memory.append(_resident(server))
    page.close()
    half = len(memory) // 2
    print(
        f"{path.stem}: another layer p50 {statistics.median(taken):.2f} s, p95 {_p95(taken):.2f} s; received "
        f"p50 {statistics.median(sizes) / 1e3:,.0f} kB, most {max(sizes) / 1e6:.2f} MB; server memory "
        f"{memory[LAYERS - 1]:,.0f} MB after {LAYERS} interactions, {memory[half]:,.0f} after {half}, "
        f"{memory[-1]:,.0f} after {len(memory)}",
        flush=True,
    )


def _open(page: Page, path: Path) -> None:
    """Upload a capture, wait until it is drawn."""
    page.get_by_text("Open or save", exact=True).first.click()
    page.locator("input[type=file]").first.set_input_files(str(path))
    page.wait_for_function(
        """name => [...document.querySelectorAll('.js-plotly-plot')].some(p => p.layout && p.layout.meta
            && p.layout.meta.figure === 'head' && JSON.stringify(p.layout.annotations).includes(name))""",
        arg=path.stem.split("-")[0],
        timeout=180_000,
    )
    page.wait_for_timeout(2000)


def _p95(values: list[float]) -> float:
    return float(np.percentile(values, 95))


def _resident(server: Server) -> float:
    """Resident megabytes of the server's process."""
    pages = int(Path(f"/proc/{server.process.pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


if __name__ == "__main__":
    torch.set_num_threads(2)
    main()
