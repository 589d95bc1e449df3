"""Conversation: the next turn goes on in the caches of the last, each lane from its own answer."""

from __future__ import annotations

import gc
import json
import weakref
from dataclasses import fields, replace

import pytest
import tiny
import tiny_text
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from transformers import DynamicCache

from mxviz._engine_conversation import continued
from mxviz._engine_steps import decode_one_token, prefill
from mxviz.cache import MXCache, attending_packed
from mxviz.capture import LANES, Capture, Turn
from mxviz.engine import Conversation, Settings, run
from mxviz.formats import Recipe

PROMPTS = ("hello there, how are the ladybugs today?", "and the skyscraper?", "thank you")
CHAT = (
    "{% for m in messages %}{% if m['role'] == 'user' %}<|user|>{% endif %}{{ m['content'] + '<|end|>' }}"
    "{% endfor %}"
)
AWKWARD = "k=mxfp4:axis=token;v=mxfp4;sink=2;residual=3"


def settings(**changes) -> Settings:
    return Settings(**{"prompt": PROMPTS[0], "max_new_tokens": 6, "effect": False, **changes})


def talked(loaded, chosen: Settings, prompts=PROMPTS) -> tuple[Conversation, list[Capture]]:
    conversation = Conversation(loaded, chosen)
    return conversation, [conversation.ask(prompt) for prompt in prompts]


def same(a: Capture, b: Capture) -> bool:
    """Whether two captures are equal to the bit, timings apart."""
    return all(_equal(getattr(a, f.name), getattr(b, f.name)) for f in fields(Capture) if f.name != "timings")


def _equal(a: object, b: object) -> bool:
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_equal(a[key], b[key]) for key in a)
    return torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


# What is on the cache


@pytest.mark.parametrize("kind", tiny.MODELS)
def test_three_turns_on_one_cache_are_the_tokens_one_by_one(kind: str) -> None:
    """Case G8: the same greedy tokens, logits within 1e-4."""
    loaded = tiny_text.loaded(kind)
    conversation, captures = talked(loaded, settings())
    ids, written = captures[-1].token_ids, []
    for capture in captures:
        new = capture.lanes["exact"].token_ids
        assert capture.token_ids == ids[: capture.prompt_tokens + len(new)]
        written += range(capture.prompt_tokens, capture.prompt_tokens + len(new))
    assert len(written) == 18
    with torch.inference_mode():
        stock = DynamicCache(config=loaded.model.config)
        logits = [decode_one_token(loaded.model, token, stock) for token in ids]
        assert [int(logits[i - 1].argmax()) for i in written] == [ids[i] for i in written]
        kept = conversation._kept["exact"].cache
        assert kept.get_seq_length() == len(ids) - 1
        torch.testing.assert_close(
            decode_one_token(loaded.model, ids[-1], kept), logits[-1], rtol=0, atol=1e-4
        )


@pytest.mark.parametrize("kind", tiny.MODELS)
@pytest.mark.parametrize("recipe", ["mxfp4", "nvfp4", AWKWARD])
def test_a_packed_lane_goes_on_in_its_own_bytes(kind: str, recipe: str) -> None:
    loaded = tiny_text.loaded(kind)
    conversation, captures = talked(loaded, settings(recipe=recipe))
    cache = MXCache(loaded.model.config, Recipe.parse(recipe))
    ids, fed = list(conversation._kept["micro"].ids), 0
    with torch.inference_mode(), attending_packed(loaded.model):
        for capture in captures:
            new = capture.lanes["micro"].token_ids
            start = next(i for i in range(fed + 1, len(ids)) if tuple(ids[i : i + len(new)]) == new)
            logits = prefill(loaded.model, tuple(ids[fed:start]), cache)
            for token in new[:-1]:
                assert int(logits.argmax()) == token
                logits = decode_one_token(loaded.model, token, cache)
            fed = start + len(new) - 1
    turn = captures[-1].turns[-1]
    assert turn.tokens_held["micro"] == cache.tokens_held
    assert turn.stored_bytes["micro"] == cache.nbytes
    kept = conversation._kept["micro"].cache
    for layer in range(2):
        assert torch.equal(kept.layers[layer].keys, cache.layers[layer].keys)
        assert torch.equal(kept.layers[layer].values, cache.layers[layer].values)


