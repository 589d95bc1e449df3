"""The page without a browser: it draws from the recorded runs, refuses calmly, and loads a model once."""

from __future__ import annotations

import threading
import time

import pytest
from streamlit.testing.v1 import AppTest

from mxviz._paths import APP
from mxviz.views import gallery, jobs


def opened(**state: object) -> AppTest:
    """Run the app once, as a fresh visitor sees it who has typed this."""
    at = AppTest.from_file(str(APP), default_timeout=120)
    for key, value in state.items():
        at.session_state[key] = value
    at.run()
    assert not at.exception
    return at


def html(at: AppTest) -> str:
    return "\n".join(element.proto.body for element in at.get("html"))


def finished(at: AppTest, limit_s: float = 240) -> AppTest:
    """Run the page until the run that was started is done."""
    end = time.monotonic() + limit_s
    while "job" in at.session_state and at.session_state["job"] is not None:
        assert time.monotonic() < end
        time.sleep(0.3)
        at.run()
        assert not at.exception
    return at


def test_first_view_needs_no_model(monkeypatch):
    monkeypatch.setattr(jobs, "load", lambda *a, **k: pytest.fail("the first view loaded a model"))
    at = opened()
    assert len(at.get("plotly_chart")) == 3
    assert html(at).count('class="mx-lane mx-') == 3
    for name in gallery.RUNS:
        assert (gallery.ASSETS / "gallery" / f"{name}.safetensors").is_file()


def test_other_part_layer_and_head_redraw():
    at = opened()
    before = [chart.proto.spec for chart in at.get("plotly_chart")]
    part = next(b for b in at.get("button_group") if b.label == "Part")
    part.set_value("value").run()
    assert not at.exception
    after = [chart.proto.spec for chart in at.get("plotly_chart")]
    assert all(a != b for a, b in zip(before, after, strict=True))


# AppTest cannot answer a selectbox with a new option: wrong models and recipes are typed in test_browser.py.
@pytest.mark.parametrize(("prompt", "said"), [("   ", "prompt"), ("long " * 9000, "8,192")])
def test_wrong_input_gets_one_calm_line(prompt, said):
    at = opened(prompt=prompt)
    next(b for b in at.button if b.label == "Generate").click().run()
    at = finished(at)
    assert [said in error.value for error in at.error] == [True]
    assert "\n" not in at.error[0].value
    assert len(at.get("plotly_chart")) == 3  # what was there before is still there


def test_generate_shows_the_run():
    at = opened()
    at.number_input(key="length").set_value(5).run()
    next(b for b in at.button if b.label == "Generate").click().run()
    at = finished(at)
    assert not at.error
    assert at.session_state["capture"].prompt == "Why is the sky blue?"
    assert len(at.session_state["capture"].lanes["exact"].token_ids) == 5
    assert len(at.get("plotly_chart")) == 3


def test_a_model_is_loaded_once_for_everybody(monkeypatch):
    calls = []

    def slow_load(name):
        calls.append(name)
        time.sleep(0.3)
        return object()

    monkeypatch.setattr(jobs, "load", slow_load)
    jobs.loaded.clear()
    try:
        found: list[object] = []
        threads = [threading.Thread(target=lambda: found.append(jobs.loaded("one"))) for _ in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert calls == ["one"] and len(set(map(id, found))) == 1
        jobs.loaded("two")
        jobs.loaded("one")  # "two" took the only place, so that one model's memory is held
        assert calls == ["one", "two", "one"]
    finally:
        jobs.loaded.clear()
