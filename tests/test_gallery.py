"""What can be looked at: recorded runs that are what they say, this session's own, and files of any kind."""

from __future__ import annotations

import io
import re
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from made_capture import made_capture
from safetensors.torch import save_file
from streamlit.testing.v1 import AppTest

from benchmarks import make_gallery
from mxviz._paths import ASSETS
from mxviz.capture import FORMAT, Capture
from mxviz.formats import Recipe
from mxviz.metrics import effect_stats, part_error
from mxviz.outliers import channel_outliers
from mxviz.views import gallery
from mxviz.views import open as files
from mxviz.views.limits import limits

FOLDER = ASSETS / "gallery"
MODELS = [name for name in gallery.RUNS if name != "planted"]


@pytest.fixture(scope="module", params=gallery.RUNS)
def run(request) -> tuple[str, Capture]:
    return request.param, Capture.load(FOLDER / f"{request.param}.safetensors")


def recorded(name: str) -> Capture:
    return Capture.load(FOLDER / f"{name}.safetensors")


# The recorded runs


def test_every_recorded_run_is_small_quick_and_listed_with_its_licence():
    found = sorted(path.stem for path in FOLDER.glob("*.safetensors"))
    assert found == sorted(gallery.RUNS) == sorted(["planted", *make_gallery.RUNS])
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) <= 40e6
    readme = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert all(f"`{name}`" in readme for name in found) and readme.count("Apache-2.0") >= 2
    for name in found:
        started = time.perf_counter()
        recorded(name)
        assert time.perf_counter() - started < 0.3


@pytest.mark.parametrize("name", MODELS)
def test_a_recorded_run_holds_what_its_script_says(name):
    capture, made = recorded(name), make_gallery.RUNS[name]
    settings = made.settings
    assert (capture.model, capture.prompt, capture.recipe) == (made.title, settings.prompt, settings.recipe)
    assert capture.baseline == str(settings.recipes()["single"])
    wanted = range(capture.shape["layers"]) if settings.layers is None else settings.layers
    assert capture.layers == tuple(wanted)
    assert tuple(sorted(capture.queries)) == settings.query_layers
    assert set(capture.queries) <= set(capture.keys_pre_rope) <= set(capture.layers)
    tensors = [*capture.keys.values(), *capture.values.values(), *capture.queries.values()]
    assert {x.dtype for x in tensors} == {torch.bfloat16}
    assert all(x.isfinite().all() for x in tensors)
    assert capture.tokens_held == len(capture.token_ids) - 1
    assert "/" not in capture.model  # no path of the machine that recorded it


@pytest.mark.parametrize("name", MODELS)
def test_a_recorded_run_carries_the_effect_of_the_schemes(name):
    capture = recorded(name)
    positions = len(capture.token_ids)
    asked = [
        *("nvfp4", "mxfp4", "k=mxfp4:axis=token;v=mxfp4", "int4@tensor", "fp4@tensor"),
        *("int8@tensor", "fp8_e4m3@tensor", "mxfp8_e4m3"),
    ]
    assert set(asked) <= set(capture.effect)
    mean = {}
    for lane, tables in capture.effect.items():
        if lane not in ("exact", "micro", "single"):
            assert str(Recipe.parse(lane)) == lane
        assert tables["nll"].shape == (positions - 1,) and tables["nll"].isfinite().all()
        if lane != "exact":
            assert tables["kl"].shape == tables["top1"].shape == (positions,)
            assert (tables["kl"] >= 0).all() and tables["top1"].dtype == torch.bool
            mean[lane] = effect_stats(tables["kl"], tables["top1"])["kl_mean"]
    assert mean["micro"] == mean[capture.recipe] and mean["single"] == mean[capture.baseline]
    assert mean["int8@tensor"] < 0.05 < mean["mxfp4"] < mean["int4@tensor"]
    assert mean["k=mxfp4:axis=token;v=mxfp4"] < mean["mxfp4"]


def test_the_first_run_has_the_wild_channel():
    capture = recorded(next(iter(gallery.RUNS)))
    worst = max(channel_outliers(capture, "key"), key=lambda row: row.ratio_to_median)
    assert (worst.layer, worst.head, worst.channel) == (8, 0, 31) and worst.amax > 200
    assert worst.layer in capture.queries


