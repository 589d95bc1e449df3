"""The report: its keys are the contract's, its numbers are those of an independent recomputation."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from made_capture import HEAD_DIM, VALUE_DIM, expected_error, made_capture

from mxviz.formats import Recipe
from mxviz.report import bytes_per_token, report, top_outliers

KEYS = {
    "model": None,
    "recipe": None,
    "baseline": None,
    "prompt_tokens": None,
    "new_tokens": None,
    "seed": None,
    "lanes": {lane: {"text": None, "token_ids": None} for lane in ("exact", "micro", "single")},
    "first_divergence": {"micro": None, "single": None},
    "tokens_held": {"exact": None, "micro": None, "single": None},
    "stored_bytes": {"exact": None, "micro": None, "single": None},
    "bytes_per_token": {"exact": None, "micro": None, "single": None},
    "bits_per_element": {"micro": None, "single": None},
    "error": {
        lane: {part: dict.fromkeys(("sqnr_db", "mse", "flushed", "clipped")) for part in ("key", "value")}
        for lane in ("micro", "single")
    },
    "effect": {lane: dict.fromkeys(("kl_mean", "kl_p99", "top1_agreement")) for lane in ("micro", "single")},
    "outliers": None,
    "backend": None,
    "threads": None,
    "versions": None,
}


def assert_same_keys(mine: dict, right: dict, path: str = "report") -> None:
    assert list(mine) == list(right), path
    for name, inner in right.items():
        if inner is not None:
            assert_same_keys(mine[name], inner, f"{path}.{name}")


def test_the_keys_are_the_contracts_and_no_others() -> None:
    made = report(made_capture())
    assert_same_keys(made, KEYS)
    assert made["outliers"]
    for row in made["outliers"]:
        assert list(row) == ["part", "layer", "head", "channel", "amax", "ratio_to_median"]


def test_the_keys_are_there_even_where_nothing_was_measured() -> None:
    bare = made_capture(effect={}, storage={}, shape={}, sampling={})
    made = report(bare)
    assert_same_keys(made, KEYS)
    assert made["seed"] is None
    assert set(made["effect"]["micro"].values()) == {None}
    assert set(made["stored_bytes"].values()) == set(made["bytes_per_token"].values()) == {None}


def test_plain_entries() -> None:
    made = report(made_capture())
    assert (made["model"], made["recipe"], made["baseline"]) == ("made by hand", "mxfp4", "fp4@tensor")
    assert (made["prompt_tokens"], made["new_tokens"], made["seed"]) == (60, 11, 7)
    assert made["lanes"]["exact"] == {"text": "exact text", "token_ids": list(range(100, 111))}
    assert made["first_divergence"] == {"micro": 4, "single": 0}
    assert made["stored_bytes"] == {"exact": 53760, "micro": 15120, "single": 13464}
    assert made["bits_per_element"] == {"micro": 4.5, "single": 4.0}
    assert (made["backend"], made["threads"], made["versions"]) == ("reference", 2, {"mxviz": "0.1.0"})


def test_lanes_that_never_part_have_no_divergence() -> None:
    capture = made_capture()
    capture.lanes["micro"] = capture.lanes["exact"]
    assert report(capture)["first_divergence"] == {"micro": None, "single": 0}


@pytest.mark.parametrize("recipe", ["k=mxfp4:axis=token;v=mxfp4;sink=4", "nvfp4;skip=0"])
def test_errors_are_those_of_the_oracle(recipe: str) -> None:
    capture = made_capture(recipe, "int4@tensor;sink=4")
    made = report(capture)
    for lane, text in (("micro", recipe), ("single", "int4@tensor;sink=4")):
        for part in ("key", "value"):
            right = expected_error(capture, text, part)
            assert made["error"][lane][part] == pytest.approx(right, rel=1e-9)


def test_effect_is_plain_numpy() -> None:
    capture = made_capture()
    made = report(capture)
    for lane in ("micro", "single"):
        kl = np.sort(capture.effect[lane]["kl"].double().numpy())
        assert made["effect"][lane]["kl_mean"] == pytest.approx(kl.sum() / 70)
        at = 0.99 * 69  # linear interpolation between the two neighbours in rank
        low = int(at)
        right = kl[low] + (at - low) * (kl[low + 1] - kl[low])
        assert made["effect"][lane]["kl_p99"] == pytest.approx(right)
        assert made["effect"][lane]["top1_agreement"] == float(capture.effect[lane]["top1"].sum()) / 70


def test_outliers_are_sorted_and_against_the_layers_median() -> None:
    capture = made_capture()
    row = report(capture)["outliers"][0]
    x = capture.keys[1].numpy()
    assert (row["part"], row["layer"], row["head"], row["channel"]) == ("key", 1, 1, 7)
    assert row["amax"] == float(np.abs(x[1, :, 7]).max())
    middle = np.sort(np.abs(x).ravel())[(x.size - 1) // 2]
    assert row["ratio_to_median"] == pytest.approx(row["amax"] / float(middle))


def test_the_list_of_outliers_is_short() -> None:
    capture = made_capture()
    for layer in range(3):
        capture.keys[layer][:, :, ::4] += torch.arange(10) + 40.0
    rows = top_outliers(capture)
    assert len(rows) == 20
    ratios = [row["ratio_to_median"] for row in rows]
    assert ratios == sorted(ratios, reverse=True)


def test_bytes_per_token_of_a_short_row() -> None:
    capture = made_capture("mxfp4;skip=1", "int4@token")
    recipes = {"exact": None, "micro": Recipe.parse(capture.recipe), "single": Recipe.parse(capture.baseline)}
    made = {lane: bytes_per_token(capture, recipe) for lane, recipe in recipes.items()}
    assert made["exact"] == 3 * 2 * (HEAD_DIM + VALUE_DIM) * 2
    packed = 2 * (20 + 2) + 2 * (12 + 1)  # head_dim 40: two blocks a row; 24: one
    assert made["micro"] == 2 * packed + 2 * (HEAD_DIM + VALUE_DIM) * 4  # the skipped layer is float32
    assert made["single"] == 3 * 2 * ((20 + 4) + (12 + 4))


def test_the_report_tells_bytes_held_per_token_held() -> None:
    storage = {
        "exact": {"tokens_held": 83, "stored_bytes": 83 * 23_040},
        "micro": {"tokens_held": 83, "stored_bytes": 1_000_001},
        "single": {"tokens_held": 0, "stored_bytes": 0},
    }
    made = report(made_capture(storage=storage))["bytes_per_token"]
    assert made == {"exact": 23_040, "micro": 1_000_001 / 83, "single": None}


@pytest.mark.parametrize(
    ("recipe", "bytes_each"),
    [(None, 147_456), ("mxfp4", 39_168), ("nvfp4", 41_472), ("mxfp8_e4m3", 76_032), ("none", 147_456)],
)
def test_g10_bytes_per_token_use_kv_heads_and_head_dim(recipe: str | None, bytes_each: int) -> None:
    shape = {"layers": 36, "query_heads": 32, "kv_heads": 8, "head_dim": 128, "dtype": "bfloat16"}
    found = bytes_per_token(made_capture(shape=shape), recipe and Recipe.parse(recipe))
    assert found == bytes_each and isinstance(found, int)


def test_it_is_json_and_holds_no_nan() -> None:
    capture = made_capture("none", "mxfp4")
    capture.keys[0][0, 0, 0] = math.nan
    capture.values[1][:] = 0
    capture.effect["single"]["kl"][3] = math.nan
    made = report(capture)
    text = json.dumps(made, allow_nan=False)
    assert json.loads(text) == made
    assert made["error"]["micro"]["key"]["sqnr_db"] is None  # perfect: n/a
    assert made["error"]["single"]["key"]["sqnr_db"] > 5
    assert made["effect"]["single"]["kl_mean"] > 0


def test_two_runs_print_the_same_and_nothing_timed_is_in_it(tmp_path) -> None:
    capture = made_capture()
    later = replace(capture, timings={"prefill_s": 99.0})
    assert json.dumps(report(capture)) == json.dumps(report(later))
    capture.save(tmp_path / "run.safetensors")
    loaded = type(capture).load(tmp_path / "run.safetensors")
    assert json.dumps(report(loaded)) == json.dumps(report(capture))