def test_the_first_turn_is_a_run_and_each_lane_has_its_own_past() -> None:
    loaded = tiny_text.loaded()
    chosen = settings(recipe="mxint4", effect=True, max_new_tokens=16)
    conversation, captures = talked(loaded, chosen)
    assert same(captures[0], run(loaded, chosen))
    assert captures[0].first_divergence("micro") is not None
    pasts = {lane: conversation._kept[lane].ids for lane in LANES}
    assert len(set(pasts.values())) == 3
    for lane, ids in pasts.items():
        for turn in captures[-1].turns:
            new = turn.lanes[lane].token_ids
            assert any(ids[i : i + len(new)] == new for i in range(len(ids)))
    last = captures[-1]
    assert last.tokens_held == len(last.token_ids) - 1 == last.turns[-1].tokens_held["exact"]
    assert len(last.effect["micro"]["kl"]) == len(last.token_ids)
    assert sorted(last.keys_pre_rope) == sorted(last.queries) == [0, 1]


def test_bytes_and_divergence_are_kept_turn_by_turn() -> None:
    conversation, captures = talked(tiny_text.loaded(), settings(recipe="mxfp4"))
    turns = captures[-1].turns
    assert turns == conversation.turns and [turn.prompt for turn in turns] == list(PROMPTS)
    assert [captures[i].turns for i in range(3)] == [turns[: i + 1] for i in range(3)]
    for capture, turn in zip(captures, turns, strict=True):
        assert turn.lanes == capture.lanes and turn.prompt == capture.prompt
        assert turn.tokens_held == {lane: capture.storage[lane]["tokens_held"] for lane in LANES}
        assert turn.stored_bytes == {lane: capture.storage[lane]["stored_bytes"] for lane in LANES}
        assert turn.stored_bytes["micro"] == turn.tokens_held["micro"] * 2 * 2 * 2 * 17  # 32 at 4 bits, and 1
        assert {lane: turn.first_divergence(lane) for lane in LANES} == {
            lane: capture.first_divergence(lane) for lane in LANES
        }


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_the_same_turns_give_the_same_captures(temperature: float) -> None:
    loaded, chosen = tiny_text.loaded(), settings(temperature=temperature, seed=4, recipe="nvfp4")
    first, second = (talked(loaded, chosen)[1] for _ in range(2))
    assert all(same(a, b) for a, b in zip(first, second, strict=True))
    if temperature:
        free, again = (talked(loaded, chosen, [PROMPTS[0]] * 2)[1] for _ in range(2))
        assert free[1].lanes["exact"].token_ids == again[1].lanes["exact"].token_ids


# How a turn becomes tokens


def messages(*texts: str) -> tuple[dict[str, str], ...]:
    return tuple(
        {"role": "assistant" if number % 2 else "user", "content": text} for number, text in enumerate(texts)
    )


@pytest.mark.parametrize("ended", ["", tiny_text.END])
def test_a_template_that_continues_the_text_gives_its_own_tokens(ended: str) -> None:
    loaded = tiny_text.loaded(template=CHAT)
    tokens = lambda text: tuple(loaded.tokenizer(text).input_ids)  # noqa: E731
    loaded.model.generation_config.eos_token_id = tokens(tiny_text.END)
    so_far = tokens("<|user|>hello<|end|>a cab" + ended)
    kept, new, note = continued(loaded, so_far, messages("hello", "a cab", "abba?"), raw=False)
    assert kept == tokens("<|user|>hello<|end|>a cab") and note is None
    assert kept + new == tokens("<|user|>hello<|end|>a cab<|end|><|user|>abba?<|end|>")


@pytest.mark.parametrize(
    ("template", "raw", "text", "said"),
    [
        (None, False, "\n\nabba?\n", "no chat template"),
        (CHAT, True, "\n\nabba?\n", None),
        (tiny_text.TEMPLATE, False, "<|user|>abba?<|end|>", "does not continue the text so far"),
        ("{{ raise_exception('no') }}", False, "\n\nabba?\n", "does not continue the text so far"),
    ],
)
def test_where_no_template_continues_the_new_turn_is_appended(template, raw, text, said) -> None:
    loaded = tiny_text.loaded(template=template)
    so_far = tuple(loaded.tokenizer("<|user|>hello<|end|>a cab").input_ids)
    kept, new, note = continued(loaded, so_far, messages("hello", "a cab", "abba?"), raw)
    assert (kept, new) == (so_far, tuple(loaded.tokenizer(text).input_ids))
    assert note is None if said is None else said in note


def test_the_note_is_said_once() -> None:
    _, captures = talked(tiny_text.loaded(template=tiny_text.TEMPLATE), settings())
    notes = [note for note in captures[1].notes if "does not continue" in note]
    assert len(notes) == 1 and not any("does not continue" in note for note in captures[0].notes)


# Stopping