def test_the_long_run_is_long_and_says_that_it_has_every_third_layer():
    capture = recorded("smollm2-long")
    assert capture.tokens_held >= 1500
    assert "every third layer (0, 3, … 27) of 30 in bfloat16" in gallery.described("smollm2-long", capture)


def test_the_planted_channel_is_case_q1():
    capture, again = recorded("planted"), make_gallery.planted()
    x = capture.keys[0]
    assert torch.equal(x, again.keys[0]) and x.shape == (1, 256, 128) and x.dtype == torch.float32
    assert [(row.head, row.channel) for row in channel_outliers(capture, "key")] == [(0, 7)]
    rest = x.clone()
    rest[:, :, 7] = 0
    assert rest.abs().max() < 6 and 595 < x[0, :, 7].mean() < 605
    assert abs(part_error(capture, "int8@tensor", "key")["flushed"] - 0.975) < 0.01
    flushed = part_error(capture, "mxfp4", "key")["flushed"]
    assert 31 / 128 < flushed < 31 / 128 + 0.1  # its 31 neighbours, and small values elsewhere


@pytest.mark.parametrize(
    ("layers", "count", "said"),
    [
        ((0,), 1, "its one layer"),
        ((0, 1, 2), 3, "all 3 layers"),
        ((0, 3, 6, 9), 12, "every third layer (0, 3, … 9) of 12"),
        ((1, 3, 5), 6, "every second layer (1, 3, … 5) of 6"),
        ((0, 7), 12, "2 of 12 layers"),
        ((0, 1, 5), 12, "3 of 12 layers"),
    ],
)
def test_layers_in_words(layers, count, said):
    assert gallery.layers_said(layers, count) == said


# The choice


def _page() -> None:
    import streamlit as st

    from mxviz.views import gallery

    name, capture = gallery.chosen()
    st.text(f"{name}|{capture.model}|{gallery.looked_at()[0]}")


def opened(**state) -> AppTest:
    at = AppTest.from_function(_page, default_timeout=60)
    for key, value in state.items():
        at.session_state[key] = value
    at.run()
    assert not at.exception
    return at


def choice(at: AppTest):
    return next(b for b in at.get("button_group") if b.label == "Looking at")


def test_it_opens_on_the_first_run_and_says_what_it_is():
    at = opened()
    first = next(iter(gallery.RUNS))
    assert at.text[0].value == f"{first}|Qwen2.5-Coder-0.5B-Instruct|{first}"
    about = "".join(element.proto.body for element in at.get("html"))
    for said in (
        "Qwen2.5-Coder-0.5B-Instruct",
        "154 of 155 tokens stored",
        "all 24 layers in bfloat16",
        "Apache-2.0",
    ):
        assert said in about
    choice(at).set_value(gallery.label("planted")).run()
    assert not at.exception and at.text[0].value.startswith("planted|")
    about = "".join(element.proto.body for element in at.get("html"))
    assert "its one layer in float32" in about and "600 added to channel 7" in about


def test_own_runs_stand_beside_the_recorded_ones_and_the_oldest_makes_room():
    shelf = {f"own-{i}": gallery.Own(f"Your run {i}", made_capture(model=f"model {i}")) for i in (1, 2)}
    at = opened(shelf=shelf, run="own-2")
    assert at.text[0].value == "own-2|model 2|own-2"
    at = opened(shelf=shelf, **{"look-at": "own-1"})
    assert at.text[0].value == "own-1|model 1|own-1"
    at = opened(shelf={}, run="own-2")  # what was looked at is gone
    assert at.text[0].value.startswith("qwen-code|")


def test_a_session_keeps_a_few_runs(monkeypatch):
    state: dict = {}
    monkeypatch.setattr(gallery, "st", SimpleNamespace(session_state=state))
    names = [gallery.keep(f"Your run {i}", made_capture()) for i in range(6)]
    assert list(state["shelf"]) == names[-gallery.MOST :] and state["look-at"] == names[-1]
    again = made_capture(model="a later turn")
    assert gallery.keep("Your run 5", again, names[-1]) == names[-1]
    assert state["shelf"][names[-1]].capture is again and len(state["shelf"]) == gallery.MOST


# Files


class Upload(io.BytesIO):
    """What Streamlit hands over of a file."""

    def __init__(self, name: str, content: bytes) -> None:
        super().__init__(content)
        self.name, self.size = name, len(content)


