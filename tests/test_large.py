"""Large caches: every figure stays small enough to send, says what it left out, and loses no lone spike.

8,000 tokens of a real model's shape, and 66,000 tokens × 128 channels (case P8). Whoever adds a figure is
held to it as well.
"""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from mxviz._pictures_head import head
from mxviz.capture import Capture, Lane
from mxviz.figures import FIGURES
from mxviz.pictures import picture
from mxviz.tensors import as_capture

MOST_BYTES = 5_000_000
SPIKE = 9984.0
"""Far from everything else, and exact in bfloat16."""

WHOLE_CACHE = {"overview", "race", "race-layers"}
"""Figures with a mark a layer or a scheme: tokens do not show in them, and 30 layers would take minutes."""

NOT_ALONG_TOKENS = {*WHOLE_CACHE, "cuts", "rulers", "channels", "head-errors"}
"""Figures that show no token axis, so that nothing is left out of them."""


def made(
    layers: int, heads: int, tokens: int, width: int, query_heads: int, spike: tuple[int, int]
) -> Capture:
    """Normal numbers in bfloat16, one spike in the middle layer's last head, every table a page may show."""
    g = torch.Generator().manual_seed(0)
    base = torch.randn(heads, tokens, width, generator=g)
    spiked = base.clone()
    spiked[-1, spike[0], spike[1]] = SPIKE
    plain, middle = base.bfloat16(), layers // 2  # layers share their numbers: only the shape is real
    tables = {
        "kl": torch.rand(tokens, generator=g),
        "top1": torch.rand(tokens, generator=g) < 0.9,
        "nll": torch.rand(tokens - 1, generator=g),
    }
    lane = Lane("x", (0,))
    return Capture(
        model="made",
        revision=None,
        recipe="mxfp4",
        baseline="fp4@tensor",
        prompt="p",
        prompt_tokens=tokens - 1,
        token_ids=tuple(range(tokens)),
        token_texts=tuple(f" t{i}" for i in range(tokens)),
        lanes={"exact": lane, "micro": lane, "single": lane},
        keys={i: spiked.bfloat16() if i == middle else plain for i in range(layers)},
        values=dict.fromkeys(range(layers), plain),
        queries={middle: torch.randn(query_heads, tokens, width, generator=g).bfloat16()},
        effect={"exact": {"nll": tables["nll"]}, "micro": tables, "single": tables},
        shape={"layers": layers, "kv_heads": heads, "head_dim": width, "query_heads": query_heads},
    )


@pytest.fixture(scope="module")
def real() -> Capture:
    """The built-in model's shape at 8,000 tokens."""
    return made(30, 3, 8000, 64, 9, spike=(5003, 40))


@pytest.fixture(scope="module")
def wide() -> Capture:
    return made(1, 1, 66_000, 128, 1, spike=(41_251, 77))


def held_to(figure, name: str, tokens: int) -> None:
    sent = len(figure.to_json())
    assert sent <= MOST_BYTES, f"{name} sends {sent / 1e6:.1f} MB for {tokens:,} tokens"
    notice = (figure.layout.meta or {}).get("reduced")
    assert figure.layout.meta["alt"] and (notice is not None or name in NOT_ALONG_TOKENS)
    assert notice is None or f"{tokens:,} tokens" in notice or "too many" in notice


@pytest.mark.parametrize("name", FIGURES)
@pytest.mark.parametrize("width", [390, 1056, 2400])
def test_a_figure_of_66_000_tokens_is_small_and_says_what_it_left_out(wide, name, width):
    held_to(picture(wide, name, width=width), name, 66_000)


@pytest.mark.parametrize("name", [name for name in FIGURES if name not in WHOLE_CACHE])
def test_a_figure_of_a_real_model_at_8_000_tokens(real, name):
    held_to(picture(real, name, width=1056), name, 8000)


def test_a_tensor_of_ones_own_that_is_as_large(wide):
    capture = as_capture(wide.keys[0][0].float().numpy(), "mine", "nvfp4", "fp4@tensor")
    for name in ("outliers", "scales", "error", "head"):
        held_to(picture(capture, name, width=1056), name, 66_000)


