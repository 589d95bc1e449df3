"""The walk that the microscope is for, in real Chromium: overview → head → block → value."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

pytestmark = pytest.mark.browser

_POINT = """
([figure, trace, place]) => {
    const plot = [...document.querySelectorAll('.stPlotlyChart .js-plotly-plot')]
        .find(p => p.layout && p.layout.meta && p.layout.meta.figure === figure)
    if (!plot) return null
    for (const t of plot._fullData.filter(t => t.name === trace)) {
        for (let i = 0; i < t.x.length; i++) {
            const data = t.customdata[i]
            if (!place.every((want, j) => want === null || data[j] === want)) continue
            const name = axis => (t[axis + 'axis'] || axis).replace(axis, axis + 'axis')
            const x = plot._fullLayout[name('x')], y = plot._fullLayout[name('y')]
            plot.scrollIntoView({ block: 'center' })
            const box = plot.getBoundingClientRect()
            const bar = t.type === 'bar'
            const across = t.x[i] + (bar ? t.width[i] / 2 : 0)
            const down = bar ? t.base[i] + t.y[i] / 2 : t.y[i]
            return [box.left + x._offset + x.d2p(across), box.top + y._offset + y.d2p(down)]
        }
    }
    return null
}
"""
"""Where on the screen the point lies whose custom data begins so; null is any."""

_CUTS = """
() => {
    const plots = [...document.querySelectorAll('.js-plotly-plot')]
    const bars = plots.find(p => p.layout.meta && p.layout.meta.figure === 'cuts')
    return [bars.layout.title.text.replaceAll('<br>', ' '), ...bars.data[0].customdata]
}
"""


@pytest.fixture(params=[(1280, "light"), (390, "dark")], ids=["desktop", "phone"])
def page(request, browser, server):
    """An open page that fails its test on any console error."""
    width, scheme = request.param
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    errors: list[str] = []
    page.on("console", lambda m: errors.append(m.text) if m.type == "error" else None)
    page.on("pageerror", lambda e: errors.append(str(e)))
    page.goto(server.url)
    yield page
    page.close()
    assert errors == []
    assert "Traceback" not in server.text()


def settled(page: Page) -> None:
    """Wait until nothing runs and all figures are drawn."""
    page.wait_for_function(
        """() => {
            const plots = [...document.querySelectorAll('.stPlotlyChart .js-plotly-plot')]
            const drawn = p => p._fullLayout && p.querySelector('.cartesianlayer .subplot')
            return plots.length >= 4 && plots.every(drawn) &&
                !document.querySelector('[data-testid=stStatusWidget], [data-stale=true]')
        }""",
        timeout=60_000,
    )
    page.wait_for_timeout(300)


def click(page: Page, figure: str, trace: str, place: list) -> None:
    """Click the point of a figure whose custom data begins like that, as a person does: hover, then press."""
    settled(page)
    page.wait_for_function(_POINT, arg=[figure, trace, place], timeout=20_000)
    page.wait_for_timeout(200)  # the scroll
    x, y = page.evaluate(_POINT, [figure, trace, place])
    page.mouse.move(x - 2, y - 1)
    page.mouse.move(x, y, steps=3)
    page.wait_for_timeout(150)
    page.mouse.click(x, y)
    settled(page)


def expect_said(page: Page, pattern: str) -> str:
    """Wait until the inspector says this of the value that is looked at; return all that it says."""
    line = page.locator(".mx-key", has_text="one scale:").last
    expect(line).to_contain_text(re.compile(pattern), timeout=20_000)
    settled(page)
    return line.inner_text()


def shoot(page: Page, path: Path) -> None:
    page.screenshot(path=str(path))


def test_from_a_cold_start_to_the_wild_channel(page: Page, tmp_path: Path) -> None:
    settled(page)
    shoot(page, tmp_path / "0-cold.png")
    page.get_by_text("Qwen", exact=False).first.click()  # 1: the run
    settled(page)
    click(page, "overview", "cells", ["key", 8, 0])  # 2: the head
    shoot(page, tmp_path / "1-head.png")
    expect(page.get_by_text("Layer 8, KV head 0, keys.", exact=False).first).to_be_visible()
    title, *bars = page.evaluate(_CUTS)
    shares = {name: float(share.split()[0]) for name, share in bars}
    assert shares["INT4, one scale for the layer"] > 95 and shares["FP4, one scale for the layer"] > 94
    assert 45 < shares["MXFP4, a scale per 32 channels"] < 60
    assert shares["MXFP4, a scale per 32 tokens"] < 10
    words = [float(share) for share in re.findall(r"(\d+(?:\.\d)?)\s&#37;", title)]
    assert words == [shares[f"MXFP4, a scale per 32 {way}"] for way in ("tokens", "channels")] + [
        shares["FP4, one scale for the layer"]
    ]
    click(page, "head", "blocks", [32, 31])  # 3: the block
    shoot(page, tmp_path / "2-block.png")
    expect_said(page, r"token (3[2-9]|[45]\d|6[0-3]), channel 31: −2\d\d")
    click(page, "rulers", "values", [8])  # 4: the value
    shoot(page, tmp_path / "3-value.png")
    text = expect_said(page, r"token 40, channel 31: −2")
    found = re.search(r"31: −(\d+).*code 1111, reads −192; one scale: code 1111", text)
    assert found and 200 < int(found[1]) < 220
    assert page.get_by_label("Channel", exact=True).input_value() == "31"
    assert page.get_by_label("Token", exact=True).input_value() == "40"
    assert "own ruler" in page.locator(".stPlotlyChart").filter(has_text="exact").last.inner_text()
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "0-cold.png",
        "1-head.png",
        "2-block.png",
        "3-value.png",
    ]


def test_the_keyboard_alone_reaches_the_same_value(page: Page) -> None:
    settled(page)
    box = page.get_by_label("Channel", exact=True)
    box.fill("5")
    box.press("Enter")
    expect_said(page, "channel 5:")
    layer = page.get_by_role("slider", name="Layer")
    layer.focus()
    layer.press("ArrowRight")
    expect(page.get_by_text("Layer 9, KV head", exact=False).first).to_be_visible(timeout=20_000)
    settled(page)
    layer = page.get_by_role("slider", name="Layer")
    layer.focus()
    layer.press("ArrowLeft")
    expect(page.get_by_text("Layer 8, KV head 0", exact=False).first).to_be_visible(timeout=20_000)
    expect_said(page, "channel 31:")  # opening a head goes to its largest value


_MARK = """
() => document.querySelectorAll('.stPlotlyChart .js-plotly-plot').forEach(p => { p.wasHere = true })
"""
_FRESH = """
() => [...document.querySelectorAll('.stPlotlyChart .js-plotly-plot')]
    .filter(p => !p.wasHere).map(p => p.layout.meta.figure).sort()
