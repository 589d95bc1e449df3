"""Every number of the lesson, recomputed with NumPy from the recorded runs, or from the formula."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import oracle
import pytest
from made_capture import made_capture

from mxviz import _lesson_saboteur as saboteur
from mxviz import _pictures_lesson as pictures
from mxviz import _pictures_lesson_words as words
from mxviz import lesson
from mxviz._paths import ASSETS
from mxviz.capture import Capture
from mxviz.figures import alt_text
from mxviz.views import lesson_text


@pytest.fixture(scope="module")
def wild() -> Capture:
    return Capture.load(ASSETS / "gallery" / "qwen-code.safetensors")


@pytest.fixture(scope="module")
def mild() -> Capture:
    return Capture.load(ASSETS / "gallery" / "smollm2-chat.safetensors")


def told(name: str, wild: Capture, mild: Capture) -> dict[str, str]:
    return words.facts(name, wild, mild).words


def numeric(text: str) -> float:
    """The number of a text: 1,234 · −5.6 · 96.8 %."""
    return float(re.sub(r"[^\d.e-]", "", text.replace("−", "-")))


# --- 1: what a token looks back at -----------------------------------------------------------------


def attention(run: Capture, layer: int, head: int, position: int) -> np.ndarray:
    queries, keys = run.queries[layer].double().numpy(), run.keys[layer].double().numpy()
    key = keys[head * len(keys) // len(queries), : position + 1]
    scores = key @ queries[head, position] / np.sqrt(key.shape[1])
    weights = np.exp(scores - scores.max())
    return weights / weights.sum()


def test_the_head_that_looks_most_at_what_followed(wild, mild) -> None:
    seen = lesson.look_back(wild)
    np.testing.assert_allclose(
        seen.weights, attention(wild, seen.layer, seen.query_head, seen.position), rtol=1e-9
    )
    texts, best = wild.token_texts, 0.0
    for position in range(wild.prompt_tokens, wild.tokens_held):
        before = [i for i in range(wild.prompt_tokens - 1) if texts[i] == texts[position]]
        if before and len(re.findall("[A-Za-z]", texts[position])) >= 4:
            for layer in wild.queries:
                for head in range(wild.queries[layer].shape[0]):
                    best = max(best, attention(wild, layer, head, position)[before[-1] + 1])
    assert seen.weights[seen.target] == pytest.approx(best)
    assert texts[seen.target - 1] == texts[seen.position] and seen.target < seen.position
    said = told("1-taste", wild, mild)
    assert numeric(said["top_share"]) == pytest.approx(100 * seen.weights.max(), abs=0.051)
    assert int(said["top_place"]) == int(seen.weights.argmax()) and int(said["others"]) == seen.position
    known = words.facts("1-taste", wild, mild)
    assert f"token {seen.weights.argmax()}," in known.options[known.right]


def test_no_queries_are_refused(wild, mild) -> None:
    with pytest.raises(ValueError, match="queries"):
        lesson.look_back(replace(wild, queries={}))
    with pytest.raises(ValueError, match="queries"):
        lesson.look_back(made_capture())


# --- 2 and 3: work and bytes -----------------------------------------------------------------------


def test_passes_are_sums(wild, mild) -> None:
    for n in (0, 1, 2, 7, 64, 1000):
        assert lesson.passes(n) == (n, sum(range(1, n + 1)))
    with pytest.raises(ValueError, match="-1 tokens"):
        lesson.passes(-1)
    said = told("2-cook", wild, mild)
    assert (said["n"], said["without"], said["ten_n"]) == ("64", "2,080", "640")
    assert said["times"] == "32.5" and numeric(said["n_plus"]) == 65
    assert said["power"] == "18,446,744,073,709,551,616"
    check = told("9-check", wild, mild)
    assert (check["passes_1000"], check["passes_2000"]) == ("500,500", "2,001,000")


def test_bytes_per_token_are_those_of_the_public_case(wild, mild) -> None:
    shape = lesson.Shape(36, 8, 128)
    assert lesson.MODELS["Qwen3 8B"] == shape
    stored = {name: lesson.bytes_per_token(shape, lesson.bits_stored(name)) for name in lesson.STORED}
    assert stored == {"bfloat16": 147_456, "MXFP8": 76_032, "MXFP6": 57_600, "MXFP4": 39_168}
    assert lesson.bytes_per_token(shape, 4.5) == 41_472, "NVFP4"
    said = told("3-bowl", wild, mild)
    assert (said["per_token"], said["per_token_4"]) == ("147,456", "39,168")
    assert said["fit"] == f"{24 * 2**30 // 147_456:,}" and said["fit_4"] == f"{24 * 2**30 // 39_168:,}"
    assert [numeric(said[name]) for name in ("hundredth", "tenth", "about", "tenfold")] == [
        1750, 17_500, 175_000, 1_750_000
    ]  # fmt: skip
    assert [said[f"bits_{n}"] for n in (8, 6, 4)] == ["8.25", "6.25", "4.25"]


def test_shapes_are_those_of_the_recorded_models(wild, mild) -> None:
    for name, run in (("Qwen2.5 Coder 0.5B", wild), ("SmolLM2 135M", mild)):
        found = (run.shape["layers"], run.shape["kv_heads"], run.shape["head_dim"])
        assert lesson.MODELS[name] == found
        held = run.storage["exact"]
        assert lesson.bytes_per_token(lesson.MODELS[name]) == held["stored_bytes"] / held["tokens_held"]


def test_the_memory_picture_says_what_the_formula_says() -> None:
    fig = pictures.memory_picture("Qwen3 8B", 128_000)
    bar = next(trace for trace in fig.data if trace.name == "bars")
    sizes = 2.0 ** (np.log2(10) * (np.array(bar.x) + bar.base))
    np.testing.assert_allclose(sizes, 128_000 * np.array([147_456, 76_032, 57_600, 39_168]), rtol=1e-9)
    assert [row[1] for row in bar.customdata] == [
        f"{n}\N{NO-BREAK SPACE}GiB" for n in ("17.6", "9.06", "6.87", "4.67")
    ]
    lines = sorted(float(shape.x0) for shape in fig.layout.shapes)
    np.testing.assert_allclose(lines, np.log10(np.array([8, 24, 80, 141]) * 2.0**30))


# --- 4: ticks --------------------------------------------------------------------------------------


def test_rulers_have_the_ticks_of_their_formats(wild, mild) -> None:
    for name in ("int8", "int4", "fp8_e4m3", "fp6_e2m3", "fp4"):
        element = oracle.ELEMENTS[name]
        grid = element.grid if not element.is_float else np.unique([*-element.grid, *element.grid])
        np.testing.assert_allclose(lesson.ruler(name), np.unique(grid + 0.0) / element.grid[-1])
    said = told("4-squash", wild, mild)
    assert [said[name] for name in ("int8", "half", "int4", "fp6", "fp4")] == ["255", "127", "15", "63", "15"]
    assert said["fp4_near"] == "8.3\N{NO-BREAK SPACE}%" and said["fp4_far"] == "33\N{NO-BREAK SPACE}%"
    marks = [t for t in pictures.ticks_picture().data if t.name.startswith("ticks")]
    assert [len(t.x) // 3 for t in marks] == [255, 253, 63, 15, 15]


# --- 5 and 6: the saboteur and personal rulers -----------------------------------------------------


def real_room(run: Capture, times: int) -> np.ndarray:
    """Layer 8, KV head 0, channel 5, tokens 32 to 95; the largest of the second half multiplied."""
    room = run.keys[8][0, 32:96, 5].float().numpy().copy()
    room[32 + np.abs(room[32:]).argmax()] *= times
    return room


def one_int4(x: np.ndarray) -> tuple[np.ndarray, np.float32]:
    scale = np.abs(x).max() / np.float32(7)
    return np.clip(np.rint(x / scale), -7, 7) * scale, scale


def own_mxint4(x: np.ndarray) -> tuple[np.ndarray, float]:
    step = 2.0 ** np.floor(np.log2(np.abs(x).max())) / 4
    return np.clip(np.rint(x / np.float32(step)), -7, 7) * step, step


@pytest.mark.parametrize("times", saboteur.TIMES)
def test_flushed_counts_are_those_of_numpy(wild, times) -> None:
    seen, room = saboteur.sabotage(wild, times), real_room(wild, times)
    np.testing.assert_array_equal(seen.room, room)
    assert seen.times == times and abs(room[seen.at]) == np.abs(room[32:]).max()
    back, scale = one_int4(room)
    np.testing.assert_allclose(seen.one.decoded, back[:32], rtol=1e-6)
    np.testing.assert_array_equal(seen.one.flushed, (back[:32] == 0) & (room[:32] != 0))
    assert seen.one.step == pytest.approx(float(scale)) and len(seen.one.ticks) == 15
    back, step = own_mxint4(room[:32])
    np.testing.assert_allclose(seen.own.decoded, back, rtol=1e-6)
    np.testing.assert_array_equal(seen.own.flushed, (back == 0) & (room[:32] != 0))
    assert seen.own.step == step
    title = pictures.sabotage_picture(wild, times).layout.title.text.replace("<br>", " ")
    counts = [int((one_int4(room)[0][:32] == 0).sum()), int((back == 0).sum())]
    found = re.search(r": (\d+|none) of these 32 keys .*, (\d+|none) under", title)
    assert [0 if n == "none" else int(n) for n in found.groups()] == counts


def test_the_saboteur_ruins_the_room_and_not_the_own_ruler(wild, mild) -> None:
    one = [int(saboteur.sabotage(wild, t).one.flushed.sum()) for t in (1, 4, 16, 64)]
    own = [int(saboteur.sabotage(wild, t).own.flushed.sum()) for t in (1, 4, 16, 64)]
    assert one == sorted(one) and one[0] < one[-1] and len(set(own)) == 1
    known = words.facts("5-saboteur", wild, mild)
    assert known.right == one[-1] == int(known.words["zeros_one"])
    assert (known.words["zeros_one_1"], known.words["zeros_own"]) == (str(one[0]), str(own[0]))
    for name, times in (("step_one_1", 1), ("step_one", 64)):
        assert numeric(known.words[name]) == pytest.approx(
            float(one_int4(real_room(wild, times))[1]), rel=5e-3
        )
    loud = real_room(wild, 64)
    assert abs(numeric(known.words["outlier"])) == pytest.approx(np.abs(loud).max(), rel=5e-4)


@pytest.mark.parametrize("rulers", saboteur.RULERS)
def test_personal_rulers_are_those_of_numpy(wild, mild, rulers) -> None:
    seen, block = saboteur.personal_rulers(wild, rulers), real_room(wild, 16)[32:]
    parts = [own_mxint4(part) for part in np.split(block, rulers)]
    back = np.concatenate([values for values, _ in parts])
    np.testing.assert_allclose(seen.decoded, back, rtol=1e-6)
    np.testing.assert_array_equal(seen.flushed, (back == 0) & (block != 0))
    np.testing.assert_allclose(seen.limits, np.repeat([step / 2 for _, step in parts], 32 // rulers))
    assert (seen.size, seen.bits) == (32 // rulers, 4 + 8 * rulers / 32)
    zeros = int(((back == 0) & (block != 0)).sum())
    said = told("6-rulers", wild, mild)
    plural = "s" * (rulers > 1)
    assert f"{rulers} ruler{plural}: {zeros} become zero at {seen.bits:.4g} bits" in said["table"]
    if rulers in (1, 8):
        assert said["zeros" if rulers == 8 else "zeros_1"] == str(zeros)
    fig = pictures.personal_picture(wild, rulers)
    marks = {trace.name: len(trace.x) for trace in fig.data}
    assert marks["became zero"] == zeros and sum(marks.values()) == 32
    assert f"at {seen.bits:.4g} bits" in fig.layout.title.text.replace("<br>", " ")


def test_what_does_not_divide_is_refused(wild) -> None:
    with pytest.raises(ValueError, match="3 rulers"):
        saboteur.personal_rulers(wild, 3)
    short = made_capture()
    with pytest.raises(ValueError, match="layer 8"):
        saboteur.sabotage(short, 4)


# --- 7 and 8: which way to cut, and whether it matters ---------------------------------------------


def test_three_cuts_are_those_of_the_oracle(wild, mild) -> None:
    keys = wild.keys[8].float().numpy()
    found = {}
    for name, scheme in (("one", "int4@tensor"), ("channel", "mxfp4"), ("token", "mxfp4:axis=token")):
        found[name] = oracle.quantize(keys, scheme).flushed.sum() / np.count_nonzero(keys)
    assert lesson.three_cuts(wild) == pytest.approx(found)
    assert found["one"] == pytest.approx(0.968, abs=0.005)
    assert 0.45 < found["channel"] < 0.6 and found["token"] < 0.1
    said = told("7-cut", wild, mild)
    for name, share in (("one", found["one"]), ("across", found["channel"]), ("along", found["token"])):
        assert numeric(said[name]) == pytest.approx(100 * share, abs=0.051)
    assert numeric(said["amax"]) == pytest.approx(np.abs(keys).max(), rel=5e-4)
    assert numeric(said["median"]) == pytest.approx(np.median(np.abs(keys)), rel=0.04)
    loud = np.unravel_index(np.abs(keys).argmax(), keys.shape)
    assert (said["head"], said["channel"]) == (str(loud[0]), str(loud[2])) == ("0", "31")
    assert np.abs(keys[0, :, 31]).min() > 5 * np.median(np.abs(keys)), "it is loud at every token"


def test_effects_are_means_of_the_recorded_tables(wild, mild) -> None:
    for run in (wild, mild):
        rows = {row.recipe: row for row in lesson.effects(run)}
        assert list(rows) == list(lesson.EFFECTS)
        for text, row in rows.items():
            table = run.effect[text]
            assert row.kl == pytest.approx(table["kl"].double().numpy().mean())
            assert row.top1 == pytest.approx(table["top1"].numpy().mean())
            assert row.bits == (8 if "8" in text else 4)
    said = told("8-matter", wild, mild)
    names = {"fp8": "fp8_e4m3@tensor", "mxfp8": "mxfp8_e4m3", "int4": "int4@tensor"}
    for name, text in (names | {"mx": "k=mxfp4:axis=token;v=mxfp4"}).items():
        table = wild.effect[text]
        assert numeric(said[f"top_{name}"]) == pytest.approx(100 * table["top1"].numpy().mean(), abs=0.5)
        assert numeric(said[f"kl_{name}"]) == pytest.approx(table["kl"].numpy().mean(), rel=0.05)
    assert numeric(said["smol_int4"]) == pytest.approx(
        100 * mild.effect["int4@tensor"]["top1"].numpy().mean(), abs=0.5
    )
    assert said["positions"] == str(len(wild.token_ids))


def test_the_right_bucket_holds_the_share(wild, mild) -> None:
    share = wild.effect["fp8_e4m3@tensor"]["top1"].numpy().mean()
    right = words.facts("8-matter", wild, mild).right
    low, high = [(0, 0.5), (0.5, 0.7), (0.7, 0.85), (0.85, 1.01)][right]
    assert low <= share < high
    options = lesson_text.read("8-matter").question.options
    assert options[right] == "85 % or more" and len(options) == 4


# --- texts and pictures ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", words.FACTS)
def test_texts_use_the_facts_there_are(name, wild, mild) -> None:
    known = words.facts(name, wild, mild)
    whole = lesson_text.plain(name)
    used = set(re.findall(r"\{(\w+)\}", whole))
    assert used == known.words.keys() - {"target"}, "every fact is told, and every name is known"
    assert "{" not in lesson_text.fill(whole, known.words)


def test_marked_answers_are_the_right_ones(wild, mild) -> None:
    def right(name: str) -> str:
        question = lesson_text.read(name).question
        return lesson_text.fill(question.options[question.right], told(name, wild, mild)).replace("\\", "")

    assert right("2-cook") == "2,080" and right("3-bowl") == "about 175,000" and right("4-squash") == "15"
    assert right("7-cut").startswith("along the tokens")
    title, questions = lesson_text.questions("9-check")
    assert len(questions) == 5 and all(q.right is not None and q.told for q in questions)
    assert title == "Five questions"


def test_words_are_never_markup() -> None:
    hostile = r"<b>x</b> *y* [a](b) `c` $5 and $6 :red[z] # 1"
    assert lesson_text.fill("{a}", {"a": hostile}).count("\\") >= 16
    with pytest.raises(ValueError, match="no text 'nowhere'"):
        lesson_text.read("nowhere")
    with pytest.raises(ValueError, match="no step"):
        words.facts("nowhere", made_capture(), made_capture())


@pytest.mark.parametrize("size", [{"width": 1056}, {"width": 358, "theme": "dark"}])
def test_every_picture_has_a_sentence_and_words(wild, mild, size) -> None:
    from mxviz._engine_lesson import Cooked

    steps = [Cooked(1, 30.0, 31.0, True), Cooked(2, 29.5, 40.0, False)]
    drawn = [
        *(pictures.look_back_picture(wild, hidden=h, **size) for h in (True, False)),
        *(pictures.passes_picture(hidden=h, **size) for h in (True, False)),
        pictures.cooked_picture(steps, 96, "a model", **size),
        *(pictures.memory_picture(name, **size) for name in lesson.MODELS),
        *(pictures.ticks_picture(hidden=h, **size) for h in (True, False)),
        *(pictures.cut_picture(wild, hidden=h, **size) for h in (True, False)),
        pictures.effect_picture(wild, **size),
    ]
    for fig in drawn:
        assert len(fig.layout.title.text) > 20 and len(alt_text(fig)) > 40
        assert fig.layout.width == size["width"] and len(fig.to_json()) < 400_000
    assert "a model" in str(drawn[4].layout.annotations) and "1 of 2 steps" in str(
        drawn[4].layout.annotations
    )
    curves = {trace.name: list(trace.y) for trace in drawn[3].data}
    assert curves["without a cache"][-1] == 2080 and curves["with a cache"][-1] == 64
    hidden, shown = drawn[:2]
    assert not hidden.data and len(shown.data[0].x) == lesson.look_back(wild).position + 1


def test_a_step_that_was_held_up_does_not_flatten_the_rest() -> None:
    from mxviz._engine_lesson import Cooked

    steps = [Cooked(i, 30.0, 30.0 + i, True) for i in range(1, 21)]
    even = pictures.cooked_picture(steps, 64, "a model")
    assert even.layout.yaxis.range == (0, pytest.approx(1.14 * 50)) and "above" not in str(even.layout)
    assert even.layout.title.text == "Step 20 took 50 ms without a cache, 30 ms with one"
    assert "210 token passes so far against 20" in even.layout.annotations[0].text.replace("<br>", " ")
    spiked = pictures.cooked_picture([*steps, Cooked(21, 9000.0, 51.0, False)], 64, "a model")
    assert spiked.layout.yaxis.range[1] < 130
    said = spiked.layout.annotations[0].text.replace("<br>", " ")
    assert "had the machine: 1" in said and "in 20 of 21 steps" in said
    assert max(spiked.data[1].y) == 9000, "left out of sight, not out of the data"


def test_the_teachers_notes_link_every_step(root) -> None:
    notes = (root / "docs" / "teachers-notes.md").read_text(encoding="utf-8")
    for i, name in enumerate(words.FACTS, 1):
        assert f"?step={i}" in notes
        title = lesson_text.plain(name).splitlines()[0].removeprefix("# ")
        assert title in notes, f"the notes call step {i} something else than {title!r}"
