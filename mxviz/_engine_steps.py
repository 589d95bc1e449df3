"""One step of a model at a time, as free functions over a model and a cache."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor


def forward(model: Any, ids: Tensor, cache: Any, last_only: bool = True) -> Tensor:
    """Run a model on top of a cache and return its logits.

    Args:
        model: a causal language model.
        ids: int64 `[1, tokens]`.
        cache: what transformers takes as a cache; the tokens are added to it.
        last_only: compute the logits of the last position alone, where the model can.

    Returns:
        `[1, positions, vocabulary]`; positions is 1 under last_only.
    """
    parameters = _parameters(type(model))
    # transformers renames the argument: past_key_values up to 5.22, both in between, cache alone from 5.40
    keywords = {"cache" if "cache" in parameters else "past_key_values": cache}
    if last_only and "logits_to_keep" in parameters:
        keywords["logits_to_keep"] = 1
    logits = model(input_ids=ids, use_cache=True, **keywords).logits
    return logits[:, -1:] if last_only else logits


@lru_cache
def _parameters(model_class: type) -> frozenset[str]:
    return frozenset(inspect.signature(model_class.forward).parameters)


class Stopped(Exception):
    """Raised out of a model that was asked to stop in the middle of a pass."""


@contextmanager
def interruptible(model: Any, should_stop: Callable[[], bool]) -> Iterator[None]:
    """Ask before every attention layer whether to stop: a pass over a long text takes many seconds.

    Raises:
        Stopped: out of the pass; what the cache holds then is of no use.
    """

    mine = threading.get_ident()

    def ask(*_: Any) -> None:
        if threading.get_ident() == mine and should_stop():  # between two passes others may use the model
            raise Stopped

    handles = [m.register_forward_pre_hook(ask) for m in model.modules() if hasattr(m, "layer_idx")]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def prefill(model: Any, ids: tuple[int, ...], cache: Any) -> Tensor:
    """Read the prompt into an empty cache; return the logits `[vocabulary]` of the first new token."""
    return forward(model, torch.tensor([ids], device=model.device), cache)[0, -1]


def decode_one_token(model: Any, token: int, cache: Any) -> Tensor:
    """Add one token to the cache; return the logits `[vocabulary]` of the token after it."""
    return forward(model, torch.tensor([[token]], device=model.device), cache)[0, -1]


def sample(logits: Tensor, temperature: float, top_p: float, draw: float) -> int:
    """Choose a token: the most probable one at temperature 0, else by inverse CDF.

    Probabilities are sorted from the largest down, so lanes with nearly equal logits that share a draw choose
    the same token nearly always.

    Args:
        logits: `[vocabulary]`.
        temperature: 0 for greedy.
        top_p: keep the smallest set of most probable tokens that reaches this probability.
        draw: uniform in [0, 1).
    """
    if temperature == 0:
        return int(logits.argmax())
    x = logits.cpu().double()  # not every device has float64
    probabilities, order = torch.softmax((x - x.max()) / temperature, -1).sort(descending=True, stable=True)
    cumulative = probabilities.cumsum(-1)
    kept = max(1, int((cumulative - probabilities < top_p).sum()))
    index = int(torch.searchsorted(cumulative[:kept], draw * float(cumulative[kept - 1]), right=True))
    return int(order[min(index, kept - 1)])


def draws(seed: int, count: int) -> list[float]:
    """Return uniform numbers from a generator of our own; torch's global state is left alone."""
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(count, generator=generator, dtype=torch.float64).tolist()


def end_tokens(model: Any, tokenizer: Any) -> frozenset[int]:
    """Return the tokens that end a text, as `model.generate` would take them."""
    found = getattr(model.generation_config, "eos_token_id", None)
    found = model.config.get_text_config().eos_token_id if found is None else found
    found = tokenizer.eos_token_id if found is None else found
    if found is None:
        return frozenset()
    return frozenset([found] if isinstance(found, int) else found)
