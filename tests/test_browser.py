"""The whole chain in real Chromium: type a prompt, press Generate, read three texts, see three figures."""

from __future__ import annotations

import re
import time

import pytest
from playwright.sync_api import Page, expect, sync_playwright

from tests.browser import CHROMIUM_ARGS, serve


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with serve(tmp_path_factory.mktemp("server") / "log.txt") as running:
        yield running


@pytest.fixture(scope="module")
def browser(chromium):
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=CHROMIUM_ARGS)
        yield browser
        browser.close()


@pytest.fixture
def page(browser, server):
    """An open page that fails its test on any console error."""
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    errors: list[str] = []
    page.on("console", lambda m: errors.append(m.text) if m.type == "error" else None)
    page.on("pageerror", lambda e: errors.append(str(e)))
    page.goto(server.url)
    yield page
    page.close()
    assert errors == []


def wait_for_figures(page: Page, count: int = 3) -> None:
    page.wait_for_function(
        """count => {
            const plots = [...document.querySelectorAll('.stPlotlyChart .js-plotly-plot')];
            return plots.length >= count && plots.every(p => p.querySelector('.heatmaplayer image'));
        }""",
        arg=count,
        timeout=60_000,
    )


def generate(page: Page, prompt: str) -> None:
    box = page.get_by_label("Prompt", exact=True)
    box.fill(prompt)
    box.press("Control+Enter")
    page.get_by_role("button", name="Generate").click()
    page.wait_for_function(
        "document.querySelector('[data-testid=stAlert]') || /Stop/.test(document.body.innerText)",
        timeout=20_000,
    )


def wait_for_the_end(page: Page) -> None:
    expect(page.get_by_role("button", name="Stop")).to_have_count(0, timeout=240_000)
    expect(page.get_by_role("button", name="Generate")).to_be_visible()
    wait_for_figures(page)


def test_first_view_is_true_with_nothing_clicked(page, server):
    expect(page.get_by_role("heading", level=1)).to_be_visible(timeout=60_000)
    wait_for_figures(page)
    assert len(page.locator(".mx-lane .mx-text").all_inner_texts()) == 3
    assert "Traceback" not in server.text()


def test_a_newcomer_generates_and_sees_what_it_did(page, server):
    wait_for_figures(page)
    page.get_by_text("Recipe, baseline, length and sampling").click()
    page.get_by_label("New tokens").fill("24")
    page.get_by_label("New tokens").press("Enter")
    generate(page, "Name three colours of the rainbow.")
    wait_for_the_end(page)
    expect(page.locator(".mx-prompt").first).to_contain_text("three colours")

    texts = page.locator(".mx-lane .mx-text").all_inner_texts()
    assert len(texts) == 3 and all(len(text) > 10 for text in texts)
    cards = dict(
        zip(
            page.locator(".mx-card h4").all_inner_texts(),
            page.locator(".mx-card .mx-micro").all_inner_texts(),
            strict=True,
        )
    )
    assert cards["Bits per element"] == "4.25"
    assert cards["Bytes per token"].split() == ["6,120", "3.8×", "smaller"]
    assert re.fullmatch(r"\d+\.\d dB", cards["Key SQNR"]) and re.fullmatch(r"\d+\.\d dB", cards["Value SQNR"])
    assert re.fullmatch(r"\d\.\d{3} nats", cards["Next-token KL"])
    assert re.fullmatch(r"\d+%", cards["Same top token"])
    assert float(cards["Speed"].split()[0]) > 0
    assert "Traceback" not in server.text() and "torch.classes" not in server.text()


def test_stop_keeps_what_was_written(page, server):
    wait_for_figures(page)
    page.get_by_text("Recipe, baseline, length and sampling").click()
    page.get_by_label("New tokens").fill("2000")
    page.get_by_label("New tokens").press("Enter")
    generate(page, "Tell a very long story about a kitchen.")
    expect(page.locator(".mx-prompt").first).to_contain_text("very long story", timeout=60_000)
    expect(page.locator(".mx-exact .mx-text").first).to_contain_text(re.compile(r"\w{3,}"), timeout=240_000)
    page.get_by_role("button", name="Stop").click()
    pressed = time.monotonic()
    expect(page.get_by_role("button", name="Stop")).to_have_count(0, timeout=60_000)
    assert time.monotonic() - pressed < 45
    expect(page.locator(".mx-prompt").first).to_contain_text("very long story")
    assert page.locator(".mx-exact .mx-text").inner_text().strip()


@pytest.mark.parametrize(
    ("label", "typed", "said"),
    [
        ("Model", "no-such-model", "no-such-model"),
        ("Model", "/etc/hostname.gguf", "hostname.gguf"),
        ("Recipe", "mxfp5", "unknown scheme 'mxfp5'"),
        ("Recipe", "mxfp4;sink=-1", "sink="),
        ("Baseline", "int5@tensor", "int5@tensor"),
    ],
)
def test_a_wrong_choice_gets_one_calm_line(page, server, label, typed, said):
    wait_for_figures(page)
    page.get_by_text("Recipe, baseline, length and sampling").click()
    box = page.get_by_role("combobox", name=re.compile(f"{label}( \\(|:)"))
    box.fill(typed)
    box.press("Enter")
    generate(page, "Hello")
    wait_for_figures(page)
    alert = page.locator("[data-testid=stAlert]")
    expect(alert).to_contain_text(said, timeout=60_000)
    assert "\n" not in alert.locator("p").inner_text().strip()
    wait_for_figures(page)  # what was there before is still there
    assert "Traceback" not in server.text()


def test_hostile_prompt_stays_literal(page, server):
    wait_for_figures(page)
    page.get_by_text("Recipe, baseline, length and sampling").click()
    page.get_by_label("New tokens").fill("3")
    page.get_by_label("New tokens").press("Enter")
    prompt = "costs $5 and $6 <img src=x onerror=document.title='owned'> <b>bold</b> </style> :red[hm]"
    generate(page, prompt)
    expect(page.locator(".mx-prompt").first).to_contain_text(prompt, timeout=60_000)
    wait_for_the_end(page)
    expect(page.locator(".mx-prompt").first).to_contain_text(prompt)
    assert page.title() != "owned"
    assert page.locator(".mx-prompt b, .mx-prompt img").count() == 0
