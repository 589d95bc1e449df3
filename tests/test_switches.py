"""The switches on a page without a browser: they compose recipes, refuse calmly and go back."""

from __future__ import annotations

import pytest
import torch
from made_capture import made_capture
from streamlit.testing.v1 import AppTest

from mxviz.capture import Capture
from mxviz.views import before_after, choice
from mxviz.views.switches import Look

IN_SIGHT = ["Look through", "Key blocks along", "Compare with one scale", "Back to the run's own"]


def _page() -> None:
    import streamlit as st

    from mxviz.views import switches

    st.session_state["out"] = switches.choose(st.session_state["in"], "a run")


def opened(capture: Capture) -> AppTest:
    at = AppTest.from_function(_page, default_timeout=60)
    at.session_state["in"] = capture
    at.run()
    assert not at.exception
    return at


def look(at: AppTest) -> Look:
    assert not at.exception
    return at.session_state["out"]


def said(at: AppTest) -> list[str]:
    return [line.value for line in at.info]


def table(at: AppTest) -> str:
    return at.get("html")[-1].proto.body.replace("\N{NO-BREAK SPACE}", " ")


def group(at: AppTest, label: str):
    return next(b for b in at.get("button_group") if b.label == label)


def test_it_starts_from_the_runs_own() -> None:
    capture = made_capture("k=mxfp4:axis=token;v=mxfp4")
    at = opened(capture)
    assert look(at) == Look(capture, capture.recipe, "fp4@tensor")
    assert at.button[0].label == "Back to the run's own" and at.button[0].disabled
    assert "→" not in table(at) and "as the run was made" in table(at)
    folded = list(at.expander[0])
    in_sight = [w for w in at.main if getattr(w, "label", "") and w not in folded and w is not at.expander[0]]
    assert [w.label for w in in_sight if w.type != "expander"] == IN_SIGHT and len(IN_SIGHT) <= 5
    assert at.toggle(key="look-before-a run").disabled


def test_switches_compose_a_recipe_and_the_baseline_follows() -> None:
    at = opened(made_capture("mxfp4"))
    at.selectbox(key="look-scheme-a run").set_value("mxfp8_e4m3").run()
    assert look(at)[1:] == ("mxfp8_e4m3", "fp8_e4m3@tensor", False)
    group(at, "Key blocks along").set_value("token").run()
    group(at, "Elements in a block").set_value(16).run()
    group(at, "Scale rule").set_value("rceil").run()
    at.number_input(key="look-sink-a run").set_value(4).run()
    at.multiselect(key="look-skip-a run").set_value([2, 0]).run()
    at.selectbox(key="look-baseline-a run").set_value("head").run()
    recipe = "k=mxfp8_e4m3:axis=token,scale=rceil,block=16;v=mxfp8_e4m3:scale=rceil,block=16"
    rest = ";sink=4;skip=0,2"
    assert look(at)[1:] == (recipe + rest, "fp8_e4m3@head" + rest, False)
    at.toggle(key="look-rotate-a run").set_value(True).run()
    assert said(at) == [] or "Hadamard" in said(at)[0]
    at.button[0].click().run()
    assert look(at)[1:] == ("mxfp4", "fp4@tensor", False)


def test_what_does_not_fit_leaves_the_last_good_one_standing() -> None:
    at = opened(made_capture("mxfp4"))
    text = at.text_input(key="look-text-a run")
    text.set_value("nvfp4;sink=2").run()
    for wrong, why in (
        ("nvfp4:scale=rceil", "scale= does not apply to nvfp4; it takes axis, block"),
        ("mxfp4;skip=9", "skip=9: the model has layers 0 to 2; name one of them"),
    ):
        at.text_input(key="look-text-a run").set_value(wrong).run()
        assert look(at)[1:] == ("nvfp4;sink=2", "fp4@tensor;sink=2", False)
        assert said(at) == [f"option {why}" if why.startswith("scale") else why]
        assert at.text_input(key="look-text-a run").value == wrong, "what was typed is not lost"
    at.selectbox(key="look-scheme-a run").set_value("none").run()
    assert "do nothing where neither" in said(at)[0] and look(at).recipe == "nvfp4;sink=2"
    at.number_input(key="look-sink-a run").set_value(3).run()
    assert said(at) == [] and look(at).recipe == "nvfp4;sink=3"


def test_a_control_that_does_not_apply_is_disabled_and_says_so() -> None:
    at = opened(made_capture("mxfp4"))
    at.selectbox(key="look-scheme-a run").set_value("nvfp4").run()
    rule = group(at, "Scale rule")
    assert rule.disabled and rule.help == "This does not apply to NVFP4."
    assert not group(at, "Elements in a block").disabled


def test_a_recipe_without_a_twin_keeps_the_baseline_and_says_so() -> None:
    at = opened(made_capture("mxfp4"))
    at.selectbox(key="look-scheme-a run").set_value("aint2").run()
    assert look(at)[1:] == ("aint2", "fp4@tensor", False)
    assert "no single-scale twin" in said(at)[0] and "stays fp4@tensor" in said(at)[0]
    at.selectbox(key="look-scheme-a run").set_value("mxint4").run()
    assert look(at)[1:] == ("mxint4", "int4@tensor", False) and said(at) == []
    at.selectbox(key="look-baseline-a run").set_value("one").run()
    assert "no int4@one" in said(at)[0] and look(at).baseline == "int4@tensor"


def test_frozen_by_the_prompt_shows_what_it_clips() -> None:
    capture = made_capture("mxfp4")
    for x in capture.keys.values():
        x[0, 65, 3] = 80.0
    at = opened(capture)
    at.selectbox(key="look-baseline-a run").set_value("frozen").run()
    assert look(at)[1:] == ("mxfp4", "fp4@tensor", True)
    assert "0 of 3 →</span> <b>3 of 3</b>" in table(at)
    assert "set by the 60 tokens of the prompt and kept" in table(at)


def test_keys_before_rope_take_their_place() -> None:
    capture = made_capture("mxfp4", keys_pre_rope={1: torch.randn(2, 71, 40), 2: torch.randn(2, 71, 40)})
    at = opened(capture)
    assert any("Layers 0 have none" in line.value for line in at.caption)
    at.toggle(key="look-before-a run").set_value(True).run()
    assert look(at).capture.layers == (1, 2) and look(at).recipe == "mxfp4"
    assert "keys before RoPE" in table(at) and "→" in table(at)


def test_two_runs_have_switches_of_their_own() -> None:
    at = opened(made_capture("mxfp4"))
    at.selectbox(key="look-scheme-a run").set_value("nvfp4").run()
    kept = at.session_state["looks"]["a run"]
    assert kept == choice.Choice("nvfp4", "fp4@tensor", "tensor")
    assert choice.own(made_capture("mxint8", "int4@head")) == choice.Choice("mxint8", "int4@head", None)


@pytest.mark.parametrize("part", ["key", "value"])
def test_the_table_holds_the_costs(part: str) -> None:
    from mxviz.looks import cost

    capture = made_capture("mxfp4")
    html = before_after.change_html(capture, Look(capture, "nvfp4", "fp4@tensor"))
    html = html.replace("\N{NO-BREAK SPACE}", " ")
    old, new = cost(capture, "mxfp4", part), cost(capture, "nvfp4", part)
    assert f"{old.sqnr_db:.1f} dB →</span> <b>{new.sqnr_db:.1f} dB</b>" in html
    assert "4.25 →</span> <b>4.5</b>" in html
    assert f"{old.clipped_blocks:,} of {old.blocks:,} →" in html
