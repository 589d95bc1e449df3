"""The map layer by layer is what each recipe gives by hand; suggestions are measured; a stop is heard."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import tiny
import tiny_text
import torch
from made_capture import made_capture

from mxviz._engine_layers import Measured, only, recorded, recorded_rows, taken_apart
from mxviz._engine_sensitivity import compare_recipes, sensitivity
from mxviz._paths import ASSETS
from mxviz.capture import Capture
from mxviz.engine import measure
from mxviz.formats import Recipe
from mxviz.race import measured

IDS = tuple(tiny.prompt(41)[0].tolist())
RECIPE = "k=mxfp4:axis=token;v=int4@tensor;sink=2"


def by_hand(loaded, recipe: str, ids=IDS) -> tuple[float, float]:
    """Mean KL and agreement of one recipe, from the engine's own measurement."""
    recipes = {"exact": Recipe.parse("none"), "micro": Recipe.parse(recipe)}
    tables = measure(loaded.model, ids, recipes).tables["micro"]
    return float(tables["kl"].double().mean()), float(tables["top1"].double().mean())


@pytest.fixture
def loaded():
    return tiny_text.loaded("llama", num_hidden_layers=4)


def test_the_map_equals_running_each_recipe_by_hand(loaded) -> None:
    told: list[tuple[int, int]] = []
    found = sensitivity(loaded, IDS, RECIPE, said=lambda done, total: told.append((done, total)))
    for layer in range(4):
        rest = ",".join(str(i) for i in range(4) if i != layer)
        keys = f"k=mxfp4:axis=token;v=none;sink=2;skip={rest}"
        values = f"k=none;v=int4@tensor;sink=2;skip={rest}"
        assert str(only(Recipe.parse(RECIPE), 4, "key", layer)) == keys
        np.testing.assert_allclose(found.kl["key"][layer], by_hand(loaded, keys)[0], rtol=1e-6)
        np.testing.assert_allclose(found.kl["value"][layer], by_hand(loaded, values)[0], rtol=1e-6)
    assert (found.kl["key"] > 1e-7).all() and (found.kl["value"] > 1e-7).all()
    assert (found.whole.kl, found.whole.top1) == pytest.approx(by_hand(loaded, RECIPE), rel=1e-6)
    assert found.recipe == RECIPE and found.tokens == len(IDS)
    assert told == [*((i, 13) for i in range(13)), (13, 13)]  # exact, whole, 8 single ones, 3 suggestions
    assert not loaded.lock.locked()


def test_what_is_suggested_was_measured(loaded) -> None:
    found = sensitivity(loaded, IDS, RECIPE)
    assert list(found.suggestions) == ["skip", "key-only", "value-only"]
    worst = int((found.kl["key"] + found.kl["value"]).argmax())
    skip = found.suggestions["skip"]
    assert skip.recipe == f"{RECIPE};skip={worst}"  # at most a quarter of the layers
    assert found.suggestions["key-only"].recipe == "k=mxfp4:axis=token;v=none;sink=2"
    for row in found.suggestions.values():
        assert (row.kl, row.top1) == pytest.approx(by_hand(loaded, row.recipe), rel=1e-6)
    whole_bits = (4.25 + 4) / 2
    assert found.whole.bits == whole_bits and skip.bits == (16 + 3 * whole_bits) / 4
    assert found.suggestions["key-only"].bits == (4.25 + 16) / 2


def test_layers_and_parts_that_stay_exact_anyway_are_left_out(loaded) -> None:
    found = sensitivity(loaded, IDS, "k=mxfp4;v=none;skip=1")
    assert np.isnan(found.kl["value"]).all()
    assert np.isnan(found.kl["key"]).tolist() == [False, True, False, False]
    assert list(found.suggestions) == ["skip"]
    assert found.suggestions["skip"].recipe.startswith("k=mxfp4;v=none;skip=1,") or (
        found.suggestions["skip"].recipe == "k=mxfp4;v=none;skip=0,1"
    )


def test_only_the_first_tokens_are_measured(loaded) -> None:
    found = sensitivity(loaded, IDS, "mxfp4", tokens=9)
    assert found.tokens == 9
    assert found.whole.kl == pytest.approx(by_hand(loaded, "mxfp4", IDS[:9])[0], rel=1e-6)


