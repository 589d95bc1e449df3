"""The whole lesson in real Chromium by keyboard alone, a screenshot a step."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

pytestmark = pytest.mark.browser

_FOCUS = """
() => {
    const at = document.activeElement, box = at && at.closest('[data-testid]')
    return [at.tagName, at.type || '', at.innerText || '', box ? box.dataset.testid : '']
}
"""


def _probe(message) -> bool:
    """Whether this is Streamlit's own look for a server below the page's path, as on every page."""
    return "/lesson/_stcore/" in message.location["url"]


@pytest.fixture(params=[(1280, "light"), (390, "dark")], ids=["desktop", "phone"])
def page(request, browser, server):
    """An open page that fails its test on any console error."""
    width, scheme = request.param
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    errors: list[str] = []
    page.on("console", lambda m: errors.append(m.text) if m.type == "error" and not _probe(m) else None)
    page.on("pageerror", lambda e: errors.append(str(e)))
    page.goto(f"{server.url}/lesson")
    yield page
    page.close()
    assert errors == []
    assert "Traceback" not in server.text()


def settled(page: Page) -> None:
    """Wait until nothing runs and every figure is drawn."""
    page.wait_for_function(
        """() => [...document.querySelectorAll('.stPlotlyChart')].every(c => c.querySelector('.main-svg'))
            && !document.querySelector('[data-testid=stStatusWidget], [data-stale=true]')""",
        timeout=60_000,
    )
    page.wait_for_timeout(250)


def tab_to(page: Page, wanted) -> list[str]:
    """Press Tab until what has the focus is wanted; fail where it never is."""
    for _ in range(60):
        focus = page.evaluate(_FOCUS)
        if wanted(*focus):
            return focus
        page.keyboard.press("Tab")
    pytest.fail(f"the keyboard does not reach it; the focus ended on {focus}")


def press(page: Page, label: str) -> None:
    tab_to(page, lambda tag, kind, text, where: tag == "BUTTON" and text.strip().startswith(label))
    page.keyboard.press("Enter")
    settled(page)


def answer(page: Page, downs: int) -> None:
    """Choose an answer of the next list with the arrow keys: the first one, then so many further down."""
    tab_to(page, lambda tag, kind, text, where: tag == "INPUT" and kind == "radio")
    page.keyboard.press("Space")
    settled(page)
    for _ in range(downs):
        page.keyboard.press("ArrowDown")
        settled(page)


def nothing_sticks_out(page: Page) -> None:
    wide, inner = page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
    assert wide <= inner, f"the page is {wide} px wide in a window of {inner}"


def test_the_whole_lesson_by_keyboard(page: Page, tmp_path: Path) -> None:
    for step in range(1, 9):
        expect(page.get_by_text(f"Step {step} of 9", exact=True)).to_be_visible(timeout=60_000)
        settled(page)
        page.screenshot(path=str(tmp_path / f"{step}-asked.png"), full_page=True)
        if step in (5, 6):
            tab_to(page, lambda tag, kind, text, where: tag == "INPUT" and kind == "range")
            page.keyboard.press("ArrowRight")
            settled(page)
            expect(
                page.get_by_text(f"Step {step} of 9", exact=True)
            ).to_be_visible()  # the slider's own arrow
        else:
            answer(page, 1)
        expect(page.get_by_role("heading", name="Why")).to_have_count(0)
        press(page, "Reveal")
        expect(page.get_by_role("heading", name="Why")).to_be_visible(timeout=20_000)
        assert re.search("You guessed", page.locator(".mx-verdict").inner_text())
        nothing_sticks_out(page)
        page.screenshot(path=str(tmp_path / f"{step}-told.png"), full_page=True)
        page.keyboard.press("ArrowRight")
    expect(page.get_by_text("Step 9 of 9", exact=True)).to_be_visible(timeout=20_000)
    assert "step=9" in page.url
    settled(page)
    for _ in range(5):
        answer(page, 1)
        page.keyboard.press("Tab")
    press(page, "Check my answers")
    expect(page.locator(".mx-verdict")).to_have_text("3 of 5 right")
    page.screenshot(path=str(tmp_path / "9-told.png"), full_page=True)
    nothing_sticks_out(page)
    page.keyboard.press("ArrowLeft")
    expect(page.get_by_text("Step 8 of 9", exact=True)).to_be_visible(timeout=20_000)
    assert len(list(tmp_path.glob("*.png"))) == 17


def test_a_link_opens_its_step(page: Page, server) -> None:
    page.goto(f"{server.url}/lesson?step=5")
    expect(page.get_by_role("heading", name="The saboteur", exact=False)).to_be_visible(timeout=60_000)
    settled(page)
    expect(page.locator(".stPlotlyChart").first).to_contain_text("Without", timeout=20_000)
    said = page.locator(".stPlotlyChart").first.inner_text().replace("\n", " ")
    assert "Without sabotage" in said
