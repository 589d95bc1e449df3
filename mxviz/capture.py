"""Capture: the frozen record of one run, saved as one .safetensors file.

Everything a page shows comes from a Capture, so that a page works without a model. The file holds plain
tensors and one JSON text in the header; nothing in it is executed.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from mxviz._capture_checks import check_tensors, checked

FORMAT = "mxviz-capture-1"
LANES = ("exact", "micro", "single")
PARTS = ("key", "value")


class Lane(NamedTuple):
    """What one lane wrote: its text and its new token ids."""

    text: str
    token_ids: tuple[int, ...]


class Turn(NamedTuple):
    """One turn of a conversation: what was asked and answered, and what the caches held behind it.

    Args:
        prompt: the user's text.
        lanes: lane to what it wrote in this turn.
        tokens_held: lane to the tokens in its cache, all turns so far.
        stored_bytes: lane to what they take; `exact` counted at bfloat16.
    """

    prompt: str
    lanes: dict[str, Lane]
    tokens_held: dict[str, int]
    stored_bytes: dict[str, int]

    def first_divergence(self, lane: str) -> int | None:
        """Return the index of this turn's first new token that differs from the exact lane's, or None.

        A lane that was stopped earlier has not diverged; one that ended by itself differs by its end token.
        """
        return _first_divergence(self.lanes, lane)


@dataclass(frozen=True, eq=False)
class Capture:
    """The record of one run: what went in, what the model produced, and what was measured.

    Args:
        model: catalogue name, hub id or path of the model.
        revision: the revision that was loaded, where there is one.
        recipe: canonical string of the micro-scaled lane's recipe.
        baseline: canonical string of the single-scale lane's recipe.
        prompt: the text that was given.
        prompt_tokens: tokens of the prompt, chat template included.
        token_ids: prompt and the exact lane's new tokens.
        token_texts: the text of each of them, literal.
        lanes: `exact`, `micro` and `single`: text and new token ids.
        keys: layer to `[kv_heads, tokens, head_dim]`, as the exact lane's cache was given them; the last
            new token was never fed, so tokens is one less than `len(token_ids)`.
        values: the same for values (head_dim may differ).
        keys_pre_rope: layer to `[kv_heads, positions, head_dim]` before RoPE, where it could be had.
        queries: layer to `[query_heads, positions, head_dim]`, of some layers.
        key_bias: layer to `[kv_heads, head_dim]`, where k_proj has a bias.
        effect: `micro`, `single` and, where they were measured too, canonical recipes to `kl` (nats,
            `[positions]`) and `top1` (bool, `[positions]`); these and `exact` to `nll` (nats of the token
            that follows, `[positions - 1]`).
        top_ids: the exact model's most probable next tokens, `[positions, k]`.
        top_logprobs: their log probabilities in nats.
        sampling: temperature, top_p, max_new_tokens, seed, raw.
        shape: layers, query_heads, kv_heads, head_dim, value_dim, dtype of the recorded tensors.
        storage: lane to tokens_held, stored_bytes, bits_per_element, clipped while generating.
        timings: seconds and tokens per second.
        versions: of what ran.
        backend: what quantized and dequantized.
        device: where it ran.
        threads: torch threads; bit-equal numbers are promised for the same count alone.
        notes: what a reader should know, such as a missing chat template.
        turns: the turns of a conversation, of which `prompt` and `lanes` are the last; keys, values and
            `token_ids` are of the exact lane from the first turn on. Files of older versions have none.
    """

    model: str
    revision: str | None
    recipe: str
    baseline: str
    prompt: str
    prompt_tokens: int
    token_ids: tuple[int, ...]
    token_texts: tuple[str, ...]
    lanes: dict[str, Lane]
    keys: dict[int, Tensor]
    values: dict[int, Tensor]
    keys_pre_rope: dict[int, Tensor] = field(default_factory=dict)
    queries: dict[int, Tensor] = field(default_factory=dict)
    key_bias: dict[int, Tensor] = field(default_factory=dict)
    effect: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    top_ids: Tensor | None = None
    top_logprobs: Tensor | None = None
    sampling: dict[str, Any] = field(default_factory=dict)
    shape: dict[str, Any] = field(default_factory=dict)
    storage: dict[str, dict[str, Any]] = field(default_factory=dict)
    timings: dict[str, float] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    backend: str = "reference"
    device: str = "cpu"
    threads: int = 1
    notes: tuple[str, ...] = ()
    turns: tuple[Turn, ...] = ()

    @property
    def layers(self) -> tuple[int, ...]:
        """The recorded layers, ascending."""
        return tuple(sorted(self.keys))

    @property
    def tokens_held(self) -> int:
        """Tokens whose keys and values were recorded."""
        return next(iter(self.keys.values())).shape[1] if self.keys else 0

    def part(self, part: str, layer: int) -> Tensor:
        """Return the keys or values of a layer, `[kv_heads, tokens, head_dim]`.

        Raises:
            ValueError: for a part or a layer that was not recorded.
        """
        if part not in PARTS:
            raise ValueError(f"unknown part {part!r}; expected one of: {', '.join(PARTS)}")
        tensors = self.keys if part == "key" else self.values
        if layer not in tensors:
            raise ValueError(f"layer {layer} was not recorded; recorded layers: {_listed(sorted(tensors))}")
        return tensors[layer]

    def first_divergence(self, lane: str) -> int | None:
        """Return the index of the first new token that differs from the exact lane's, or None.

        A lane that was stopped earlier has not diverged; one that ended by itself differs by its end token.
        """
        return _first_divergence(self.lanes, lane)

    def save(self, path: str | Path) -> None:
        """Write the capture as one .safetensors file.

        Raises:
            ValueError: where the file cannot be written.
        """
        header = {"format": FORMAT, "capture": json.dumps(self._plain(), ensure_ascii=False)}
        try:
            save_file(self._tensors(), str(path), metadata=header)
        except (SafetensorError, OSError) as error:
            raise ValueError(f"cannot write {path} ({_first_line(error)})") from None

    @classmethod
    def load(cls, path: str | Path) -> Capture:
        """Read a capture.

        Raises:
            ValueError: for a file that is missing, damaged or not a capture.
        """
        try:
            with safe_open(str(path), framework="pt") as file:
                header = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except FileNotFoundError:
            raise ValueError(f"no file {path}; make one with: mxviz run --out run.safetensors") from None
        except (SafetensorError, OSError, UnicodeError) as error:
            raise ValueError(f"{path} is not a readable .safetensors file ({_first_line(error)})") from None
        if header.get("format") != FORMAT:
            raise ValueError(
                f"{path} is a .safetensors file but not an mxviz capture; "
                "make one with: mxviz run --out run.safetensors"
            )
        try:
            return cls._from_file(checked(json.loads(header["capture"])), tensors)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(f"{path} is not a readable mxviz capture ({_first_line(error)})") from None

    def _tensors(self) -> dict[str, Tensor]:
        named = {
            f"{name}.{layer}": tensor for name in _BY_LAYER for layer, tensor in getattr(self, name).items()
        }
        for lane, tables in self.effect.items():
            named |= {f"effect.{lane}.{table}": tensor for table, tensor in tables.items()}
        named |= {name: getattr(self, name) for name in _SINGLE if getattr(self, name) is not None}
        return {name: tensor.contiguous() for name, tensor in named.items()}

    def _plain(self) -> dict[str, Any]:
        skipped = {*_BY_LAYER, *_SINGLE, "effect", "lanes", "turns"}
        plain = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in skipped}
        turns = [turn._asdict() | {"lanes": _plain_lanes(turn.lanes)} for turn in self.turns]
        return plain | {"lanes": _plain_lanes(self.lanes), "turns": turns}

    @classmethod
    def _from_file(cls, plain: dict[str, Any], tensors: dict[str, Tensor]) -> Capture:
        found: dict[str, Any] = {name: {} for name in (*_BY_LAYER, "effect")}
        for name, tensor in tensors.items():
            head, _, tail = name.partition(".")
            if head in _BY_LAYER and tail.isdecimal():
                found[head][int(tail)] = tensor
            elif head == "effect" and tail.count(".") == 1:
                lane, table = tail.split(".")
                found["effect"].setdefault(lane, {})[table] = tensor
            elif name in _SINGLE:
                found[name] = tensor
        known = {f.name for f in fields(cls)}
        plain = {name: value for name, value in plain.items() if name in known}
        for name in ("token_ids", "token_texts", "notes"):
            plain[name] = tuple(plain[name])
        plain["lanes"] = _lanes(plain["lanes"])
        plain["turns"] = tuple(Turn(**turn | {"lanes": _lanes(turn["lanes"])}) for turn in plain["turns"])
        check_tensors(found, len(plain["token_ids"]))
        return cls(**plain, **found)


def is_capture(path: str | Path) -> bool:
    """Return whether a file says of itself that it is a capture; it may be damaged all the same."""
    try:
        with safe_open(str(path), framework="pt") as file:
            return (file.metadata() or {}).get("format") == FORMAT
    except (SafetensorError, OSError, UnicodeError):
        return False


_BY_LAYER = ("keys", "values", "keys_pre_rope", "queries", "key_bias")
_SINGLE = ("top_ids", "top_logprobs")


def _plain_lanes(lanes: dict[str, Lane]) -> dict[str, dict[str, Any]]:
    return {name: lane._asdict() for name, lane in lanes.items()}


def _lanes(plain: dict[str, dict[str, Any]]) -> dict[str, Lane]:
    return {name: Lane(str(lane["text"]), tuple(lane["token_ids"])) for name, lane in plain.items()}


def _first_divergence(lanes: dict[str, Lane], lane: str) -> int | None:
    if not {"exact", lane} <= lanes.keys():
        return None
    both = zip(lanes["exact"].token_ids, lanes[lane].token_ids, strict=False)
    return next((index for index, (a, b) in enumerate(both) if a != b), None)


def _listed(layers: list[int]) -> str:
    return ", ".join(map(str, layers)) if layers else "none"


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
