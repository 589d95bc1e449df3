"""The effect page: literal words in colour, attention, and what is measured on request; no browser."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
import tiny_text
import torch
from made_capture import made_capture
from streamlit.testing.v1 import AppTest

from mxviz import _page_effect as words
from mxviz import _pictures_attention
from mxviz._engine_layers import Measured, Sensitivity
from mxviz._engine_sensitivity import compare_recipes, sensitivity
from mxviz._pictures_attention import attention_sentence, default_query, opening_words
from mxviz._pictures_effect import effect_sentence, effect_view, lane_numbers, share, worst_token
from mxviz._pictures_sensitivity import (
    COMPARED,
    findings,
    layers_sentence,
    parts_sentence,
    suggestion_sentence,
)
from mxviz.attention import AttentionView, output_error, query_layers
from mxviz.capture import Capture
from mxviz.engine import Settings, run
from mxviz.figures import THEMES
from mxviz.figures._nats import shade_of
from mxviz.metrics import effect_stats
from mxviz.page import stylesheet
from mxviz.views import gallery, jobs, measuring, tabs
from mxviz.views import sensitivity as view

HOSTILE = ["<s>", "<img src=x onerror=alert(1)>", '"><script>', "$5 and $6", "\n", "<br>", "&lt;", " ", "🙂"]


def hostile() -> Capture:
    """A capture whose tokens are markup, with all effect tables."""
    made, count = made_capture(), len(made_capture().token_ids)
    g = torch.Generator().manual_seed(1)
    return replace(
        made,
        token_texts=tuple((HOSTILE * count)[:count]),
        effect={
            lane: {"nll": torch.rand(count - 1, generator=g)}
            | ({} if lane == "exact" else {"kl": kl, "top1": torch.rand(count, generator=g) < 0.5})
            for lane, kl in zip(
                ("exact", "micro", "single"), 10 ** (6 * torch.rand(3, count, generator=g) - 4), strict=True
            )
        },
        top_ids=torch.tensor([[made.token_ids[1], 7]] * count),
        top_logprobs=torch.full((count, 2), -0.5),
    )


class Reader(HTMLParser):
    """What a browser makes of the spans of a text: class, title and text of each."""

    def __init__(self, markup: str) -> None:
        super().__init__()
        self.spans: list[dict[str, str]] = []
        self.tags: set[str] = set()
        self.feed(markup)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.spans += [dict(attrs) | {"text": ""}] if tag == "span" and "title" in dict(attrs) else []
        self._open = tag == "span" and "title" in dict(attrs)

    def handle_endtag(self, tag):
        self._open = False

    def handle_data(self, data):
        if self._open and self.spans:
            self.spans[-1]["text"] += data


# Words


def test_words_are_literal_coloured_and_marked() -> None:
    capture = hostile()
    tables, count = effect_view(capture), len(capture.token_ids)
    found = Reader(words.text_html(tables, {"micro": "<i>", "single": "fp4@tensor"}, (0, count - 1)))
    assert found.tags == {"div", "section", "h3", "span", "p"}
    assert len(found.spans) == 2 * count
    for lane, spans in (("micro", found.spans[:count]), ("single", found.spans[count:])):
        kl = capture.effect[lane]["kl"].numpy()
        for i, span in enumerate(spans):
            assert span["text"] == capture.token_texts[i].replace("\n", "↵\n")
            flipped = i > 0 and not bool(capture.effect[lane]["top1"][i - 1])
            wanted = [f"mx-k{shade_of(kl[i - 1])}"] * (i > 0) + ["mx-flip"] * flipped
            assert span["class"].split() == wanted
            assert span["title"].startswith(f"token {i}\n")
    nll = capture.effect["exact"]["nll"][4], capture.effect["single"]["nll"][4]
    chances = [share(float(np.exp(-float(x)))) for x in nll]
    assert (
        f"chance of this token: exact {chances[0]}, one scale {chances[1]}" in found.spans[count + 5]["title"]
    )
    assert f"exact first choice: {HOSTILE[1]!r} 61" in found.spans[5]["title"]
    assert "nothing forecasts the first token" in found.spans[0]["title"]


def test_tables_stand_on_the_token_that_is_forecast() -> None:
    capture = hostile()
    tables = effect_view(capture)
    np.testing.assert_allclose(tables.kl["single"][1:], capture.effect["single"]["kl"][:-1].numpy())
    assert np.isnan(tables.kl["single"][0]) and not tables.changed["single"][0]
    assert worst_token(tables) == 1 + int(capture.effect["single"]["kl"][:-1].argmax())
    kl, top1 = capture.effect["micro"]["kl"], capture.effect["micro"]["top1"]
    assert tables.stats["micro"]["kl_mean"] == effect_stats(kl, top1)["kl_mean"]  # that of the report
    perplexity = np.exp(float(capture.effect["exact"]["nll"].double().mean()))
    assert tables.stats["exact"]["perplexity"] == pytest.approx(perplexity)
    short = effect_view(made_capture())  # neither nll nor first choices, and a position less
    assert np.isnan(short.kl["micro"][0]) and np.isfinite(short.kl["micro"][1:]).all()
    assert short.first[5] == "" and lane_numbers(short, "micro").startswith("mean KL 0.0")


@pytest.mark.parametrize(
    ("micro", "single", "said"),
    [
        ((0.2, 0.9), (1.0, 0.5), "One scale changes the model's first choice for 50 % of the tokens, micro"),
        (
            (0.2, 0.8),
            (0.1, 0.9),
            "Micro-scaling changes the model's first choice for 20 % of the tokens, one",
        ),
        ((0.011, 1.0), (0.006, 1.0), "Neither moves the forecasts much: micro-scaling by a mean KL of 0.011"),
    ],
)
def test_the_sentence_follows_the_numbers_whoever_is_worse(micro, single, said: str) -> None:
    effect = {
        lane: {"kl": torch.full((70,), kl), "top1": torch.arange(70) < round(70 * top)}
        for lane, (kl, top) in (("micro", micro), ("single", single))
    }
    found = effect_sentence(effect_view(made_capture(effect=effect)))
    assert found.replace("\N{NO-BREAK SPACE}", " ").startswith(said)


def test_a_long_text_is_shown_in_part() -> None:
    assert words.window_around(100, 50) == (0, 99)
    assert words.window_around(5000, 3000) == (2700, 3299)
    assert words.window_around(5000, 3) == (0, 599) and words.window_around(5000, 4999) == (4400, 4999)


@pytest.mark.parametrize("theme", THEMES)
def test_no_stylesheet_holds_what_a_browser_takes_for_a_tag(theme: str) -> None:
    """Streamlit cleans what `st.html` shows: one `<` in a stylesheet, and all of it is gone."""
    for css in (stylesheet(THEMES[theme]), words.kl_stylesheet(THEMES[theme])):
        assert "<" not in css and css.count("{") == css.count("}")


def test_every_class_of_a_text_has_its_colours() -> None:
    css, legend = words.kl_stylesheet(THEMES["dark"]), words.legend_html()
    assert set(re.findall(r"mx-k\d+", css)) == set(re.findall(r"mx-k\d+", legend))
    assert ">≤ 0.01<" in legend and ">≥ 10 nats<" in legend


# Sentences of attention and sensitivity


def test_attention_is_told_with_the_larger_share_first() -> None:
    one = np.ones(1)
    seen = AttentionView(["a"], one, one, one, 0.09, 0.62, 0.1, 0.2, 0, "m", "s", "")
    assert attention_sentence(seen).replace("\N{NO-BREAK SPACE}", " ") == (
        "One scale moves 62 % of this query's attention elsewhere, micro-scaling 9 %"
    )
    assert attention_sentence(seen._replace(micro_moved=0.7)).startswith("Micro-scaling moves 70")
    assert attention_sentence(seen._replace(micro_moved=0.001, single_moved=0.002)).startswith("Neither")
    assert "one scale: a key is not finite" in attention_sentence(seen._replace(single_moved=float("nan")))


def test_the_first_query_reads_the_keys_of_the_strongest_outlier() -> None:
    """Qwen's is in layer 8, KV head 0: of its query heads 0 to 6 the one that one scale hurts most."""
    capture = gallery.recorded("qwen-code")
    layer, head, position = default_query(capture)
    errors = output_error(capture, 8).single
    assert (layer, head, position) == (8, int(errors[:7].argmax()), capture.tokens_held - 1)
    assert opening_words(capture, 8).startswith("KV head 0 of layer 8 holds channel 31")
    assert default_query(capture, 16)[0] == 16


