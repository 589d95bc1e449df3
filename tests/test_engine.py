"""The engine: lanes that run as stock transformers would, stop anywhere, and repeat."""

from __future__ import annotations

import threading
from dataclasses import fields, replace

import pytest
import tiny
import tiny_text
import torch
from transformers import DynamicCache

from mxviz import models
from mxviz._engine_lanes import LaneState
from mxviz._engine_steps import decode_one_token, draws, prefill, sample
from mxviz.cache import MXCache
from mxviz.capture import LANES, Capture
from mxviz.engine import Progress, Settings, run
from mxviz.formats import Recipe

PROMPT = "hello there, how are the ladybugs today?"


@pytest.fixture(scope="session")
def smollm2() -> models.Loaded:
    return models.load("smollm2", device="cpu")


def settings(**changes) -> Settings:
    return Settings(**{"prompt": PROMPT, "max_new_tokens": 6, **changes})


# Settings


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"max_new_tokens": 0}, "max_new_tokens 0 is not valid; expected a whole number from 1"),
        ({"max_new_tokens": -1}, "max_new_tokens -1"),
        ({"max_new_tokens": 1.5}, "max_new_tokens 1.5"),
        ({"max_new_tokens": True}, "max_new_tokens True"),
        ({"max_new_tokens": 10**9}, "to 100,000"),
        ({"seed": -1}, "seed -1"),
        ({"seed": 2**63}, "seed 9223372036854775808"),
        ({"temperature": -0.1}, "temperature -0.1 is not valid"),
        ({"temperature": float("nan")}, "temperature nan"),
        ({"temperature": float("inf")}, "temperature inf"),
        ({"temperature": "hot"}, "temperature 'hot'"),
        ({"top_p": 0}, "top_p 0 is not valid; expected more than 0 and at most 1"),
        ({"top_p": 1.01}, "top_p 1.01"),
        ({"top_p": float("nan")}, "top_p nan"),
        ({"recipe": "mxfp5"}, "unknown scheme 'mxfp5'"),
        ({"baseline": "mxfp5"}, "unknown scheme 'mxfp5'"),
        ({"recipe": "aint2"}, "aint2 has no single-scale twin"),
        ({"backend": "tpu"}, "unknown backend 'tpu'"),
        ({"store_dtype": "int8"}, "store_dtype 'int8' is not valid; expected one of: float32, bfloat16"),
    ],
)
def test_settings_out_of_range(changes: dict, words: str) -> None:
    with pytest.raises(ValueError) as error:
        settings(**changes)
    assert words in str(error.value) and "\n" not in str(error.value)


def test_settings_are_canonical_and_name_each_lanes_recipe() -> None:
    chosen = settings(recipe="k=mxfp4:scale=floor;v=mxfp4;residual=0;sink=4")
    assert chosen.recipe == "mxfp4;sink=4" and chosen.baseline == "twin"
    assert {lane: str(recipe) for lane, recipe in chosen.recipes().items()} == {
        "exact": "none",
        "micro": "mxfp4;sink=4",
        "single": "fp4@tensor;sink=4",
    }
    assert str(settings(baseline="int8@head").recipes()["single"]) == "int8@head"
    assert replace(chosen, recipe="mxint8").recipes()["single"].key.name == "int8@tensor"


# Steps


def test_sample_inverts_the_sorted_distribution() -> None:
    logits = torch.tensor([0.1, 0.6, 0.3]).log()
    assert [sample(logits, 1.0, 1.0, u) for u in (0.0, 0.59, 0.61, 0.89, 0.91, 0.9999999)] == [
        1,
        1,
        2,
        2,
        0,
        0,
    ]
    assert [sample(logits, 1.0, 0.9, u) for u in (0.65, 0.67, 0.9999999)] == [1, 2, 2]  # 2/3 and 1/3 remain
    assert [sample(logits, 1.0, 0.5, u) for u in (0.0, 0.9999999)] == [1, 1]
    assert [sample(logits, 0.0, 1.0, u) for u in (0.0, 0.95)] == [1, 1]
    assert sample(logits, 1e-300, 1.0, 0.95) == 1
    # at temperature 2 the weights are the square roots: .7746, .5477, .3162 of 1.6385
    assert [sample(logits, 2.0, 1.0, u) for u in (0.472, 0.474, 0.806, 0.808)] == [1, 2, 2, 0]


def test_draws_leave_the_global_generator_alone() -> None:
    before = torch.get_rng_state()
    first = draws(3, 5)
    assert draws(3, 5) == first and draws(4, 5) != first
    assert draws(3, 2) == first[:2]  # a longer run begins as a shorter one
    assert all(0 <= u < 1 for u in first)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("kind", tiny.MODELS)
