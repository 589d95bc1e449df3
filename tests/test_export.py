"""Files: literal text in SVG and PDF (F2), no Chrome (F3), provenance, offline HTML."""

import csv
import io
import os
import stat
import struct
import subprocess
import time
import zlib
from xml.etree import ElementTree

import numpy as np
import pypdf
import pytest

from mxviz import export
from mxviz.figures import magnitude_map
from mxviz.figures.labels import visible

TOKENS = [
    *("<s>", "</s>", "<b>", "<br>", "<|im_start|>", "&lt;", "$$", "$x$", "%{x}", "\n", "  ", "Ġthe", "▁"),
    *("🙂", "שלום", "", "the", " the", "the"),
]
ABOUT = {"model": "Qwen <x> & שלום", "recipe": "mxfp4:axis=token"}


@pytest.fixture(scope="module")
def fig():
    x = np.random.default_rng(0).normal(size=(len(TOKENS), 64))
    return magnitude_map(x, TOKENS, title="Costs $5 and $6, <b>not</b> TeX", subtitle="a & b", marked=[31])


@pytest.fixture(scope="module")
def files(fig, tmp_path_factory):
    folder = tmp_path_factory.mktemp("out")
    return {kind: export.write(fig, folder / f"f.{kind}", provenance=ABOUT) for kind in export.DRAWERS}


@pytest.mark.browser
def test_f2_svg_holds_every_token_literally(files):
    root = ElementTree.parse(files["svg"]).getroot()
    texts = ["".join(node.itertext()) for node in root.iter("{http://www.w3.org/2000/svg}text")]
    at = texts.index(visible(TOKENS[0]))
    assert texts[at : at + len(TOKENS)] == [visible(t) for t in TOKENS]
    assert "Costs $5 and $6, <b>not</b> TeX" in texts
    assert "MathJax" not in files["svg"].read_text()


@pytest.mark.browser
def test_f2_pdf_holds_every_token_literally(files):
    text = pypdf.PdfReader(files["pdf"]).pages[0].extract_text()
    squeezed = "".join(text.split())
    for token in TOKENS:
        assert "".join(visible(token).split()) in squeezed, token
    assert "Costs$5and$6,<b>not</b>TeX" in squeezed


@pytest.mark.browser
def test_slides_are_full_hd(files):
    data = files["png"].read_bytes()
    assert struct.unpack(">II", data[16:24]) == (1920, 1080)


@pytest.mark.browser
def test_every_file_says_where_it_came_from(files, fig):
    alt = fig.layout.meta["alt"]
    root = ElementTree.parse(files["svg"]).getroot()
    assert root.find("{*}desc").text == alt
    assert '"Qwen <x> & שלום"' in root.find("{*}metadata").text
    chunks = dict(text_chunks(files["png"].read_bytes()))
    assert chunks["Description"] == alt and "Qwen <x> & שלום" in chunks["Comment"]
    info = pypdf.PdfReader(files["pdf"]).metadata
    assert info["/Subject"] == alt and "Qwen <x> & שלום" in info["/Keywords"]
    page = files["html"].read_text()
    assert "Qwen &lt;x&gt; &amp; שלום" in page and "aria-label" in page


def text_chunks(png):
    """Yield keyword and text of the iTXt chunks, checking each chunk's checksum."""
    at = 8
    while at < len(png):
        (length,) = struct.unpack(">I", png[at : at + 4])
        body = png[at + 4 : at + 8 + length]
        assert struct.unpack(">I", png[at + 8 + length : at + 12 + length])[0] == zlib.crc32(body)
        if body[:4] == b"iTXt":
            keyword, rest = body[4:].split(b"\0", 1)
            yield keyword.decode(), rest[4:].decode()
        at += 12 + length


