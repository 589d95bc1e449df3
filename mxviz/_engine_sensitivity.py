"""Sensitivity: which layer's keys or values hurt the forecasts most, measured one at a time.

Each is a recipe that stores that layer's keys (or values) alone and keeps the rest exact, so the numbers are
those of `mxviz.engine.measure`. KLs of single layers do not add up to that of all of them; so what the map
suggests is measured as well before it is told.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from mxviz._engine_effect import _compare, _teacher_forced
from mxviz._engine_layers import Measured, Sensitivity, bits_of, only, parts_of, suggested
from mxviz._engine_settings import NONE
from mxviz._engine_steps import Stopped, interruptible
from mxviz.cache import RoundTripCache
from mxviz.capture import PARTS
from mxviz.formats import Recipe
from mxviz.models import Loaded

MOST_TOKENS = 256
"""Tokens of a text that are measured unless more are asked for."""


def sensitivity(
    loaded: Loaded,
    ids: tuple[int, ...],
    recipe: Recipe | str,
    *,
    tokens: int = MOST_TOKENS,
    backend: str = "auto",
    said: Callable[[int, int], None] = lambda done, total: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Sensitivity | None:
    """Measure a recipe layer by layer, keys and values apart, and what that suggests.

    One exact pass is shared by all; the model's lock is held for a pass at a time, so that others get a turn.

    Args:
        loaded: the model.
        ids: a text; its first `tokens` tokens are measured, teacher-forced.
        recipe: what is taken apart; residual is ignored as in every such measurement.
        tokens: at most so many.
        backend: what quantizes.
        said: told before each pass how many of how many are done.
        should_stop: asked before every layer of a pass, and while another run has the model.

    Returns:
        The map, or None where it was stopped.

    Raises:
        ValueError: for a recipe that quantizes nothing, or a text of fewer than two tokens.
    """
    recipe, ids = Recipe.parse(recipe), tuple(ids[:tokens])
    if recipe.is_none:
        raise ValueError("recipe none quantizes nothing, so there is nothing to take apart; name a scheme")
    if len(ids) < 2:
        raise ValueError(f"a text of {len(ids)} tokens is too short; give at least 2")
    passes = _Passes(loaded, ids, backend, should_stop)
    layers, parts = _quantized(passes, recipe), parts_of(recipe)
    single = [(part, layer) for part in parts for layer in layers]
    kl = {part: np.full(passes.layers, np.nan) for part in PARTS}
    total = len(single) + 2 + (1 if len(parts) < 2 else 3)  # exact and whole; the suggestions
    try:
        said(0, total)
        passes.start()
        said(1, total)
        whole = passes.measure(recipe)
        for number, (part, layer) in enumerate(single, 2):
            said(number, total)
            kl[part][layer] = passes.measure(only(recipe, passes.layers, part, layer)).kl
        suggestions = {}
        for name, way in suggested(recipe, kl).items():
            said(2 + len(single) + len(suggestions), total)
            suggestions[name] = passes.measure(way)
        said(total, total)
        return Sensitivity(str(recipe), len(ids), kl, whole, suggestions)
    except Stopped:
        return None


def compare_recipes(
    loaded: Loaded,
    ids: tuple[int, ...],
    recipes: tuple[str, ...],
    *,
    tokens: int = MOST_TOKENS,
    backend: str = "auto",
    said: Callable[[int, int], None] = lambda done, total: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> list[Measured] | None:
    """Measure several recipes over one text with one exact pass; arguments are those of `sensitivity`.

    Returns:
        One row a recipe, in the order given, or None where it was stopped.
    """
    passes, found = _Passes(loaded, tuple(ids[:tokens]), backend, should_stop), []
    try:
        said(0, len(recipes) + 1)
        passes.start()
        for number, recipe in enumerate(recipes, 1):
            said(number, len(recipes) + 1)
            found.append(passes.measure(Recipe.parse(recipe)))
        return found
    except Stopped:
        return None


class _Passes:
    """Teacher-forced passes over one text, all compared with one exact pass."""

    def __init__(self, loaded: Loaded, ids: tuple[int, ...], backend: str, should_stop: Callable) -> None:
        vocabulary = loaded.model.get_input_embeddings().num_embeddings
        if ids and max(ids) >= vocabulary:
            raise ValueError(
                f"token {max(ids)} is beyond the {vocabulary:,} of {loaded.name}: the text is another model's"
            )
        self._loaded, self._backend, self._stop = loaded, backend, should_stop
        self._tokens = torch.tensor([ids], device=loaded.model.device)
        self._exact: Any = None
        config = loaded.model.config.get_text_config(decoder=True)
        self._head_dim = getattr(config, "head_dim", None) or (
            config.hidden_size // config.num_attention_heads
        )
        self.layers = len(RoundTripCache(loaded.model.config, NONE).layers)

    def start(self) -> None:
        """Run the exact pass."""
        self._exact = self._run(NONE)

    @torch.inference_mode()
    def measure(self, recipe: Recipe) -> Measured:
        """Run a recipe's pass and compare it with the exact one."""
        heads = {"exact": self._exact, "lane": self._run(recipe)}
        with self._turn():
            found = _compare(heads, self._tokens[0], self._stop).tables["lane"]
        nats = found["kl"].double()
        nats = nats[nats.isfinite()]
        kl = float(nats.mean()) if nats.numel() else float("nan")
        return Measured(str(recipe), kl, float(found["top1"].double().mean()), self._bits(recipe))

    @torch.inference_mode()
    def _run(self, recipe: Recipe) -> Any:
        cache = RoundTripCache(self._loaded.model.config, recipe, backend=self._backend)
        with self._turn(), interruptible(self._loaded.model, self._stop):
            return _teacher_forced(self._loaded.model, self._tokens, cache)

    def _turn(self) -> _Turn:
        return _Turn(self._loaded.lock, self._stop)

    def _bits(self, recipe: Recipe) -> float:
        return bits_of(recipe, self.layers, self._head_dim)


class _Turn:
    """The model's lock for one pass; a stop is heard while waiting for it."""

    def __init__(self, lock: Any, should_stop: Callable[[], bool]) -> None:
        self._lock, self._stop = lock, should_stop

    def __enter__(self) -> None:
        while not self._lock.acquire(timeout=0.1):
            if self._stop():
                raise Stopped
        if self._stop():
            self._lock.release()
            raise Stopped

    def __exit__(self, *_: Any) -> None:
        self._lock.release()


def _quantized(passes: _Passes, recipe: Recipe) -> list[int]:
    """Return the layers that a recipe stores quantized in this model."""
    cache = RoundTripCache(passes._loaded.model.config, recipe)
    return [i for i in range(passes.layers) if i not in recipe.skip and i not in cache.not_quantized]