def test_recipe_none_gives_the_logits_of_a_dynamic_cache_bit_for_bit(kind: str) -> None:
    model = tiny.MODELS[kind]()
    ids = tuple(tiny.prompt(21)[0].tolist())
    ours, stock = MXCache(model.config, "none", record=True), DynamicCache(config=model.config)
    with torch.inference_mode():
        assert torch.equal(prefill(model, ids, ours), prefill(model, ids, stock))
        for token in (5, 9, 64, 3):
            assert torch.equal(decode_one_token(model, token, ours), decode_one_token(model, token, stock))


# Runs


@pytest.mark.parametrize("kind", tiny.MODELS)
def test_recipe_none_writes_what_generate_writes(kind: str) -> None:
    loaded = tiny_text.loaded(kind)
    capture = run(loaded, settings(recipe="none", max_new_tokens=12))
    ids = torch.tensor([capture.token_ids[: capture.prompt_tokens]])
    stock = loaded.model.generate(ids, max_new_tokens=12, do_sample=False, pad_token_id=0)[0].tolist()
    assert list(capture.token_ids) == stock
    assert {capture.lanes[lane].token_ids for lane in LANES} == {tuple(stock[ids.shape[1] :])}
    assert capture.lanes["exact"].text == loaded.tokenizer.decode(stock[ids.shape[1] :]).rstrip("\ufffd")
    assert capture.effect["micro"]["kl"].tolist() == [0.0] * len(stock)
    assert bool(capture.effect["micro"]["top1"].all())


def test_the_record_is_what_a_dynamic_cache_holds() -> None:
    loaded = tiny_text.loaded()
    capture = run(loaded, settings(recipe="mxfp4"))
    ids, stock = capture.token_ids, DynamicCache(config=loaded.model.config)
    with torch.inference_mode():
        prefill(loaded.model, ids[: capture.prompt_tokens], stock)
        for token in ids[capture.prompt_tokens : -1]:
            decode_one_token(loaded.model, token, stock)
    assert capture.layers == (0, 1) and capture.tokens_held == len(ids) - 1
    for layer in capture.layers:
        assert torch.equal(capture.keys[layer], stock.layers[layer].keys[0])
        assert torch.equal(capture.values[layer], stock.layers[layer].values[0])
    assert not capture.keys[0].is_inference()


def _same(a: Capture, b: Capture) -> bool:
    """Whether two captures are equal to the bit, timings apart."""
    return all(_equal(getattr(a, f.name), getattr(b, f.name)) for f in fields(Capture) if f.name != "timings")


def _equal(a: object, b: object) -> bool:
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_equal(a[key], b[key]) for key in a)
    return torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_the_same_settings_give_the_same_capture(temperature: float) -> None:
    loaded = tiny_text.loaded(template=tiny_text.TEMPLATE)
    chosen = settings(temperature=temperature, seed=11, recipe="nvfp4")
    first = run(loaded, chosen)
    torch.manual_seed(99)
    state = torch.get_rng_state()
    assert _same(first, run(loaded, chosen))
    assert torch.equal(torch.get_rng_state(), state)
    other = run(loaded, replace(chosen, seed=12))
    assert (other.token_ids == first.token_ids) == (temperature == 0)


def test_lanes_that_sample_share_their_draws() -> None:
    capture = run(tiny_text.loaded(), settings(recipe="none", temperature=3.0, max_new_tokens=24))
    assert len({capture.lanes[lane].token_ids for lane in LANES}) == 1
    assert capture.first_divergence("micro") is None
    assert len(set(capture.lanes["exact"].token_ids)) > 8  # it did sample


def test_each_lane_ends_at_its_own_end_token() -> None:
    loaded = tiny_text.loaded()
    free = run(loaded, settings(recipe="mxint4", max_new_tokens=16))
    exact, micro = free.lanes["exact"].token_ids, free.lanes["micro"].token_ids
    assert exact != micro
    end = next(token for token in micro if token not in exact)
    loaded.model.generation_config.eos_token_id = [end]
    ended = run(loaded, settings(recipe="mxint4", max_new_tokens=16))
    assert ended.lanes["exact"].token_ids == exact
    assert ended.lanes["micro"].token_ids == micro[: micro.index(end) + 1]
    assert ended.storage["micro"]["tokens_held"] == ended.prompt_tokens + micro.index(end)


