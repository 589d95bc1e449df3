"""The studio without a browser: it shows any figure on its sheet, and makes files when asked."""

from __future__ import annotations

import io
import json
import zipfile

import numpy as np
import pytest
from made_capture import made_capture
from streamlit.testing.v1 import AppTest

from mxviz.pictures import available
from mxviz.views import gallery, studio_files

PAGE = """
import streamlit as st
from mxviz.views import studio, style
st.set_page_config(layout="wide")
style.apply()
studio.page()
"""


@pytest.fixture
def opened(monkeypatch):
    """Open the page on a capture, as if a browser for pictures was there, or not."""

    def open_page(capture=None, browser: str | None = "/a/browser") -> AppTest:
        capture = capture or made_capture()
        monkeypatch.setattr(gallery, "chosen", lambda: ("made", capture))
        monkeypatch.setattr(studio_files, "find_browser", lambda: browser)
        at = AppTest.from_string(PAGE, default_timeout=120).run()
        assert not at.exception
        return at

    return open_page


def control(at: AppTest, kind: str, label: str):
    return next(widget for widget in at.get(kind) if widget.label == label)


def shown(at: AppTest) -> dict:
    return json.loads(at.get("plotly_chart")[0].proto.spec)


def made(at: AppTest) -> studio_files.Made:
    return at.session_state["studio-made"]


def test_it_opens_on_a_slide(opened) -> None:
    at = opened()
    layout = shown(at)["layout"]
    assert layout["meta"]["figure"] == "scales"
    assert (layout["width"], layout["height"], layout["paper_bgcolor"]) == (1280, 720, "#fdfdfb")
    assert not at.get("download_button"), "nothing is made before it is asked for"


@pytest.mark.parametrize("name", available(made_capture()))
def test_every_figure_can_be_chosen(opened, name) -> None:
    at = opened()
    control(at, "selectbox", "Figure").set_value(name).run()
    assert not at.exception and not at.get("info")
    assert shown(at)["layout"]["height"] == 720


def test_the_sheet_follows_its_controls_and_not_the_page(opened) -> None:
    at = opened()
    control(at, "selectbox", "Size").set_value("square")
    control(at, "button_group", "Background").set_value("transparent-dark")
    control(at, "text_input", "Title").set_value("Costs $5 <b>")
    control(at, "text_input", "Caption").set_value("Below")
    control(at, "toggle", "A last line says where it came from").set_value(True)
    control(at, "slider", "Font scale").set_value(1.5).run()
    assert not at.exception
    layout = shown(at)["layout"]
    assert (layout["width"], layout["height"]) == (576, 576)
    assert layout["paper_bgcolor"] == "rgba(0,0,0,0)" and layout["font"]["color"] == "#e6ecec"
    assert layout["title"]["text"].startswith("Costs")
    below = [note["text"] for note in layout["annotations"] if note.get("name") == "below"]
    assert below[0] == "Below" and "made by hand" in below[1]


def test_what_does_not_fit_is_said_calmly(opened) -> None:
    at = opened()
    control(at, "text_input", "Caption").set_value("word " * 1500).run()
    assert not at.exception and "does not fit the size slide" in at.get("info")[0].value


@pytest.mark.parametrize("kind", ["html", "csv", "npz"])
def test_a_file_is_made_when_asked(opened, kind) -> None:
    at = opened()
    control(at, "button_group", "File").set_value(kind).run()
    control(at, "button", "Make this file").click().run()
    assert not at.exception and len(at.get("download_button")) == 1
    assert made(at).name == f"mxviz-made-scales.{kind}"
    if kind == "npz":
        assert np.load(io.BytesIO(made(at).data))["scale"].size == 70 * 2
    else:
        assert b'"figure": "scales"' in made(at).data.replace(b"&quot;", b'"')
    control(at, "selectbox", "Size").set_value("page").run()
    assert not at.get("download_button"), "it was made for another sheet"


def test_without_chrome_one_line_says_so_and_the_rest_works(opened) -> None:
    at = opened(browser=None)
    assert control(at, "button_group", "File").options == ["HTML", "CSV", "NPZ"]
    assert any("apt-get install chromium" in line.value for line in at.caption)
    control(at, "button", "Make this file").click().run()
    assert made(at).data.startswith(b"<!DOCTYPE html>")


def test_a_browser_that_fails_is_one_line(opened, monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("BROWSER_PATH", str(tmp_path / "no-chrome-here"))
    at = opened()
    control(at, "button", "Make this file").click().run()
    assert not at.exception and not at.get("download_button")
    assert "apt-get install chromium" in at.error[0].value


def test_all_figures_as_one_zip(opened) -> None:
    capture = made_capture()
    at = opened(capture, browser=None)
    control(at, "button", "Make the zip").click().run(timeout=120)
    assert not at.exception
    with zipfile.ZipFile(io.BytesIO(made(at).data)) as archive:
        assert list(json.loads(archive.read("index.json"))) == available(capture)


def test_what_a_tensor_cannot_give_is_not_offered(opened) -> None:
    at = opened(made_capture(effect={}, lanes={}, values={}))
    names = control(at, "selectbox", "Figure").options
    assert (
        "Shared scales" in names and "KL at every token" not in names and "Where one query looks" not in names
    )
