"""Load and soak: real Chromium sessions at once, each asking, looking, closing its tab and coming back.

    python -m benchmarks.load [--sessions 8] [--minutes 10] [--tokens 32] [--cycles 10]

Prints one JSON object: lost runs, errors in the log and the browsers, memory and threads of the server, time
to first token, and how evenly the machine was shared. A run that does not count comes first, so that nothing
is loaded or compiled meanwhile.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

from playwright.async_api import Browser, async_playwright, expect

from benchmarks._load_visitor import Counts, Visitor
from tests.browser import CHROMIUM_ARGS, Server, serve

GOALS = {"growth": 0.05, "fairness": 0.7}
"""Memory after the first minute grows by less; the slowest session writes at least this share of the mean."""

_SESSION_TTL_S = 10
_SIZE = {"width": 1280, "height": 900}
_WRONG = re.compile(r"Traceback|\bERROR\b|\bException\b")


def main() -> None:
    """Run it and print what came of it; the exit status says whether the goals were met."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.load", description=__doc__.splitlines()[0])
    parser.add_argument("--sessions", type=int, default=8)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--tokens", type=int, default=32, help="new tokens of a run")
    parser.add_argument("--cycles", type=int, default=10, help="tabs opened and closed at the end")
    parser.add_argument("--log", type=Path, help="keep the server's log here")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        ttl = {"STREAMLIT_SERVER_DISCONNECTED_SESSION_TTL": str(_SESSION_TTL_S)}
        with serve(args.log or Path(folder, "log.txt"), **ttl) as server:
            found = asyncio.run(_measure(server, args))
    print(json.dumps(found, indent=2, ensure_ascii=False))
    sys.exit(0 if not _missed(found, args) else 1)


async def _measure(server: Server, args: argparse.Namespace) -> dict:
    async with async_playwright() as playwright:
        path = shutil.which("chromium") or shutil.which("google-chrome")
        browser = await playwright.chromium.launch(executable_path=path, args=CHROMIUM_ARGS)
        try:
            await _warm_up(browser, server, args.tokens)
            samples: list[tuple[float, float, int]] = []
            watching = asyncio.create_task(_watch(server.process.pid, samples))
            until = time.monotonic() + 60 * args.minutes
            contexts = [await browser.new_context(viewport=_SIZE) for _ in range(args.sessions)]
            visitors = [Visitor(c, server.url, args.tokens, n) for n, c in enumerate(contexts)]
            counts = await asyncio.gather(*(visitor.stay(until) for visitor in visitors))
            for visitor in visitors:
                await visitor.context.close()
            watching.cancel()
            cycles = await _open_and_close(browser, server, args.cycles)
        finally:
            await browser.close()
    return _said(args, counts, samples, cycles, server)


async def _warm_up(browser: Browser, server: Server, tokens: int) -> None:
    context = await browser.new_context(viewport=_SIZE)
    await Visitor(context, server.url, tokens, -1).once()
    await context.close()


def _said(
    args: argparse.Namespace,
    counts: list[Counts],
    samples: list[tuple[float, float, int]],
    cycles: dict,
    server: Server,
) -> dict:
    first = sorted(seconds for one in counts for seconds in one.first_s)
    tokens = _tokens(counts)
    after = [(at, mib, threads) for at, mib, threads in samples if at >= min(60, samples[-1][0] / 2)]
    early, late = (statistics.median(mib for _, mib, _ in part) for part in (after[:6], after[-6:]))
    wrong = [line for line in server.text().splitlines() if _WRONG.search(line)]
    return {
        "sessions": args.sessions,
        "minutes": args.minutes,
        "new_tokens": args.tokens,
        "cores": os.cpu_count(),
        "machine_load": round(os.getloadavg()[1], 1),
        "runs": {
            "started": sum(c.started for c in counts),
            "finished": sum(len(c.texts) for c in counts),
            "left_on_purpose": sum(c.left for c in counts),
            "lost": sum(len(c.lost) for c in counts),
            "why": [line for c in counts for line in c.lost][:5],
        },
        "figures": sum(c.figures for c in counts),
        "tabs": sum(c.tabs for c in counts),
        "log_errors": wrong[:5],
        "browser_errors": sorted({line[:200] for c in counts for line in c.console})[:5],
        "first_token_s": {"p50": _quantile(first, 0.5), "p95": _quantile(first, 0.95)},
        "tokens": {"of_each": tokens, "slowest_to_mean": _share(tokens)},
        "memory_mib": {
            "after_first_minute": round(early),
            "at_the_end": round(late),
            "peak": round(max(mib for _, mib, _ in samples)),
            "growth": round(late / early - 1, 3),
        },
        "threads": {"least": min(n for *_, n in samples), "most": max(n for *_, n in samples)},
        "said_while_waiting": sorted({line for c in counts for line in c.lines})[:12],
        "open_and_close": cycles,
    }


