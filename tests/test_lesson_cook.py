"""The text that is written twice: greedy both ways, timed step by step, stopped when asked; its figures."""

from __future__ import annotations

import inspect

import pytest
import tiny_text
import torch

from mxviz._engine_lesson import FIRST, cook
from mxviz.figures.lesson import Bar, Curve, Row, curves, look_back_bars, named_bars, ruler_rows, shared_block


def test_both_ways_write_the_same_text(monkeypatch) -> None:
    loaded = tiny_text.loaded()
    fed: list[tuple[int, bool]] = []
    forward = type(loaded.model).forward

    def watched(self, *args, **options):
        fed.append((options["input_ids"].shape[1], options["use_cache"]))
        return forward(self, *args, **options)

    watched.__signature__ = inspect.signature(forward)
    monkeypatch.setattr(type(loaded.model), "forward", watched)
    told = []
    steps = cook(loaded, 6, told=told.append)
    assert [step.step for step in steps] == [1, 2, 3, 4, 5, 6] and told == steps
    assert all(step.same and step.with_ms > 0 and step.without_ms > 0 for step in steps)
    assert [n for n, cached in fed[2:] if cached] == [1] * 6, "one token a step with the cache"
    assert [n for n, cached in fed[2:] if not cached] == [1, 2, 3, 4, 5, 6], "all of them again without"
    assert not loaded.lock.locked()
    assert loaded.tokenizer(FIRST, add_special_tokens=False)["input_ids"]


def test_a_stop_keeps_the_steps_that_were_done() -> None:
    loaded, told = tiny_text.loaded(), []
    steps = cook(loaded, 50, told=told.append, should_stop=lambda: len(told) >= 2)
    assert [step.step for step in steps] == [1, 2] and not loaded.lock.locked()
    assert torch.is_inference_mode_enabled() is False
    with pytest.raises(ValueError, match="0 tokens"):
        cook(loaded, 0)
    loaded.lock.acquire()
    assert cook(loaded, 3, should_stop=lambda: True) == []


def test_figures_refuse_what_they_cannot_draw() -> None:
    with pytest.raises(ValueError, match="weights has shape"):
        look_back_bars([0.5], ["a", "b"], title="t")
    with pytest.raises(ValueError, match="no rulers"):
        ruler_rows([], title="t")
    axis = {"axis": "bytes", "span": (1, 10), "ticks": {1: "1"}}
    for wrong in ([], [Bar("a", 0.0, "0", "exact")], [Bar("a", 1.0, "1", "outlier")]):
        with pytest.raises(ValueError, match="bars; expected some"):
            named_bars(wrong, title="t", **axis)
    for wrong in ([], [Curve("a", [], [], "ink")], [Curve("a", [1, 2], [1], "ink")]):
        with pytest.raises(ValueError, match="expected some, in pairs"):
            curves(wrong, title="t", x_name="x", y_name="y")
    with pytest.raises(ValueError, match="0 values cannot share"):
        shared_block([1.0], [1.0], [0.1], 0, at=0, title="t")
    with pytest.raises(ValueError, match="unknown theme"):
        ruler_rows([Row("a", [-1, 0, 1], "3 ticks")], title="t", theme="blue")


def test_names_in_figures_are_literal() -> None:
    bars = [Bar("<b>$x$", 5.0, "5 & more", "single")]
    fig = named_bars(bars, title="<i>t</i>", axis="a<b", span=(1, 10), ticks={1: "1"})
    assert fig.layout.yaxis.ticktext == ("&lt;b&gt;&#36;x&#36;",)
    assert fig.layout.title.text == "&lt;i&gt;t&lt;/i&gt;" and fig.data[0].marker.pattern.shape == ("/",)
    shares = look_back_bars([0.1, 0.7, 0.2], ["<s>", "<b>", "$x$"], title="t")
    top = [n.text for n in shares.layout.annotations if n.name == "top"]
    assert len(top) == 1 and top[0].startswith("&lt;b&gt;") and "70" in top[0]
    assert list(shares.data[0].marker.color).count(shares.data[0].marker.color[1]) == 1