def uploaded(monkeypatch, name: str, content: bytes, **state) -> AppTest:
    """Draw the choice with a file in the uploader; a fresh uploader is empty."""
    given = lambda *a, key, **k: Upload(name, content) if key == "upload-0" else None  # noqa: E731
    monkeypatch.setattr(files.st, "file_uploader", given)
    return opened(**state)


def npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def test_a_saved_run_opens_as_it_was(monkeypatch):
    capture = made_capture()
    content = files._bytes(capture)
    at = uploaded(monkeypatch, "my run.safetensors", content)
    assert not at.error and at.text[0].value == "own-1|made by hand|own-1"
    back = at.session_state["shelf"]["own-1"]
    assert back.label == "my run" and torch.equal(back.capture.keys[1], capture.keys[1])


def test_a_plain_tensor_opens_at_once(monkeypatch):
    x = np.random.default_rng(0).standard_normal((2, 50, 64), dtype=np.float32)
    at = uploaded(monkeypatch, "keys.npy", npy(x))
    assert not at.error and at.text[0].value == "own-1|keys|own-1"
    assert np.array_equal(at.session_state["shelf"]["own-1"].capture.keys[0].numpy(), x)


def test_what_is_unclear_is_asked(monkeypatch):
    x = np.random.default_rng(0).standard_normal((3, 20, 2, 8)).astype(np.float32)
    file = io.BytesIO()
    np.savez(file, one=np.ones((2, 3)), two=x)
    at = uploaded(monkeypatch, "two.npz", file.getvalue())
    at.selectbox(key="upload-name").set_value("two").run()
    axes = at.selectbox(key="upload-axes-4")
    assert "3 × 20 × 2 × 8" in axes.label and len(axes.options) == 24
    axes.set_value(("layers", "tokens", "heads", "channels")).run()
    next(b for b in at.button if b.label == "Open this tensor").click().run()
    assert not at.exception and not at.error
    capture = at.session_state["shelf"]["own-1"].capture
    assert capture.layers == (0, 1, 2)
    assert np.array_equal(capture.keys[2].numpy(), x[2].transpose(1, 0, 2))


def pickled() -> bytes:
    """An array of objects, whose file holds a pickle."""
    file = io.BytesIO()
    np.save(file, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    return file.getvalue()


def lying(tmp_path) -> bytes:
    save_file({"x": torch.ones(3)}, tmp_path / "x.safetensors", metadata={"format": FORMAT, "capture": "[]"})
    return (tmp_path / "x.safetensors").read_bytes()


HOSTILE = {
    "empty.npy": (lambda _: b"", "no .npy file"),
    "text.safetensors": (lambda _: b"hello, this is text", "damaged"),
    "zip.npz": (lambda _: b"PK\x03\x04 no zip", "damaged"),
    "pickle.npy": (lambda _: pickled(), "not numbers"),
    "cut.npy": (lambda _: npy(np.ones((9, 9)))[:-5], "cut off"),
    "flat.npy": (lambda _: npy(np.ones(9)), "expected [tokens, channels]"),
    "none.npy": (lambda _: npy(np.ones((0, 9))), "none of them 0"),
    "many.npy": (lambda _: npy(np.zeros((limits().upload_numbers // 8 + 1, 8), np.int8)), "so cut it first"),
    "no run.safetensors": (lying, "not a readable mxviz capture"),
    "x.<b>$a$</b>.pt": (lambda _: b"\x80\x04.", "not a tensor file"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_gets_one_calm_line(name, monkeypatch, tmp_path):
    make, said = HOSTILE[name]
    at = uploaded(monkeypatch, name, make(tmp_path))
    assert len(at.error) == 1 and not re.search(r"[\n$<*_`]|Traceback|/tmp|mxviz-", at.error[0].value)
    assert files.plain(said, keep="'\",;:()/=@+?") in at.error[0].value
    assert "own-1" not in at.text[0].value and at.session_state["uploads"] == 0


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a_b*c*", "a b c"),
        (":red[x] $y$", "red x y"),
        ("<img>", "img"),
        ("__", "a file"),
        ("é 日-1.5", "é 日-1.5"),
    ],
)
def test_a_file_name_holds_no_markup(text, shown):
    assert files.plain(text) == shown