async def _open_and_close(browser: Browser, server: Server, cycles: int) -> dict:
    """Open the first page and close it, so often; once before, and a rest on both ends."""
    if not cycles:
        return {}
    await _look_once(browser, server.url)
    await asyncio.sleep(2 * _SESSION_TTL_S)
    before = _process(server.process.pid)
    for _ in range(cycles):
        await _look_once(browser, server.url)
    await asyncio.sleep(2 * _SESSION_TTL_S)
    await _look_once(browser, server.url)  # the end of a session is when Streamlit drops what has expired
    await asyncio.sleep(3)
    after = _process(server.process.pid)
    named = ("memory_mib", "threads")
    return {
        "cycles": cycles,
        "before": dict(zip(named, before, strict=True)),
        "after": dict(zip(named, after, strict=True)),
    }


async def _look_once(browser: Browser, url: str) -> None:
    page = await browser.new_page(viewport=_SIZE)
    await page.goto(url)
    await expect(page.locator(".stPlotlyChart .js-plotly-plot").first).to_be_visible(timeout=120_000)
    await page.close()


async def _watch(pid: int, samples: list[tuple[float, float, int]], every_s: float = 5.0) -> None:
    started = time.monotonic()
    while True:
        samples.append((time.monotonic() - started, *_process(pid)))
        await asyncio.sleep(every_s)


def _process(pid: int) -> tuple[float, int]:
    """Resident memory in MiB, and threads."""
    status = Path(f"/proc/{pid}/status").read_text()
    of = {line.split(":")[0]: line.split()[1] for line in status.splitlines() if len(line.split()) > 1}
    return round(int(of["VmRSS"]) / 1024, 1), int(of["Threads"])


def _tokens(counts: list[Counts]) -> list[int]:
    """Tokens that each session was written, as the built-in model's tokenizer counts them."""
    from transformers import AutoTokenizer

    from mxviz._models_builtin import kept_copy

    tokenizer = AutoTokenizer.from_pretrained(kept_copy())
    return [sum(len(tokenizer(text).input_ids) for text in one.texts) for one in counts]


def _quantile(values: list[float], share: float) -> float | None:
    return round(values[min(len(values) - 1, int(share * len(values)))], 2) if values else None


def _share(tokens: list[int]) -> float | None:
    return round(min(tokens) / statistics.mean(tokens), 2) if any(tokens) else None


def _missed(found: dict, args: argparse.Namespace) -> list[str]:
    """Goals that were missed, in words; a short run has no say about memory."""
    missed = ["lost runs"] if found["runs"]["lost"] else []
    missed += ["errors"] if found["log_errors"] or found["browser_errors"] else []
    missed += ["fairness"] if (found["tokens"]["slowest_to_mean"] or 0) < GOALS["fairness"] else []
    if args.minutes >= 5:
        missed += ["memory"] if found["memory_mib"]["growth"] > GOALS["growth"] else []
    for name in missed:
        print(f"missed: {name}", file=sys.stderr)
    return missed


if __name__ == "__main__":
    main()
