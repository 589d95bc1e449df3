"""Capture: what is saved comes back, and a damaged file is refused in one line."""

from __future__ import annotations

import json
import math
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from mxviz.capture import FORMAT, Capture, Lane

LANES = {
    "exact": Lane("the cat 🙂", (4, 5)),
    "micro": Lane("the", (4, 6)),
    "single": Lane("", ()),
}


@pytest.fixture
def capture() -> Capture:
    generator = torch.Generator().manual_seed(1)

    def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(dtype)

    return Capture(
        model="tiny",
        revision=None,
        recipe="mxfp4;sink=1",
        baseline="fp4@tensor;sink=1",
        prompt='costs $5 <br> "quoted"\n🙂',
        prompt_tokens=3,
        token_ids=(1, 2, 3, 4, 5),
        token_texts=("<s>", " ", "Ġthe", "🙂", "⋯"),
        lanes=LANES,
        keys={0: numbers(2, 4, 8), 11: numbers(2, 4, 8, dtype=torch.bfloat16)},
        values={0: numbers(2, 4, 6), 11: numbers(2, 4, 6, dtype=torch.bfloat16)},
        keys_pre_rope={0: numbers(2, 5, 8)},
        queries={11: numbers(4, 5, 8).transpose(0, 1).contiguous().transpose(0, 1)},
        key_bias={0: numbers(2, 8)},
        effect={"micro": {"kl": numbers(5).abs(), "top1": torch.tensor([True, False, True, True, False])}},
        top_ids=torch.arange(10).view(5, 2),
        top_logprobs=-numbers(5, 2).abs(),
        sampling={"temperature": 0.0, "seed": 7},
        shape={"layers": 12, "kv_heads": 2},
        storage={"exact": {"tokens_held": 4, "stored_bytes": 896, "clipped": {"key": None}}},
        timings={"total_s": math.pi},
        versions={"mxviz": "0.1.0"},
        notes=("one note",),
    )


def test_everything_comes_back(capture: Capture, tmp_path: Path) -> None:
    capture.save(tmp_path / "run.safetensors")
    loaded = Capture.load(tmp_path / "run.safetensors")
    tables = {"keys", "values", "keys_pre_rope", "queries", "key_bias"}
    for f in fields(Capture):
        before, after = getattr(capture, f.name), getattr(loaded, f.name)
        if f.name in tables:
            assert before.keys() == after.keys() and all(torch.equal(before[k], after[k]) for k in before)
            assert all(before[k].dtype == after[k].dtype for k in before)
        elif f.name == "effect":
            assert torch.equal(before["micro"]["kl"], after["micro"]["kl"])
            assert torch.equal(before["micro"]["top1"], after["micro"]["top1"])
        elif f.name.startswith("top_"):
            assert torch.equal(before, after)
        else:
            assert before == after, f.name
    assert loaded.layers == (0, 11) and loaded.tokens_held == 4


def test_first_divergence_counts_new_tokens(capture: Capture) -> None:
    assert capture.first_divergence("exact") is None
    assert capture.first_divergence("micro") == 1
    assert capture.first_divergence("single") is None  # it was stopped before its first token


def test_parts_by_layer(capture: Capture) -> None:
    assert capture.part("value", 11).shape == (2, 4, 6)
    with pytest.raises(ValueError, match="layer 3 was not recorded; recorded layers: 0, 11"):
        capture.part("key", 3)
    with pytest.raises(ValueError, match="unknown part 'keys'; expected one of: key, value"):
        capture.part("keys", 0)


def test_a_capture_without_values_or_lanes_comes_back(capture: Capture, tmp_path: Path) -> None:
    replace(capture, values={}, lanes={}, effect={}, top_ids=None).save(tmp_path / "t.safetensors")
    assert Capture.load(tmp_path / "t.safetensors").values == {}


def _refused(path: Path) -> str:
    with pytest.raises(ValueError) as error:
        Capture.load(path)
    assert "\n" not in str(error.value) and str(path) in str(error.value)
    return str(error.value)


