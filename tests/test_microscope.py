"""The microscope page without a browser: it opens on a head and a block, and every control moves the rest."""

from __future__ import annotations

import json
import re

import pytest
from made_capture import made_capture
from streamlit.testing.v1 import AppTest

from mxviz import ops
from mxviz.views import gallery, jobs, place
from mxviz.views.switches import Look

PAGE = """
import streamlit as st
from mxviz.views import microscope, style
st.set_page_config(layout="wide")
style.apply()
microscope.page()
"""


REDRAW = place.redraw
REDRAWN: list[tuple[str, ...]] = []
"""What callbacks have asked to be redrawn, in their order."""


@pytest.fixture(autouse=True)
def quiet(monkeypatch):
    """No model is fetched and no kernel compiled behind these tests' back; every run draws the whole page.

    Redrawn alone, a fragment would be all that these tests' page is left with.
    """
    REDRAWN.clear()
    monkeypatch.setattr(place, "redraw", lambda *figures: REDRAWN.append(figures))
    monkeypatch.setattr(jobs, "warming", lambda: None)
    monkeypatch.setattr(jobs, "start_warming", lambda: None)
    monkeypatch.setattr(ops, "_postponed", ops._postponed)


def opened(monkeypatch=None, capture=None) -> AppTest:
    if capture is not None:
        monkeypatch.setattr(gallery, "chosen", lambda: ("made", capture))
    at = AppTest.from_string(PAGE, default_timeout=120)
    at.session_state["drawn"] = True  # as a browser says once it has drawn the first figure
    at.run()
    assert not at.exception
    return at


def test_before_a_browser_has_drawn_one_figure_it_gets_no_more():
    at = AppTest.from_string(PAGE, default_timeout=120).run()
    assert not at.exception
    assert list(figures(at)) == ["overview"]


def test_what_a_visit_opens_on_is_drawn_before_it(monkeypatch):
    from mxviz.views import microscope, overview

    drawn = []
    picture = overview._picture
    monkeypatch.setattr(overview, "_picture", lambda *a, **k: drawn.append((a, k)) or picture(*a, **k))
    microscope.prepare()
    AppTest.from_string(PAGE, default_timeout=120).run()
    assert len(drawn) == 2 and drawn[0] == drawn[1]


def figures(at: AppTest) -> dict[str, dict]:
    """The figures on the page by their names."""
    specs = [json.loads(chart.proto.spec) for chart in at.get("plotly_chart")]
    return {spec["layout"]["meta"]["figure"]: spec for spec in specs}


def title(spec: dict) -> str:
    return spec["layout"]["title"]["text"].replace("<br>", " ").replace("&#37;", "%").replace("\xa0", " ")


def html(at: AppTest) -> str:
    return "\n".join(element.proto.body for element in at.get("html"))


def control(at: AppTest, kind: str, label: str):
    return next(widget for widget in at.get(kind) if widget.label == label)


def looked_at(at: AppTest) -> str:
    return re.search(r"<span>(token \d+, channel \d+: [^;]*); its own scale", html(at))[1]


def test_the_first_view_is_the_wild_channel_of_a_recorded_run() -> None:
    at = opened()
    assert list(figures(at)) == ["overview", "head", "cuts", "rulers"]
    assert title(figures(at)["overview"]).startswith("Layer 8, KV head 0 holds the loudest key channel: 1")
    assert looked_at(at).startswith("token 5, channel 31: −21")
    assert "16 bits uncompressed" in html(at)
    labels = {"Part", "Colour shows", "Layer", "KV head", "Tokens shown", "Token", "Channel", "Zoom"}
    shown = {
        w.label
        for kind in ("button_group", "selectbox", "select_slider", "slider", "number_input")
        for w in at.get(kind)
    }
    assert labels <= shown
    alts = [chart.proto.alt for chart in at.get("plotly_chart")]
    assert all(len(alt) > 60 for alt in alts)


def test_the_page_says_which_way_to_cut() -> None:
    shares = [float(share) for share in re.findall(r"([\d.]+) %", title(figures(opened())["cuts"]))]
    along_tokens, along_channels, one = shares
    assert along_tokens < 10 and 45 < along_channels < 60 and one > 94
    bars = figures(opened())["cuts"]["data"][0]["customdata"]
    shares = {name: float(share.split()[0]) for name, share in bars}
    assert shares["INT4, one scale for the layer"] > 95


