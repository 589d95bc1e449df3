"""MXCache in tiny models of every family: the README's table of support is what the checks find."""

from __future__ import annotations

import warnings

import pytest
import torch

from mxviz.cache import MXCache, RoundTripCache
from mxviz.quantize import quantize
from tests.cache_cases import config, same, states, stored
from tests.conformance_checks import CHECKS, cell, prompt
from tests.conformance_models import FAMILIES, model
from tests.conformance_table import README, REFUSED, TICK, into, literal, markdown, read, results

TABLE, LINES = read(README.read_text(encoding="utf-8"))


@pytest.fixture(autouse=True)
def _quiet():
    """`past_key_values` is on its way out in favour of `cache`, which older releases do not take."""
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore", FutureWarning)
        yield


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("feature", CHECKS)
def test_the_readme_says_what_the_checks_find(feature: str, family: str) -> None:
    said, found = TABLE[family][feature], cell(family, feature)
    mark, _, number = said.partition(" ")
    assert mark == (REFUSED if found.refused else TICK), found.line
    assert LINES.get(number) == (None if found.line is None else literal(found.line))
    assert found.refused or found.found


def test_the_readme_is_what_would_be_written() -> None:
    """Number of checks included; what the tests above have run is not run again."""
    written = README.read_text(encoding="utf-8")
    assert into(written, markdown(results())) == written
    with pytest.raises(ValueError, match="support:begin"):
        into("no markers", "")


def test_the_latent_and_the_rope_part_are_told_apart() -> None:
    """Keys and values of an MLA layer differ in width; a rotation has to fit both, and says so at once."""
    of = model("DeepSeek-V3")
    held = MXCache(of.config, "k=nvfp4;v=mxint8")
    of(prompt(40), past_key_values=held)
    latent, rope = held.blocks(0, "key"), held.blocks(0, "value")
    assert (latent.shape, rope.shape) == ((1, 1, 40, 64), (1, 1, 40, 16))
    config = type(of.config)(**{**of.config.to_dict(), "kv_lora_rank": 72})
    with pytest.raises(ValueError, match="72"):
        MXCache(config, "mxfp4;rotate=1")


def test_a_crop_that_one_layer_refuses_leaves_all_as_they_were() -> None:
    of = model("Qwen3-Next")
    held = MXCache(of.config, "mxfp4")
    of(prompt(40), past_key_values=held)
    before = stored(held, layer=1)
    with pytest.raises(ValueError, match="layer 0, a LinearAttentionLayer"):
        held.crop(-3)
    assert held.get_seq_length() == 40 and same(stored(held, layer=1), before)
    windows = MXCache(model("gpt-oss").config, "mxfp4")
    windows.layers.reverse()  # the full layer first
    for layer in windows.layers:
        layer.update(*states(60))
    with pytest.raises(ValueError, match="window of 48"):
        windows.crop(-3)
    assert [layer.get_seq_length() for layer in windows.layers] == [60, 60]


@pytest.mark.parametrize("held_before", [0, 40])
def test_a_pass_that_was_broken_off_is_noticed(held_before: int, monkeypatch: pytest.MonkeyPatch) -> None:
    of = model("Llama")
    held, plain = MXCache(of.config, "mxfp4"), MXCache(of.config, "mxfp4")
    for cache in (held, plain) if held_before else ():
        of(prompt(held_before), past_key_values=cache)
    with monkeypatch.context() as patch:
        patch.setattr(of.model.layers[1], "forward", _breaks)
        with pytest.raises(KeyboardInterrupt):
            of(prompt(3, seed=1), past_key_values=held)
    says = rf"holds {held_before + 3} tokens and the last {held_before}: .* crop\({held_before}\)"
    with pytest.raises(ValueError, match=says):
        of(prompt(3, seed=1), past_key_values=held)
    held.crop(held_before) if held_before else held.reset()
    again, want = (of(prompt(3, seed=1), past_key_values=cache).logits for cache in (held, plain))
    assert torch.equal(again, want)


def _breaks(*_args, **_kwargs):
    raise KeyboardInterrupt


@pytest.mark.parametrize("recipe", ["aint4:axis=token", "aint2:axis=token", "mxfp4:axis=token"])
def test_padding_moves_no_zero_point_in_one_pass(recipe: str) -> None:
    """What goes round within one pass is what is stored: padding first, and a short last block."""
    k, v = states(40)
    mask = torch.ones(1, 40)
    mask[0, :8] = 0
    held = RoundTripCache(config(), recipe, "reference")
    held.set_padding(mask)
    got = held.update(k + 50, v, 0)[0]
    for block in range(0, 40, 32):
        real = (k + 50)[:, :, max(8, block) : block + 32]
        want = quantize(real, recipe).dequantize()
        assert torch.equal(got[:, :, max(8, block) : block + 32], want)
