"""The caches that are compared, filled to a length, and decoded on from there."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from torch import Tensor
from transformers.cache_utils import Cache, DynamicCache, QuantizedCache

from mxviz.cache import MXCache

States = Sequence[tuple[Tensor, Tensor]]
"""K and V of every layer, each `[batch, kv_heads, tokens, head_dim]`."""


class Contender(NamedTuple):
    """A cache, and the attention function it goes with.

    Args:
        make: makes an empty one from a model's config.
        attention: what `set_attn_implementation` is given.
        peer: whether it is somebody else's and may be missing or fail; ours and DynamicCache may not.
    """

    make: Callable[[Any], Cache]
    attention: str = "sdpa"
    peer: bool = False


def _ours(recipe: str, attention: str = "mxviz") -> Contender:
    return Contender(lambda config: MXCache(config, recipe), attention)


def _theirs(backend: str, **options: int) -> Contender:
    return Contender(lambda config: QuantizedCache(backend, config, **options), peer=True)


BASE = "DynamicCache"
OURS = "MXCache mxfp4"
CACHES: dict[str, Contender] = {
    BASE: Contender(lambda config: DynamicCache(config=config)),
    OURS: _ours("mxfp4"),
    "MXCache k=mxfp4:axis=token;v=mxfp4": _ours("k=mxfp4:axis=token;v=mxfp4"),
    "MXCache nvfp4": _ours("nvfp4"),
    "MXCache mxfp8_e4m3": _ours("mxfp8_e4m3"),
    "MXCache kivi4": _ours("kivi4"),
    "MXCache mxfp4, unpacked for sdpa": _ours("mxfp4", "sdpa"),
    "QuantizedCache quanto 4-bit": _theirs("quanto", nbits=4),
    "QuantizedCache HQQ 4-bit": _theirs("hqq", nbits=4, axis_key=1, axis_value=1),
    "QuantizedCache FP8": _theirs("fp8"),
}
"""Contenders by the name that rows and tables give them."""

PEERS = tuple(name for name, contender in CACHES.items() if contender.peer)


def fill(cache: Cache, states: States, tokens: int) -> Cache:
    """Give a cache the first tokens of every layer, as one prompt, and return it.

    A packed cache takes one token more and drops it again: that makes room for an eighth more tokens, a copy
    that belongs to the next thousand steps and not to the few that are timed.
    """
    for layer, (k, v) in enumerate(states):
        cache.update(k[:, :, :tokens], v[:, :, :tokens], layer)
    if isinstance(cache, MXCache):
        for layer, (k, v) in enumerate(states):
            cache.update(k[:, :, -1:], v[:, :, -1:], layer)
        cache.crop(-1)
    return cache


def again(cache: Cache) -> Cache:
    """Return a copy to decode on with. transformers' layers never write into a tensor they hold, so their
    copies share tensors.
    """
    if isinstance(cache, MXCache):
        return copy.deepcopy(cache)
    copied = copy.copy(cache)
    copied.layers = [copy.copy(layer) for layer in cache.layers]
    return copied


def around(tokens: int, most: int, steps: int) -> range:
    """Lengths around `tokens`: 2 % to each side, or as far as `most` steps go, in whole rounds.

    The first is even: HQQ's packing fails on an odd number of tokens.
    """
    reach = min(tokens // 50, most // 2)
    start = tokens - reach + (tokens - reach) % 2
    return range(start, start + max(steps, (tokens + reach - start) // steps * steps))


class Walk:
    """A cache that is decoded on over a range of lengths, then put back to the first of them.

    Calling it takes some steps and returns milliseconds a step. The first step of a fresh copy is not timed:
    a run that goes on and on has none.

    Args:
        make: returns the cache, filled to `lengths.start` tokens; called once, at the first step.
        step: takes one decode step with the cache.
        lengths: how many tokens are held.
        steps: taken at each call; must divide the range.
        prepare: called before the steps, not timed.
    """

    def __init__(
        self,
        make: Callable[[], Cache],
        step: Callable[[Cache], object],
        lengths: range,
        steps: int,
        prepare: Callable[[], object] = lambda: None,
    ) -> None:
        self.make, self.step, self.prepare = make, step, prepare
        self.lengths, self.steps = lengths, steps
        self.kept: Cache | None = None
        self.cache: Cache | None = None
        self.held = lengths.stop

    def __call__(self) -> float:
        self.kept = self.make() if self.kept is None else self.kept
        self.prepare()
        if self.held + self.steps > self.lengths.stop:
            self.cache, self.held = again(self.kept), self.lengths.start
            self.step(self.cache)
        start = time.perf_counter()
        for _ in range(self.steps):
            self.step(self.cache)
        self.held += self.steps
        return 1e3 * (time.perf_counter() - start) / self.steps
