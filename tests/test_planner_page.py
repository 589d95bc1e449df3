"""The planner's page and figure: one sentence that is true, a figure that agrees, and calm lines."""

from __future__ import annotations

import json

import numpy as np
import pytest
from streamlit.testing.v1 import AppTest

from mxviz import _pictures_planner as pictures
from mxviz import planner
from mxviz._pictures_planner import Plan
from mxviz._pictures_planner_sum import formula
from mxviz.figures import alt_text
from mxviz.figures.labels import text_width
from mxviz.figures.planner import Cache, Place, context_words, memory_lines, rounded_down
from mxviz.planner import Layer, cache_bytes, longest_context, shape_of

LLAMA = planner.known_models()["meta-llama/Llama-3.1-8B-Instruct"]
LAYERS = shape_of(LLAMA.config).layers
PLAN = Plan(
    "Llama 3.1 8B", LAYERS, "mxfp4", 131_072, 1, planner.cards()["RTX 4090"], LLAMA.weights, 0, 131_072
)


def sentence(plan: Plan) -> str:
    return "".join(text for text, _ in pictures.answer(plan)).replace("\N{NO-BREAK SPACE}", " ")


def titled(fig) -> str:
    return fig.layout.title.text.replace("<br>", " ").replace("\N{NO-BREAK SPACE}", " ")


def test_the_answer_is_one_sentence_with_true_numbers() -> None:
    assert sentence(PLAN) == (
        "At 128k tokens this cache takes 16 GiB uncompressed, 4.25 GiB as MXFP4: it fits on RTX 4090 "
        "(24 GB), beside 15 GiB of weights, up to 278,000 tokens; uncompressed up to 73,900."
    )
    room = 24_564 * 2**20 - 16_060_522_496
    assert longest_context(LAYERS, "mxfp4", room) == room // 34_816
    assert room // 34_816 >= 278_000 and room // 131_072 >= 73_900
    lanes = {lane for text, lane in pictures.answer(PLAN)}
    assert lanes == {"", "exact", "micro"}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"card": None}, "At 128k tokens this cache takes 16 GiB uncompressed, 4.25 GiB as MXFP4."),
        ({"recipe": "none"}, "16 GiB uncompressed: too much for RTX 4090 (24 GB), which holds 73,900 tokens, "
                             "beside 15 GiB of weights."),
        ({"batch": 4}, "At 128k tokens in each of 4 sequences this cache takes 64 GiB uncompressed, 17 GiB "
                       "as MXFP4: too much for RTX 4090 (24 GB), which holds 69,600 tokens, beside 15 GiB of "
                       "weights; uncompressed up to 18,400."),
        ({"recipe": "k=mxfp4:axis=token;v=mxfp4;sink=4;residual=32"},
         "4.25 GiB as MXFP4, keys along tokens (first 4 and newest 32 exact): it fits"),
        ({"weights": None}, "it fits on RTX 4090 (24 GB), no weights counted, up to"),
        ({"kept": 2**31}, "beside 15 GiB of weights and 2 GiB kept free"),
        ({"card": planner.cards()["RTX 3060"]}, "there is no room for it on RTX 3060 (12 GB), beside 15 GiB"),
        ({"layers": (Layer(8, 128, 128, 4096),)}, "it never outgrows RTX 4090 (24 GB)"),
        ({"tokens": 1024, "layers": LAYERS[:1]}, "4 MiB uncompressed"),
    ],
)  # fmt: skip
def test_every_case_has_its_words(change: dict, said: str) -> None:
    assert said in sentence(PLAN._replace(**change))


def test_the_figure_agrees_with_the_planner() -> None:
    fig = pictures.planner_picture(PLAN)
    lines = {t.name: t for t in fig.data if t.mode == "lines" and t.customdata is not None}
    assert list(lines) == ["uncompressed", "MXFP4", "FP4 per tensor"]
    assert [line.line.color for line in lines.values()] == ["#6b7280", "#0f766e", "#c2410c"]
    assert [line.line.dash for line in lines.values()] == ["solid", "solid", "dash"]
    for name, recipe in (("uncompressed", "none"), ("MXFP4", "mxfp4"), ("FP4 per tensor", "fp4@tensor")):
        for i in (0, 17, -1):
            bytes_ = cache_bytes(LAYERS, recipe, int(lines[name].x[i]))
            assert lines[name].y[i] == pytest.approx((bytes_ + LLAMA.weights) / 2**30)
    met = {t.x[0] for t in fig.data if t.name == "fits up to"}
    assert met == {lane.fits for lane in pictures.lanes(PLAN)} and len(met) == 3
    assert all(t.y[0] == pytest.approx(24_564 / 1024) for t in fig.data if t.name == "fits up to")
    assert titled(fig) == ("278,000 tokens of Llama 3.1 8B fit on RTX 4090 as MXFP4, 73,900 uncompressed")
    assert "fits up to 73,979" in alt_text(fig) and "24 GiB" in alt_text(fig)


