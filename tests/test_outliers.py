"""Where the outliers sit, and what one does to those it shares a ruler with."""

from __future__ import annotations

import pytest
import torch
from made_capture import made_capture

from mxviz.outliers import channel_outliers, layer_channel_outliers, token_outliers
from mxviz.quantize import quantize


def q1(seed: int) -> torch.Tensor:
    x = torch.randn(1, 256, 128, generator=torch.Generator().manual_seed(seed))
    x[..., 7] += 600
    return x


@pytest.mark.parametrize(
    ("scheme", "block", "neighbours_kept", "rmse"),
    [
        ("mxfp4", 32, False, 0.115),
        ("nvfp4", 16, False, 0.095),
        ("mxfp8_e4m3", 32, True, 0.0296),
        ("mxfp8_e5m2", 32, True, 0.054),
    ],
)
def test_q1_what_a_biased_channel_does(scheme: str, block: int, neighbours_kept: bool, rmse: float) -> None:
    for seed in range(3):
        x = q1(seed)
        x_hat = quantize(x, scheme).dequantize()
        neighbours = [c for c in range(block) if c != 7]
        assert bool(x_hat[..., neighbours].any()) is neighbours_kept
        others, kept = x[..., block:].double(), x_hat[..., block:].double()
        relative = float((others - kept).square().sum().sqrt() / others.square().sum().sqrt())
        assert relative == pytest.approx(rmse, rel=0.03)


def test_q1_one_int8_scale_flushes_nearly_everything() -> None:
    for seed in range(3):
        x = q1(seed)
        assert float((quantize(x, "int8@tensor").dequantize() == 0).double().mean()) == pytest.approx(
            0.975, abs=0.004
        )


def test_q1_channel_7_is_named() -> None:
    found = layer_channel_outliers(q1(0), "key", 3)
    assert [(row.layer, row.head, row.channel, row.partner) for row in found] == [(3, 0, 7, 71)]
    assert found[0].amax == pytest.approx(603, abs=2)
    assert found[0].ratio_to_median == pytest.approx(603 / 0.68, rel=0.02)
    assert found[0].share_of_tokens == 1.0


def test_q2_scale_one_clamps_and_counts_it() -> None:
    x = q1(0)
    blocks = quantize(x, "fp8_e4m3@one")
    assert (blocks.dequantize()[..., 7] == 448).all()
    assert blocks.clipped(x) == 256 / x.numel()
    assert blocks.scheme.describe() == "FP8 E4M3, scale fixed at 1.0"


def test_a_gaussian_has_no_outliers() -> None:
    x = torch.randn(8, 2048, 128, generator=torch.Generator().manual_seed(0))
    assert layer_channel_outliers(x, "key", 0) == []
    assert layer_channel_outliers(torch.zeros(2, 4, 8), "key", 0) == []
    assert layer_channel_outliers(torch.full((2, 4, 8), float("nan")), "key", 0) == []


def test_one_large_number_is_a_token_outlier_and_no_channel() -> None:
    capture = made_capture()
    capture.values[2][1, 0, 5] = 9.0
    assert [r for r in channel_outliers(capture, "value") if r.layer == 2] == []
    (found,) = token_outliers(capture, "value")
    assert found[:5] == ("value", 2, 1, 0, 5)
    assert found.amax == 9.0 and found.ratio_to_median == pytest.approx(9 / 0.0675, rel=0.05)
    assert token_outliers(capture, "key") == []  # the outlier channel is named once, not at every token
