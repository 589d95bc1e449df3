"""A visitor in Chromium: asks, reads, looks at figures, closes the tab and comes back; all is counted."""

from __future__ import annotations

import random
import re
import sys
import time
from dataclasses import dataclass, field

from playwright.async_api import BrowserContext, Error, Page, expect

PROMPTS = (
    "Count from 1 to 300, separated by commas.",
    "Write down the alphabet again and again.",
    "Tell a very long story about a ladybug.",
    "List a hundred animals.",
)
FIGURES = ("Microscope", "Outliers", "Effect", "Race")
_PATIENCE_MS = 600_000


@dataclass
class Counts:
    """What a visitor saw.

    Args:
        first_s: seconds from Generate to the first words, of every run.
        texts: what the exact lane wrote, of every run that came to its end.
        started: runs that were started.
        left: runs whose tab was closed on purpose while they wrote.
        lost: one line for each run that did not come to its end.
        figures: figures that were opened.
        tabs: tabs that were opened.
        lines: what was said while waiting: places in the line and turns.
        console: errors of the browser.
    """

    first_s: list[float] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    started: int = 0
    left: int = 0
    lost: list[str] = field(default_factory=list)
    figures: int = 0
    tabs: int = 0
    lines: set[str] = field(default_factory=set)
    console: list[str] = field(default_factory=list)


class Visitor:
    """One person: a browser context of its own, so no cookie is shared.

    Args:
        context: of the browser.
        url: of the app.
        tokens: that are asked for.
        number: which visitor; also the seed of what it chooses.
    """

    def __init__(self, context: BrowserContext, url: str, tokens: int, number: int) -> None:
        self.context, self.url, self.tokens = context, url, tokens
        self.number, self.choose, self.counts = number, random.Random(number), Counts()

    async def stay(self, until: float) -> Counts:
        """Come and go until a time of `time.monotonic`; a run that has begun is read to its end."""
        visit = 0
        while time.monotonic() < until:
            page = await self._open()
            try:
                for _ in range(2):
                    if time.monotonic() < until:
                        await self._ask(page)
                        await self._look_round(page)
                if visit % 2 and time.monotonic() < until:
                    await self._leave_while_it_writes(page)
            except (Error, AssertionError) as error:
                self.counts.lost.append(" ".join(str(error).split())[:300])
            await page.close()
            visit += 1
        return self.counts

    async def once(self) -> Counts:
        """Ask once and leave."""
        page = await self._open()
        await self._ask(page)
        await page.close()
        return self.counts

    async def _open(self) -> Page:
        page = await self.context.new_page()
        page.on("console", lambda m: self.counts.console.append(m.text) if m.type == "error" else None)
        page.on("pageerror", lambda e: self.counts.console.append(str(e)))
        self.counts.tabs += 1
        await page.goto(f"{self.url}/run?new={self.tokens}")
        await expect(_generate(page)).to_be_visible(timeout=_PATIENCE_MS)
        await expect(page.locator(".mx-card").first).to_be_visible(timeout=_PATIENCE_MS)
        return page

    async def _press_generate(self, page: Page) -> tuple[str, float]:
        prompt = f"{self.choose.choice(PROMPTS)} ({self.choose.randrange(10**6)})"
        box = page.get_by_label("Prompt", exact=True)
        await box.fill(prompt)
        await box.press("Control+Enter")
        await page.wait_for_timeout(500)
        await _generate(page).click()
        self.counts.started += 1
        started = time.monotonic()
        await expect(_stop(page)).to_be_visible(timeout=_PATIENCE_MS)
        return prompt, started

    async def _ask(self, page: Page) -> None:
        await page.get_by_role("link", name="Run", exact=True).click()
        await expect(_generate(page)).to_be_visible(timeout=_PATIENCE_MS)
        prompt, started = await self._press_generate(page)
        live = page.locator(".mx-prompt", has_text=prompt)
        while not await live.count():
            if await page.locator("[data-testid=stAlert]").count():
                raise AssertionError(await page.locator("[data-testid=stAlert]").first.inner_text())
            bar = page.locator("[data-testid=stProgress]")
            if await bar.count():
                said = re.sub(r" · \d+ s$", "", (await bar.first.inner_text(timeout=5000)).strip())
                self.counts.lines.add(said)
            if time.monotonic() - started > _PATIENCE_MS / 1000:
                raise AssertionError("no word of it came")
            await page.wait_for_timeout(100)
        text = page.locator(".mx-exact .mx-text").first
        await expect(text).to_contain_text(re.compile(r"\S"), timeout=_PATIENCE_MS)
        self.counts.first_s.append(time.monotonic() - started)
        await expect(_stop(page)).to_have_count(0, timeout=_PATIENCE_MS)
        await expect(page.locator(".mx-prompt", has_text=prompt).first).to_be_visible(timeout=_PATIENCE_MS)
        if await page.locator("[data-testid=stAlert]").count():
            raise AssertionError(await page.locator("[data-testid=stAlert]").first.inner_text())
        self.counts.texts.append(await text.inner_text())
        took = time.monotonic() - started
        told = f"visitor {self.number}: words after {self.counts.first_s[-1]:.1f} s, all after {took:.1f} s"
        print(told, file=sys.stderr, flush=True)

    async def _look_round(self, page: Page) -> None:
        for name in self.choose.sample(FIGURES, 2):
            await page.get_by_role("link", name=name, exact=True).click()
            figure = page.locator(".stPlotlyChart .js-plotly-plot").first
            await expect(figure).to_be_visible(timeout=_PATIENCE_MS)
            if await page.locator("[data-testid=stException]").count():
                raise AssertionError(f"{name} broke off")
            self.counts.figures += 1

    async def _leave_while_it_writes(self, page: Page) -> None:
        await page.get_by_role("link", name="Run", exact=True).click()
        await expect(_generate(page)).to_be_visible(timeout=_PATIENCE_MS)
        await self._press_generate(page)
        self.counts.left += 1
        await page.wait_for_timeout(self.choose.randrange(200, 3000))


def _generate(page: Page):
    return page.get_by_role("button", name="Generate")


def _stop(page: Page):
    """Ours; Streamlit has one of its own at the top, which stops the drawing."""
    return page.locator("[data-testid=stMain]").get_by_role("button", name="Stop")