def test_files_that_are_no_capture(capture: Capture, tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    assert "make one with: mxviz run" in _refused(path)
    for content in (b"", b"hello", b"\xff" * 200, (2**40).to_bytes(8, "little") + b"{}"):
        path.write_bytes(content)
        assert "not a readable .safetensors file" in _refused(path)
    save_file({"x": torch.zeros(1)}, path)
    assert "not an mxviz capture" in _refused(path)
    capture.save(path)
    whole = path.read_bytes()
    for length in (9, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        _refused(path)
    _refused(tmp_path)


def _header(capture: Capture, tmp_path: Path) -> dict:
    from safetensors import safe_open

    capture.save(tmp_path / "whole.safetensors")
    with safe_open(tmp_path / "whole.safetensors", "pt") as file:
        return json.loads(file.metadata()["capture"])


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", "3", '"x"', "{}", "[" * 100_000, '{"model": "\ud800"}']
)
def test_headers_that_are_no_object(tmp_path: Path, text: str) -> None:
    header = {"format": FORMAT, "capture": text.encode("utf-8", "replace").decode()}
    save_file({}, tmp_path / "x.safetensors", metadata=header)
    assert "is not a readable mxviz capture" in _refused(tmp_path / "x.safetensors")


def test_a_header_that_is_not_there(tmp_path: Path) -> None:
    save_file({}, tmp_path / "x.safetensors", metadata={"format": FORMAT})
    assert "is not a readable mxviz capture" in _refused(tmp_path / "x.safetensors")


TENSORS = {"keys", "values", "keys_pre_rope", "queries", "key_bias", "effect", "top_ids", "top_logprobs"}


@pytest.mark.parametrize("name", [f.name for f in fields(Capture) if f.name not in TENSORS])
def test_each_field_that_is_missing_or_of_another_type_is_refused(
    capture: Capture, tmp_path: Path, name: str
) -> None:
    plain = _header(capture, tmp_path)
    path = tmp_path / "x.safetensors"
    for wrong in (3.5, True, [[]], {"x": 1}, {"exact": {}}):
        save_file({}, path, metadata={"format": FORMAT, "capture": json.dumps({**plain, name: wrong})})
        if name in ("sampling", "shape", "timings", "versions") and isinstance(wrong, dict):
            continue
        if name == "storage" and wrong == {"exact": {}}:
            continue
        assert name.rstrip("s") in _refused(path)
    del plain[name]
    save_file({}, path, metadata={"format": FORMAT, "capture": json.dumps(plain)})
    missing = "it holds no keys" if name == "turns" else f"has no {name}"  # older files have no turns
    assert missing in _refused(path)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"token_ids": [1, "2", 3, 4, 5]}, "token_ids holds a str"),
        ({"token_texts": ["a"]}, "5 token_ids but 1 token_texts"),
        ({"lanes": {"exact": {"text": "x", "token_ids": ["y"]}}}, "token_ids that are no numbers"),
        ({"lanes": {"exact": {"token_ids": []}}}, "lacks its text"),
        ({"recipe": "mxfp5"}, "unknown scheme 'mxfp5'"),
        ({"baseline": ""}, "recipe '' has an empty part"),
    ],
)
def test_values_that_cannot_be(capture: Capture, tmp_path: Path, changes: dict, words: str) -> None:
    plain = {**_header(capture, tmp_path), **changes}
    save_file({}, tmp_path / "x.safetensors", metadata={"format": FORMAT, "capture": json.dumps(plain)})
    assert words in _refused(tmp_path / "x.safetensors")


PAIR = {"keys.0": torch.zeros(2, 4, 8), "values.0": torch.zeros(2, 4, 8)}


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ({"keys.0": torch.zeros(2, 4, 8), "values.1": torch.zeros(2, 4, 8)}, "different layers"),
        ({"keys.0": torch.zeros(2, 4, 8), "values.0": torch.zeros(2, 3, 8)}, "layer 0 has keys [2, 4, 8]"),
        ({"keys.0": torch.zeros(2, 9, 8), "values.0": torch.zeros(2, 9, 8)}, "and 5 tokens"),
        ({"keys.0": torch.zeros(4, 8), "values.0": torch.zeros(4, 8)}, "layer 0 has keys [4, 8]"),
        ({"keys.0": torch.zeros(2, 4, 8).int(), "values.0": torch.zeros(2, 4, 8)}, "torch.int32 keys"),
        (PAIR | {"effect.micro.kl": torch.zeros(2, 2)}, "no row of positions"),
        (PAIR | {"effect.micro.kl": torch.zeros(2)}, "lacks kl or top1"),
        (PAIR | {f"effect.micro.{n}": torch.zeros(9) for n in ("kl", "top1")}, "the positions of 5 tokens"),
        (PAIR | {"effect.micro.kl": torch.zeros(4), "effect.micro.top1": torch.zeros(5)}, "the positions of"),
        (PAIR | {f"effect.mxfp5.{n}": torch.zeros(5) for n in ("kl", "top1")}, "unknown scheme 'mxfp5'"),
        (PAIR | {"queries.1": torch.zeros(4, 4, 8)}, "layer 1 has queries [4, 4, 8] (torch.float32) beside"),
        (PAIR | {"queries.0": torch.zeros(3, 4, 8)}, "layer 0 has queries [3, 4, 8]"),
        (PAIR | {"queries.0": torch.zeros(4, 4, 6)}, "layer 0 has queries [4, 4, 6]"),
        (PAIR | {"keys_pre_rope.0": torch.zeros(2, 9, 8)}, "layer 0 has keys_pre_rope [2, 9, 8]"),
        (PAIR | {"keys_pre_rope.0": torch.zeros(4, 8)}, "layer 0 has keys_pre_rope [4, 8]"),
        ({}, "no keys of any layer"),
        ({"keys.0": torch.zeros(2, 0, 8), "values.0": torch.zeros(2, 0, 8)}, "nothing in it"),
    ],
)
def test_tensors_that_do_not_belong_together(
    capture: Capture, tmp_path: Path, tensors: dict, words: str
) -> None:
    header = {"format": FORMAT, "capture": json.dumps(_header(capture, tmp_path))}
    save_file(tensors, tmp_path / "x.safetensors", metadata=header)
    assert words in _refused(tmp_path / "x.safetensors")


def test_a_place_that_cannot_be_written(capture: Capture, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot write .*no/such/folder"):
        capture.save(tmp_path / "no/such/folder/run.safetensors")
