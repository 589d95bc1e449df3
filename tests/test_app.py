"""The Run page without a browser: it draws from a recorded run, refuses calmly, and loads a model once."""

from __future__ import annotations

import re
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
import tiny_text
from made_capture import made_capture
from streamlit.testing.v1 import AppTest

from mxviz._paths import APP
from mxviz.engine import Conversation, Progress, Settings
from mxviz.views import ask, engines, gallery, jobs, numbers


def _page() -> None:
    from mxviz.views import run, style

    style.apply()
    run.page()


@pytest.fixture(autouse=True)
def quiet(monkeypatch):
    """No model is fetched and no kernel compiled behind these tests' back."""
    monkeypatch.setattr(jobs, "start_warming", lambda: None)


def opened(**state: object) -> AppTest:
    """Draw the page once, as a fresh visitor sees it who has typed this."""
    at = AppTest.from_function(_page, default_timeout=120)
    for key, value in state.items():
        at.session_state[key] = value
    at.run()
    assert not at.exception
    return at


def html(at: AppTest) -> str:
    return "\n".join(element.proto.body for element in at.get("html"))


def press(at: AppTest, label: str) -> AppTest:
    next(b for b in at.button if b.label == label).click().run()
    return at


def finished(at: AppTest, limit_s: float = 240) -> AppTest:
    """Draw the page until the run that was started is done."""
    end = time.monotonic() + limit_s
    while "job" in at.session_state and at.session_state["job"] is not None:
        assert time.monotonic() < end
        time.sleep(0.2)
        at.run()
        assert not at.exception
    return at


@pytest.fixture
def tiny_model(monkeypatch):
    """The model behind every name is a tiny one that is built on the spot."""
    loaded = tiny_text.loaded(template=None)
    monkeypatch.setattr(jobs.Job, "_model", lambda job: loaded)
    return loaded


# The first view


def test_the_app_opens_on_the_microscope_and_loads_no_model(monkeypatch):
    monkeypatch.setattr(jobs, "loaded", lambda name: pytest.fail(f"the first view loaded {name}"))
    at = AppTest.from_file(str(APP), default_timeout=120).run()
    assert not at.exception
    assert html(at).count("<h1>") == 1 and at.get("plotly_chart")


def test_the_run_page_needs_no_model_to_show_three_texts(monkeypatch):
    monkeypatch.setattr(jobs, "loaded", lambda name: pytest.fail(f"the first view loaded {name}"))
    at = opened()
    assert html(at).count('class="mx-lane mx-') == 3 and 'class="mx-card"' in html(at)
    assert "Recorded earlier, nothing was computed just now" in html(at)
    assert "earlier prompt" not in html(at)  # it opens on the prompt that the recorded run answers
    assert not at.chat_input


def test_the_list_of_models_says_what_would_be_downloaded(monkeypatch):
    monkeypatch.setattr(ask, "is_here", lambda name: name == "smollm2")
    options = next(box for box in opened().selectbox if box.label.startswith("Model")).options
    assert options[0] == "smollm2 · built in"
    assert options[1:] and all(o.endswith("downloaded when you press Generate") for o in options[1:])


def test_the_first_preset_and_recipe_are_those_of_the_recorded_chat():
    capture = gallery.recorded(gallery.CHAT)
    assert capture.prompt == next(iter(ask.PRESETS.values()))
    assert capture.recipe == next(iter(ask.RECIPES))
    # what the page wants to show: a block's own scale holds on clearly longer than one for everything
    micro, single = (capture.first_divergence(lane) for lane in ("micro", "single"))
    assert single is not None and single < 10 and (micro is None or micro > 20)


def test_a_preset_marks_the_answers_as_those_to_an_earlier_prompt():
    at = opened()
    next(b for b in at.get("button_group") if b.label == "Try one of these").set_value("Counting").run()
    assert not at.exception and at.text_area(key="prompt").value == ask.PRESETS["Counting"]
    assert "These answers are to the earlier prompt below" in html(at)
    assert ask.PRESETS["A story"] in re.search(r'<p class="mx-prompt">.*?</p>', html(at))[0]