def test_layer_head_and_part_open_another_head_at_its_largest_value(monkeypatch) -> None:
    capture = made_capture()
    at = opened(monkeypatch, capture)
    assert "Layer 1, KV head 1, keys" in html(at) and "channel 7:" in looked_at(at)
    control(at, "select_slider", "Layer").set_value(2).run()
    assert not at.exception
    token, channel = place.largest(capture, "key", 2, 1)
    assert looked_at(at).startswith(f"token {token}, channel {channel}: ")
    control(at, "button_group", "KV head").set_value(0).run()
    control(at, "button_group", "Part").set_value("value").run()
    assert "Layer 2, KV head 0, values" in html(at)
    token, channel = place.largest(capture, "value", 2, 0)
    assert looked_at(at).startswith(f"token {token}, channel {channel}: ")
    ring = next(t for t in figures(at)["overview"]["data"] if t["name"] == "the open head")
    assert (min(ring["x"]), min(ring["y"]), ring["yaxis"]) == (1.5, -0.5, "y2")


def test_token_and_channel_move_the_block_in_both_figures(monkeypatch) -> None:
    at = opened(monkeypatch, made_capture())
    control(at, "number_input", "Token").set_value(69)
    control(at, "number_input", "Channel").set_value(35).run()
    assert not at.exception
    assert looked_at(at).startswith("token 69, channel 35: ")
    ring = next(t for t in figures(at)["head"]["data"] if t["name"] == "the open block")
    assert min(ring["x"]) < 68.5 < 69.5 < max(ring["x"]) and min(ring["y"]) < 31.5 and max(ring["y"]) > 39.5
    names = [c[1] for t in figures(at)["rulers"]["data"] if t["name"] == "values" for c in t["customdata"]]
    assert any(name.startswith("<b>channel 35</b>") for name in names)


def test_the_tokens_in_sight_follow_the_place(monkeypatch) -> None:
    at = opened(monkeypatch, made_capture())
    control(at, "slider", "Tokens shown").set_value((10, 29)).run()
    assert figures(at)["head"]["layout"]["xaxis"]["range"] != [9.5, 29.5], "the open value stays in sight"
    control(at, "number_input", "Token").set_value(15).run()
    control(at, "slider", "Tokens shown").set_value((10, 29)).run()
    assert figures(at)["head"]["layout"]["xaxis"]["range"] == [9.5, 29.5]
    control(at, "number_input", "Token").set_value(60).run()
    assert figures(at)["head"]["layout"]["xaxis"]["range"] == [49.5, 69.5]


def test_a_control_redraws_what_it_changes(monkeypatch) -> None:
    """The figure it stands by first; a choice that changes one figure alone asks for no other."""
    at = opened(monkeypatch, made_capture())
    control(at, "select_slider", "Layer").set_value(2).run()
    control(at, "number_input", "Token").set_value(69).run()
    control(at, "number_input", "Channel").set_value(3).run()
    assert REDRAWN == [("overview", "head", "block", "layer"), ("block", "head"), ("block",)]
    control(at, "slider", "Tokens shown").set_value((40, 69)).run()
    control(at, "button_group", "Zoom").set_value(False).run()
    control(at, "selectbox", "Colour shows").set_value("micro_flushed").run()
    assert REDRAWN[3:] == [("head",), ("block",), ("overview",)] and not at.exception


def test_what_was_cut_short_is_redrawn_with_the_next_control(monkeypatch) -> None:
    import streamlit as st

    state, asked = {}, []
    monkeypatch.setattr(st, "session_state", state)
    monkeypatch.setattr(st, "rerun", asked.append)
    REDRAW("overview", "head")
    state["not-drawn"].pop("overview")  # drawn to its end; the head was not
    REDRAW("block")
    state["not-drawn"][place.ALL] = True
    REDRAW("head")
    assert asked == [["overview", "head"], ["block", "head"], place.ALL]


def test_measure_and_zoom_redraw(monkeypatch) -> None:
    at = opened(monkeypatch, made_capture())
    control(at, "selectbox", "Colour shows").set_value("single_flushed").run()
    assert "become zero under one scale" in title(figures(at)["overview"])
    near = figures(at)["rulers"]["layout"]["xaxis"]["range"]
    control(at, "button_group", "Zoom").set_value(False).run()
    assert not at.exception
    whole = figures(at)["rulers"]["layout"]["xaxis"]["range"]
    assert whole[1] - whole[0] > near[1] - near[0]


def test_the_page_draws_what_the_switches_say(monkeypatch) -> None:
    from mxviz.views import switches

    capture = made_capture()
    look = Look(capture, "mxint4", "int4@tensor")
    monkeypatch.setattr(switches, "choose", lambda capture, run, numbers: look)
    at = opened(monkeypatch, capture)
    assert "MXINT4" in str(figures(at)["head"]["layout"]["annotations"])
    assert {bar[0] for bar in figures(at)["cuts"]["data"][0]["customdata"]} == {
        "INT4, one scale for the layer",
        "MXINT4, a scale per 32 channels",
        "MXINT4, a scale per 32 tokens",
    }


