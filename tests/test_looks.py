"""Looking at a run through another recipe: keys before RoPE, frozen scales, blocks that clip."""

from __future__ import annotations

import dataclasses

import numpy as np
import oracle
import pytest
import torch
from made_capture import HEADS, LAYERS, TOKENS, expected_error, made_capture

from mxviz import looks
from mxviz.formats import SCHEMES, Axis, Recipe, ScaleRule, Scheme
from mxviz.metrics import layer_trip


def test_keys_before_rope_are_cut_to_the_tokens_held_and_the_layers_that_have_them() -> None:
    before = {layer: torch.randn(HEADS, TOKENS + 1, 40) for layer in (0, 2)}
    capture = made_capture(keys_pre_rope=before)
    turned_back = looks.before_rope(capture)
    assert turned_back.layers == (0, 2) and turned_back.values.keys() == {0, 2}
    assert torch.equal(turned_back.keys[2], before[2][:, :TOKENS])
    assert torch.equal(turned_back.values[2], capture.values[2])
    assert turned_back.recipe == capture.recipe and turned_back.token_ids == capture.token_ids
    assert looks.before_rope(capture) is turned_back, "figures are kept by capture"
    with pytest.raises(ValueError, match="no keys before RoPE: .*hooked") as refused:
        looks.before_rope(made_capture())
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "shared"),
    [
        ("int4@tensor", np.s_[:, :60]),
        ("fp4@head", np.s_[0, :60]),
        ("int8@channel", np.s_[0, :60, 3]),
        ("nvfp4", None),
    ],
)
def test_scales_frozen_by_the_prompt_clip_what_comes_later(name: str, shared) -> None:
    capture = made_capture()
    capture.keys[0][0, 65, 3] = 50.0  # behind the prompt's 60 tokens
    recipe = Recipe.parse(name)
    trip = looks.frozen_trip(capture, recipe, "key", 0)
    assert trip.clipped[0, 65, 3] and trip.x_hat[0, 65, 3] < 50
    assert not layer_trip(capture, recipe, "key", 0).clipped[0, 65, 3], "over all tokens, its scale holds it"
    if shared is not None:
        amax = float(capture.keys[0][shared].abs().max())
        assert trip.x_hat[0, 65, 3] == pytest.approx(amax, rel=1e-6), "held at the prompt's amax"
        assert looks.cost(capture, name, "key").clipped == 0 < looks.cost(capture, name, "key", True).clipped


def test_frozen_leaves_schemes_alone_that_a_cache_does_not_freeze() -> None:
    capture = made_capture()
    for name in ("mxfp4", "int4@token", "fp4@one"):
        recipe = Recipe.parse(f"{name};sink=2")
        frozen, kind = (f(capture, recipe, "key", 1) for f in (looks.frozen_trip, layer_trip))
        assert torch.equal(frozen.x_hat, kind.x_hat) and torch.equal(frozen.clipped, kind.clipped)


@pytest.mark.parametrize("recipe", ["mxfp4", "mxfp8_e4m3:axis=token;sink=5", "nvfp4", "int4@head", "fp4@one"])
@pytest.mark.parametrize("part", ["key", "value"])
def test_cost_is_the_oracles(recipe: str, part: str) -> None:
    capture = made_capture()
    found, right = looks.cost(capture, recipe, part), expected_error(capture, recipe, part)
    for name in ("sqnr_db", "flushed", "clipped"):
        assert getattr(found, name) == pytest.approx(right[name], rel=1e-9), name
    parsed = Recipe.parse(recipe)
    scheme, sink, blocks, clipped = parsed.scheme(part), parsed.sink, 0, 0
    for layer in capture.layers:
        x = capture.part(part, layer).numpy()[:, sink:]
        mask = oracle.quantize(x, str(scheme)).clipped
        rows = mask if scheme.axis is Axis.CHANNEL else mask.swapaxes(1, 2)
        if not scheme.is_blocked:
            groups = [mask] if scheme.reach.value == "one" else list(mask)
        else:
            cuts = range(0, rows.shape[-1], scheme.block)
            groups = [rows[h, r, i : i + scheme.block] for h, r in np.ndindex(rows.shape[:2]) for i in cuts]
        blocks, clipped = blocks + len(groups), clipped + sum(g.any() for g in groups)
    assert (found.clipped_blocks, found.blocks) == (clipped, blocks)
    assert found.bits == scheme.bits_per_element(x.shape[-1])


