"""Settings of a run, checked when they are made, and what a run says while it goes on."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch

from mxviz import ops
from mxviz._schemes import quoted
from mxviz.formats import SCHEMES, Recipe

MAX_NEW_TOKENS = 100_000
STORE_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
NONE = Recipe(SCHEMES["none"], SCHEMES["none"])


@dataclass(frozen=True)
class Settings:
    """What to run. Checked when made.

    Args:
        prompt: the user's text.
        recipe: how the micro-scaled lane stores its cache; kept in its canonical form.
        baseline: how the single-scale lane does; `twin` is the recipe with one scale for the tensor.
        max_new_tokens: tokens each lane writes at most.
        seed: of the draws, when sampling.
        temperature: 0 is greedy.
        top_p: keep the smallest set of most probable tokens that reaches this probability.
        raw: leave the chat template out.
        backend: what quantizes and dequantizes.
        effect: whether to measure KL and top-1 agreement afterwards.
        store_dtype: `float32` or `bfloat16` for the recorded tensors; None keeps the model's own.
        layers: the layers to record; None records all.
        query_layers: those of them whose queries are recorded too; None takes four, evenly spread.

    Raises:
        ValueError: one line for whatever is out of range.
    """

    prompt: str
    recipe: str = "mxfp4"
    baseline: str = "twin"
    max_new_tokens: int = 48
    seed: int = 0
    temperature: float = 0.0
    top_p: float = 1.0
    raw: bool = False
    backend: str = "auto"
    effect: bool = True
    store_dtype: str | None = None
    layers: tuple[int, ...] | None = None
    query_layers: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if not self.prompt.strip():
            raise ValueError("the prompt is empty; write one")
        object.__setattr__(self, "recipe", str(Recipe.parse(self.recipe)))
        if self.baseline != "twin":
            object.__setattr__(self, "baseline", str(Recipe.parse(self.baseline)))
        self.recipes()  # a recipe without a twin says so here
        _check_count("max_new_tokens", self.max_new_tokens, 1, MAX_NEW_TOKENS)
        _check_count("seed", self.seed, 0, 2**63 - 1)
        if not (_is_number(self.temperature) and 0 <= self.temperature < math.inf):
            raise ValueError(f"temperature {self.temperature!r} is not valid; expected 0 (greedy) or more")
        if not (_is_number(self.top_p) and 0 < self.top_p <= 1):
            raise ValueError(f"top_p {self.top_p!r} is not valid; expected more than 0 and at most 1")
        if self.backend not in ("auto", *ops.BACKENDS):
            ops.pick(self.backend)
        if self.store_dtype not in (None, *STORE_DTYPES):
            names = ", ".join(STORE_DTYPES)
            raise ValueError(f"store_dtype {quoted(self.store_dtype)} is not valid; expected one of: {names}")
        if self.layers is not None and not set(self.query_layers or ()) <= set(self.layers):
            raise ValueError(f"query_layers {self.query_layers} are not all among the layers {self.layers}")

    def recipes(self) -> dict[str, Recipe]:
        """Return each lane's recipe."""
        micro = Recipe.parse(self.recipe)
        single = micro.twin() if self.baseline == "twin" else Recipe.parse(self.baseline)
        return {"exact": NONE, "micro": micro, "single": single}


@dataclass(frozen=True)
class Progress:
    """What a run has done so far.

    Args:
        stage: `waiting` (another run has the model), `prefill`, `decode`, `measure` or `done`.
        step: steps of this stage that are done.
        total: steps this stage has at most.
        texts: lane to its new text so far, never half a character.
        token_ids: lane to its new tokens so far.
        tokens_per_second: lane to its speed while decoding.
        stored_bytes: lane to the bytes its cache holds now; `exact` counted at bfloat16.
    """

    stage: str
    step: int
    total: int
    texts: dict[str, str] = field(default_factory=dict)
    token_ids: dict[str, tuple[int, ...]] = field(default_factory=dict)
    tokens_per_second: dict[str, float] = field(default_factory=dict)
    stored_bytes: dict[str, int] = field(default_factory=dict)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _check_count(name: str, value: object, least: int, most: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise ValueError(f"{name} {value!r} is not valid; expected a whole number from {least} to {most:,}")
