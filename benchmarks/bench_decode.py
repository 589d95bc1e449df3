"""Decode: milliseconds a token with each cache, at several lengths held.

One model, one prompt. Its K and V are computed once, and every cache is filled with the first tokens of them.
Then the contenders take turns: a round is a few decode steps of each, in a new order, and the ratio to
DynamicCache is taken round by round. A cache walks from 2 % below a length to 2 % above it and is put back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import torch

from benchmarks._caches import BASE, CACHES, PEERS, Contender, States, Walk, around, fill
from benchmarks._peers import why_missing
from benchmarks._rows import Row, timed_row
from benchmarks._timing import in_rounds
from mxviz._engine_steps import forward
from mxviz.models import load

LENGTHS = (256, 2048, 8000)
ROUNDS = {256: 20, 2048: 20, 8000: 10}  # so that one run takes some five minutes on two cores
CHUNK = 512


def setting(tokens: int) -> str:
    return f"{tokens} tokens"


def measure(quick: bool = False) -> Iterator[Row]:
    """Measure all caches with the built-in model in float32; `quick` takes one length and few rounds."""
    lengths = LENGTHS[:1] if quick else LENGTHS
    model, states = _set_up(max(lengths))
    for tokens in lengths:
        yield from at_length(model, states, tokens, rounds=2 if quick else ROUNDS[tokens])


@cache
def _set_up(tokens: int) -> tuple[Any, States]:
    model = load("smollm2", device="cpu", dtype=torch.float32).model
    return model, prompt_states(model, tokens)


def prompt_states(model: Any, tokens: int) -> States:
    """Return K and V of every layer for a prompt of random tokens, `[1, kv_heads, tokens, head_dim]`."""
    ids = torch.randint(model.config.vocab_size, (1, tokens), generator=torch.Generator().manual_seed(0))
    held = CACHES[BASE].make(model.config)
    model.set_attn_implementation(CACHES[BASE].attention)
    with torch.inference_mode():
        for chunk in ids.split(CHUNK, dim=1):
            forward(model, chunk, held)
    return [(layer.keys, layer.values) for layer in held.layers]


def at_length(
    model: Any,
    states: States,
    tokens: int,
    rounds: int,
    steps: int = 8,
    contenders: Mapping[str, Contender] = CACHES,
) -> Iterator[Row]:
    """Measure contenders with about so many tokens held.

    Args:
        states: K and V of at least `tokens` tokens.
        rounds: how many are counted.
        steps: decode steps of each contender in a round.
    """
    missing = {name: why for name in PEERS if name in contenders and (why := why_missing(name))}
    lengths = around(tokens, rounds * steps, steps)
    walks = {
        name: _walk(contender, model, states, lengths, steps)
        for name, contender in contenders.items()
        if name not in missing
    }
    with torch.inference_mode():
        taken, failed = in_rounds(walks, rounds, PEERS)
    for name, ms in taken.items():
        ratios = [a / b for a, b in zip(ms, taken[BASE], strict=True)]
        note = _how(walks[name].cache)
        yield timed_row("decode", setting(tokens), name, "ms/token", ms, ratios, note)
    for name, why in {**missing, **failed}.items():
        yield Row("decode", setting(tokens), name, "ms/token", note=why)


def _walk(contender: Contender, model: Any, states: States, lengths: range, steps: int) -> Walk:
    ids = torch.tensor([[1]])
    return Walk(
        make=lambda: fill(contender.make(model.config), states, lengths.start),
        step=lambda held: forward(model, ids, held),
        lengths=lengths,
        steps=steps,
        prepare=lambda: model.set_attn_implementation(contender.attention),
    )


def _how(held: Any) -> str:
    """Say how a cache of ours was attended to, so that a row cannot pass for what it is not."""
    attention = getattr(held, "attention", None)
    return f"attention {attention}, backend {held.backend}" if attention else ""
