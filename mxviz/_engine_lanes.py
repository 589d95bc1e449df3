"""Lanes: texts that grow side by side, each from a cache of its own."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor

from mxviz._engine_settings import Settings
from mxviz._engine_steps import (
    Stopped,
    decode_one_token,
    draws,
    end_tokens,
    interruptible,
    prefill,
    sample,
)
from mxviz.cache import MXCache
from mxviz.capture import Lane
from mxviz.formats import Recipe
from mxviz.models import Loaded, TextStream

_COUNTED_AT = 2  # bytes of a bfloat16 number: the exact lane is counted so, whatever dtype it runs in


class LaneState:
    """A lane under way.

    After every step the cache holds all that was read and all new tokens but the last, so a lane can stop
    anywhere.

    Args:
        name: `exact`, `micro` or `single`.
        loaded: the model.
        recipe: how the cache stores; the exact lane's also records.
        backend: what quantizes.
        cache: of the turns before; None makes a new one.
        before: the tokens before the new ones: the prompt, and all turns before it.
    """

    def __init__(
        self,
        name: str,
        loaded: Loaded,
        recipe: Recipe,
        backend: str,
        *,
        cache: MXCache | None = None,
        before: tuple[int, ...] = (),
    ) -> None:
        self.name, self.model, self.before = name, loaded.model, before
        self.cache = cache
        if cache is None:
            self.cache = MXCache(loaded.model.config, recipe, record=name == "exact", backend=backend)
        self.stream = TextStream(loaded.tokenizer)
        self.ids: list[int] = []
        self.ends = end_tokens(loaded.model, loaded.tokenizer)
        self.logits: Tensor | None = None
        self.ended = False
        self.prefill_s = self.decode_s = 0.0
        self.notes: list[str] = []

    def prefill(self, prompt: tuple[int, ...]) -> None:
        """Read the prompt, or the next turn's on top of what is held."""
        started = time.perf_counter()
        self.logits = prefill(self.model, prompt, self.cache)
        self.prefill_s = time.perf_counter() - started

    def take_prompt(self, other: LaneState) -> None:
        """Pack the keys and values another lane recorded while it read the prompt.

        A prompt attends to its own exact keys and values, so reading it again would give the same bytes.
        """
        started = time.perf_counter()
        for layer in range(len(self.cache.layers)):
            self.cache.update(*other.cache.recorded(layer), layer)
        self.logits = other.logits
        self.prefill_s = time.perf_counter() - started

    def step(self, temperature: float, top_p: float, draw: float) -> None:
        """Add one token: feed the newest, choose the next."""
        started = time.perf_counter()
        if self.ids:
            self.logits = decode_one_token(self.model, self.ids[-1], self.cache)
        if bool(torch.isnan(self.logits).any()):
            self.notes.append(
                f"the {self.name} lane ended at new token {len(self.ids) + 1}: its logits are NaN"
            )
            self.ended = True
            return
        token = sample(self.logits, temperature, top_p, draw)
        self.decode_s += time.perf_counter() - started
        self.ids.append(token)
        self.stream.push(token)
        self.ended = token in self.ends

    @property
    def tokens_per_second(self) -> float | None:
        """Speed of the decode steps, None before the first."""
        return (len(self.ids) - 1) / self.decode_s if len(self.ids) > 1 else None

    @property
    def wrote(self) -> Lane:
        """The new text and the new tokens so far."""
        return Lane(self.stream.text, tuple(self.ids))

    @property
    def stored_bytes(self) -> int:
        """Bytes the cache holds; the exact lane's counted at bfloat16."""
        if self.name != "exact":
            return self.cache.nbytes
        return self.cache.nbytes * _COUNTED_AT // self.model.dtype.itemsize


def recorded_all(cache: MXCache) -> bool:
    """Return whether a recording cache took in keys and values in every layer."""
    return all(getattr(layer, "recording", ()) and layer.is_initialized for layer in cache.layers)


def prefill_lanes(
    lanes: dict[str, LaneState],
    prompt: tuple[int, ...],
    should_stop: Callable[[], bool],
    said: Callable[[int], None],
) -> bool:
    """Bring the prompt into every lane's cache; return whether it came to the end.

    The exact lane reads it; the others take over what it recorded, where the record has every layer (a layer
    of another kind, such as linear attention, has a state of its own and reads for itself).
    """
    for number, lane in enumerate(lanes.values()):
        said(number)
        if number and recorded_all(lanes["exact"].cache):
            lane.take_prompt(lanes["exact"])
            continue
        try:
            with interruptible(lane.model, should_stop):
                lane.prefill(prompt)
        except Stopped:
            return False
    said(len(lanes))
    return True


def read_on(
    lanes: dict[str, LaneState],
    read: dict[str, tuple[int, ...]],
    should_stop: Callable[[], bool],
    said: Callable[[int], None],
) -> None:
    """Bring the next turn into every lane's cache: its own tokens for each, as their texts differ.

    Raises:
        Stopped: where it was stopped; every cache then stands where it stood.
    """
    held = {name: lane.cache.get_seq_length() for name, lane in lanes.items()}
    # A layer of another kind, such as linear attention, cannot give tokens back: there a turn is read whole.
    stop = should_stop if recorded_all(lanes["exact"].cache) else lambda: False
    try:
        for number, (name, lane) in enumerate(lanes.items()):
            said(number)
            if stop is should_stop:
                lane.cache.activate_past_recording()  # packed only when all have read, so that it can go back
            with interruptible(lane.model, stop):
                lane.prefill(read[name])
    except Stopped:
        for name, lane in lanes.items():
            _settle(lane.cache, held[name])
        raise
    for lane in lanes.values():
        _settle(lane.cache)
    said(len(lanes))


def _settle(cache: MXCache, stays: int = 0) -> None:
    """Pack what waited, or go back to the first `stays` tokens."""
    for layer in cache.layers:
        if getattr(layer, "record_past", False):
            layer.crop(stays)
            layer.record_past = False


def decode_lanes(
    lanes: dict[str, LaneState],
    settings: Settings,
    should_stop: Callable[[], bool],
    said: Callable[[int], None],
    turn: int = 0,
) -> bool:
    """Let all lanes write, a token each in turn; return whether it came to the end."""
    count = settings.max_new_tokens
    for step, draw in enumerate(draws(settings.seed, count * (turn + 1))[count * turn :]):
        for lane in lanes.values():
            if should_stop():
                return False
            if not lane.ended:
                lane.step(settings.temperature, settings.top_p, draw)
        said(step + 1)
        if all(lane.ended for lane in lanes.values()):
            break
    return True