"""


def test_a_control_redraws_its_own_figures(page: Page) -> None:
    settled(page)
    page.evaluate(_MARK)
    page.get_by_text("whole rulers", exact=True).click()
    page.wait_for_function(f"({_FRESH})().length > 0", timeout=20_000)
    settled(page)
    assert page.evaluate(_FRESH) == ["rulers"]
    page.evaluate(_MARK)
    box = page.get_by_label("Token", exact=True)
    box.fill("40")
    box.press("Enter")
    expect_said(page, "token 40, channel 31:")
    page.wait_for_function(f"({_FRESH})().length > 1", timeout=20_000)
    settled(page)
    assert page.evaluate(_FRESH) == ["head", "rulers"]
    page.evaluate(_MARK)
    page.get_by_role("slider", name="Layer").press("ArrowRight")
    page.wait_for_function(f"({_FRESH})().length > 3", timeout=20_000)
    assert page.evaluate(_FRESH) == ["cuts", "head", "overview", "rulers"]


def test_the_same_block_can_be_clicked_again(page: Page) -> None:
    click(page, "head", "blocks", [32, 31])
    expect_said(page, "token (3[2-9]|[45]\\d|6[0-3]), channel 31:")
    box = page.get_by_label("Channel", exact=True)
    box.fill("5")
    box.press("Enter")
    expect_said(page, "channel 5:")
    click(page, "head", "blocks", [32, 31])
    expect_said(page, "token (3[2-9]|[45]\\d|6[0-3]), channel 31:")


def test_the_table_is_walked_with_arrow_keys(page: Page) -> None:
    settled(page)
    box = page.get_by_label("Token", exact=True)
    box.fill("40")
    box.press("Enter")
    expect_said(page, "token 40, channel 31:")
    table = page.locator("[data-testid=stDataFrame] canvas").first
    table.scroll_into_view_if_needed()
    page.wait_for_timeout(300)
    at = table.bounding_box()
    page.mouse.click(at["x"] + 60, at["y"] + 35 + 17)  # the first row under the head
    expect_said(page, "token 32, channel 31:")
    page.keyboard.press("ArrowDown")
    expect_said(page, "token 33, channel 31:")
    page.keyboard.press("ArrowDown")
    expect_said(page, "token 34, channel 31:")
