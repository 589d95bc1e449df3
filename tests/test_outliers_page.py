"""The outliers page without a browser: first view, list, finding by name, what is broken or zero."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import torch
from made_capture import made_capture
from streamlit.proto.WidgetStates_pb2 import WidgetState
from streamlit.testing.v1 import AppTest

from mxviz.capture import Capture
from mxviz.views import gallery


def the_page() -> None:
    """The page alone, as a script; AppTest runs its source."""
    from mxviz.views import outliers

    outliers.page()


def opened(monkeypatch=None, capture: Capture | None = None) -> AppTest:
    """Open the page as a fresh visitor does, or on one capture."""
    if capture is not None:
        monkeypatch.setattr(gallery, "chosen", lambda: ("made", capture))
    return settled(AppTest.from_function(the_page, default_timeout=120).run())


def settled(at: AppTest) -> AppTest:
    assert not at.exception
    return at


def title(at: AppTest) -> str:
    """The title of the profile, on one line."""
    spec = json.loads(at.get("plotly_chart")[0].proto.spec)
    return re.sub("<br>", " ", spec["layout"]["title"]["text"])


def said(at: AppTest) -> str:
    return "\n".join(element.proto.body for element in at.get("html"))


def place(at: AppTest) -> tuple:
    (found,) = at.session_state["places"].values()
    return tuple(found)


def choose(at: AppTest, label: str, value: str) -> AppTest:
    return settled(next(b for b in at.get("button_group") if b.label == label).set_value(value).run())


def select(at: AppTest, row: int) -> AppTest:
    """Choose a row of the list as a browser does: by the state of its widget."""
    states = at._tree.get_widget_states()
    picked = {"selection": {"rows": [row], "columns": [], "cells": []}}
    states.widgets.append(WidgetState(id=at.dataframe[0].proto.id, string_value=json.dumps(picked)))
    return settled(at._run(states))


def search(at: AppTest, text: str) -> AppTest:
    return settled(at.text_input[0].set_value(text).run())


def test_the_first_view_is_the_saboteur_of_qwen():
    at = opened()
    assert title(at).startswith("Channel 31 peaks at 127 times the layer's median key; the bias of k_proj")
    first = at.dataframe[0].value.iloc[0]
    assert [first[name] for name in ("layer", "KV head", "channel", "RoPE partner")] == [8, 0, 31, 63]
    assert (first["peak |x|"], first["k_proj bias"]) == (215.0, -211.0)
    assert round(first["bias alone reaches"]) == 99
    assert "72 channels peak at ten times their layer" in said(at)
    assert len(at.get("plotly_chart")) == 1  # the surface is drawn only when it is asked for
    assert len(at.button) + len(at.get("page_link")) == 0  # alone, the page leads nowhere


def test_the_layers_are_warned_about_and_the_recipe_is_there_to_copy(monkeypatch):
    at = opened()
    assert at.info[0].value.startswith("In layers 1, 2, 4 and 8 a channel peaks at more than 24 times")
    assert [code.value for code in at.code] == ["k=mxfp4:axis=token;v=mxfp4;skip=1,2,4,8"]
    x = torch.randn(1, 256, 128, generator=torch.Generator().manual_seed(0))
    x[..., 7] += 600  # Q1
    texts = tuple(f"t{i}" for i in range(257))
    capture = made_capture(keys={0: x}, values={0: x}, token_texts=texts)
    at = opened(monkeypatch, capture)
    assert title(at).startswith("Channel 7 peaks at 8")
    assert at.warning[0].value.startswith("In layer 0 a channel peaks at more than 24 times the median key")
    assert [code.value for code in at.code] == ["k=mxfp4:axis=token;v=mxfp4", "mxfp4;skip=0"]


def test_a_row_moves_the_place_and_redraws():
    at = opened()
    select(at, 1)
    assert place(at)[:3] == ("key", 1, 1) and place(at)[4] == 63
    assert title(at).startswith("Channel 63 peaks at 89 times")
    select(at, 2)
    assert place(at)[1:3] == (8, 0) and place(at)[4] == 30


def test_channels_and_tokens_are_found_by_name():
    at = search(opened(), "ch 30")
    assert place(at)[1:3] == (8, 0) and place(at)[4] == 30
    assert len(at.dataframe[0].value) == 48 and set(at.dataframe[0].value["channel"]) == {30}
    search(at, "ruler")
    assert at.session_state["outliers-kind"] == "tokens"
    table = at.dataframe[0].value
    assert all("ruler" in name for name in table["token"]) and len(table) > 3
    assert f"{place(at)[3]}: ·ruler" == table["token"][0]
    search(at, "<img src=x>")
    assert not at.dataframe and "No token of this run holds &lt;img src=x&gt;" in said(at)
    search(at, "")
    assert len(at.dataframe[0].value) > 48


def test_lists_of_tokens_and_single_values():
    at = choose(opened(), "What stands out", "tokens")
    assert at.dataframe[0].value["token"][0] == "0: <|im_start|>"
    assert at.dataframe[0].value["is"][0] == "quiet"
    select(at, 0)
    assert title(at).startswith("Token 0, &lt;|im_start|&gt;, is nearly silent: its median key is 4")
    choose(at, "What stands out", "single values")
    assert not at.dataframe and "No single key is above ten times" in said(at)
    choose(at, "Part", "value")
    table = at.dataframe[0].value
    assert [table[name][0] for name in ("layer", "KV head", "channel", "value")] == [1, 1, 23, 2.734375]
    select(at, 0)
    assert place(at) == ("value", 1, 1, 0, 23)
    assert title(at) == "One value stands alone: 20 times what its channel, token and layer usually hold"


def test_the_surface_comes_when_asked_for():
    at = opened()
    settled(at.toggle[0].set_value(True).run())
    spec = json.loads(at.get("plotly_chart")[1].proto.spec)
    assert spec["data"][0]["type"] == "surface"


def test_numbers_that_are_not_finite_are_counted_and_nothing_is_blank(monkeypatch):
    capture = made_capture()
    capture.keys[1][1, 3, 4], capture.keys[2][0, 0, 0] = float("nan"), float("inf")
    at = opened(monkeypatch, capture)
    assert at.warning[0].value.startswith("2 keys are NaN or infinite, in layers 1 and 2;")
    assert title(at).startswith("Channel 7 peaks at")
    table = at.dataframe[0].value
    assert len(table) == 1 and table[["peak |x|", "× median", "high at"]].notna().all(axis=None)


def test_zeros_alone_are_said(monkeypatch):
    zeros = {0: torch.zeros(2, 70, 40)}
    at = opened(monkeypatch, made_capture(keys=zeros, values=zeros))
    assert title(at) == "Half or more of this layer's keys are zero: there is no median to measure against"
    assert not at.dataframe and "there is no median to measure against" in said(at)
    for kind in ("tokens", "single values"):
        choose(at, "What stands out", kind)


def test_hostile_tokens_stay_literal(monkeypatch):
    made = made_capture()
    capture = replace(made, token_texts=("<b>", "$x$", "<img onerror>", *made.token_texts[3:]))
    at = search(opened(monkeypatch, capture), "<img onerror>")
    assert at.dataframe[0].value["token"][0] == "2: <img·onerror>"
    assert "<img" not in said(at)
    assert "<img" not in at.get("plotly_chart")[0].proto.spec