@pytest.mark.parametrize("recipe", ["mxfp4", AWKWARD])
@pytest.mark.parametrize("kind", ["llama", "gemma3"])
def test_a_stop_while_a_turn_is_read_leaves_everything_where_it_stood(kind: str, recipe: str) -> None:
    loaded, chosen = tiny_text.loaded(kind), settings(recipe=recipe)
    _, whole = talked(loaded, chosen)
    conversation, _ = talked(loaded, chosen, PROMPTS[:1])
    for prompt, expected in zip(PROMPTS[1:], whole[1:], strict=True):
        for last in range(6):  # two layers in each of three lanes
            calls = iter(range(100))
            with pytest.raises(ValueError, match="the conversation stands where it stood"):
                conversation.ask(prompt, should_stop=lambda calls=calls, last=last: next(calls) >= last)
        assert same(conversation.ask(prompt), expected)


def test_a_stop_in_mid_turn_keeps_what_was_and_the_next_turn_goes_on() -> None:
    loaded = tiny_text.loaded()
    conversation, _ = talked(loaded, settings(max_new_tokens=20), PROMPTS[:1])
    steps = iter(range(1000))
    stopped = conversation.ask(PROMPTS[1], should_stop=lambda: next(steps) >= 6 + 3 * 4 + 1)
    assert [len(stopped.lanes[lane].token_ids) for lane in LANES] == [5, 4, 4]
    assert stopped.notes[-1].startswith("stopped after 5 new tokens")
    assert [turn.prompt for turn in stopped.turns] == list(PROMPTS[:2])
    after = conversation.ask(PROMPTS[2])
    assert len(after.turns) == 3 and len(after.lanes["micro"].token_ids) == 20
    assert after.token_ids[: len(stopped.token_ids)] == stopped.token_ids
    assert not loaded.lock.locked()


def test_a_turn_that_does_not_fit_is_refused_and_changes_nothing() -> None:
    loaded, chosen = tiny_text.loaded(), settings()
    conversation, captures = talked(loaded, chosen, PROMPTS[:1])
    for prompt, said in (("ab " * 4000, "start a new run or ask for fewer"), ("  ", "the prompt is empty")):
        with pytest.raises(ValueError, match=said):
            conversation.ask(prompt)
    assert conversation.turns == captures[0].turns
    assert same(conversation.ask(PROMPTS[1]), talked(loaded, chosen)[1][1])


def test_what_fails_in_the_middle_closes_the_conversation() -> None:
    loaded = tiny_text.loaded()
    conversation, _ = talked(loaded, settings(), PROMPTS[:1])

    def fail(progress) -> None:
        if progress.stage == "decode":
            raise RuntimeError("the tab is gone")

    with pytest.raises(RuntimeError, match="the tab is gone"):
        conversation.ask(PROMPTS[1], on_progress=fail)
    assert not conversation.is_open and not loaded.lock.locked()
    with pytest.raises(ValueError, match="were freed; start a new run"):
        conversation.ask(PROMPTS[1])


# Memory


def test_the_caches_go_with_the_model_and_with_the_conversation() -> None:
    loaded = tiny_text.loaded()
    conversation, _ = talked(loaded, settings(), PROMPTS[:2])
    caches = [weakref.ref(conversation._kept[lane].cache) for lane in LANES]
    assert conversation.is_open and all(cache() is not None for cache in caches)
    del loaded
    gc.collect()
    assert not conversation.is_open and all(cache() is None for cache in caches)
    with pytest.raises(ValueError, match="were freed; start a new run"):
        conversation.ask(PROMPTS[1])

    loaded = tiny_text.loaded()
    other, _ = talked(loaded, settings(), PROMPTS[:1])
    cache = weakref.ref(other._kept["micro"].cache)
    del other
    gc.collect()
    assert cache() is None


# The file


def test_turns_come_back_from_a_file_and_older_files_have_none(tmp_path) -> None:
    _, captures = talked(tiny_text.loaded(), settings())
    path = tmp_path / "talk.safetensors"
    captures[-1].save(path)
    back = Capture.load(path)
    assert same(back, captures[-1]) and isinstance(back.turns[1], Turn)
    assert back.turns[2].first_divergence("single") == captures[-1].first_divergence("single")
    with safe_open(path, "pt") as file:
        header, tensors = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    plain = json.loads(header["capture"])
    turns = plain.pop("turns")
    save_file(tensors, path, metadata=header | {"capture": json.dumps(plain)})
    assert same(Capture.load(path), replace(captures[-1], turns=()))
    for wrong in ([1], [{}], [turns[0] | {"lanes": []}], [turns[0] | {"stored_bytes": {"exact": "x"}}]):
        save_file(tensors, path, metadata=header | {"capture": json.dumps(plain | {"turns": wrong})})
        with pytest.raises(ValueError, match="is not a readable mxviz capture"):
            Capture.load(path)