def test_storage_counts_tokens_times_layers_times_heads() -> None:
    capture = run(tiny_text.loaded("llama", num_hidden_layers=3), settings(recipe="mxfp4"))
    exact, micro = capture.storage["exact"], capture.storage["micro"]
    held = capture.prompt_tokens + 6 - 1
    assert exact["tokens_held"] == micro["tokens_held"] == held
    assert exact["stored_bytes"] == held * 3 * 2 * (32 + 32) * 2
    assert micro["stored_bytes"] / exact["stored_bytes"] == 0.265625
    assert (exact["bits_per_element"], micro["bits_per_element"]) == (16, 4.25)
    assert micro["allocated_bytes"] >= micro["stored_bytes"]
    assert capture.shape == {
        "layers": 3,
        "query_heads": 4,
        "kv_heads": 2,
        "head_dim": 32,
        "value_dim": 32,
        "dtype": "float32",
        "model_dtype": "float32",
        "sliding_layers": [],
    }


def test_only_the_asked_layers_in_the_asked_dtype() -> None:
    loaded = tiny_text.loaded()
    full = run(loaded, settings())
    some = run(loaded, settings(layers=(1,), store_dtype="bfloat16", effect=False))
    assert some.layers == (1,) and some.shape["dtype"] == "bfloat16"
    assert torch.equal(some.keys[1], full.keys[1].bfloat16())
    assert some.effect == {} and some.top_ids is None and some.keys_pre_rope == {}
    with pytest.raises(ValueError, match="layer 2 does not exist; expected layers from 0 to 1"):
        run(loaded, settings(layers=(0, 2)))


def test_lengths_that_do_not_fit_the_context() -> None:
    loaded = tiny_text.loaded()
    with pytest.raises(
        ValueError, match="do not fit the model's context of 4,096; shorten the prompt"
    ) as error:
        run(loaded, settings(max_new_tokens=4090))
    assert "\n" not in str(error.value)


def test_a_lane_whose_logits_are_nan_ends_with_a_note() -> None:
    loaded = tiny_text.loaded()
    with torch.no_grad():
        loaded.model.lm_head.weight.fill_(torch.nan)
    capture = run(loaded, settings())
    assert capture.lanes["exact"].token_ids == ()
    assert capture.notes[-3:] == tuple(
        f"the {lane} lane ended at new token 1: its logits are NaN" for lane in LANES
    )


@pytest.mark.parametrize("kind", tiny.MODELS)
@pytest.mark.parametrize("recipe", ["nvfp4;sink=2", "k=mxfp4;v=fp8_e4m3@tensor;residual=2"])
def test_a_prompt_that_is_taken_over_gives_the_bytes_of_one_that_is_read(kind: str, recipe: str) -> None:
    loaded, prompt = tiny_text.loaded(kind), tuple(tiny.prompt(37)[0].tolist())
    exact, read, taken = (LaneState(*lane, "auto") for lane in _lanes(loaded, recipe))
    with torch.inference_mode():
        exact.prefill(prompt)
        read.prefill(prompt)
        taken.take_prompt(exact)
        assert torch.equal(read.logits, taken.logits) and read.cache.nbytes == taken.cache.nbytes
        for _ in range(12):
            for lane in (read, taken):
                lane.step(0.0, 1.0, 0.0)
            assert torch.equal(read.logits, taken.logits)
    assert read.ids == taken.ids


def _lanes(loaded: models.Loaded, recipe: str) -> list[tuple]:
    names = {"exact": "none", "micro": recipe, "single": recipe}
    return [(name, loaded, Recipe.parse(text)) for name, text in names.items()]


# Stopping, waiting, progress


def test_progress_tells_each_stage_and_the_texts_so_far() -> None:
    seen: list[Progress] = []
    capture = run(tiny_text.loaded(), settings(), on_progress=seen.append)
    stages = [(p.stage, p.step, p.total) for p in seen]
    expected = [("prefill", n, 3) for n in range(4)] + [("decode", n, 6) for n in range(1, 7)]
    assert stages == [*expected, *(("measure", n, 3) for n in range(4)), ("done", 1, 1)]
    assert all(lane.text.startswith(p.texts[name]) for p in seen for name, lane in capture.lanes.items())
    assert seen[6].token_ids["micro"] == capture.lanes["micro"].token_ids[:3]
    assert seen[-1].texts == {name: lane.text for name, lane in capture.lanes.items()}
    assert seen[-1].stored_bytes["micro"] == capture.storage["micro"]["stored_bytes"]
    assert all(speed > 0 for speed in seen[-1].tokens_per_second.values())


