"""Errors and outliers against an independent float64 recomputation, and the cases that need them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from made_capture import HEADS, TOKENS, expected_error, made_capture

from mxviz import metrics
from mxviz.analysis import head_view
from mxviz.metrics import (
    effect_stats,
    error_stats,
    error_sums,
    json_safe,
    part_error,
    pool,
    round_trip,
    sqnr_db,
)


@pytest.mark.parametrize("part", ["key", "value"])
@pytest.mark.parametrize(
    "recipe",
    [
        "mxfp4",
        "nvfp4",
        "aint4:axis=token",
        "fp4@tensor",
        "int8@channel",
        "fp8_e4m3@one",
        "k=mxfp4:axis=token;v=mxfp8_e5m2:scale=rceil;sink=4;residual=32",
        "int4@tensor;sink=3;skip=1",
        "k=mxint8:axis=token;v=mxint4;sink=5;skip=0,2",
    ],
)
def test_part_error_is_the_oracles(recipe: str, part: str) -> None:
    capture = made_capture()
    mine, right = part_error(capture, recipe, part), expected_error(capture, recipe, part)
    assert mine.keys() == right.keys()
    for name, value in right.items():
        assert mine[name] == pytest.approx(value, rel=1e-9), name


def test_rotation_is_turned_back_for_sqnr_and_counted_turned_for_the_rest() -> None:
    capture = made_capture()
    mine = part_error(capture, "mxfp4;rotate=1;sink=2", "key")
    right = expected_error(capture, "mxfp4;rotate=1;sink=2", "key")
    # the oracle turns by a matrix product, so that a few elements lie across a tie
    assert mine["sqnr_db"] == pytest.approx(right["sqnr_db"], abs=0.01)
    for name in ("mse", "flushed", "clipped"):
        assert mine[name] == pytest.approx(right[name], rel=0.01, abs=2e-4), name
    assert mine["sqnr_db"] > part_error(capture, "mxfp4;sink=2", "key")["sqnr_db"] - 10
    with pytest.raises(ValueError, match="Hadamard matrix of order head_dim=72"):
        round_trip(torch.randn(1, 4, 72), "mxfp4", rotate=True)


def test_a_pool_adds_up_exactly() -> None:
    x = torch.randn(4, 33, 64)
    trip = round_trip(x, "mxfp4")
    heads = [error_sums(x[h], metrics.cut(trip, h)) for h in range(4)]
    whole = error_sums(x, trip)
    assert pool(heads)[2:] == whole[2:]
    assert pool(heads)[:2] == pytest.approx(whole[:2], rel=1e-12)
    assert pool([]) == metrics.ErrorSums()
    assert error_stats(pool([])) == dict.fromkeys(("sqnr_db", "mse", "flushed", "clipped"))


def test_sqnr_conventions() -> None:
    x = torch.tensor([3.0, 4.0])
    assert sqnr_db(x, torch.tensor([3.0, 3.5])) == pytest.approx(20.0)
    assert sqnr_db(x, x) == math.inf
    assert sqnr_db(torch.zeros(2), torch.zeros(2)) is None
    assert sqnr_db(torch.zeros(2), x) is None
    nan, inf = float("nan"), float("inf")
    assert sqnr_db(torch.tensor([3.0, 4.0, nan, inf, 1.0]), torch.tensor([3.0, 3.5, 1.0, 1.0, nan])) == (
        pytest.approx(20.0)
    )
    assert sqnr_db(torch.tensor([3e38, 3e38]), torch.tensor([3e38, 2.7e38])) == pytest.approx(
        23.0103, abs=1e-3
    )
    assert sqnr_db(torch.tensor([1e-40]), torch.tensor([0.0])) == 0.0
    assert metrics.mse(x, torch.tensor([3.0, 3.5])) == 0.125
    assert metrics.mse(torch.tensor([nan]), x[:1]) is None


def test_the_effect_in_three_numbers() -> None:
    kl = torch.tensor([0.0, 1.0, 2.0, 4.0, math.nan, math.inf])
    top1 = torch.tensor([True, True, True, False, False, False])
    stats = effect_stats(kl, top1)
    assert stats == {"kl_mean": 1.75, "kl_p99": pytest.approx(2 + 2 * 0.97), "top1_agreement": 0.5}
    nothing = effect_stats(torch.tensor([math.nan]), torch.zeros(0, dtype=torch.bool))
    assert nothing == dict.fromkeys(("kl_mean", "kl_p99", "top1_agreement"))


def test_a_layer_that_is_not_there_cannot_be_skipped() -> None:
    capture = made_capture()
    last = capture.shape["layers"] - 1
    assert metrics.recipe_of(capture, f"mxfp4;skip={last}").skip == (last,)
    with pytest.raises(
        ValueError, match=f"skip={last + 1}: the model has layers 0 to {last}; name one of them"
    ):
        metrics.recipe_of(capture, f"mxfp4;skip=0,{last + 1},{last + 2}")


def test_json_safe_leaves_no_nan_behind() -> None:
    dirty = {1: (math.inf, np.float32(math.nan), np.int64(3), "NaN", None, True, [0.5, -math.inf])}
    assert json_safe(dirty) == {"1": [None, None, 3, "NaN", None, True, [0.5, None]]}


def test_a_nan_is_counted_and_poisons_nothing() -> None:
    clean, broken = made_capture(), made_capture()
    broken.keys[0][0, 5, 3] = float("nan")
    for recipe, lost in (("mxfp4", 32), ("int4@tensor", HEADS * TOKENS * 40)):
        x = broken.keys[0]
        sums = error_sums(x, round_trip(x, recipe))
        assert sums.not_finite == lost
        assert sums.count == x.numel() - lost
    assert math.isfinite(part_error(broken, "mxfp4", "key")["sqnr_db"])
    view = head_view(broken, 0, 0, "key")
    assert view.not_finite == 1 and math.isfinite(view.amax) and math.isfinite(view.median)
    assert np.isnan(view.micro[5, :32]).all() and not np.isnan(view.micro[6:]).any()
    assert view.scale_bytes[5].tolist() == [255, head_view(clean, 0, 0, "key").scale_bytes[5, 1]]