@pytest.mark.parametrize("width", [358, 1216])
@pytest.mark.parametrize("tokens", [2048, 131_072, 2**20])
@pytest.mark.parametrize("recipe", ["mxfp4", "nvfp4", "kivi2", "int8@tensor", "none"])
def test_what_fits_is_written_off_each_other_and_inside(width: int, tokens: int, recipe: str) -> None:
    fig = pictures.planner_picture(PLAN._replace(tokens=tokens, recipe=recipe), width=width)
    margin, last = fig.layout.margin, fig.layout.xaxis.range[1]
    plot = fig.layout.width - margin.l - margin.r
    boxes = []
    for note in (n for n in fig.layout.annotations if n.name == "fits"):
        left = note.x / last * plot + note.xshift
        right = left + text_width(note.text, note.font.size)
        assert left >= -1 and right <= plot + 1
        boxes.append((left, right, (note.yanchor, note.yshift)))
    assert len(boxes) == len([t for t in fig.data if t.name == "fits up to"])
    for i, (left, right, row) in enumerate(boxes):
        assert all(right <= a or b <= left or row != other for a, b, other in boxes[i + 1 :])


def test_without_a_card_and_with_odd_names() -> None:
    fig = pictures.planner_picture(PLAN._replace(card=None, title="<b>$x$ %{y}</b>"))
    assert "&lt;b&gt;&#36;x&#36; &#37;{y}" in titled(fig)
    assert not [n for n in fig.layout.annotations if n.name in ("card", "fits")]
    full = pictures.planner_picture(PLAN._replace(card=planner.cards()["RTX 3060"]))
    assert "Llama 3.1 8B leaves no room for a cache on RTX 3060" in titled(full)


def test_what_cannot_be_drawn_is_refused() -> None:
    place = Place("card", 24.0, 15.0)
    with pytest.raises(ValueError, match="there is no cache to draw"):
        memory_lines([0, 1], [], place, at=1, title="t")
    with pytest.raises(ValueError, match=r"MXFP4 has shape \(3,\); expected one number for each context"):
        memory_lines([0, 1], [Cache("MXFP4", np.zeros(3), "micro", 1, 0.1)], place, at=1, title="t")
    with pytest.raises(ValueError, match="unknown lane 'teal'"):
        memory_lines([0, 1], [Cache("MXFP4", np.zeros(2), "teal", 1, 0.1)], place, at=1, title="t")


def test_words_of_numbers() -> None:
    assert [context_words(n) for n in (512, 1024, 1536, 131_072, 196_608, 2**20, 3 * 2**19, 277_309)] == [
        *("512", "1k", "1.5k", "128k", "192k", "1M", "1.5M", "277,309")
    ]
    assert [rounded_down(n) for n in (0, 999, 1009, 277_999)] == [0, 999, 1000, 277_000]


def test_the_sum_is_written_with_its_numbers() -> None:
    lines = formula(PLAN)
    assert lines[0] == (
        "Uncompressed: 32 layers × 8 KV heads × (128 key + 128 value channels) × 2 bytes = 131,072 bytes a "
        "token."
    )
    assert lines[1] == (
        "MXFP4: 32 layers × 8 KV heads × [(64 bytes of codes + 4 of scales) + (64 bytes of codes + 4 of "
        "scales)] = 34,816 bytes a packed token."
    )
    assert "131,072 tokens × batch 1 take 4,563,402,752 bytes" in lines[3]
    kivi = formula(PLAN._replace(recipe="kivi4"))
    assert any("the newest 128; an open block of up to 31 tokens" in line for line in kivi)
    gemma = shape_of(planner.known_models()["google/gemma-3-27b-it"].config).layers
    assert any(
        "52 sliding layers" in line and "at most 1,023 tokens" in line
        for line in formula(PLAN._replace(layers=gemma))
    )


def _page() -> None:
    from mxviz.views import planner

    planner.page()


@pytest.fixture
def at() -> AppTest:
    at = AppTest.from_function(_page, default_timeout=60).run()
    assert not at.exception
    return at


def text(at: AppTest) -> str:
    return " ".join(block.proto.body for block in at.get("html")).replace("\N{NO-BREAK SPACE}", " ")


