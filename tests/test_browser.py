"""The whole chain in real Chromium: ask, read three texts, ask on, look into the cache, open a file."""

from __future__ import annotations

import re
import time

import numpy as np
import pytest
from playwright.sync_api import Locator, Page, expect

from mxviz.capture import Capture


@pytest.fixture
def page(browser, server):
    """The first page, which fails its test on any console error."""
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    errors: list[str] = []
    page.on("console", lambda m: errors.append(m.text) if m.type == "error" else None)
    page.on("pageerror", lambda e: errors.append(str(e)))
    page.goto(server.url)
    yield page
    page.close()
    assert errors == []
    assert "Traceback" not in server.text() and "torch.classes" not in server.text()


@pytest.fixture
def run_page(page):
    """The Run page, reached as a visitor does."""
    page.get_by_role("link", name="Run", exact=True).click()
    expect(page.locator(".mx-card").first).to_be_visible(timeout=60_000)
    return page


def wait_for_figures(page: Page) -> None:
    page.wait_for_selector(".stPlotlyChart .js-plotly-plot .heatmaplayer image", timeout=60_000)


def set_length(page: Page, tokens: int) -> None:
    page.get_by_text("Recipe, baseline, length and sampling").click()
    page.get_by_label("New tokens").fill(str(tokens))
    page.get_by_label("New tokens").press("Enter")


def generate(page: Page, prompt: str) -> None:
    box = page.get_by_label("Prompt", exact=True)
    box.fill(prompt)
    box.press("Control+Enter")
    page.get_by_role("button", name="Generate").click()
    page.wait_for_selector("[data-testid=stAlert], [data-testid=stProgress]", timeout=20_000)


def stop_button(page: Page) -> Locator:
    """Ours; Streamlit has one of its own at the top, which stops the drawing."""
    return page.locator("[data-testid=stMain]").get_by_role("button", name="Stop")


def wait_for_the_end(page: Page) -> None:
    expect(stop_button(page)).to_have_count(0, timeout=240_000)
    expect(page.get_by_role("button", name="Generate")).to_be_visible()
    expect(page.locator(".mx-card").first).to_be_visible()


def test_first_view_is_true_with_nothing_clicked(page):
    expect(page.get_by_role("heading", level=1)).to_be_visible(timeout=60_000)
    wait_for_figures(page)
    expect(page.get_by_text("Looking at")).to_be_visible()


def test_a_newcomer_generates_asks_on_and_looks_into_the_cache(run_page):
    page = run_page
    set_length(page, 24)
    generate(page, "Name three colours of the rainbow.")
    wait_for_the_end(page)
    expect(page.locator(".mx-prompt").first).to_contain_text("three colours")

    texts = page.locator(".mx-lane .mx-text").all_inner_texts()
    assert len(texts) == 3 and all(len(text) > 10 for text in texts)
    titles, micro = (page.locator(f".mx-card {what}").all_inner_texts() for what in ("h4", ".mx-micro"))
    cards = dict(zip(titles, micro, strict=True))
    assert cards["Bits per element"] == "4.25"
    assert re.fullmatch(r"[\d,]+ \d\.\d× smaller", " ".join(cards["Bytes per token"].split()))
    assert re.fullmatch(r"\d+\.\d dB", cards["Key SQNR"]) and re.fullmatch(r"\d+\.\d dB", cards["Value SQNR"])
    assert re.fullmatch(r"\d\.\d{3} nats", cards["Next-token KL"])
    assert re.fullmatch(r"\d+%", cards["Same top token"])
    assert float(cards["Speed"].split()[0]) > 0

    box = page.get_by_placeholder(re.compile("Ask on"))
    box.fill("And <b>three</b> more?")
    box.press("Enter")
    expect(page.locator(".mx-prompt").first).to_contain_text("And <b>three</b> more?", timeout=60_000)
    wait_for_the_end(page)
    expect(page.locator(".mx-prompt").first).to_contain_text("And <b>three</b> more?")
    expect(page.locator("[data-testid=stDataFrame]")).to_be_visible()
    expect(page.get_by_text("Earlier turns (1)")).to_be_visible()

    page.get_by_role("link", name=re.compile("Look into this cache")).click()
    wait_for_figures(page)
    chosen = page.get_by_role("radio", name="Your run 1")
    expect(chosen).to_have_attribute("aria-checked", "true")


