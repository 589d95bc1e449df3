"""Capture: the frozen record of one run, saved as one .safetensors file.

Everything a page shows comes from a Capture, so that a page works without a model. The file holds plain
tensors and one JSON text in the header; nothing in it is executed.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from mxviz.formats import Recipe

FORMAT = "mxviz-capture-1"
LANES = ("exact", "micro", "single")
PARTS = ("key", "value")


class Lane(NamedTuple):
    """What one lane wrote: its text and its new token ids."""

    text: str
    token_ids: tuple[int, ...]


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
        effect: `micro` and `single` to `kl` (nats, `[positions]`) and `top1` (bool, `[positions]`); these and
            `exact` to `nll` (nats of the token that follows, `[positions - 1]`).
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
        if not {"exact", lane} <= self.lanes.keys():
            return None
        both = zip(self.lanes["exact"].token_ids, self.lanes[lane].token_ids, strict=False)
        return next((index for index, (a, b) in enumerate(both) if a != b), None)

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
            return cls._from_file(_checked(json.loads(header["capture"])), tensors)
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
        skipped = {*_BY_LAYER, *_SINGLE, "effect", "lanes"}
        plain = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in skipped}
        return plain | {"lanes": {name: lane._asdict() for name, lane in self.lanes.items()}}

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
        plain["lanes"] = {
            name: Lane(str(lane["text"]), tuple(lane["token_ids"])) for name, lane in plain["lanes"].items()
        }
        _check_tensors(found, len(plain["token_ids"]))
        return cls(**plain, **found)


_BY_LAYER = ("keys", "values", "keys_pre_rope", "queries", "key_bias")
_SINGLE = ("top_ids", "top_logprobs")


_TYPES: dict[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("model", "recipe", "baseline", "prompt", "backend", "device"), str),
    **dict.fromkeys(("lanes", "sampling", "shape", "storage", "timings", "versions"), dict),
    **dict.fromkeys(("prompt_tokens", "threads"), int),
    **dict.fromkeys(("token_ids", "token_texts", "notes"), list),
    "revision": (str, type(None)),
}
_ITEMS = {"token_ids": int, "token_texts": str, "notes": str, "storage": dict, "lanes": dict}


def _checked(plain: Any) -> dict[str, Any]:
    """Return the header's fields once each has the type a page relies on."""
    if not isinstance(plain, dict):
        raise ValueError(f"its header is a {type(plain).__name__}, expected an object")
    for name, kind in _TYPES.items():
        if name not in plain:
            raise ValueError(f"its header has no {name}")
        if not isinstance(plain[name], kind) or isinstance(plain[name], bool):
            raise ValueError(f"{name} is a {type(plain[name]).__name__}")
        items = plain[name].values() if kind is dict else plain[name] if kind is list else ()
        wrong = [x for x in items if name in _ITEMS and not isinstance(x, _ITEMS[name])]
        if wrong:
            raise ValueError(f"{name} holds a {type(wrong[0]).__name__}")
    for lane, found in plain["lanes"].items():
        if not isinstance(found.get("text"), str) or not isinstance(found.get("token_ids"), list):
            raise ValueError(f"lane {lane} lacks its text or token_ids")
        if not all(isinstance(token, int) for token in found["token_ids"]):
            raise ValueError(f"lane {lane} holds token_ids that are no numbers")
    if len(plain["token_ids"]) != len(plain["token_texts"]):
        raise ValueError(f"{len(plain['token_ids'])} token_ids but {len(plain['token_texts'])} token_texts")
    for recipe in (plain["recipe"], plain["baseline"]):
        Recipe.parse(recipe)
    for table in (plain["timings"], *plain["storage"].values()):
        _check_numbers(table)
    sliding = plain["shape"].get("sliding_layers", [])
    if not isinstance(sliding, list) or not all(isinstance(layer, int) for layer in sliding):
        raise ValueError("shape.sliding_layers is no list of layers")
    return plain


def _check_numbers(table: dict[str, Any]) -> None:
    """Refuse a table of storage or timings (whose `clipped` has a number a part) that holds anything else."""
    for name, value in table.items():
        if isinstance(value, dict) and name == "clipped":
            _check_numbers(value)
        elif isinstance(value, bool) or not isinstance(value, (int, float, type(None))):
            raise ValueError(f"{name} is {value!r:.40}, no number")


def _check_tensors(found: dict[str, Any], tokens: int) -> None:
    """Refuse keys and values that do not belong together or to the text."""
    keys, values = found["keys"], found["values"]
    if not keys:
        raise ValueError("it holds no keys of any layer")
    if values and keys.keys() != values.keys():  # a tensor that is looked at like keys comes without values
        raise ValueError("keys and values were recorded for different layers")
    for layer, key in keys.items():
        value = values.get(layer, key)
        if key.dim() != 3 or value.dim() != 3 or key.shape[:2] != value.shape[:2] or key.shape[1] > tokens:
            raise ValueError(
                f"layer {layer} has keys {list(key.shape)}, values {list(value.shape)} and {tokens} tokens"
            )
        if not (key.numel() and value.numel()):
            raise ValueError(f"layer {layer} has keys {list(key.shape)}: there is nothing in it")
        if not {key.dtype, value.dtype} <= {torch.float32, torch.bfloat16, torch.float16}:
            raise ValueError(f"layer {layer} holds {key.dtype} keys and {value.dtype} values")
    for lane, tables in found["effect"].items():
        needed = set() if lane == "exact" else {"kl", "top1"}
        if not needed <= tables.keys() or any(table.dim() != 1 for table in tables.values()):
            raise ValueError(f"effect of lane {lane} lacks kl or top1, or holds no row of positions")


def _listed(layers: list[int]) -> str:
    return ", ".join(map(str, layers)) if layers else "none"


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