def test_a_tensor_without_texts_gives_way_to_the_recorded_chat():
    at = opened(run="planted")
    assert html(at).count('class="mx-lane mx-') == 3 and gallery.label(gallery.CHAT) in html(at)


# What a run says while it goes on


@pytest.mark.parametrize(
    ("progress", "words"),
    [
        (None, "loading smollm2 · 12 s"),
        (Progress("waiting", 0, 1), "waiting for another run that uses the model · 12 s"),
        (Progress("prefill", 0, 3), "reading the prompt · 12 s"),
        (Progress("decode", 12, 48), "writing, token 12 of 48 · 12 s"),
        (Progress("measure", 1, 3), "measuring the effect over the whole text, pass 2 of 3 · 12 s"),
        (Progress("measure", 3, 3), "measuring the effect over the whole text, pass 3 of 3 · 12 s"),
        (Progress("done", 1, 1), "done · 12 s"),
    ],
)
def test_progress_in_words(progress, words):
    share, text = ask.said(progress, "loading smollm2", 12.4)
    assert text == words and 0 <= share <= 1


def test_a_run_under_way_shows_what_it_waits_for_and_its_texts():
    job = SimpleNamespace(
        done=False,
        progress=None,
        note="converting the built-in model, once ever: about half a minute",
        model="smollm2",
        settings=Settings("hello <b>you</b>", recipe="nvfp4"),
        started=time.monotonic() - 7,
        stop=threading.Event(),
    )
    at = opened(job=job)
    assert "converting the built-in model" in at.get("progress")[0].proto.text and not at.chat_input
    assert re.search(r"· [78] s$", at.get("progress")[0].proto.text)
    job.progress = Progress("decode", 3, 8, texts={"exact": "one <i>two</i>", "micro": "one", "single": ""})
    at.run()
    assert not at.exception and "writing, token 3 of 8" in at.get("progress")[0].proto.text
    assert "one &lt;i&gt;two&lt;/i&gt;" in html(at) and "hello &lt;b&gt;you&lt;/b&gt;" in html(at)
    assert [b.label for b in at.button] == ["Stop"]


# Asking, and asking on


# AppTest cannot answer a selectbox with a new option: wrong models and recipes are typed in test_browser.py.
@pytest.mark.parametrize(("prompt", "said"), [("   ", "prompt"), ("long " * 9000, "context is 4,096")])
def test_wrong_input_gets_one_calm_line(prompt, said, tiny_model):
    at = finished(press(opened(prompt=prompt), "Generate"))
    assert [said in error.value for error in at.error] == [True]
    assert "\n" not in at.error[0].value
    assert html(at).count('class="mx-lane mx-') == 3  # what was there before is still there


def test_a_run_goes_on_for_three_turns_and_a_new_one_frees_its_caches(tiny_model):
    at = opened(length=5)
    at = finished(press(at, "Generate"))
    assert not at.error and "Your run 1" in html(at)
    first = at.session_state["shelf"]["own-1"].capture
    assert first.prompt == ask.PRESETS["A story"] and len(first.lanes["exact"].token_ids) == 5
    conversation = at.session_state["talk"]["conversation"]
    for prompt in ("and <i>then</i>?", "thank you"):
        at.chat_input[0].set_value(prompt).run()
        at = finished(at)
        assert not at.error and conversation.is_open
    last = at.session_state["shelf"]["own-1"].capture
    assert list(at.session_state["shelf"]) == ["own-1"]
    assert [turn.prompt for turn in last.turns] == [first.prompt, "and <i>then</i>?", "thank you"]
    table = at.dataframe[0].value
    assert list(table["turn"]) == [1, 2, 3] and list(table["asked"])[1] == "and <i>then</i>?"
    assert list(table["tokens held"]) == [turn.tokens_held["exact"] for turn in last.turns]
    assert list(table["micro-scaled, KiB"]) == [
        round(turn.stored_bytes["micro"] / 1024) for turn in last.turns
    ]
    assert "and &lt;i&gt;then&lt;/i&gt;?" in html(at) and "<i>then" not in html(at)
    assert "earlier prompt" not in html(at)

    at = finished(press(at, "Generate"))
    assert "Your run 2" in html(at) and not conversation.is_open
    assert at.session_state["talk"]["conversation"].is_open


