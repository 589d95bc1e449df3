"""The race against the plain errors it has to equal, its front by brute force, and what the words cost."""

from __future__ import annotations

import dataclasses
import math
import threading
import time

import numpy as np
import oracle
import pytest
import torch
from made_capture import LAYERS, expected_error, made_capture
from tiny_text import loaded as tiny_loaded

from mxviz import analysis
from mxviz._engine_race import BATCH, measure_race
from mxviz._paths import ASSETS
from mxviz.capture import Capture
from mxviz.engine import measure
from mxviz.formats import Recipe, Scheme
from mxviz.metrics import part_error
from mxviz.race import layer_lines, measured, pareto, race, race_schemes


def awkward() -> Capture:
    """NaN in one block, a layer of zeros, zeros among numbers, two dtypes, two head counts, tiny and huge."""
    capture = made_capture()
    capture.keys[0][0, 5, 3] = math.nan
    capture.keys[1] = capture.keys[1].bfloat16()
    capture.keys[2][0, :, :3] = 0
    capture.values[0] = capture.values[0] * 1e30
    capture.values[1][:] = 0
    capture.values[2] = capture.values[2][:1] * 1e-39
    capture.keys[2] = capture.keys[2][:1]
    return capture


@pytest.mark.parametrize("capture", [made_capture(), awkward()], ids=["plain", "awkward"])
def test_the_race_equals_the_plain_errors(capture: Capture) -> None:
    rows = race(capture)
    assert [row["scheme"] for row in rows] == [str(scheme) for scheme in race_schemes()]
    for row in rows:
        for part in ("key", "value"):
            right = part_error(capture, row["scheme"], part)
            assert row[f"{part}_flushed"] == right["flushed"], row["scheme"]
            assert row[f"{part}_clipped"] == right["clipped"], row["scheme"]
            assert row[f"{part}_sqnr_db"] == pytest.approx(right["sqnr_db"], rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("name", ["mxfp8_e4m3:axis=token", "nvfp4", "aint4:axis=token", "fp6_e2m3@one"])
def test_the_race_is_the_oracles(name: str) -> None:
    capture = made_capture()
    row = next(row for row in race(capture) if row["scheme"] == name)
    for part in ("key", "value"):
        right = expected_error(capture, name, part)
        for number in ("sqnr_db", "flushed", "clipped"):
            assert row[f"{part}_{number}"] == pytest.approx(right[number], rel=1e-9)
    assert row["bits_per_element"] == Scheme.parse(name).bits_per_element(40)


def test_every_scheme_on_both_axes_once() -> None:
    schemes = list(race_schemes())
    assert len(schemes) == len(set(schemes)) == 53
    assert {str(s) for s in schemes} >= {"mxfp4", "mxfp4:axis=token", "nvfp4:axis=token", "int4@channel"}
    assert analysis.race is race and analysis.race_schemes is race_schemes


def test_the_command_has_the_same_columns_where_there_are_no_values() -> None:
    rows = race(dataclasses.replace(made_capture(), values={}))
    assert list(rows[0])[2:] == [
        *(f"key_{name}" for name in ("sqnr_db", "flushed", "clipped")),
        *(f"value_{name}" for name in ("sqnr_db", "flushed", "clipped")),
    ]
    assert rows[0]["value_sqnr_db"] is None and rows[0]["key_sqnr_db"] > 0


def test_five_hundred_tokens_take_about_a_second() -> None:
    """All schemes on 30 layers of 3 KV heads × 512 tokens × 64, keys and values; on a quiet machine 1 s."""
    g = torch.Generator().manual_seed(0)
    keys, values = ({i: torch.randn(3, 512, 64, generator=g).bfloat16() for i in range(30)} for _ in "kv")
    texts = ("t",) * 513
    capture = made_capture(keys=keys, values=values, token_ids=tuple(range(513)), token_texts=texts)
    race(made_capture())  # kernels compiled or read
    times = []
    for _ in range(3):
        start = time.perf_counter()
        race(capture)
        times.append(time.perf_counter() - start)
    assert min(times) < 5, "five times the goal: this machine may be busy, but not one pass an element"


def test_pareto_by_brute_force() -> None:
    rng = np.random.default_rng(3)
    for _ in range(200):
        points = [(float(rng.integers(1, 6)), float(rng.integers(0, 6))) for _ in range(rng.integers(0, 12))]
        right = [
            i
            for i, (cost, value) in enumerate(points)
            if not any((c <= cost and v > value) or (c < cost and v >= value) for c, v in points)
        ]
        assert sorted(pareto(points)) == right, points


def test_pareto_leaves_out_what_is_not_known() -> None:
    nan, inf = math.nan, math.inf
    assert pareto([(4.0, None), (4.0, nan), (None, 9.0), (nan, 9.0), (5.0, 1.0)]) == [4]
    assert pareto([(4.0, inf), (5.0, inf)]) == [0]
    assert pareto([(4.0, -inf)]) == [0]
    assert pareto([]) == []


def test_layer_lines_are_each_layers_own() -> None:
    capture = made_capture()
    lines = layer_lines(capture, ["mxfp4", "int4@head", "nvfp4:axis=token"], "key")
    for name, values in lines.items():
        for layer in range(LAYERS):
            x = capture.keys[layer].numpy()
            x_hat = oracle.quantize(x, name).x_hat.astype(np.float64)
            right = 10 * np.log10(np.square(x, dtype=np.float64).sum() / np.square(x - x_hat).sum())
            assert values[layer] == pytest.approx(right, rel=1e-9), (name, layer)
            zeros = ((x_hat == 0) & (x != 0)).sum() / (x != 0).sum()
            assert layer_lines(capture, [name], "key", "flushed")[name][layer] == pytest.approx(zeros)
    with pytest.raises(ValueError, match="unknown scheme 'mxfp5'"):
        layer_lines(capture, ["mxfp5"], "key")


def test_effects_are_found_by_recipe() -> None:
    kl = torch.tensor([0.0, 0.5, 1.0])
    tables = {"kl": kl, "top1": torch.tensor([True, True, False])}
    lanes = ("exact", "micro", "single", "nvfp4", "k=mxfp4:axis=token;v=mxfp4")
    capture = made_capture(effect=dict.fromkeys(lanes, tables))
    found = measured(capture)
    assert list(found) == ["mxfp4", "fp4@tensor", "nvfp4", "k=mxfp4:axis=token;v=mxfp4"]
    assert found["nvfp4"] == {
        "kl_mean": 0.5,
        "kl_p99": pytest.approx(0.99),
        "top1_agreement": pytest.approx(2 / 3),
    }


def test_the_recorded_qwen_run_puts_keys_along_tokens_ahead() -> None:
    found = measured(Capture.load(ASSETS / "gallery" / "qwen-code.safetensors"))
    tokens, channels = (found[name]["kl_mean"] for name in ("k=mxfp4:axis=token;v=mxfp4", "mxfp4"))
    assert tokens < channels / 2
    assert found["int4@tensor"]["kl_mean"] > channels


def test_lanes_named_by_recipes_are_saved_and_read(tmp_path) -> None:
    names = [*map(str, race_schemes()), "k=mxfp4:axis=token;v=mxfp4", "mxfp4;sink=4;skip=0,2;rotate=1"]
    g = torch.Generator().manual_seed(1)
    effect = {
        n: {"kl": torch.rand(70, generator=g), "top1": torch.rand(70, generator=g) < 0.5} for n in names
    }
    made_capture(effect=effect).save(tmp_path / "run.safetensors")
    found = Capture.load(tmp_path / "run.safetensors").effect
    assert found.keys() == effect.keys()
    for name in names:
        assert torch.equal(found[name]["kl"], effect[name]["kl"])
        assert torch.equal(found[name]["top1"], effect[name]["top1"])


# The words


@pytest.fixture(scope="module")
def loaded():
    return tiny_loaded()


IDS = tuple(range(3, 40))
RECIPES = [
    "mxfp4",
    "k=mxfp4:axis=token;v=mxfp4",
    "nvfp4",
    "int4@tensor",
    "mxfp8_e4m3;sink=2",
    "none",
    "mxfp4",
]


def test_measure_race_is_measure(loaded) -> None:
    told, passes = [], []
    found = measure_race(loaded, IDS, RECIPES, found=told.append, said=lambda *step: passes.append(step))
    assert list(found) == RECIPES[:5]
    lanes = {"exact": Recipe.parse("none")} | {name: Recipe.parse(name) for name in RECIPES[:5]}
    right = measure(loaded.model, IDS, lanes).tables
    for name, tables in found.items():
        for table in ("kl", "top1", "nll"):
            assert torch.equal(tables[table], right[name][table]), (name, table)
    assert [len(tables) for tables in told] == [BATCH, 1]
    assert passes[0] == (0, 7) and passes[-1] == (7, 7)
    assert [done for done, _ in passes] == sorted(done for done, _ in passes)
    assert not loaded.lock.locked()


def test_measure_race_keeps_what_was_done_when_it_is_stopped(loaded) -> None:
    done = []
    found = measure_race(loaded, IDS, RECIPES, found=done.append, should_stop=lambda: bool(done))
    assert list(found) == RECIPES[:BATCH] and not loaded.lock.locked()


def test_measure_race_waits_for_the_model_and_hears_a_stop(loaded) -> None:
    stop = threading.Event()
    with loaded.lock:
        threading.Timer(0.2, stop.set).start()
        assert measure_race(loaded, IDS, RECIPES, should_stop=stop.is_set) == {}


def test_measure_race_refuses_in_one_line(loaded) -> None:
    with pytest.raises(ValueError, match="unknown scheme 'mxfp5'"):
        measure_race(loaded, IDS, ["mxfp5"])
    with pytest.raises(ValueError, match=r"1 token\(s\) is too short"):
        measure_race(loaded, (3,), ["mxfp4"])
    assert not loaded.lock.locked()
