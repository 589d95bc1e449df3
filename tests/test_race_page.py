"""The race page without a browser: figure, table and lines need no model; words are measured on request."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from made_capture import made_capture
from streamlit.testing.v1 import AppTest

from mxviz import _engine_race
from mxviz.capture import Capture
from mxviz.views import gallery, jobs, race_effect

EFFECT = {"kl": torch.full((70,), 0.25), "top1": torch.ones(70, dtype=torch.bool)}


def _page() -> None:
    from mxviz.views import race

    race.page()


@pytest.fixture
def opened(monkeypatch):
    """Open the page on a capture; its model is `a model` and is here unless said."""

    def open_page(capture: Capture, model: str | None = "a model", **state) -> AppTest:
        monkeypatch.setattr(gallery, "chosen", lambda: ("a run", capture))
        monkeypatch.setattr(race_effect, "model_here", lambda capture: model)
        at = AppTest.from_function(_page, default_timeout=60)
        for name, value in state.items():
            at.session_state[name] = value
        at.run()
        assert not at.exception
        return at

    return open_page


def spec(at: AppTest, i: int = 0) -> str:
    return at.get("plotly_chart")[i].proto.spec


def group(at: AppTest, label: str):
    return next(b for b in at.get("button_group") if b.label == label)


def finished(at: AppTest) -> AppTest:
    end = time.monotonic() + 30
    while at.session_state["measuring"] is not None:
        assert time.monotonic() < end
        time.sleep(0.05)
        at.run()
        assert not at.exception
    return at


def test_the_first_view_needs_no_model(opened, monkeypatch):
    monkeypatch.setattr(jobs, "loaded", lambda name: pytest.fail("the first view loaded a model"))
    at = opened(made_capture())
    assert len(at.get("plotly_chart")) == 2
    table = at.dataframe[0].value
    assert len(table) == 53 and list(table["bits"]) == sorted(table["bits"])
    assert table.set_index("scheme")["KL"].notna().sum() == 2, "the run's own recipe and baseline"
    assert any("32 / 40 bits" in line.value and "32 / 70 bits" in line.value for line in at.caption)


def test_measure_and_part_redraw(opened):
    at = opened(made_capture())
    seen = {spec(at)}
    group(at, "What is lost").set_value("flushed").run()
    seen.add(spec(at))
    group(at, "Part").set_value("value").run()
    seen.add(spec(at))
    group(at, "What is lost").set_value("sqnr").run()
    seen.add(spec(at))
    assert len(seen) == 4 and not at.exception


def test_nothing_measured_is_one_calm_line(opened):
    at = opened(replace(made_capture(), effect={}))
    assert [line.value for line in at.info] == [
        "KL was not measured in this run: what is flushed to zero stands in its place."
    ]
    assert len(at.get("plotly_chart")) == 2 and "% flushed to zero" in spec(at)


def test_lines_follow_what_is_lost_and_sqnr_says_what_it_hides(opened):
    """One INT4 scale for Qwen's layer 8 has its best SQNR there, and flushes nearly all of its keys."""
    at = opened(gallery.recorded("qwen-code"))
    assert "% flushed" in spec(at, 1) and "flushes 96.8" in spec(at, 1) and not at.warning
    group(at, "What is lost").set_value("sqnr").run()
    assert "SQNR hides it" in spec(at) and "&#37; in layer 8)" in spec(at)
    assert "INT4 per tensor in layer 8: SQNR 17.0 dB, the best of its 24 layers" in at.warning[0].value
    assert any("Σ" in line.value for line in at.caption), "SQNR is explained where it is drawn"


def test_a_run_without_its_model_offers_no_measurement(opened):
    at = opened(made_capture(), model=None)
    assert not any("Measure what" in button.label for button in at.button)
    assert any("`made by hand` is not on this machine" in line.value for line in at.caption)


def test_a_tensor_has_keys_alone(opened):
    at = opened(replace(made_capture(), values={}, effect={}), model=None)
    assert group(at, "Part").options == ["keys"]
    assert at.dataframe[0].value["SQNR values"].isna().all()


def test_lines_of_chosen_schemes(opened):
    at = opened(made_capture())
    chosen = next(m for m in at.multiselect if m.label == "Schemes")
    assert chosen.value == ["mxfp4", "mxfp4:axis=token", "nvfp4", "fp4@tensor", "int4@tensor"]
    chosen.set_value([]).run()
    assert len(at.get("plotly_chart")) == 1 and "Choose a scheme" in at.info[0].value
    next(m for m in at.multiselect if m.label == "Schemes").set_value(["int8@tensor"]).run()
    assert "INT8 per tensor" in spec(at, 1) and not at.exception


def test_words_are_measured_on_request_and_kept(opened, monkeypatch):
    asked = {}

    def measure_race(loaded, ids, recipes, *, said, should_stop):
        asked.update(loaded=loaded, ids=ids, recipes=recipes)
        said(1, 2)
        return dict.fromkeys(recipes, EFFECT)

    monkeypatch.setattr(_engine_race, "measure_race", measure_race)
    monkeypatch.setattr(jobs, "loaded", lambda name: SimpleNamespace(name=name))
    at = opened(made_capture())
    next(m for m in at.multiselect if m.label == "Measure").set_value(["nvfp4", "int8@head"]).run()
    next(b for b in at.button if "Measure what" in b.label).click().run()
    finished(at)
    assert asked["recipes"] == ("nvfp4", "int8@head") and asked["loaded"].name == "a model"
    assert asked["ids"] == made_capture().token_ids
    kl = at.dataframe[0].value.set_index("scheme")["KL"]
    assert kl["nvfp4"] == kl["int8@head"] == 0.25 and kl.notna().sum() == 4
    assert "nvfp4" not in next(m for m in at.multiselect if m.label == "Measure").options


def test_stop_keeps_what_was_done_and_a_mistake_is_one_line(opened, monkeypatch):
    under_way = threading.Event()

    def slow(loaded, ids, recipes, *, said, should_stop):
        said(1, 9)
        under_way.set()
        while not should_stop():
            time.sleep(0.01)
        return {"nvfp4": EFFECT}

    monkeypatch.setattr(_engine_race, "measure_race", slow)
    monkeypatch.setattr(jobs, "loaded", lambda name: SimpleNamespace(name=name))
    at = opened(made_capture())
    next(b for b in at.button if "Measure what" in b.label).click().run()
    assert under_way.wait(10)
    at.run()
    next(b for b in at.button if b.label == "Stop").click().run()
    finished(at)
    assert at.dataframe[0].value.set_index("scheme")["KL"]["nvfp4"] == 0.25

    def wrong(*args, **options):
        raise ValueError("skip=99: the model\nhas layers 0 to 2")

    monkeypatch.setattr(_engine_race, "measure_race", wrong)
    next(b for b in at.button if "Measure what" in b.label).click().run()
    finished(at)
    assert [line.value for line in at.error] == ["skip=99: the model has layers 0 to 2"]
    assert at.dataframe[0].value.set_index("scheme")["KL"]["nvfp4"] == 0.25, "nothing is lost"