@pytest.mark.parametrize(
    ("recipe", "baseline"),
    [
        ("none", "none"),
        ("nvfp4;sink=4", "mxfp4"),
        ("kivi4", "int4@token"),
        ("int8@channel", "fp8_e5m2@one"),
        ("k=mxfp4:axis=token;v=none", "fp4@head;skip=1"),
    ],
)
def test_every_kind_of_recipe_draws(monkeypatch, recipe, baseline) -> None:
    at = opened(monkeypatch, made_capture(recipe=recipe, baseline=baseline))
    assert len(figures(at)) == 4
    control(at, "button_group", "Part").set_value("value").run()
    assert not at.exception and len(figures(at)) == 4


def test_keys_alone_one_layer_one_token(monkeypatch) -> None:
    capture = made_capture()
    one = made_capture(keys={5: capture.keys[1][:1, :1]}, values={})
    at = opened(monkeypatch, one)
    assert len(figures(at)) == 4 and looked_at(at).startswith("token 0, ")


def test_hostile_token_text_stays_literal(monkeypatch) -> None:
    texts = ["<img src=x onerror=alert(1)>", "$5 and $6", "`:red[x]`", *(f"t{i}" for i in range(68))]
    capture = made_capture(token_texts=tuple(texts))
    at = opened(monkeypatch, capture)
    for token in range(3):
        control(at, "number_input", "Token").set_value(token).run()
        assert not at.exception
    assert "<img" not in html(at)
    ticks = figures(at)["head"]["layout"]["xaxis"]["ticktext"]
    assert ticks[0].startswith("&lt;img") and "&#36;5" in ticks[1]


def test_without_a_run_the_page_says_so(monkeypatch) -> None:
    monkeypatch.setattr(gallery, "chosen", lambda: ("", None))
    at = opened()
    assert "no run to look at" in at.info[0].value and not figures(at)


def test_a_click_says_where(monkeypatch) -> None:
    """What the browser sends for a click, and what comes of it; the click itself is in test_walk.py."""
    import streamlit as st

    from mxviz.views import head, inspector, overview

    capture, run = made_capture(recipe="mxfp4:axis=token"), "r"
    state: dict = {}
    monkeypatch.setattr(st, "session_state", state)
    look = Look(capture, capture.recipe, capture.baseline)

    def clicks(key, *rows):
        state[key] = {"selection": {"points": [{"customdata": list(row)} for row in rows]}}

    clicks("figure-overview", ("value", 2, 0, "n"))
    overview._clicked(capture, run)
    assert place.get(capture, run) == ("value", 2, 0, *place.largest(capture, "value", 2, 0))
    clicks("figure-head", (32, 3, "text"))
    head._clicked(look, run)
    inside = abs(capture.values[2][0, 32:64, 3])
    assert place.get(capture, run)[3:] == (32 + int(inside.argmax()), 3)
    view = inspector.pictures.see_block(capture, 2, 0, "value", 40, 3)
    clicks("figure-rulers", (0, "text"))
    inspector._clicked(view, capture, run)
    assert place.get(capture, run)[3:] == (32, 3)
    state["block-table"] = {"selection": {"cells": [(31, "exact value")]}}
    inspector._walked(view, capture, run)
    assert place.get(capture, run)[3:] == (63, 3)
    for key, click in (
        ("figure-overview", lambda: overview._clicked(capture, run)),
        ("figure-head", lambda: head._clicked(look, run)),
        ("figure-rulers", lambda: inspector._clicked(view, capture, run)),
    ):
        clicks(key)
        click()
        assert place.get(capture, run)[3:] == (63, 3), "nothing chosen changes nothing"


def test_outlier_channels_of_the_head_are_named(monkeypatch) -> None:
    capture = made_capture(token_texts=tuple(f"<t{i}>" for i in range(71)))
    x = abs(capture.keys[1].numpy())
    peak = int(x[1, :, 7].argmax())
    at = opened(monkeypatch, capture)
    said = f"peaks at {x[1, peak, 7]:.4g}, {x[1].max() / float(capture.keys[1].abs().median()):.0f} times"
    assert said in html(at) and f"at token {peak} (&lt;t{peak}&gt;), and is high at 100%" in html(at)
    assert "RoPE turns it with channel 27" in html(at)
    control(at, "button_group", "KV head").set_value(0).run()
    assert any("None: no channel peaks" in caption.value for caption in at.caption)