def test_cost_of_what_stays_exact() -> None:
    capture = made_capture()
    none = looks.cost(capture, "none", "key")
    assert none == (None, float("inf"), 0.0, 0.0, 0, 0)
    skipped = looks.cost(capture, "int4@tensor;skip=0,2", "key")
    assert skipped.blocks == LAYERS - 2 and skipped.bits == 4
    only_keys = dataclasses.replace(capture, values={})
    assert looks.cost(only_keys, "mxfp4", "value") == (None, None, None, None, 0, 0)


def test_another_scheme_keeps_the_options_that_apply_to_it() -> None:
    mine = Scheme.parse("mxfp4:axis=token,scale=rceil")
    assert str(looks.with_scheme(mine, "mxint8")) == "mxint8:axis=token,scale=rceil"
    assert str(looks.with_scheme(mine, "nvfp4")) == "nvfp4:axis=token", "its own block of 16, and no rule"
    assert str(looks.with_scheme(mine, "int4@head")) == "int4@head"
    assert str(looks.with_scheme(Scheme.parse("nvfp4:block=64"), "mxfp4")) == "mxfp4:block=64"


def test_options_reach_the_parts_they_apply_to() -> None:
    recipe = Recipe.parse("k=nvfp4;v=mxfp4;sink=4")
    assert str(looks.with_option(recipe, axis=Axis.TOKEN)) == "k=nvfp4:axis=token;v=mxfp4:axis=token;sink=4"
    assert str(looks.with_option(recipe, ("key",), axis=Axis.TOKEN)) == "k=nvfp4:axis=token;v=mxfp4;sink=4"
    assert str(looks.with_option(recipe, rule=ScaleRule.CEIL)) == "k=nvfp4;v=mxfp4:scale=ceil;sink=4"
    with pytest.raises(ValueError, match="rule does not apply to the keys' scheme nvfp4"):
        looks.with_option(recipe, ("key",), rule=ScaleRule.CEIL)


def test_baselines_follow_the_recipe() -> None:
    recipe = Recipe.parse("k=mxfp4:axis=token;v=mxfp8_e4m3;sink=4")
    assert looks.baseline_of(recipe, "tensor") == recipe.twin()
    assert str(looks.baseline_of(recipe, "head")) == "k=fp4@head;v=fp8_e4m3@head;sink=4"
    for reach in looks.REACHES:
        assert looks.reach_of(recipe, looks.baseline_of(recipe, reach)) == reach
    assert looks.reach_of(recipe, Recipe.parse("int8@tensor;sink=4")) is None
    assert looks.reach_of(Recipe.parse("aint2"), Recipe.parse("int4@tensor")) is None
    with pytest.raises(ValueError, match="no int4@one: .*suits floats alone"):
        looks.baseline_of(Recipe.parse("mxint4"), "one")
    assert {s.name.partition("@")[2] for s in SCHEMES.values() if "@" in s.name} == set(looks.REACHES)


def test_a_recipe_has_to_fit_the_run() -> None:
    assert str(looks.fitting(made_capture(), "mxfp4;skip=2")) == "mxfp4;skip=2"
    with pytest.raises(ValueError, match="skip=3: the model has layers 0 to 2"):
        looks.fitting(made_capture(), "mxfp4;skip=3")
    with pytest.raises(ValueError, match="Hadamard matrix of order head_dim=24|head_dim=72"):
        odd = {layer: torch.randn(HEADS, TOKENS, 72) for layer in range(LAYERS)}
        looks.fitting(made_capture(keys=odd), "mxfp4;rotate=1")
