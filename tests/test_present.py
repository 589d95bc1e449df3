"""Presenting in real Chromium by keyboard alone: the lesson, a talk of links, black and white, Esc."""

from __future__ import annotations

from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Page, expect

pytestmark = pytest.mark.browser

LEAST_PX = 24
"""Height of text that is read from the back row of a hall at 1280 × 720."""

_SMALLEST = """
() => Math.min(...[...document.querySelectorAll('.stMain p, .stMain li, .stMain h1, .stMain h3')]
    .filter(e => e.offsetParent && e.innerText.trim() && !e.closest('.js-plotly-plot'))
    .map(e => parseFloat(getComputedStyle(e).fontSize)))
"""
_FIGURE = """
() => {
    const box = document.querySelector('.stPlotlyChart').getBoundingClientRect()
    const titles = [...document.querySelectorAll('.stPlotlyChart .gtitle, .stPlotlyChart .g-gtitle text')]
    return { left: box.left, right: box.right, bottom: box.bottom, top: box.top,
        title: Math.max(0, ...titles.map(t => t.getBoundingClientRect().height)) }
}
"""
_GROUND = "() => getComputedStyle(document.querySelector('.stApp')).backgroundColor"


@pytest.fixture
def page(browser, server):
    page = browser.new_page(viewport={"width": 1280, "height": 720})
    yield page
    page.close()
    assert "Traceback" not in server.text()


def settled(page: Page) -> None:
    page.wait_for_timeout(300)
    page.wait_for_function(
        """() => document.querySelector('.stPlotlyChart .main-svg')
            && [...document.querySelectorAll('.stPlotlyChart')].every(c => c.style.opacity != '0')
            && !document.querySelector('[data-testid=stStatusWidget], [data-stale=true]')""",
        timeout=60_000,
    )
    page.wait_for_timeout(700)


def said(page: Page) -> dict[str, list[str]]:
    return parse_qs(urlsplit(page.url).query)


def fits_a_stage(page: Page) -> None:
    """No chrome is left, text is large, and the figure is on the screen as a whole."""
    for chrome in ("stHeader", "stSlider", "stBaseButton-secondary", "stBaseButton-primary"):
        expect(page.get_by_test_id(chrome).filter(visible=True)).to_have_count(0)
    assert page.evaluate(_SMALLEST) >= LEAST_PX or page.evaluate(_SMALLEST) == float("inf")
    figure = page.evaluate(_FIGURE)
    assert figure["left"] >= 0 and figure["right"] <= 1280 and figure["bottom"] <= 721, figure
    assert (
        figure["title"] >= LEAST_PX and page.evaluate("document.querySelector('.stMain').scrollHeight") <= 721
    )


def test_the_lesson_by_a_clickers_keys(page: Page, server, tmp_path) -> None:
    page.goto(f"{server.url}/lesson?present=1&step=5")
    expect(page.get_by_role("heading", name="The saboteur")).to_be_visible(timeout=60_000)
    settled(page)
    fits_a_stage(page)
    page.screenshot(path=str(tmp_path / "asked.png"))
    page.keyboard.press("PageDown")
    expect(page.get_by_text("become zero under the room's ruler", exact=False)).to_be_visible(timeout=20_000)
    settled(page)
    fits_a_stage(page)
    assert said(page)["shown"] == ["1"]
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("heading", name="Personal rulers")).to_be_visible(timeout=20_000)
    settled(page)
    assert said(page)["step"] == ["6"] and "shown" not in said(page)
    assert page.evaluate(_GROUND) == "rgb(253, 253, 251)"
    page.keyboard.press("b")
    page.wait_for_url("**present=black**")
    settled(page)
    assert page.evaluate(_GROUND) == "rgb(16, 24, 28)"
    page.keyboard.press("PageUp")
    expect(page.get_by_text("become zero under the room's ruler", exact=False)).to_be_visible(timeout=20_000)
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="Next step")).to_be_visible(timeout=20_000)
    expect(page.get_by_test_id("stHeader")).to_be_visible()
    assert "present" not in said(page) and said(page)["step"] == ["5"]


def test_a_talk_of_three_links(page: Page, server, tmp_path) -> None:
    page.goto(f"{server.url}/outliers?run=planted")
    settled(page)
    page.get_by_role("button", name="Add to talk").focus()
    page.keyboard.press("Enter")
    page.get_by_text("Your talk", exact=True).click()
    expect(page.get_by_text("1 view.", exact=False)).to_be_visible(timeout=20_000)
    lines = page.get_by_label("A link on each line")
    held = lines.input_value()
    assert held.startswith("outliers?") and "run=planted" in held
    other = f"{server.url}/outliers?run=smollm2-chat&layer=5&list=tokens"
    lines.fill(f"{held}\nno link at all\n{other}\nlesson?step=4&shown=1")
    page.keyboard.press("Control+Enter")
    expect(page.get_by_text("3 views.", exact=False)).to_be_visible(timeout=20_000)
    page.screenshot(path=str(tmp_path / "talk.png"))
    page.get_by_role("button", name="Present the talk").focus()
    page.keyboard.press("Enter")
    page.wait_for_url("**present=1**")
    expect(page.get_by_test_id("stHeader")).to_be_hidden(timeout=20_000)
    settled(page)
    assert said(page)["run"] == ["planted"]
    page.keyboard.press("ArrowRight")
    page.wait_for_url("**run=smollm2-chat**")
    settled(page)
    assert (said(page)["layer"], said(page)["list"]) == (["5"], ["tokens"])
    page.keyboard.press("PageDown")
    page.wait_for_url("**/lesson?**step=4**")
    expect(page.get_by_text("takes half of the ticks", exact=False).first).to_be_attached(timeout=20_000)
    settled(page)
    page.screenshot(path=str(tmp_path / "last.png"))
    fits_a_stage(page)
    page.keyboard.press("ArrowLeft")
    page.wait_for_url("**/outliers?**run=smollm2-chat**")
    settled(page)
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="Copy link")).to_be_visible(timeout=20_000)
    assert said(page)["run"] == ["smollm2-chat"]
