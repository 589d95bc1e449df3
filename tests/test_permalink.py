"""The address rebuilds the view: in real Chromium the same figures, and whatever an address says, a page."""

from __future__ import annotations

import hashlib
import shutil
import sys
from urllib.parse import parse_qs, urlsplit

import pytest
from made_capture import made_capture
from playwright.sync_api import Page, expect
from streamlit.testing.v1 import AppTest

from mxviz._paths import ASSETS
from mxviz.views import gallery, permalink
from mxviz.views.pages import PAGES
from mxviz.views.permalink_table import FIELDS, KNOWN
from mxviz.views.permalink_table import OTHERS as USUAL

SETTLED = """
charts => document.querySelectorAll('.stPlotlyChart .main-svg:first-child').length >= charts
    && [...document.querySelectorAll('.stPlotlyChart')].every(c => c.querySelector('.main-svg'))
    && !document.querySelector('[data-testid=stStatusWidget], [data-stale=true], [data-testid=stSpinner]')
"""
FIGURES = """
() => JSON.stringify([...document.querySelectorAll('.stPlotlyChart .js-plotly-plot')]
    .map(p => [p.layout.meta, p.layout.title, p.data]),
    (key, value) => ['selectedpoints', 'uid'].includes(key) ? undefined : value)
"""


def settled(page: Page, address: str = "", charts: int = 1) -> None:
    """Wait until the address says this, nothing runs and so many figures are drawn."""
    page.wait_for_function("text => location.search.includes(text)", arg=address, timeout=60_000)
    page.wait_for_timeout(300)
    page.wait_for_function(SETTLED, arg=charts, timeout=60_000)
    page.wait_for_timeout(400)


def figures(page: Page) -> str:
    """A hash of the names, titles and data of all figures on a page."""
    drawn = page.evaluate(FIGURES)
    assert len(drawn) > 1_000
    return hashlib.sha256(drawn.encode()).hexdigest()


def fresh(browser, url: str, scheme: str = "light") -> Page:
    """Open an address where nothing is remembered."""
    permissions = ["clipboard-read", "clipboard-write"]
    context = browser.new_context(
        viewport={"width": 1280, "height": 900}, color_scheme=scheme, permissions=permissions
    )
    page = context.new_page()
    page.goto(url)
    return page


def copied(page: Page) -> str:
    page.get_by_role("button", name="Copy link").click()
    expect(page.get_by_role("status").filter(has_text="Copied")).to_be_visible()
    return page.evaluate("navigator.clipboard.readText()")


def _outliers(page: Page) -> None:
    page.get_by_text("SmolLM2, a chat", exact=True).click()
    settled(page, "run=smollm2-chat")
    page.get_by_text("values", exact=True).first.click()
    settled(page, "part=value")
    page.get_by_text("tokens", exact=True).first.click()
    settled(page, "list=tokens")


def _effect(page: Page) -> None:
    page.get_by_text("Attention", exact=True).click()
    settled(page, "see=Attention", 2)
    page.get_by_role("slider").first.focus()
    page.keyboard.press("ArrowLeft")
    settled(page, "asked=152", 2)


def _race(page: Page) -> None:
    page.get_by_text("flushed to zero", exact=True).first.click()
    settled(page, "by=flushed", 2)


def _lesson(page: Page) -> None:
    page.get_by_role("button", name="Reveal").click()
    settled(page, "times=64")
    page.get_by_role("slider").first.focus()  # the last one is the guess, which is over
    page.keyboard.press("ArrowLeft")
    settled(page, "times=16")


def _nothing(page: Page) -> None:
    pass


VIEWS = {
    "microscope": (
        "?run=planted&layer=0&recipe=mxfp8_e4m3%3Bsink%3D4&baseline=head&colour=flushed&tokens=10-99&near=0",
        _nothing,
        {"recipe": ["mxfp8_e4m3;sink=4"], "baseline": ["head"], "tokens": ["10-99"], "near": ["0"]},
    ),
    "outliers": ("", _outliers, {"run": ["smollm2-chat"], "part": ["value"], "list": ["tokens"]}),
    "effect": ("", _effect, {"see": ["Attention"], "asked": ["152"]}),
    "race": ("", _race, {"run": ["qwen-code"], "by": ["flushed"]}),
    "lesson": ("?step=5", _lesson, {"step": ["5"], "shown": ["1"], "times": ["16"]}),
}