def test_without_an_outlier_it_is_the_head_that_one_scale_hurts_most(monkeypatch) -> None:
    monkeypatch.setattr(_pictures_attention, "loudest", lambda capture, layers: None)
    capture = gallery.recorded("qwen-code")
    layer, head, _ = default_query(capture)
    errors = {i: output_error(capture, i).single for i in query_layers(capture)}
    assert errors[layer][head] == max(x.max() for x in errors.values())
    assert "No key channel of layer 8" in opening_words(capture, 8)


def made_map(**changes) -> Sensitivity:
    rows = {
        "skip": Measured("mxfp4;skip=1", 0.4, 0.8, 8.17),
        "key-only": Measured("k=mxfp4;v=none", 0.7, 0.7, 10.1),
    }
    kl = {"key": np.array([0.1, 0.5, 0.0]), "value": np.full(3, np.nan)}
    made = {"recipe": "mxfp4", "tokens": 9, "kl": kl, "whole": Measured("mxfp4", 0.3, 0.9, 4.25)}
    return Sensitivity(**(made | {"suggestions": rows} | changes))


def test_a_suggestion_is_told_with_both_numbers_even_where_it_does_not_help() -> None:
    said = suggestion_sentence(made_map()).replace("\N{NO-BREAK SPACE}", " ")
    assert said == (
        "With layer 1 exact the KL is 0.4 nats instead of 0.3 nats, for 8.17 bits per element instead of 4.25"
    )
    assert layers_sentence(made_map()).startswith("Layer 1's keys alone cost 0.5")
    assert parts_sentence(made_map()).startswith(
        "In all layers, keys alone cost 0.7\N{NO-BREAK SPACE}nats, both together 0.3"
    )
    assert parts_sentence(made_map(suggestions={})).startswith("KLs of single parts")
    assert "none to exempt" in suggestion_sentence(made_map(suggestions={}))


