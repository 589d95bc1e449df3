"""The numbers of the lesson, from a text that is written twice to what a smaller cache did to the next word.

All of them come from a formula, from recorded runs or from `mxviz.quantize`; no page and no text of the
lesson holds a measured number of its own.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch

from mxviz.attention import _weights, query_layers, scaling
from mxviz.capture import Capture
from mxviz.cuts import flushed_by_cut
from mxviz.formats import ELEMENTS, SCHEMES, Axis, Recipe
from mxviz.race import measured

BFLOAT16 = 16.0
"""Bits of an uncompressed number."""


class Shape(NamedTuple):
    """What decides how many bytes a token leaves in a cache, from a model's config."""

    layers: int
    kv_heads: int
    head_dim: int


MODELS = {
    "SmolLM2 135M": Shape(30, 3, 64),
    "Qwen2.5 Coder 0.5B": Shape(24, 2, 64),
    "Qwen3 8B": Shape(36, 8, 128),
    "Llama 3.1 70B": Shape(80, 8, 128),
}
"""Models by name, as their configs say."""

CARDS = {"RTX 4060": 8, "RTX 4090": 24, "H100": 80, "H200": 141}
"""Graphics cards and their memory in GiB, rounded as they are sold."""

STORED = {"bfloat16": None, "MXFP8": "mxfp8_e4m3", "MXFP6": "mxfp6_e2m3", "MXFP4": "mxfp4"}
"""Ways to store the cache in the lesson, and their schemes; None is uncompressed."""


def passes(tokens: int) -> tuple[int, int]:
    """Return how many token passes it takes to write n tokens from a first one, with a cache and without.

    A token pass is one token going through all layers. With a cache each step feeds the newest token alone: n
    passes. Without one, step k feeds all k tokens again: 1 + 2 + … + n = n(n+1)/2.

    Raises:
        ValueError: for a negative number of tokens.
    """
    if tokens < 0:
        raise ValueError(f"{tokens} tokens cannot be written; expected 0 or more")
    return tokens, tokens * (tokens + 1) // 2


def bytes_per_token(shape: Shape, bits: float = BFLOAT16) -> float:
    """Return the bytes that one token leaves: layers × KV heads × head_dim, for a key and for a value."""
    return 2 * shape.layers * shape.kv_heads * shape.head_dim * bits / 8


def bits_stored(name: str) -> float:
    """Return the bits per element of a way of `STORED`, scales included."""
    scheme = STORED[name]
    return BFLOAT16 if scheme is None else SCHEMES[scheme].bits_per_element()


def tokens_that_fit(gib: float, per_token: float) -> int:
    """Return how many tokens fill so many GiB (2³⁰ bytes) when nothing else is in there."""
    return int(gib * 2**30 // per_token)


def ruler(element: str) -> np.ndarray:
    """Return the ticks of an element format as shares of its longest, ascending from −1 to 1, float64."""
    ticks = np.array(ELEMENTS[element].ticks)
    return ticks / ticks.max()


class LookBack(NamedTuple):
    """What one token looks back at: the head that was chosen and its weights `[position + 1]` of sum 1."""

    layer: int
    query_head: int
    position: int
    target: int
    tokens: list[str]
    weights: np.ndarray

    @property
    def top(self) -> int:
        """The token that is looked at most."""
        return int(self.weights.argmax())


@lru_cache(maxsize=4)
def look_back(capture: Capture) -> LookBack:
    """Return a new token that stood in the prompt too, in the head that looks most at what followed there.

    Of all recorded queries of such tokens the one is taken that puts the largest share on the token behind
    the last occurrence in the prompt.

    Raises:
        ValueError: where no queries were recorded, or no token occurs twice.
    """
    places = _repeats(capture)
    best: LookBack | None = None
    for layer in query_layers(capture) if places else ():
        at, targets = (torch.tensor(row) for row in zip(*places, strict=True))
        queries, keys = capture.queries[layer], capture.part("key", layer).double()
        for head, query in enumerate(queries[:, at].double()):
            key = keys[head // (len(queries) // len(keys))]
            weights = _weights(query, key, at, scaling(capture, layer))
            shares = weights[torch.arange(len(at)), targets]
            i = int(shares.argmax())
            if best is None or float(shares[i]) > best.weights[best.target]:
                position = int(at[i])
                row = weights[i, : position + 1].numpy()
                tokens = list(capture.token_texts[: position + 1])
                best = LookBack(layer, head, position, int(targets[i]), tokens, row)
    if best is None:
        raise ValueError("no queries of a token that stands in the prompt too were recorded; record them")
    return best


_LETTERS = 4  # of a token that is worth a look; a comma or an article would be no story


def _repeats(capture: Capture) -> list[tuple[int, int]]:
    """Return places of new tokens that stood in the prompt, with the place behind the one there."""
    found, texts = [], capture.token_texts
    for position in range(capture.prompt_tokens, capture.tokens_held):
        text = texts[position]
        earlier = [i for i in range(capture.prompt_tokens - 1) if texts[i] == text]
        if earlier and sum(c.isalpha() for c in text) >= _LETTERS:
            found.append((position, earlier[-1] + 1))
    return found


CUT = {"layer": 8, "part": "key", "recipe": "mxfp4:axis=token", "baseline": "int4@tensor"}
"""What the step on the two ways to cut looks at."""


@lru_cache(maxsize=4)
def three_cuts(capture: Capture) -> dict[str, float]:
    """Return the share of keys that becomes zero: `one` scale for the layer, and MXFP4 along `channel` and
    along `token`; 0 to 1."""
    rows = flushed_by_cut(capture, **CUT)
    names = {scheme: scheme.axis.value if scheme.is_blocked else "one" for scheme, _ in rows}
    assert set(names.values()) == {"one", *(axis.value for axis in Axis)}
    return {names[scheme]: float(share) for scheme, share in rows}


class Effect(NamedTuple):
    """A way to store keys and values: its bits, and what it did to the next token of one text."""

    recipe: str
    bits: int
    blocked: bool
    kl: float
    top1: float


EFFECTS = (
    *("fp8_e4m3@tensor", "int8@tensor", "mxfp8_e4m3"),
    *("int4@tensor", "fp4@tensor", "mxfp4", "nvfp4", "k=mxfp4:axis=token;v=mxfp4"),
)
"""What the last step compares: 8 bits and 4, one scale and many."""


def effects(capture: Capture) -> list[Effect]:
    """Return the ways of `EFFECTS` that were measured over a capture's text, in that order: mean KL in nats
    and the share of positions whose most probable token stayed the same."""
    known, rows = measured(capture), []
    for text in EFFECTS:
        recipe = Recipe.parse(text)
        if (found := known.get(str(recipe))) and found["kl_mean"] is not None:
            stats = (float(found["kl_mean"]), float(found["top1_agreement"]))
            rows.append(Effect(text, recipe.key.element.bits, recipe.key.is_blocked, *stats))
    return rows
