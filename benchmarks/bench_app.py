"""python -m benchmarks.bench_app [--starts N] [--interactions N] [--tokens N …]: how quick the app is.

In a real Chromium of 1280 × 900. First paint: from the address to the first figure with cells, of a server
that was started just now and a browser that has seen nothing. Redraws: from the key or the click to the frame
that shows the figure the control belongs to, each time at a place that was not looked at before. Bytes are
those of a figure's specification; memory is the server's resident set. Prints two tables.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from shutil import which
from typing import NamedTuple

import numpy as np
import torch
from playwright.sync_api import Page, sync_playwright

from benchmarks._app_page import Watched, chromium, serve_floor
from mxviz.capture import Capture
from mxviz.figures.overview import MEASURES
from mxviz.tensors import as_capture
from tests.browser import Server, serve

LAYERS, HEADS, CHANNELS = 30, 3, 64  # SmolLM2-135M
_DRAWN = """
model => [...document.querySelectorAll('.stPlotlyChart .js-plotly-plot')].some(plot =>
    plot.layout && plot.layout.meta && plot.layout.meta.figure === 'head' &&
    plot.querySelector('.heatmaplayer image') && JSON.stringify(plot.layout.annotations).includes(model))
"""


class Control(NamedTuple):
    """A control: its name, the figure it redraws, and its presses, without end."""

    name: str
    figure: str
    presses: Callable[[Page], Iterator[Callable[[Page], None]]]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_app", description=__doc__)
    parser.add_argument("--interactions", type=int, default=30, help="of each control")
    parser.add_argument("--long", type=int, default=200, help="interactions over which memory is watched")
    parser.add_argument("--tokens", type=int, nargs="*", default=[512, 8000])
    parser.add_argument("--starts", type=int, default=5)
    args = parser.parse_args(arguments)
    path = which("chromium") or which("google-chrome")
    with tempfile.TemporaryDirectory() as name, sync_playwright() as playwright:
        folder = Path(name)
        if args.starts:
            _first_paints(playwright, path, folder, args.starts)
        for tokens in args.tokens:
            file = folder / f"{tokens}-tokens.safetensors"
            made(tokens).save(file)
            with serve(folder / "log.txt") as server, chromium(playwright, path) as browser:
                watched = Watched(browser, server.url)
                _open(watched, file)
                _redraws(watched, tokens, args.interactions)
                _memory(watched, server, args.long)


def made(tokens: int) -> Capture:
    """Return a capture of the built-in model's shape, in bfloat16, with a loud key channel in each layer."""
    draw = np.random.default_rng(0).standard_normal
    x = draw((LAYERS, HEADS, tokens, CHANNELS), np.float32)
    values = draw((LAYERS, HEADS, tokens, CHANNELS), np.float32)
    x[:, :, :, 7] *= np.linspace(60, 20, LAYERS, dtype=np.float32)[:, None, None]
    capture = as_capture(x, f"{tokens} tokens", "mxfp4", "fp4@tensor")
    keys = {layer: key.bfloat16() for layer, key in capture.keys.items()}
    return replace(
        capture, keys=keys, values={i: torch.from_numpy(v).bfloat16() for i, v in enumerate(values)}
    )


def _first_paints(playwright, path: str | None, folder: Path, starts: int) -> None:
    rows: dict[str, list[float]] = {}
    for start in range(starts):
        for name, serving in (
            ("one Plotly figure, nothing else (the floor)", lambda: serve_floor(folder)),
            ("mxviz", lambda start=start: serve(folder / f"start-{start}.txt")),
        ):
            with serving() as server:
                for visitor in ("", ", second visitor"):
                    with chromium(playwright, path) as browser:
                        rows.setdefault(name + visitor, []).append(_first_paint(browser, server.url))
    print("| first paint, cold server and browser | median s | range s |\n|---|---|---|")
    for name, taken in rows.items():
        print(f"| {name} | {np.median(taken):.2f} | {min(taken):.2f} to {max(taken):.2f} |", flush=True)


def _first_paint(browser, url: str) -> float:
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    start = time.perf_counter()
    page.goto(url, wait_until="commit")
    page.wait_for_selector(".stPlotlyChart .heatmaplayer image", timeout=120_000)
    taken = time.perf_counter() - start
    page.wait_for_timeout(3000)  # what follows the first figure is the next visitor's no more
    return taken


def _open(watched: Watched, file: Path) -> None:
    """Upload a capture, wait until it is drawn."""
    page = watched.page
    page.wait_for_function(_DRAWN, arg="", timeout=120_000)
    watched.settle()
    page.get_by_text("Open or save", exact=True).first.click()
    page.locator("input[type=file]").first.set_input_files(str(file))
    page.wait_for_function(_DRAWN, arg=file.stem.partition("-")[0], timeout=300_000)
    watched.settle()


