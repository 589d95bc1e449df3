"""Files: literal text in SVG and PDF (F2), no Chrome (F3), provenance, offline HTML."""

import csv
import io
import json
import os
import re
import stat
import struct
import subprocess
import time
import zipfile
import zlib
from xml.etree import ElementTree

import numpy as np
import pypdf
import pytest

from mxviz import export
from mxviz._export_sheet import SIZES, Sheet, put_on, size_of
from mxviz._paths import ASSETS
from mxviz.capture import Capture
from mxviz.figures import magnitude_map
from mxviz.figures.labels import visible
from mxviz.pictures import available, figure_file, place_of

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
    kinds = (*export.CHROME, "html")
    return {kind: export.write(fig, folder / f"f.{kind}", provenance=ABOUT) for kind in kinds}


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
    assert info["/Title"] == "Costs $5 and $6, <b>not</b> TeX"
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
    with pytest.raises(ValueError, match=r"\.svg, \.png, \.pdf, \.html, \.csv, \.npz"):
        export.write(fig, tmp_path / "f.eps")
    with pytest.raises(ValueError, match="slide, square, column, page, figure, phone"):
        export.write(fig, tmp_path / "f.html", size="wall")
    with pytest.raises(ValueError, match="table="):
        export.write(fig, tmp_path / "f.csv")
    with pytest.raises(ValueError, match="needs a figure"):
        export.write(None, tmp_path / "f.svg")


def test_npz_is_arrays_that_need_no_pickle(tmp_path):
    rows = [(0, "a", 1.5, None), (1, "שלום", 2.5, 3)]
    path = export.write(
        None, tmp_path / "f.npz", table=(("token", "text", "x", "y: z"), rows), provenance=ABOUT
    )
    with np.load(path) as arrays:
        assert arrays["token"].tolist() == [0, 1] and arrays["x"].tolist() == [1.5, 2.5]
        assert arrays["text"].tolist() == ["a", "שלום"]
        np.testing.assert_array_equal(arrays["y: z"], [np.nan, 3])
        assert "mxfp4:axis=token" in str(arrays["provenance"])


# Sheets


def drawn(**look):
    x = np.random.default_rng(0).normal(size=(40, 64))
    return magnitude_map(x, [f"t{i}" for i in range(40)], title="A sentence of its own", subtitle="s", **look)


def below(fig):
    return [note.text for note in fig.layout.annotations if note.name == "below"]


@pytest.mark.parametrize("scale", [0.5, 0.8, 1.0, 1.1, 1.25, 1.37, 1.6, 2.0, 2.9])
@pytest.mark.parametrize("size", SIZES)
def test_a_sheet_keeps_its_size_at_every_font_scale(size, scale):
    laid, plain = size_of(Sheet(size=size, font_scale=scale)), SIZES[size]
    assert laid.width * laid.zoom == pytest.approx(plain.width or 1280)
    assert laid.zoom == pytest.approx(scale, rel=0.02)
    if plain.height:
        assert laid.height * laid.zoom == pytest.approx(plain.height)


def test_own_words_move_the_figure_and_keep_its_size():
    plain = put_on(Sheet(), drawn)
    assert (plain.layout.width, plain.layout.height) == (1280, 720) and below(plain) == []
    words = Sheet(title="A <b>long</b> one " * 12, caption="Figure 1: $x$ & more", provenance=True)
    fig = put_on(words, drawn, "made by hand · mxviz")
    assert fig.layout.height == 720 and fig.layout.title.text.count("<br>") >= 1
    assert "&lt;b" in fig.layout.title.text or "&#60;b" in fig.layout.title.text
    assert len(below(fig)) == 2 and below(fig)[1] == "made by hand · mxviz"
    assert fig.layout.margin.t > plain.layout.margin.t and fig.layout.margin.b > plain.layout.margin.b
    assert fig.layout.meta["alt"] == plain.layout.meta["alt"]
    bare = put_on(Sheet(title="", size="figure"), drawn)
    free = put_on(Sheet(size="figure"), drawn)
    assert not bare.layout.title.text
    assert bare.layout.height == free.layout.height - round(1.3 * 27)
    assert below(put_on(Sheet(), drawn, "shown only when asked for")) == []


def test_a_transparent_sheet_has_no_background():
    for ground, theme in (("transparent", "light"), ("transparent-dark", "dark")):
        fig, same = put_on(Sheet(ground), drawn), put_on(Sheet(theme), drawn)
        assert fig.layout.paper_bgcolor == fig.layout.plot_bgcolor == "rgba(0,0,0,0)"
        assert fig.layout.title.font.color == same.layout.title.font.color


