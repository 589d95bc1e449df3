"""The lesson without a browser: the guess before the answer, the check, and the timing on request."""

from __future__ import annotations

import re
import threading
import time
from types import SimpleNamespace

import pytest
from streamlit.testing.v1 import AppTest

from mxviz import _engine_lesson
from mxviz._pictures_lesson_words import FACTS
from mxviz.views import jobs, lesson, lesson_cook, lesson_steps


def _page() -> None:
    from mxviz.views import lesson

    lesson.page()


@pytest.fixture
def opened(monkeypatch):
    """Open the page at a step; nothing is warmed up or loaded."""
    there = threading.Event()
    there.set()
    idle = SimpleNamespace(is_alive=lambda: False, model_is_there=there)
    monkeypatch.setattr(jobs, "warming", lambda: idle)
    monkeypatch.setattr(jobs, "start_warming", lambda: None)
    monkeypatch.setattr(jobs, "loaded", lambda name: pytest.fail("a step loaded a model"))

    def open_page(step: str | None = None) -> AppTest:
        at = AppTest.from_function(_page, default_timeout=60)
        if step is not None:
            at.query_params["step"] = step
        at.run()
        assert not at.exception
        return at

    return open_page


def button(at: AppTest, label: str):
    return next(b for b in at.button if b.label == label)


def html(at: AppTest) -> str:
    return "\n".join(element.proto.body for element in at.get("html"))


def said(at: AppTest) -> str:
    return "\n".join(line.value for line in at.markdown)


def spec(at: AppTest) -> str:
    return at.get("plotly_chart")[0].proto.spec


@pytest.mark.parametrize("step", range(1, 9))
def test_a_step_asks_before_it_tells(opened, step) -> None:
    at = opened(str(step))
    assert f"Step {step} of 9" in html(at) and "### Why" not in said(at)
    assert len(at.get("plotly_chart")) == (0 if step == 8 else 1)
    before = spec(at) if step != 8 else ""
    if at.radio:
        assert at.radio[0].value is None and button(at, "Reveal").disabled, "first the guess"
        at.radio[0].set_value(1).run()
    button(at, "Reveal").click().run()
    assert not at.exception
    assert "### Why" in said(at) and re.search("[✓✗] You guessed", html(at))
    assert spec(at) != before and at.caption[-1].value.startswith("Source: ")
    assert "{" not in re.sub(
        r"<style>.*?</style>", "", html(at) + said(at) + at.caption[-1].value, flags=re.DOTALL
    )
    button(at, "Hide the answer again").click().run()
    assert "### Why" not in said(at) and not at.exception


@pytest.mark.parametrize(("asked", "step"), [(None, 1), ("7", 7), ("0", 1), ("10", 1), ("x", 1), ("٣", 1)])
def test_the_address_names_the_step(opened, asked, step) -> None:
    assert f"Step {step} of 9" in html(opened(asked))


def test_next_and_back_turn_pages_and_write_the_address(opened) -> None:
    at = opened()
    assert button(at, "Back").disabled
    for step in range(2, 10):
        button(at, "Next").click().run()
        assert f"Step {step} of 9" in html(at) and at.query_params["step"] in (str(step), [str(step)])
    assert button(at, "Next").disabled
    button(at, "Back").click().run()
    assert "Step 8 of 9" in html(at)
    shortcuts = {b.label: b.proto.shortcut for b in at.button if b.label in ("Back", "Next")}
    assert shortcuts == {"Back": "left", "Next": "right"}


def test_a_guess_outlives_a_visit_to_another_step(opened) -> None:
    at = opened("3")
    at.radio[0].set_value(2).run()
    button(at, "Reveal").click().run()
    button(at, "Next").click().run()
    button(at, "Back").click().run()
    assert at.radio[0].value == 2 and "✓ You guessed right." in html(at) and "### Why" in said(at)


@pytest.mark.parametrize(
    ("step", "label", "values"), [(5, "One neighbour", (1, 4, 16)), (6, "Rulers", (1, 32))]
)
def test_after_the_answer_the_picture_can_be_moved(opened, step, label, values) -> None:
    at = opened(str(step))
    assert not at.select_slider
    at.slider[0].set_value(31).run()
    button(at, "Reveal").click().run()
    seen = {spec(at)}
    slider = next(s for s in at.select_slider if s.label.startswith(label))
    for value in values:
        slider.set_value(value).run()
        seen.add(spec(at))
    assert len(seen) == len(values) + 1 and not at.exception