def test_stop_keeps_what_was_written(run_page):
    page = run_page
    set_length(page, 2000)
    generate(page, "Tell a very long story about a kitchen.")
    expect(page.locator(".mx-prompt").first).to_contain_text("very long story", timeout=60_000)
    expect(page.locator(".mx-exact .mx-text").first).to_contain_text(re.compile(r"\w{3,}"), timeout=240_000)
    stop_button(page).click()
    pressed = time.monotonic()
    expect(stop_button(page)).to_have_count(0, timeout=60_000)
    assert time.monotonic() - pressed < 45
    expect(page.locator(".mx-prompt").first).to_contain_text("very long story")
    assert page.locator(".mx-exact .mx-text").first.inner_text().strip()


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
def test_a_wrong_choice_gets_one_calm_line(run_page, label, typed, said):
    page = run_page
    page.get_by_text("Recipe, baseline, length and sampling").click()
    box = page.get_by_role("combobox", name=re.compile(f"{label}( \\(|:)"))
    box.fill(typed)
    box.press("Enter")
    generate(page, "Hello")
    alert = page.locator("[data-testid=stAlert]")
    expect(alert).to_contain_text(said, timeout=60_000)
    assert "\n" not in alert.locator("p").inner_text().strip()
    expect(page.locator(".mx-card").first).to_be_visible()  # what was there before is still there


def test_hostile_prompt_stays_literal(run_page):
    page = run_page
    set_length(page, 3)
    prompt = "costs $5 and $6 <img src=x onerror=document.title='owned'> <b>bold</b> </style> :red[hm]"
    generate(page, prompt)
    expect(page.locator(".mx-prompt").first).to_contain_text(prompt, timeout=60_000)
    wait_for_the_end(page)
    expect(page.locator(".mx-prompt").first).to_contain_text(prompt)
    assert page.title() != "owned"
    assert page.locator(".mx-prompt b, .mx-prompt img").count() == 0


def test_a_file_is_opened_asked_about_and_saved(page, tmp_path):
    wait_for_figures(page)
    page.get_by_text("Open or save").click()
    upload = page.locator("[data-testid=stFileUploader] input[type=file]")
    (tmp_path / "bad <b>file.npz").write_bytes(b"PK\x03\x04 no zip")
    upload.set_input_files(tmp_path / "bad <b>file.npz")
    alert = page.locator("[data-testid=stAlert]")
    expect(alert).to_contain_text("damaged", timeout=30_000)
    page.locator("[data-testid=stFileUploader]").get_by_role("button", name=re.compile("Remove")).click()
    expect(alert).to_have_count(0)

    x = np.random.default_rng(0).standard_normal((2, 3, 40, 64)).astype(np.float32)
    np.save(tmp_path / "my keys.npy", x.transpose(0, 2, 1, 3))
    upload.set_input_files(tmp_path / "my keys.npy")
    axes = page.get_by_role("combobox", name=re.compile("What do they count"))
    expect(axes).to_be_visible(timeout=30_000)
    axes.fill("layers × tokens × heads × channels")
    axes.press("Enter")
    page.get_by_role("button", name="Open this tensor").click()
    expect(page.get_by_role("radio", name="my keys")).to_have_attribute(
        "aria-checked", "true", timeout=30_000
    )
    wait_for_figures(page)

    with page.expect_download() as download:
        page.get_by_role("button", name="Save this run").click()
    download.value.save_as(tmp_path / "saved.safetensors")
    saved = Capture.load(tmp_path / "saved.safetensors")
    assert saved.layers == (0, 1) and np.array_equal(saved.keys[1].numpy(), x[1])


@pytest.mark.parametrize("path", ["", "Run"])
def test_a_phone_sees_all_of_it(browser, server, path):
    page = browser.new_page(viewport={"width": 390, "height": 844})
    page.goto(server.url)
    wait_for_figures(page)
    if path:
        page.goto(f"{server.url}/{path.lower()}")
        expect(page.locator(".mx-card").first).to_be_visible(timeout=60_000)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.close()