CHARTS = {"microscope": (4, 4), "outliers": (1, 1), "effect": (1, 2), "race": (2, 2), "lesson": (1, 1)}
"""Figures of each view, before and after."""


@pytest.mark.browser
@pytest.mark.parametrize("name", VIEWS)
def test_a_copied_link_gives_the_same_figures_in_a_fresh_browser(name: str, browser, server) -> None:
    asked, act, said = VIEWS[name]
    first = fresh(browser, f"{server.url}/{'' if name == 'microscope' else name}{asked}")
    settled(first, charts=CHARTS[name][0])
    before = figures(first)
    act(first)
    link, seen = copied(first), figures(first)
    assert act is _nothing or seen != before
    held = parse_qs(urlsplit(link).query)
    assert {key: held.get(key) for key in said} == said and held["theme"] == ["light"]
    second = fresh(browser, link)
    settled(second, charts=CHARTS[name][1])
    assert figures(second) == seen
    assert parse_qs(urlsplit(second.url).query) == held, "opening a link changes what it says"
    assert "Traceback" not in server.text()
    for page in (first, second):
        page.context.close()


@pytest.mark.browser
def test_a_link_brings_its_theme_and_back_goes_back(browser, server) -> None:
    page = fresh(browser, f"{server.url}/outliers?theme=dark&run=smollm2-chat", scheme="light")
    page.wait_for_url("**embed_options=dark_theme**", timeout=60_000)
    page.wait_for_function(
        "getComputedStyle(document.querySelector('.stApp')).backgroundColor == 'rgb(16, 24, 28)'"
    )
    settled(page, "embed_options")
    assert "embed_options" not in copied(page)
    before = figures(page)
    page.get_by_text("values", exact=True).first.click()
    settled(page, "part=value")
    assert figures(page) != before
    page.go_back()
    page.wait_for_function("!location.search.includes('part=value')")
    settled(page)
    assert figures(page) == before
    page.context.close()


# Whatever an address says

HOSTILE = {
    "markup": "run=<script>alert(1)</script>&<img src=x onerror=alert(1)>=1&recipe=<b>bold</b>",
    "a path": "run=../../../../etc/passwd&model=/etc/passwd&colour=../../pyproject.toml",
    "another path": "run=..%2f..%2fcanary&run=%2e%2e/canary&file=file:///etc/passwd",
    "a huge text": "find=" + "a" * 60_000,
    "no numbers": "layer=nan&head=inf&token=1e999&channel=0x10&tokens=nan-inf&around=--1",
    "out of reach": "layer=-1&head=-1&token=99999999999999999999&channel=-7&tokens=9-3",
    "an unknown run": "run=llama-9&part=query&list=everything&see=all&by=luck",
    "wrong recipes": "recipe=mxfp99;sink=-4&baseline=fp4@galaxy&rope=1",
    "other scripts": "run=کوئن&recipe=混合;ключ=ą&find=%F0%9F%99%82%00%0A%E2%80%AE&%E2%98%83=%E2%98%83",
    "repeated": "&".join(["run=planted&run=qwen-code&layer=0&layer=1&theme=pink&theme=dark&present=7"] * 9),
    "broken": "%&&&===&%zz=%zz&run&layer=&recipe=%&=1&theme[]=dark&__proto__=1&run-choice=1&run.x=1",
}