def test_the_bowl_takes_other_models_and_lengths(opened) -> None:
    at = opened("3")
    at.radio[0].set_value(0).run()
    button(at, "Reveal").click().run()
    assert "✗ You guessed something else." in html(at)
    seen = {spec(at)}
    at.selectbox[0].set_value("Llama 3.1 70B").run()
    seen.add(spec(at))
    at.select_slider[0].set_value(1_000_000).run()
    assert len(seen | {spec(at)}) == 3 and "305\\u00a0GiB" in spec(at)


def test_a_counted_guess_is_told_how_near_it_was() -> None:
    assert lesson_steps.verdict(31, 31, True) == "✓ You guessed 31, it is 31: exactly right."
    assert lesson_steps.verdict(29, 31, True) == "✓ You guessed 29, it is 31: close."
    assert lesson_steps.verdict(16, 31, True) == "✗ You guessed 16, it is 31: 15 off."
    assert lesson_steps.verdict(None, 1, False) == "No guess this time."


def test_the_check_explains_and_counts(opened) -> None:
    at = opened("9")
    assert len(at.radio) == 5 and button(at, "Check my answers").disabled
    for i, answer in enumerate((1, 1, 2, 1, 2)):
        at.radio[i].set_value(answer).run()
    button(at, "Check my answers").click().run()
    assert "4 of 5 right" in html(at) and said(at).count("✓ Right.") == 4
    assert "✗ It is: how far the forecasts of the next token moved" in said(at)
    assert "500,500" in said(at) and "arXiv 2402.02750" in said(at)
    button(at, "Try again").click().run()
    assert "of 5 right" not in html(at)


def test_a_missing_run_is_one_calm_line(opened, monkeypatch) -> None:
    monkeypatch.setattr(lesson.gallery, "recorded", lambda name: None)
    assert [line.value[:36] for line in opened().info] == ["The lesson looks at two recorded run"]
    assert len(FACTS) == len(lesson.STEPS) == 9


def at_the_stove(opened) -> AppTest:
    at = opened("2")
    at.radio[0].set_value(2).run()
    button(at, "Reveal").click().run()
    return at


def finished(at: AppTest) -> AppTest:
    end = time.monotonic() + 30
    while at.session_state["measuring"] is not None:
        assert time.monotonic() < end
        time.sleep(0.05)
        at.run()
        assert not at.exception
    return at


def test_times_are_measured_on_request_and_never_recorded(opened, monkeypatch) -> None:
    asked = {}

    def cook(loaded, tokens, *, told, should_stop):
        asked.update(loaded=loaded, tokens=tokens)
        steps = [_engine_lesson.Cooked(i, 10.0, 10.0 * i, True) for i in range(1, 4)]
        for step in steps:
            told(step)
        return steps

    at = at_the_stove(opened)
    assert len(at.get("plotly_chart")) == 1, "until then there is arithmetic alone"
    assert "arithmetic, not a measurement" in spec(at) and " ms" not in spec(at)
    monkeypatch.setattr(_engine_lesson, "cook", cook)
    monkeypatch.setattr(jobs, "loaded", lambda name: name)
    button(at, next(b.label for b in at.button if b.label.startswith("Cook it for real"))).click().run()
    at = finished(at)
    assert asked == {"loaded": "smollm2", "tokens": lesson_cook.STEPS}
    assert "Step 3 took 30 ms" in at.get("plotly_chart")[1].proto.spec.replace("<br>", " ")
    assert "6 token passes so far against 3" in at.get("plotly_chart")[1].proto.spec.replace("<br>", " ")
    assert button(at, "Cook it again")


def test_without_the_model_the_step_says_so(opened, monkeypatch) -> None:
    monkeypatch.setattr(lesson_cook, "is_here", lambda name: False)
    at = at_the_stove(opened)
    assert any("not installed here" in line.value for line in at.caption)
    assert not [b for b in at.button if b.label.startswith("Cook")]
