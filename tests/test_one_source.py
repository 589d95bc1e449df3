"""One source: the API, `mxviz figure` and the page give the same JSON for the same inputs."""

from __future__ import annotations

import json

import pytest
from made_capture import made_capture
from streamlit.testing.v1 import AppTest

from mxviz import cli
from mxviz.pictures import Sheet, available, figure_file, place_of
from mxviz.views import gallery, studio

PAGE = """
import streamlit as st
from mxviz.views import studio
st.set_page_config(layout="wide")
studio.page()
"""
CAPTURE = made_capture()


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("run") / "run.safetensors"
    CAPTURE.save(path)
    return path


@pytest.fixture
def page(monkeypatch):
    monkeypatch.setattr(gallery, "chosen", lambda: ("made", CAPTURE))
    return AppTest.from_string(PAGE, default_timeout=120).run()


def _in_html(text: str) -> tuple[list, dict]:
    """Data and layout of the one figure in a page that Plotly wrote."""
    decoder, at = json.JSONDecoder(), text.index("[", text.rindex("Plotly.newPlot("))
    data, at = decoder.raw_decode(text, at)
    layout, _ = decoder.raw_decode(text, text.index("{", at))
    return data, layout


@pytest.mark.parametrize("name", available(CAPTURE))
def test_api_command_and_page_give_the_same_json(name, path, page, tmp_path, monkeypatch) -> None:
    asked: list[dict] = []
    monkeypatch.setattr(
        studio,
        "place_of",
        lambda capture, name, **told: asked.append(told) or place_of(capture, name, **told),
    )
    chosen = next(box for box in page.selectbox if box.label == "Figure").set_value(name).run()
    shown = json.loads(chosen.get("plotly_chart")[0].proto.spec)
    told = {option: value for option, value in asked[-1].items() if value is not None}
    file = figure_file(CAPTURE, name, place_of(CAPTURE, name, **told), Sheet())
    made = json.loads(file.fig.to_json())
    assert made["data"]
    assert shown["data"] == made["data"]
    assert shown["layout"] == made["layout"]
    out = tmp_path / "figure.html"
    options = [word for option, value in told.items() for word in _words(option, value)]
    assert cli.main(["figure", str(path), name, "-o", str(out), "--size", "slide", *options]) == 0
    data, layout = _in_html(out.read_text())
    assert data == made["data"]
    assert layout == made["layout"]


def _words(option: str, value: object) -> list[str]:
    values = value if isinstance(value, (list, tuple)) else [value]
    return [f"--{option.replace('_', '-')}", *map(str, values)]