@pytest.mark.browser
def test_hostile_addresses_give_a_calm_line_and_a_page(browser, server) -> None:
    page = fresh(browser, "about:blank")
    page.on("dialog", lambda dialog: pytest.fail(f"the address ran a script: {dialog.message}"))
    for what in ("markup", "a huge text", "broken"):
        page.goto(f"{server.url}/outliers?{HOSTILE[what]}")
        said = page.get_by_text("A part of this link means nothing here", exact=False)
        expect(said, what).to_have_count(1, timeout=60_000)
        settled(page, "theme=light")
        expect(page.get_by_test_id("stException"), what).to_have_count(0)
        assert set(parse_qs(urlsplit(page.url).query)) <= KNOWN, f"{what}: {page.url[:200]}"
    answered = page.request.get(f"{server.url}/outliers?find=" + "a" * 2**20)
    assert 400 <= answered.status < 500
    page.goto(f"{server.url}/outliers")
    settled(page, "theme=light")
    assert "Traceback" not in server.text()
    page.context.close()


@pytest.mark.parametrize("what", HOSTILE)
@pytest.mark.parametrize("name", ["outliers", "run"])
def test_every_hostile_address_leaves_the_defaults(name: str, what: str) -> None:
    at = app(name, HOSTILE[what])
    assert not at.exception and not at.error
    calm = [info.value for info in at.info if "A part of this link means nothing here" in info.value]
    told = name == "outliers" or what not in ("a huge text", "no numbers", "out of reach", "wrong recipes")
    assert len(calm) == told and all("<" not in line and "/" not in line for line in calm)
    assert set(at.query_params) <= KNOWN
    assert name != "outliers" or at.session_state["run"] in gallery.RUNS


def _opened(page: str) -> None:
    from mxviz.views import pages

    pages._opener(page)()


def app(page: str, query: str = "", **state) -> AppTest:
    """The page as the app opens it at an address."""
    at = AppTest.from_function(_opened, kwargs={"page": page}, default_timeout=120)
    for name, texts in parse_qs(query, keep_blank_values=True).items():
        at.query_params[name] = texts
    for key, value in state.items():
        at.session_state[key] = value
    return at.run()


OPENED: list[str] = []
_watching = False


def _watch(event: str, args: tuple) -> None:
    if _watching and event == "open" and isinstance(args[0], str):
        OPENED.append(args[0])


sys.addaudithook(_watch)


def test_no_address_reads_a_file_outside_of_the_gallery(tmp_path) -> None:
    global _watching
    canary = tmp_path / "elsewhere.safetensors"
    shutil.copy(ASSETS / "gallery" / "planted.safetensors", canary)
    text = str(canary.with_suffix(""))
    app("outliers", "run=planted")  # what the page itself reads is read
    _watching = True
    try:
        for value in (text, f"../../..{text}", str(canary), f"file://{canary}"):
            for name in FIELDS:
                permalink_read = "&".join(f"{field.name}={value}" for field in FIELDS[name])
                if name in ("outliers", "run"):
                    assert not app(name, permalink_read).exception
    finally:
        _watching = False
    assert OPENED and not [path for path in OPENED if "elsewhere" in path]


def test_a_link_to_a_run_fills_in_its_settings_and_starts_nothing() -> None:
    capture = made_capture()
    link = permalink.settings_link(capture)
    page, _, query = link.partition("?")
    at = app(page, query)
    assert not at.exception and at.session_state["prompt"] == capture.prompt
    assert (
        at.session_state["recipe"] == capture.recipe and at.session_state["seed"] == capture.sampling["seed"]
    )
    assert "job" not in at.session_state or at.session_state["job"] is None


def test_an_own_run_is_in_no_link_and_the_page_says_so() -> None:
    at = app("outliers", shelf={"own-1": gallery.Own("mine", made_capture())}, run="own-1")
    assert not at.exception
    assert any("No link can hold a run of your own" in caption.value for caption in at.caption)
    assert not {"run", "layer", "recipe"} & set(at.query_params)


def test_names_are_one_word_each_and_every_page_has_its_fields() -> None:
    assert FIELDS.keys() == PAGES.keys() and set(USUAL) < KNOWN
    for fields in FIELDS.values():
        names = [field.name for field in fields]
        assert len(names) == len(set(names))