def test_a_turn_that_is_refused_leaves_the_conversation_open(tiny_model):
    at = finished(press(opened(length=5), "Generate"))
    at.chat_input[0].set_value("ab " * 5000).run()
    at = finished(at)
    assert "start a new run" in at.error[0].value and at.chat_input
    at.chat_input[0].set_value("again").run()
    at = finished(at)
    assert not at.error and len(at.session_state["shelf"]["own-1"].capture.turns) == 2


def test_a_turn_stopped_while_it_writes_keeps_what_was(tiny_model):
    at = finished(press(opened(length=5), "Generate"))
    conversation = at.session_state["talk"]["conversation"]
    job = jobs.Job("tiny", replace(conversation.settings, prompt="more"), conversation, session="")
    job.should_stop = lambda: job.progress is not None and job.progress.stage == "decode"
    job.run()
    assert job.error is None and job.done
    at.session_state["job"] = job
    at.run()
    assert not at.exception and not at.error
    capture = at.session_state["shelf"]["own-1"].capture
    assert len(capture.turns) == 2 and 0 < len(capture.lanes["exact"].token_ids) < 5
    assert any("stopped after" in caption.value for caption in at.caption)
    assert at.chat_input  # and it can go on


def test_freed_caches_are_said_and_offer_no_next_turn(tiny_model):
    at = finished(press(opened(length=3), "Generate"))
    at.session_state["talk"]["conversation"].close()
    at.run()
    assert not at.chat_input
    assert any("caches of this run were freed" in caption.value for caption in at.caption)


def test_a_finished_conversation_is_shown_without_its_caches():
    """As it is when a saved conversation is opened."""
    loaded, settings = tiny_text.loaded(), Settings("hello", max_new_tokens=3, effect=False)
    conversation = Conversation(loaded, settings)
    capture = [conversation.ask(prompt) for prompt in (settings.prompt, "more")][-1]
    at = opened(shelf={"own-1": gallery.Own("talk", capture)}, run="own-1")
    assert not at.chat_input and list(at.dataframe[0].value["turn"]) == [1, 2]


@pytest.mark.model
def test_generate_with_the_built_in_model():
    at = finished(press(opened(length=4), "Generate"))
    assert not at.error
    capture = at.session_state["shelf"]["own-1"].capture
    assert capture.model == "smollm2" and len(capture.lanes["exact"].token_ids) == 4


# What is loaded, and how often


def test_a_model_is_loaded_once_for_everybody(monkeypatch):
    calls = []

    def slow_load(name):
        calls.append(name)
        time.sleep(0.3)
        return tiny_text.loaded()

    monkeypatch.setattr("mxviz.models.load", slow_load)
    engines.clear()
    try:
        found: list[object] = []
        threads = [threading.Thread(target=lambda: found.append(jobs.loaded("one"))) for _ in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert calls == ["one"] and len(set(map(id, found))) == 1
        assert jobs.loaded("two") is not found[0] and calls == ["one", "two"]
    finally:
        engines.clear()


@pytest.mark.parametrize(
    ("recipe", "held", "said"),
    [
        ("k=mxfp4:axis=token;v=mxfp4", 93, "Blocks of keys run along tokens, so the newest 29 of 93 tokens"),
        ("mxfp4:axis=token;sink=4;residual=32", 100, "keys and values run along tokens, so the newest 32 of"),
        ("mxfp4", 93, None),
    ],
)
def test_what_waits_uncompressed_is_said(recipe, held, said):
    shape = {"layers": 30, "kv_heads": 3, "head_dim": 64, "value_dim": 64, "model_dtype": "float32"}
    capture = made_capture(recipe=recipe, shape=shape, storage={"micro": {"tokens_held": held}})
    words = numbers._waiting(capture)
    assert words is None if said is None else said in words and "6,120 bytes per token" in words
