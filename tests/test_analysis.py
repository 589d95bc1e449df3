"""Tables for pages and figures, against the oracle and against each other."""

from __future__ import annotations

import math

import numpy as np
import oracle
import pytest
from made_capture import HEADS, LAYERS, TOKENS, expected_error, made_capture

from mxviz.analysis import head_view, layer_overview, race, race_schemes, relative_error


def test_head_view_shows_what_the_bytes_say() -> None:
    capture = made_capture("k=mxfp4:axis=token;v=nvfp4;sink=4", "int4@token;sink=4")
    view = head_view(capture, 1, 1, "key")
    result = oracle.quantize(capture.keys[1].numpy()[:, 4:], "mxfp4:axis=token")
    np.testing.assert_array_equal(view.scale_bytes, result.scales[1])
    np.testing.assert_array_equal(view.scales, np.ldexp(1.0, result.scales[1].astype(int) - 127))
    np.testing.assert_array_equal(view.micro[4:], result.x_hat[1])
    np.testing.assert_array_equal(view.micro[:4], capture.keys[1][1, :4].numpy())
    np.testing.assert_array_equal(view.micro_flushed[4:], result.flushed[1])
    assert not view.micro_flushed[:4].any()
    assert view.single_scales.shape == (TOKENS, 1) and np.isnan(view.single_scales[:4]).all()
    assert (view.axis, view.block, view.sink) == ("token", 32, 4)
    assert view.tokens == [f"t{i}" for i in range(TOKENS)]
    assert view.marked_channels == [7]
    assert head_view(capture, 1, 0, "key").marked_channels == []

    view = head_view(capture, 0, 0, "value")
    result = oracle.quantize(capture.values[0].numpy()[:, 4:], "nvfp4")
    e4m3 = oracle.decode(result.scales[0], oracle.ELEMENTS["fp8_e4m3"])
    np.testing.assert_array_equal(view.scales[4:], e4m3 * result.global_scale[0])
    assert (view.scale_bytes[:4] == -1).all() and view.scales.shape == (TOKENS, 2)


@pytest.mark.parametrize(
    "recipe", [*map(str, race_schemes()), "none", "mxfp4;skip=1", "k=none;v=mxfp4", "mxfp4;sink=99"]
)
def test_head_view_takes_every_recipe(recipe: str) -> None:
    view = head_view(made_capture(), 1, 0, "key", recipe, "none")
    assert view.x.shape == view.micro.shape == view.micro_clipped.shape == (TOKENS, 40)
    assert view.scales.shape == view.scale_bytes.shape and view.scales.ndim == 2
    assert view.scales.dtype == np.float32
    assert view.single_stats["sqnr_db"] == math.inf
    np.testing.assert_array_equal(view.single, view.x)


def test_head_view_refuses_what_is_not_there() -> None:
    with pytest.raises(ValueError, match="KV head 2 does not exist in layer 1; expected 0 to 1"):
        head_view(made_capture(), 1, 2, "key")
    with pytest.raises(ValueError, match="layer 9 was not recorded"):
        head_view(made_capture(), 9, 0, "key")
    with pytest.raises(ValueError, match="unknown part 'keys'"):
        head_view(made_capture(), 1, 0, "keys")


def test_layer_overview_agrees_with_each_head() -> None:
    capture = made_capture()
    table = layer_overview(capture, "key")
    assert table.layers == list(range(LAYERS)) and table.amax.shape == (LAYERS, HEADS)
    for layer in range(LAYERS):
        for head in range(HEADS):
            view = head_view(capture, layer, head, "key")
            assert table.amax[layer, head] == view.amax
            assert table.ratio[layer, head] == view.amax / view.median
            assert table.micro_sqnr[layer, head] == view.micro_stats["sqnr_db"]
            assert table.single_flushed[layer, head] == view.single_stats["flushed"]
            assert table.micro_clipped[layer, head] == view.micro_stats["clipped"]
    assert table.ratio.argmax() == 1 * HEADS + 1


def test_the_race_runs_every_scheme() -> None:
    capture = made_capture()
    rows = {row["scheme"]: row for row in race(capture)}
    assert len(rows) == 53
    for name in ("mxfp4", "nvfp4:axis=token", "int4@head", "aint2"):
        for part in ("key", "value"):
            right = expected_error(capture, name, part)
            for number in ("sqnr_db", "flushed", "clipped"):
                assert rows[name][f"{part}_{number}"] == pytest.approx(right[number], rel=1e-9)
    assert rows["int4@token"]["bits_per_element"] == 4 + 32 / 40
    assert rows["mxfp4"]["bits_per_element"] == 4.25


def test_relative_error_for_the_maps() -> None:
    nan = np.nan
    x = np.array([2.0, -2.0, 0.0, 0.0, 1.0, nan, 1.0], np.float32)
    x_hat = np.array([1.5, 2.0, 0.0, 1.0, 1.0, nan, nan], np.float32)
    lost = relative_error(x, x_hat)
    assert lost.dtype == np.float32
    np.testing.assert_array_equal(lost, [0.25, 1.0, 0.0, 1.0, 0.0, nan, nan])