@pytest.mark.browser
def test_html_works_offline_and_runs_nothing_of_the_model(fig, tmp_path):
    from playwright.sync_api import sync_playwright

    path = export.write(fig, tmp_path / "f.html", provenance={"m": "</script><img src=x onerror=alert(1)>"})
    with sync_playwright() as p:
        browser = p.chromium.launch(
            executable_path=export.find_browser(), args=["--no-sandbox", "--disable-gpu"]
        )
        page = browser.new_page(viewport={"width": 1300, "height": 760})
        asked, alerts, errors = [], [], []
        page.on("request", lambda request: asked.append(request.url))
        page.on("dialog", lambda dialog: alerts.append(dialog.message))
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(path.as_uri())
        page.wait_for_selector(".nsewdrag")
        shown = page.locator(".annotation-text").all_text_contents()
        box = page.locator(".nsewdrag").first.bounding_box()
        hovers = []
        for i in range(len(TOKENS)):
            x = box["x"] + box["width"] * (i + 0.5) / len(TOKENS)
            page.mouse.move(x, box["y"] + 40)
            page.wait_for_function(
                "i => (document.querySelector('.hovertext')?.textContent || '').includes(`token ${i} ·`)",
                arg=i,
            )
            hovers.append(page.locator(".hovertext tspan.line").first.text_content())
        browser.close()
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []
    assert alerts == [] and errors == []
    at = shown.index(visible(TOKENS[0]))
    assert shown[at : at + len(TOKENS)] == [visible(t) for t in TOKENS]
    assert hovers == [visible(t) for t in TOKENS]


def test_f3_without_chrome_one_line_says_what_to_do(fig, tmp_path, monkeypatch):
    monkeypatch.setenv("BROWSER_PATH", str(tmp_path / "no-chrome-here"))
    assert export.find_browser() is None
    for kind in ("svg", "png", "pdf"):
        with pytest.raises(export.ExportError, match="apt-get install chromium") as caught:
            export.write(fig, tmp_path / f"f.{kind}")
        assert "\n" not in str(caught.value) and ".html export works" in str(caught.value)
        assert not (tmp_path / f"f.{kind}").exists()
    assert export.write(fig, tmp_path / "f.html").stat().st_size > 1_000_000


def program(path, text):
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


@pytest.mark.skipif(os.name != "posix", reason="the stand-in for a browser is a shell script")
def test_f3_a_browser_that_hangs_is_given_up_and_ended(fig, tmp_path, monkeypatch):
    pid = tmp_path / "pid"
    monkeypatch.setenv("BROWSER_PATH", program(tmp_path / "slow", f"echo $$ > {pid}\nexec sleep 100"))
    began = time.monotonic()
    with pytest.raises(export.ExportError, match="within 4 s"):
        export.write(fig, tmp_path / "f.svg", timeout=4)
    assert time.monotonic() - began < 15
    state = subprocess.run(
        ["ps", "-o", "stat=", "-p", pid.read_text().strip()], capture_output=True, text=True
    )
    assert state.stdout.strip()[:1] in ("", "Z"), "the browser was left running"


@pytest.mark.skipif(os.name != "posix", reason="the stand-in for a browser is a shell script")
def test_f3_a_browser_that_dies_is_one_line(fig, tmp_path, monkeypatch):
    monkeypatch.setenv("BROWSER_PATH", program(tmp_path / "dies", "exit 1"))
    with pytest.raises(export.ExportError, match=r"^Chrome could not draw the \.svg: [^\n]+$"):
        export.write(fig, tmp_path / "f.svg", timeout=30)


def test_csv_is_a_table_with_its_provenance(tmp_path):
    path = export.write(
        None, tmp_path / "f.csv", table=(("token", "x"), [("a,b", 1.5), ("שלום\n", 2)]), provenance=ABOUT
    )
    first, rest = path.read_bytes().decode().split("\n", 1)
    assert first.startswith("# ") and "mxfp4:axis=token" in first
    assert list(csv.reader(io.StringIO(rest, newline=""))) == [
        ["token", "x"],
        ["a,b", "1.5"],
        ["שלום\n", "2"],
    ]


def test_mistakes_are_named(fig, tmp_path):
    with pytest.raises(ValueError, match=r"\.svg, \.png, \.pdf, \.html, \.csv"):
        export.write(fig, tmp_path / "f.eps")
    with pytest.raises(ValueError, match="slide, figure, phone"):
        export.write(fig, tmp_path / "f.html", size="wall")
    with pytest.raises(ValueError, match="table="):
        export.write(fig, tmp_path / "f.csv")
    with pytest.raises(ValueError, match="needs a figure"):
        export.write(None, tmp_path / "f.svg")
