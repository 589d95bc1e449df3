"""The effect of a recipe: teacher-forced over one text, what quantized keys and values do to the next token.

Every position attends to keys and values that were quantized and dequantized as a whole, in one pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mxviz._engine_probe import Probe
from mxviz._engine_steps import Stopped, forward, interruptible
from mxviz.cache import RoundTripCache
from mxviz.formats import Recipe

TOP = 8
"""Most probable next tokens that are kept for each position."""

_CHUNK_NUMBERS = 2**22  # logits held at once: 32 MiB a table in float64


class Effect(NamedTuple):
    """What `measure` found.

    Args:
        tables: lane to `kl` (nats, float32 `[positions]`), `top1` (bool `[positions]`) and `nll` (nats of the
            token that follows, float32 `[positions - 1]`); the exact lane has `nll` alone.
        top_ids: int64 `[positions, 8]`, the exact model's most probable next tokens.
        top_logprobs: float32, their log probabilities in nats.
    """

    tables: dict[str, dict[str, Tensor]]
    top_ids: Tensor
    top_logprobs: Tensor


@torch.inference_mode()
def measure(
    model: Any,
    ids: tuple[int, ...],
    recipes: dict[str, Recipe],
    *,
    backend: str = "auto",
    probe: Probe | None = None,
    said: Callable[[int], None] = lambda _: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Effect | None:
    """Measure what recipes do to a model's next-token distribution, teacher-forced over one text.

    Args:
        model: a causal language model.
        ids: the text; every position counts.
        recipes: lane to recipe; `exact` (none) comes first and is what the others are compared with.
        backend: what quantizes.
        probe: watches the exact pass.
        said: told before each pass, and before the comparison, how many passes are done.
        should_stop: asked before every layer of a pass and every part of the comparison.

    Returns:
        The tables, or None where it was stopped.
    """
    tokens = torch.tensor([ids], device=model.device)
    heads: dict[str, Callable[[slice], Tensor]] = {}
    try:
        for number, (lane, recipe) in enumerate(recipes.items()):
            said(number)
            cache = RoundTripCache(model.config, recipe, backend=backend)
            watching = probe.watching() if lane == "exact" and probe is not None else nullcontext()
            with watching, interruptible(model, should_stop):
                heads[lane] = _teacher_forced(model, tokens, cache)
        said(len(recipes))
        return _compare(heads, tokens[0], should_stop)
    except Stopped:
        return None


def _teacher_forced(model: Any, tokens: Tensor, cache: Any) -> Callable[[slice], Tensor]:
    """Run one pass; return what gives the logits `[positions, vocabulary]` of a slice of positions.

    All logits at once take gigabytes for a long text. So the head's input is kept and the head is applied
    to a few positions at a time, if that gives what the model gives (some scale or cap behind the head).
    """
    head = model.get_output_embeddings()
    if head is None:
        return _all_logits(model, tokens, cache)
    taken: list[Tensor] = []

    def take(_module: Any, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        taken.append(args[0])
        return (args[0][:, -1:], *args[1:])

    handle = head.register_forward_pre_hook(take)
    try:
        last = forward(model, tokens, cache, last_only=False)
    finally:
        handle.remove()
    hidden = taken[0][0] if taken else None
    plain = hidden is not None and torch.allclose(head(hidden[-1:]), last[0], rtol=1e-3, atol=1e-5)
    return (lambda some: head(hidden[some])) if plain else _all_logits(model, tokens, cache)


def _all_logits(model: Any, tokens: Tensor, cache: Any) -> Callable[[slice], Tensor]:
    logits = forward(model, tokens, cache, last_only=False)[0]
    return lambda some: logits[some]


def _slices(positions: int, vocabulary: int) -> Iterator[slice]:
    size = max(1, _CHUNK_NUMBERS // vocabulary)
    return (slice(start, min(start + size, positions)) for start in range(0, positions, size))


def _compare(
    heads: dict[str, Callable[[slice], Tensor]], tokens: Tensor, should_stop: Callable[[], bool]
) -> Effect:
    positions, vocabulary = len(tokens), heads["exact"](slice(0, 1)).shape[-1]
    tables: dict[str, dict[str, list[Tensor]]] = {lane: {} for lane in heads}
    top_ids, top_logprobs = [], []
    for some in _slices(positions, vocabulary):
        if should_stop():
            raise Stopped
        following = tokens[some.start + 1 : some.stop + 1, None]
        exact = None
        for lane, head in heads.items():
            log_p = torch.log_softmax(_wide(head(some)), -1)
            nll = -log_p[: len(following)].gather(-1, following.to(log_p.device))[:, 0]
            tables[lane].setdefault("nll", []).append(nll.float())
            if lane == "exact":
                exact = log_p
                top = log_p.topk(min(TOP, vocabulary), -1)
                top_ids.append(top.indices)
                top_logprobs.append(top.values.float())
                continue
            tables[lane].setdefault("kl", []).append(_kl(exact, log_p).float())
            tables[lane].setdefault("top1", []).append(exact.argmax(-1) == log_p.argmax(-1))
    return Effect(
        {lane: {name: torch.cat(rows) for name, rows in found.items()} for lane, found in tables.items()},
        torch.cat(top_ids),
        torch.cat(top_logprobs),
    )


def _wide(x: Tensor) -> Tensor:
    """Return x in float64, on the CPU where its device has none."""
    return (x.cpu() if x.device.type == "mps" else x).double()


def _kl(log_p: Tensor, log_q: Tensor) -> Tensor:
    """KL(p‖q) in nats along the last dimension; rounding never makes it negative, NaN stays."""
    terms = log_p.exp() * (log_p - log_q)
    return terms.masked_fill(log_p == -torch.inf, 0).sum(-1).clamp_min(0)