def _redraws(watched: Watched, tokens: int, interactions: int) -> None:
    print(f"\n| {tokens:,} tokens: control → figure | p50 s | p95 s | most s | figure, kB | all sent, kB |")
    print("|---|---|---|---|---|---|")
    for control in CONTROLS:
        presses = control.presses(watched.page)
        watched.figures.clear()
        taken, sent = [], []
        for _ in range(interactions):
            act = next(presses)
            watched.settle()
            watched.received.clear()
            taken.append(watched.took(control.figure, act))
            sent.append(sum(watched.received))
        sizes = watched.figures.get(control.figure, [0])
        print(
            f"| {control.name} → {control.figure} | {np.median(taken):.3f} | {np.percentile(taken, 95):.3f} "
            f"| {max(taken):.3f} | {max(sizes) / 1e3:,.0f} | {np.median(sent) / 1e3:,.0f} |",
            flush=True,
        )


def _memory(watched: Watched, server: Server, interactions: int) -> None:
    """Use all controls in turn, and watch the server's memory."""
    turns = [(control, control.presses(watched.page)) for control in CONTROLS]
    memory = [_resident(server)]
    for step in range(interactions):
        control, presses = turns[step % len(turns)]
        watched.took(control.figure, next(presses))
        memory.append(_resident(server))
    if interactions:
        half = len(memory) // 2
        slope = np.polyfit(range(half, len(memory)), memory[half:], 1)[0]
        print(
            f"\nServer memory: {memory[0]:,.0f} MB, {memory[half]:,.0f} after {half} more interactions, "
            f"{memory[-1]:,.0f} after {interactions}, most {max(memory):,.0f}; slope of the second half "
            f"{100 * slope:+.1f} MB per 100.",
            flush=True,
        )


def _slider(name: str, first: str = "ArrowRight") -> Callable[[Page], Iterator[Callable[[Page], None]]]:
    """Walk a slider one step at a time, turning round at its ends."""

    def presses(page: Page) -> Iterator[Callable[[Page], None]]:
        key, other = first, "ArrowLeft" if first == "ArrowRight" else "ArrowRight"
        while True:
            slider = page.get_by_role("slider", name=name)
            at, low, high = (int(slider.get_attribute(end) or slider.input_value()) for end in _ENDS)
            if at == (high if key == "ArrowRight" else low):
                key, other = other, key
            slider.focus()
            yield lambda page, key=key: page.keyboard.press(key)

    return presses


_ENDS = ("aria-valuenow", "min", "max")  # a range input has no aria-valuenow, but a value


def _stepper(label: str) -> Callable[[Page], Iterator[Callable[[Page], None]]]:
    """Step a number up, and from its end down again."""

    def presses(page: Page) -> Iterator[Callable[[Page], None]]:
        way = "Up"
        while True:
            box = page.get_by_test_id("stNumberInput").filter(has=page.get_by_label(label, exact=True))
            button = box.get_by_test_id(f"stNumberInputStep{way}")
            if button.is_disabled():
                way = "Down" if way == "Up" else "Up"
                continue
            button.scroll_into_view_if_needed()
            yield lambda page, button=button: button.click()

    return presses


def _options(group: str, names: Sequence[str]) -> Callable[[Page], Iterator[Callable[[Page], None]]]:
    """Press the buttons of a group in turn."""

    def presses(page: Page) -> Iterator[Callable[[Page], None]]:
        while True:
            for name in names:
                button = page.get_by_role("radiogroup", name=group).get_by_text(name, exact=True)
                if button.locator("xpath=ancestor-or-self::button").get_attribute("aria-checked") != "true":
                    button.scroll_into_view_if_needed()
                    yield lambda page, button=button: button.click()

    return presses


def _measures(page: Page) -> Iterator[Callable[[Page], None]]:
    """Choose the measures of the overview in turn; the last key takes what was typed."""
    for name in cycle([*list(MEASURES)[1:], next(iter(MEASURES))]):
        box = page.get_by_role("combobox", name="Colour shows")
        box.fill(MEASURES[name].title)
        box.press("ArrowDown")
        yield lambda page, box=box: box.press("Enter")


def _switched(page: Page) -> Iterator[Callable[[Page], None]]:
    """Turn the blocks of another layer's keys each time."""
    layers, turns = (_slider("Layer")(page), _options("Key blocks along", ["tokens", "channels"])(page))
    while True:
        turn = next(turns)
        next(layers)(page)
        page.wait_for_timeout(1000)  # that layer's figures are drawn before the turn is timed
        yield turn


CONTROLS = (
    Control("layer", "head", _slider("Layer")),
    Control("KV head", "head", _options("KV head", ["0", "1", "2"])),
    Control("tokens shown", "head", _slider("Tokens shown — end", "ArrowLeft")),
    Control("key blocks along", "head", _switched),
    Control("colour shows", "overview", _measures),
    Control("token", "rulers", _stepper("Token")),
    Control("channel", "rulers", _stepper("Channel")),
    Control("zoom", "rulers", _options("Zoom", ["whole rulers", "close up"])),
)


def _resident(server: Server) -> float:
    """Resident megabytes of the server's process."""
    pages = int(Path(f"/proc/{server.process.pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


if __name__ == "__main__":
    torch.set_num_threads(2)
    main()