def test_recipes_side_by_side_keep_their_order(loaded) -> None:
    asked = ("int8@tensor", "mxfp4", "nvfp4")
    found = compare_recipes(loaded, IDS, asked)
    assert [row.recipe for row in found] == list(asked)
    assert [row.kl for row in found] == pytest.approx([by_hand(loaded, r)[0] for r in asked], rel=1e-6)
    assert [row.bits for row in found] == [8.0, 4.25, 4.5]
    assert isinstance(found[0], Measured) and found[0].kl < found[1].kl


@pytest.mark.parametrize("last", [0, 1, 5, 40])
def test_a_stop_is_heard_in_any_pass_and_leaves_nothing_behind(loaded, last: int) -> None:
    calls = iter(range(10**6))
    assert sensitivity(loaded, IDS, "mxfp4", should_stop=lambda: next(calls) >= last) is None
    assert next(calls) == last + 1  # it was asked no more once it had said so
    assert not loaded.lock.locked()
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in loaded.model.modules())


def test_a_stop_is_heard_while_another_run_has_the_model(loaded) -> None:
    stop = threading.Event()
    with loaded.lock:
        threading.Timer(0.2, stop.set).start()
        assert sensitivity(loaded, IDS, "mxfp4", should_stop=stop.is_set) is None


def test_what_cannot_be_taken_apart_is_said(loaded) -> None:
    with pytest.raises(ValueError, match="recipe none quantizes nothing"):
        sensitivity(loaded, IDS, "none")
    with pytest.raises(ValueError, match="a text of 1 tokens is too short"):
        sensitivity(loaded, IDS, "mxfp4", tokens=1)
    with pytest.raises(ValueError, match="token 999 is beyond the 262 of llama"):
        compare_recipes(loaded, (1, 999), ("mxfp4",))
    with pytest.raises(ValueError, match="names a layer this model does not have"):
        sensitivity(loaded, IDS, "mxfp4;skip=9")


def test_sliding_layers_are_measured_too() -> None:
    found = sensitivity(tiny_text.loaded("gemma3"), IDS, "mxfp4")
    assert np.isfinite(found.kl["key"]).all() and (found.kl["key"] > 0).all()
    assert torch.is_grad_enabled()  # nothing of the measurement's own mode is left


def test_a_recorded_map_is_the_measured_one(loaded) -> None:
    """What a capture carries of single layers gives the map again, and no race lists these recipes."""
    recipe = Recipe.parse(RECIPE)
    whole = sensitivity(loaded, IDS, recipe)
    recipes = [recipe, *(alone for *_, alone in taken_apart(recipe, 4))]
    recipes += [Recipe.parse(row.recipe) for row in whole.suggestions.values()]
    lanes = {"exact": Recipe.parse("none")} | {str(r): r for r in recipes}
    effect = measure(loaded.model, IDS, lanes).tables
    text = tuple(map(str, IDS))
    shape = {"layers": 4}
    capture = made_capture(effect=effect, token_ids=IDS, token_texts=text, shape=shape)
    found = recorded(capture, RECIPE)
    for part in ("key", "value"):
        np.testing.assert_allclose(found.kl[part], whole.kl[part], rtol=1e-5)
    assert found.tokens == len(IDS) and found.whole.kl == pytest.approx(whole.whole.kl)
    assert found.suggestions.keys() == whole.suggestions.keys()
    for name, row in whole.suggestions.items():
        assert found.suggestions[name].recipe == row.recipe and found.suggestions[name].top1 == row.top1
    assert set(measured(capture)) == {str(recipe), *(row.recipe for row in whole.suggestions.values())}
    assert recorded(capture, "nvfp4") is None
    assert [row.recipe for row in recorded_rows(capture, ["nvfp4", RECIPE])] == [str(recipe)]


def test_the_recorded_qwen_run_carries_its_maps() -> None:
    """Layer 8, which holds the wild channel, is one of the two that one scale hurts most."""
    capture = Capture.load(ASSETS / "gallery" / "qwen-code.safetensors")
    single, micro = recorded(capture, capture.baseline), recorded(capture, capture.recipe)
    assert single.suggestions["skip"].recipe == "fp4@tensor;skip=0,8"
    assert single.kl["key"][8] > 0.09 > 0.01 > micro.kl["key"][8]
    assert single.suggestions["skip"].kl < single.whole.kl / 2
    assert np.isfinite([*single.kl.values(), *micro.kl.values()]).all()