def test_findings_put_two_numbers_beside_each_other() -> None:
    rows = [Measured(r, kl, 0.9, 8.0) for r, kl in (("fp8_e4m3@tensor", 0.006), ("mxfp8_e4m3", 0.011))]
    assert [line.replace("\N{NO-BREAK SPACE}", " ") for line in findings(rows)] == [
        "fp8_e4m3@tensor 0.006 nats, mxfp8_e4m3 0.011 nats: one scale, and a scale per block by OCP's floor "
        "rule, which clips"
    ]


# The page


def _page() -> None:
    from mxviz.views import effect, style

    style.apply()
    effect.page()


def opened(**state: object) -> AppTest:
    at = AppTest.from_function(_page, default_timeout=120)
    for key, value in state.items():
        at.session_state[key] = value
    return ran(at.run())


def ran(at: AppTest) -> AppTest:
    assert not at.exception, at.exception
    return at


def markup(at: AppTest) -> str:
    return "\n".join(element.proto.body for element in at.get("html"))


def choose(at: AppTest, label: str, value: object) -> AppTest:
    return ran(next(b for b in at.get("button_group") if b.label == label).set_value(value).run())


def finished(at: AppTest, limit_s: float = 120) -> AppTest:
    end = time.monotonic() + limit_s
    while measuring_of(at) is not None:
        assert time.monotonic() < end
        time.sleep(0.1)
        ran(at.run())
    return at


def measuring_of(at: AppTest):
    state = at.session_state
    if "measuring" not in state:
        return None
    return state["measuring"]


def own_run(model: str = "tiny") -> Capture:
    loaded = tiny_text.loaded("llama", num_hidden_layers=3)
    return replace(run(loaded, Settings("hello there", max_new_tokens=6)), model=model)


def test_words_come_first_and_need_no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "loaded", lambda name: pytest.fail("the page loaded a model"))
    at = opened()
    assert markup(at).count('class="mx-kl-text"') == 2 and markup(at).count('class="mx-lane mx-') == 3
    assert len(at.get("plotly_chart")) == 1
    choose(at, "Cache", "micro")
    assert markup(at).count('class="mx-kl-text"') == 1


def test_attention_follows_layer_and_head() -> None:
    at = choose(opened(), "See", "Attention")
    assert len(at.get("plotly_chart")) == 2
    before = [chart.proto.spec for chart in at.get("plotly_chart")]
    layers = query_layers(gallery.recorded("qwen-code"))
    shown = next(b for b in at.get("button_group") if b.label == "Layer").value
    choose(at, "Layer", next(layer for layer in layers if layer != shown))
    after = [chart.proto.spec for chart in at.get("plotly_chart")]
    assert all(a != b for a, b in zip(before, after, strict=True))


