"""The same text written twice: once with a cache, once with every token read again at every step."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch

from mxviz._engine_race import _locked
from mxviz._engine_steps import Stopped, _parameters, decode_one_token, interruptible
from mxviz.cache import MXCache
from mxviz.models import Loaded

FIRST = "Once"
"""What the text starts from; its first token."""


class Cooked(NamedTuple):
    """One step: which it is (1, 2, …), milliseconds with and without the cache, and whether both ways have
    the same most probable next token."""

    step: int
    with_ms: float
    without_ms: float
    same: bool


def cook(
    loaded: Loaded,
    tokens: int,
    *,
    told: Callable[[Cooked], None] = lambda step: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> list[Cooked]:
    """Write tokens greedily with an uncompressed cache, and time the same step without one beside it.

    Step k feeds one token to the cache, and all k tokens to the same model without it. Each way is run once
    before, so that neither pays for the first use.

    Args:
        loaded: the model.
        tokens: how many to write, 1 or more.
        told: given each step as soon as it is done.
        should_stop: asked before every layer, and while another run has the model.

    Returns:
        The steps in order; where it was stopped, those that were done.

    Raises:
        ValueError: for fewer than one token.
    """
    if tokens < 1:
        raise ValueError(f"{tokens} tokens cannot be written; expected 1 or more")
    steps: list[Cooked] = []
    if not _locked(loaded, should_stop):
        return steps
    try:
        with interruptible(loaded.model, should_stop), torch.inference_mode(), _until_stopped():
            for step in _steps(loaded, tokens):
                steps.append(step)
                told(step)
    finally:
        loaded.lock.release()
    return steps


@contextmanager
def _until_stopped() -> Iterator[None]:
    try:
        yield
    except Stopped:
        return


def _steps(loaded: Loaded, tokens: int) -> Iterator[Cooked]:
    model, ids = loaded.model, list(loaded.tokenizer(FIRST, add_special_tokens=False)["input_ids"][:1])
    _again(model, ids)
    decode_one_token(model, ids[0], MXCache(model.config, "none"))
    cache = MXCache(model.config, "none")
    for step in range(1, tokens + 1):
        started = time.perf_counter()
        held = int(decode_one_token(model, ids[-1], cache).argmax())
        between = time.perf_counter()
        again = int(_again(model, ids).argmax())
        ended = time.perf_counter()
        yield Cooked(step, 1e3 * (between - started), 1e3 * (ended - between), held == again)
        ids.append(held)


def _again(model, ids: list[int]) -> torch.Tensor:
    """Read all tokens from the first on and keep nothing; return the logits `[vocabulary]` of the next."""
    last = {"logits_to_keep": 1} if "logits_to_keep" in _parameters(type(model)) else {}
    return model(input_ids=torch.tensor([ids], device=model.device), use_cache=False, **last).logits[0, -1]
