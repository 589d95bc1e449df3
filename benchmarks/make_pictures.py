"""Make the pictures of the README and the social card from the app as it is.

    python -m benchmarks.make_pictures [figures] [pages] [card]

Figures come from the gallery's Qwen run; pages are photographed in Chromium, as `make run` serves them.
"""

from __future__ import annotations

import base64
import sys
import tempfile
from html import escape, unescape
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

from mxviz._paths import ASSETS
from mxviz.capture import Capture
from mxviz.export import find_browser
from mxviz.pictures import Sheet, figure_file, place_of, write_picture
from tests.browser import CHROMIUM_ARGS, serve

PICTURES = Path(__file__).resolve().parents[1] / "docs" / "pictures"
RUN = ASSETS / "gallery" / "qwen-code.safetensors"
RECIPE = "mxfp4:axis=token"
FIGURES = ("error", "outliers", "scales", "rulers")
PAGES = {
    "page": ("", 1280),
    "page-390": ("", 390),
    "effect": ("effect", 1280),
    "race": ("race", 1280),
    "lesson": ("lesson?step=5", 1280),
}
"""Name of the picture to the page's address and the width it is seen at."""

CARD = """<!DOCTYPE html><html><body style="margin:0;width:1280px;height:640px;overflow:hidden;
background:#10181c;color:#e8ebea;font-family:'Noto Sans','DejaVu Sans',sans-serif">
<img src="{logo}" style="position:absolute;left:60px;top:34px;height:84px">
<p style="position:absolute;left:400px;top:30px;margin:0;width:850px;font-size:25px;line-height:1.6;
white-space:nowrap">
<b>A microscope for micro-scaled KV caches.</b><br>{said}.</p>
<div style="position:absolute;left:60px;top:152px;width:1160px;height:474px;overflow:hidden">
<img src="{picture}" style="width:1160px;margin-top:-78px"></div></body></html>"""


def figures() -> None:
    """Draw the figures of the README as slides."""
    capture = Capture.load(RUN)
    for name in FIGURES:
        sheet = {"size": "slide", "theme": "light", "show_provenance": True}
        write_picture(capture, name, PICTURES / f"{name}.png", recipe=RECIPE, **sheet)


def pages(browser: Browser) -> None:
    """Photograph pages in both themes, as far down as a reader sees without scrolling twice."""
    with tempfile.TemporaryDirectory() as folder, serve(Path(folder, "log")) as server:
        for name, (address, width) in PAGES.items():
            for theme in ("light", "dark"):
                size = {"width": width, "height": 1500 if width > 640 else 1800}
                page = browser.new_page(viewport=size, color_scheme=theme, device_scale_factor=1.25)
                page.goto(f"{server.url}/{address}")
                page.wait_for_selector(".stPlotlyChart .main-svg", timeout=120_000)
                page.wait_for_function(
                    "!document.querySelector('[data-testid=stStatusWidget], [data-stale=true]')"
                )
                page.wait_for_timeout(2_000)
                page.screenshot(path=PICTURES / f"{name}-{theme}.png")
                page.close()


def card(browser: Browser) -> None:
    """Make the card that a link to the project shows, 1280 × 640."""
    capture = Capture.load(RUN)
    file = figure_file(capture, "error", place_of(capture, "error", recipe=RECIPE), Sheet("dark", "slide"))
    said = str(file.fig.layout.title.text).split("<br>")[0]
    with tempfile.TemporaryDirectory() as folder:
        drawn = Path(folder, "error.png")
        write_picture(capture, "error", drawn, size="slide", theme="dark", recipe=RECIPE)
        found = {
            "logo": _inline(ASSETS / "logo.svg", "image/svg+xml"),
            "picture": _inline(drawn, "image/png"),
        }
        page = browser.new_page(viewport={"width": 1280, "height": 640}, color_scheme="dark")
        page.set_content(CARD.format(said=_plain(said), **found))
        page.wait_for_timeout(500)
        page.screenshot(path=PICTURES / "social-card.png")
        page.close()


def _plain(text: str) -> str:
    """A title without Plotly's markup."""
    while "<" in text:
        text = text[: text.index("<")] + text[text.index(">", text.index("<")) + 1 :]
    return escape(unescape(text))


def _inline(path: Path, kind: str) -> str:
    return f"data:{kind};base64,{base64.b64encode(path.read_bytes()).decode()}"


def main(asked: list[str]) -> None:
    wanted = asked or ["figures", "pages", "card"]
    if "figures" in wanted:
        figures()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_browser(), args=CHROMIUM_ARGS)
        for name, make in {"pages": pages, "card": card}.items():
            if name in wanted:
                make(browser)


if __name__ == "__main__":
    main(sys.argv[1:])