def test_what_a_run_lacks_is_said_calmly() -> None:
    plain = replace(own_run(), effect={}, queries={})
    at = opened(shelf={"own-1": gallery.Own("mine", plain)}, **{"look-at": "own-1"})
    for section, said in (
        ("Words", "No effect"),
        ("Attention", "No queries"),
        ("Layer by layer", "No map of the layers was recorded with this run"),
    ):
        assert said in choose(at, "See", section).info[0].value
    assert not [b for b in at.button if b.label.startswith("Measure")]
    assert not at.get("plotly_chart")
    press(at, "Qwen, one wild channel")
    assert len(at.get("plotly_chart")) == 3 and not at.info, "that run's map was recorded"
    assert "Layer 8, where you look now: its keys alone cost 0.094 nats with one scale" in markup(at)
    choose(at, "Looking at", "planted")
    assert "tensor" in choose(at, "See", "Words").info[0].value
    assert "no model to measure" in choose(at, "See", "Layer by layer").info[0].value


def test_a_model_that_is_not_here_is_never_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view, "is_here", lambda name: False)
    assert view.model_here(gallery.recorded("qwen-code")) is None
    monkeypatch.setattr(view, "is_here", lambda name: True)
    assert view.model_here(gallery.recorded("qwen-code")) == "Qwen/Qwen2.5-Coder-0.5B-Instruct"
    assert view.model_here(gallery.recorded("smollm2-chat")) == "smollm2"
    assert view.model_here(own_run("somebody/never-fetched")) is None
    assert view.model_here(made_capture(model="a tensor", lanes={})) is None


def measured_page(monkeypatch: pytest.MonkeyPatch) -> tuple[AppTest, Capture, object]:
    """The page on a run of a tiny model, which is the one that loads."""
    loaded, capture = tiny_text.loaded("llama", num_hidden_layers=3), own_run()
    monkeypatch.setattr(jobs, "loaded", lambda name: loaded)
    monkeypatch.setattr(view, "model_here", lambda capture: "tiny")
    at = opened(shelf={"own-1": gallery.Own("mine", capture)}, **{"look-at": "own-1"})
    return choose(at, "See", "Layer by layer"), capture, loaded


def press(at: AppTest, words: str) -> AppTest:
    return ran(next(b for b in at.button if b.label.startswith(words)).click().run())


def test_layers_and_recipes_are_measured_kept_and_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    at, capture, loaded = measured_page(monkeypatch)
    finished(press(at, "Measure layer by layer"))
    found = at.session_state["measured"]["layers-single", "own-1"]
    own = sensitivity(loaded, capture.token_ids, capture.baseline)
    np.testing.assert_allclose(found.kl["key"], own.kl["key"], rtol=1e-6)
    assert found.suggestions == own.suggestions and len(at.get("plotly_chart")) == 2
    finished(press(at, "Measure nine recipes"))
    rows = at.session_state["measured"]["recipes", "own-1"]
    assert rows == compare_recipes(loaded, capture.token_ids, COMPARED)
    assert len(at.get("plotly_chart")) == 3
    assert "mxfp8_e4m3:scale=rceil" in "".join(element.value for element in at.markdown)


def test_stop_stops_and_the_next_measurement_is_clean(monkeypatch: pytest.MonkeyPatch) -> None:
    at, _, loaded = measured_page(monkeypatch)
    with loaded.lock:  # another run has the model: the measurement waits
        press(at, "Measure layer by layer")
        assert measuring_of(at) is not None and not at.get("plotly_chart")
        press(at, "Stop")
        finished(at)
    assert not at.get("plotly_chart") and not at.error
    assert len(finished(press(at, "Measure layer by layer")).get("plotly_chart")) == 2
    assert not loaded.lock.locked()


def test_what_goes_wrong_is_one_calm_line(monkeypatch: pytest.MonkeyPatch) -> None:
    at, _, _ = measured_page(monkeypatch)

    def broken(name):
        raise ValueError("no model\nof that name")

    monkeypatch.setattr(jobs, "loaded", broken)
    at = finished(press(at, "Measure nine recipes"))
    assert [error.value for error in at.error] == ["no model of that name"]


def test_a_closed_tab_stops_its_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone:
        def is_active_session(self, session: str) -> bool:
            return False

    monkeypatch.setattr(tabs.runtime, "exists", lambda: True)
    monkeypatch.setattr(tabs.runtime, "get_instance", Gone)
    monkeypatch.setattr(tabs, "GRACE_S", 0.3)
    rounds = []

    def work(model, said, should_stop):
        while not should_stop():
            rounds.append(time.sleep(0.02))

    job = measuring.Measuring(("layers", "x"), "tiny", work, session="a session")
    job.run()
    assert job.over and job.stop.is_set() and 5 < len(rounds) < 100


def test_times_are_told_as_finely_as_they_are_known() -> None:
    assert [measuring.about(s) for s in (0.2, 12, 50, 70, 200)] == ["5 s", "10 s", "50 s", "1 min", "3 min"]