def test_a_run_can_be_stopped_anywhere(tmp_path) -> None:
    loaded, asked = tiny_text.loaded(), []
    whole = run(loaded, settings(), should_stop=lambda: bool(asked.append(0)))
    layers, steps, parts = 2, 3 * 6, 1
    assert len(asked) == layers + steps + 3 * layers + parts
    for last in range(layers, len(asked)):
        calls = iter(range(1, 1000))
        capture = run(loaded, settings(), should_stop=lambda calls=calls, last=last: next(calls) > last)
        new = len(capture.lanes["exact"].token_ids)
        assert new == min(6, (last - layers + 2) // 3)
        assert capture.token_ids == whole.token_ids[: capture.prompt_tokens + new]
        assert capture.tokens_held == capture.prompt_tokens + max(0, new - 1)
        assert capture.effect == {} and capture.keys_pre_rope == {}
        assert capture.notes[-1].startswith(f"stopped after {new} new token")
        capture.save(tmp_path / "stopped.safetensors")
        assert _same(Capture.load(tmp_path / "stopped.safetensors"), capture)
        assert not loaded.lock.locked()
    assert _same(run(loaded, settings()), whole)  # nothing is left behind


@pytest.mark.parametrize("last", [0, 1])
def test_a_stop_while_the_prompt_is_read_records_nothing(last: int) -> None:
    loaded, calls = tiny_text.loaded(), iter(range(1, 1000))
    with pytest.raises(ValueError, match="stopped before the prompt was read"):
        run(loaded, settings(), should_stop=lambda: next(calls) > last)
    assert not loaded.lock.locked()


def test_a_failing_listener_frees_the_model() -> None:
    loaded = tiny_text.loaded()

    def fail(_progress: Progress) -> None:
        raise RuntimeError("the tab is gone")

    with pytest.raises(RuntimeError, match="the tab is gone"):
        run(loaded, settings(), on_progress=fail)
    assert not loaded.lock.locked()


def test_runs_of_one_model_wait_for_each_other_and_can_stop_waiting() -> None:
    loaded, stages = tiny_text.loaded(), []
    alone = run(loaded, settings())
    loaded.lock.acquire()
    found: list[Capture] = []

    def second() -> None:
        found.append(run(loaded, settings(), on_progress=lambda p: stages.append(p.stage)))

    thread = threading.Thread(target=second)
    thread.start()
    with pytest.raises(ValueError, match="stopped while another run used the model"):
        run(loaded, settings(), should_stop=lambda: True)
    loaded.lock.release()
    thread.join(timeout=60)
    assert stages[0] == "waiting" and stages[-1] == "done"
    assert _same(found[0], alone)


# The built-in model, end to end


@pytest.mark.model
def test_the_built_in_model_with_recipe_none_is_stock_transformers(smollm2: models.Loaded) -> None:
    capture = run(smollm2, Settings("Why is the sky blue?", recipe="none", max_new_tokens=10, effect=False))
    ids = torch.tensor([capture.token_ids[: capture.prompt_tokens]])
    stock = smollm2.model.generate(ids, max_new_tokens=10, do_sample=False)
    assert list(capture.token_ids) == stock[0].tolist()
    assert all(capture.lanes[lane] == capture.lanes["exact"] for lane in LANES)
    text = smollm2.tokenizer.decode(stock[0, ids.shape[1] :], skip_special_tokens=True)
    assert capture.lanes["exact"].text == text


@pytest.mark.model
def test_the_built_in_model_with_mxfp4(smollm2: models.Loaded, tmp_path) -> None:
    capture = run(smollm2, Settings("Why is the sky blue?", max_new_tokens=8))
    exact, micro = capture.storage["exact"], capture.storage["micro"]
    held = capture.prompt_tokens + 8 - 1
    assert exact["stored_bytes"] == held * 30 * 3 * (64 + 64) * 2 == held * 23040
    assert micro["stored_bytes"] == held * 6120
    firsts = {capture.lanes[lane].token_ids[0] for lane in LANES}
    assert len(firsts) == 1  # the prompt attends to its own exact keys and values
    assert capture.token_texts[:3] == ("<|im_start|>", "system", "\n")
    assert capture.layers == tuple(range(30)) and sorted(capture.queries) == [0, 10, 19, 29]
    assert set(capture.keys_pre_rope) == set(range(30)) and capture.key_bias == {}
    micro_kl, single_kl = (capture.effect[lane]["kl"] for lane in ("micro", "single"))
    assert len(micro_kl) == len(capture.token_ids)
    assert 0.01 < float(micro_kl.mean()) < float(single_kl.mean()) < 5
    capture.save(tmp_path / "run.safetensors")
    assert _same(Capture.load(tmp_path / "run.safetensors"), capture)