# A lone spike


def brightest(trace) -> tuple[float, tuple[float, float], tuple[float, float]]:
    """The largest value of a heat map, and the tokens and channels that its cell runs over."""
    z = np.asarray(trace.z, float)
    row, column = np.unravel_index(np.nanargmax(z), z.shape)
    x, y = (np.asarray(edges, float) for edges in (trace.x, trace.y))
    assert (len(x), len(y)) == (z.shape[1] + 1, z.shape[0] + 1)
    return z[row, column], (x[column], x[column + 1]), (y[row], y[row + 1])


@pytest.mark.parametrize("name", ["outliers", "head", "scales"])
@pytest.mark.parametrize("width", [390, 1056])
def test_a_lone_spike_is_the_brightest_cell_where_it_stands(wide, name, width):
    figure = picture(wide, name, width=width)
    value, (first, end), (low, high) = brightest(next(t for t in figure.data if t.type == "heatmap"))
    assert first < 41_251 < end and low < 77 < high
    # a block of 32 that holds the spike has the scale 2^(13 - 2)
    assert value == pytest.approx(11.0 if name == "scales" else np.log10(SPIKE), abs=1e-5)


@pytest.mark.parametrize("name", ["tokens", "channels", "surface"])
def test_a_lone_spike_is_the_highest_point(wide, name):
    figure = picture(wide, name, width=1056)
    key = "z" if name == "surface" else "y"
    tops = [np.nanmax(np.asarray(t[key], float)) for t in figure.data if t[key] is not None and len(t[key])]
    assert max(tops) == pytest.approx(SPIKE, rel=1e-6)


def test_the_worst_token_stays_in_the_picture_of_kl(wide):
    kl = torch.full((66_000,), 0.01)
    kl[30_007] = 7.5
    tables = {"kl": kl, "top1": torch.ones(66_000, dtype=torch.bool), "nll": torch.zeros(65_999)}
    capture = Capture(**(vars(wide) | {"effect": {"micro": tables, "single": tables}}))
    figure = picture(capture, "divergence", width=1056)
    shown = [float(nats) for t in figure.data if t.customdata is not None for nats in t.customdata]
    assert max(shown) == 7.5


# The way down


@pytest.mark.parametrize("window", [(0, 199), (41_200, 41_399), (65_800, 65_999)])
def test_a_window_shows_every_number_exactly(wide, window):
    first, last = window
    x = wide.keys[0][0].float().numpy()
    cut = x[first : last + 1].T
    figure = head(wide, layer=0, head=0, part="key", width=1056, window=window)
    maps = [t for t in figure.data if t.type == "heatmap" and np.asarray(t.z).shape == cut.shape]
    assert len(maps) >= 3  # magnitude, and what both rulers lose; scales have a row a block
    edges = np.asarray(maps[0].x, float)
    assert (edges[0], edges[-1]) == (first - 0.5, last + 0.5)
    with np.errstate(divide="ignore"):
        expected = np.log10(np.abs(cut))
    shown, real = np.asarray(maps[0].z, float), np.isfinite(expected)
    np.testing.assert_allclose(shown[real], expected[real], rtol=0, atol=1e-6)
    for lost in maps[-2:]:  # what both rulers lose stands over the same tokens
        edges = np.asarray(lost.x, float)
        assert (edges[0], edges[-1]) == (first - 0.5, last + 0.5)
    assert len(figure.to_json()) <= MOST_BYTES
    assert json.loads(figure.to_json())["layout"]["xaxis"]["range"] == [first - 0.5, last + 0.5]


@pytest.mark.parametrize("name", ["outliers"])
def test_a_window_of_one_map_has_the_numbers_themselves(wide, name):
    x = wide.keys[0][0].float().numpy()
    tokens = list(wide.token_texts)
    figure = FIGURES[name].draw(x, tokens, title="t", width=1056, window=(41_200, 41_399))
    trace = next(t for t in figure.data if t.type == "heatmap")
    assert np.array_equal(np.asarray(trace.customdata), x[41_200:41_400].T)