@pytest.mark.parametrize(
    ("sheet", "said"),
    [
        (Sheet("blue"), "light, dark, transparent, transparent-dark"),
        (Sheet(size="wall"), "slide, square, column, page, figure, phone"),
        (Sheet(font_scale=9), "font scale 9; expected 0.5 to 3"),
        (Sheet(caption="word " * 1200), "does not fit the size slide"),
    ],
)
def test_sheets_that_cannot_be_are_named(sheet, said):
    with pytest.raises(ValueError, match=said):
        put_on(sheet, drawn)


# Every figure as every kind of file


@pytest.fixture(scope="module")
def run():
    return Capture.load(ASSETS / "gallery" / "qwen-code.safetensors")


SHEET = Sheet(caption="A caption of its own", provenance=True, font_scale=1.1)


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["svg", "png", "pdf"])
def test_every_figure_is_drawn_into_a_file(run, kind):
    names = available(run)
    assert len(names) == 15
    files = [figure_file(run, name, place_of(run, name), SHEET) for name in names]
    for name, file, data in zip(names, files, export.made(files, kind), strict=True):
        _CHECKS[kind](name, file, data)


def _sentence(file):
    return file.fig.layout.title.text.replace("<br>", " ").replace("&#37;", "%").replace("\xa0", " ")


def _check_svg(name, file, data):
    root = ElementTree.fromstring(data)
    assert (float(root.get("width")), float(root.get("height"))) == pytest.approx((1280, 720))
    texts = [" ".join("".join(n.itertext()).split()) for n in root.iter("{http://www.w3.org/2000/svg}text")]
    said = " ".join(texts)
    assert "A caption of its own" in said and "prompt " in said and "Qwen2.5-Coder" in said, name
    assert _sentence(file).split()[0] in said, name
    assert f'"figure": "{name}"' in root.find("{*}metadata").text


def _check_png(name, file, data):
    assert struct.unpack(">II", data[16:24]) == (1920, 1080), name
    assert f'"figure": "{name}"' in dict(text_chunks(data))["Comment"]


def _check_pdf(name, file, data):
    reader = pypdf.PdfReader(io.BytesIO(data))
    assert len(reader.pages) == 1, name
    box = reader.pages[0].mediabox
    assert float(box.width / box.height) == pytest.approx(16 / 9, rel=0.01)
    assert "A caption of its own" in " ".join(reader.pages[0].extract_text().split()), name
    assert f'"figure": "{name}"' in reader.metadata["/Keywords"]


_CHECKS = {"svg": _check_svg, "png": _check_png, "pdf": _check_pdf}


def test_all_figures_of_a_run_as_one_zip(tmp_path):
    from made_capture import made_capture

    from mxviz._export_bundle import bundle

    capture, said = made_capture(), []
    data = bundle(capture, "html", Sheet(title="not for all"), {"layer": 0, "head": 1}, said.append)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        names = archive.namelist()
        index = json.loads(archive.read("index.json"))
        assert len(archive.read("scales.html")) > 1_000_000
        assert archive.read("scales.csv").decode().splitlines()[1] == "token,block,scale,byte"
        assert "not for all" not in archive.read("scales.html").decode()
    assert list(index) == available(capture) and "drawing scales" in said
    assert {f"{name}.csv" for name in index} | {f"{name}.html" for name in index} <= set(names)
    assert index["scales"]["from"]["layer"] == 0 and index["scales"]["shows"]


def test_the_notebook_is_executed_small_and_of_no_machine():
    path = ASSETS.parent / "docs" / "notebook.ipynb"
    text = path.read_text(encoding="utf-8")
    notebook = json.loads(text)
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert (notebook["nbformat"], len(text) < 1_000_000) == (4, True)
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    for cell in cells:
        compile("".join(cell["source"]), "cell", "exec")
        assert cell["outputs"] and all(out["output_type"] != "error" for out in cell["outputs"])
    pictures = [
        out["data"] for cell in cells for out in cell["outputs"] if "image/png" in out.get("data", {})
    ]
    assert len(pictures) >= 3 and all(len("".join(data["text/plain"])) > 40 for data in pictures)
    assert not re.search(r"/(home|root|work|tmp|Users)/", re.sub(r'"image/png": "[^"]*"', "", text))