def test_the_first_view_is_true_with_nothing_clicked(at: AppTest) -> None:
    plain = text(at)
    assert "4.25 GiB as MXFP4" in plain and "278,000 tokens" in plain
    assert "8,030,261,248 parameters" in plain and "34,816 bytes a packed token" in plain
    assert len(at.get("plotly_chart")) == 1
    assert [w.label for w in at.selectbox] == ["Model", "Store the cache as", "Card"]
    assert [w.label for w in at.select_slider] == ["Context, tokens"]
    assert [w.label for w in at.number_input] == [
        "Batch",
        "Weights, GiB",
        "Kept free for everything else, GiB",
    ]


def test_each_control_changes_the_answer(at: AppTest) -> None:
    seen = {text(at)}
    at.select_slider[0].set_value(8192).run()
    seen.add(text(at))
    at.selectbox[1].set_value("nvfp4").run()
    seen.add(text(at))
    at.selectbox[2].set_value("H200").run()
    seen.add(text(at))
    at.number_input[0].set_value(8).run()
    seen.add(text(at))
    at.selectbox[0].set_value("google/gemma-3-27b-it").run()
    seen.add(text(at))
    assert "51.1 GiB of weights" in text(at)
    at.number_input[1].set_value(16.0).run()
    seen.add(text(at))
    assert "16.0 GiB of weights, as you say" in text(at)
    assert len(seen) == 7 and not at.exception


def test_a_pasted_config_takes_the_models_place(at: AppTest) -> None:
    at.text_area[0].set_value(json.dumps(planner.known_models()["tiiuae/falcon-7b"].config)).run()
    assert "pasted" in at.get("plotly_chart")[0].proto.spec
    assert "no weights counted" in text(at) and "How large the weights are is not known here" in text(at)
    assert "8,192 bytes a token" in text(at)


@pytest.mark.parametrize(
    ("pasted", "said"),
    [
        ("{", "this is no JSON"),
        ('{"model_type": "llama"}', "num_hidden_layers is missing"),
        ('{"num_hidden_layers": "<img onerror=x>$y$"}', "num_hidden_layers is"),
    ],
)
def test_nonsense_is_one_calm_line_and_the_controls_stay(at: AppTest, pasted: str, said: str) -> None:
    at.text_area[0].set_value(pasted).run()
    assert len(at.info) == 1 and at.info[0].value.startswith(said) and not at.exception
    assert "$y$" not in at.info[0].value
    assert len(at.selectbox) == 3 and not at.get("plotly_chart")
    at.text_area[0].set_value("").run()
    assert len(at.get("plotly_chart")) == 1 and not at.info


def test_weights_of_one_pasted_config_are_not_those_of_another(at: AppTest) -> None:
    at.text_area[0].set_value(json.dumps(planner.known_models()["tiiuae/falcon-7b"].config)).run()
    at.number_input[1].set_value(13.0).run()
    assert "13.0 GiB of weights, as you say" in text(at)
    at.text_area[0].set_value(json.dumps(LLAMA.config)).run()
    assert "no weights counted" in text(at) and "as you say" not in text(at)


def opened_with(**settings: str) -> AppTest:
    """The page with what was typed: AppTest's selectbox takes listed options alone."""
    at = AppTest.from_function(_page, default_timeout=60)
    for name, value in settings.items():
        at.session_state[f"plan-{name}"] = value
    at.run()
    assert not at.exception
    return at


def test_what_is_typed_is_understood() -> None:
    typed = opened_with(model="deepseek")
    assert "625 GiB of weights" in text(typed) and "latent" in text(typed)
    typed = opened_with(recipe="int8@tensor", card="1000")
    assert "as INT8 per tensor" in text(typed) and "a card of your own (1,000 GB)" in text(typed)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"recipe": "mxfp4;skip=99"}, "skip=99 names a layer this model does not have"),
        ({"recipe": "mxfp9"}, "unknown scheme 'mxfp9'"),
        ({"card": "a toaster"}, "'a toaster' is no card known here"),
        ({"model": "qwen"}, "'qwen' could be "),
        ({"model": "gpt2"}, "'gpt2' is no hub id; expected owner/name"),
    ],
)
def test_what_is_not_understood_is_one_calm_line(settings: dict, said: str) -> None:
    typed = opened_with(**settings)
    assert len(typed.info) == 1 and typed.info[0].value.startswith(said)
    assert not typed.get("plotly_chart") and len(typed.selectbox) == 3


def test_layers_that_stay_exact_are_said_so() -> None:
    layers = shape_of(planner.known_models()["openai/gpt-oss-20b"].config).layers
    lines = formula(PLAN._replace(layers=layers, recipe="mxfp4;residual=128"))
    assert "These sliding layers stay uncompressed under any recipe such as this." in lines
