"""What a capture's file must hold before a page may rely on it: a damaged or hostile one is refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from mxviz.formats import Recipe

_TYPES: dict[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("model", "recipe", "baseline", "prompt", "backend", "device"), str),
    **dict.fromkeys(("lanes", "sampling", "shape", "storage", "timings", "versions"), dict),
    **dict.fromkeys(("prompt_tokens", "threads"), int),
    **dict.fromkeys(("token_ids", "token_texts", "notes"), list),
    "revision": (str, type(None)),
}
_ITEMS = {"token_ids": int, "token_texts": str, "notes": str, "storage": dict, "lanes": dict}


def checked(plain: Any) -> dict[str, Any]:
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
    _check_values(plain)
    _check_lanes(plain["lanes"])
    _check_turns(plain.setdefault("turns", []))  # files of older versions have none
    if len(plain["token_ids"]) != len(plain["token_texts"]):
        raise ValueError(f"{len(plain['token_ids'])} token_ids but {len(plain['token_texts'])} token_texts")
    for recipe in (plain["recipe"], plain["baseline"]):
        Recipe.parse(recipe)
    for table in (plain["timings"], *plain["storage"].values()):
        _check_numbers(table)
    _check_shape(plain["shape"])
    return plain


_LARGEST = 2**63
_SIZES = ("layers", "query_heads", "kv_heads", "head_dim", "value_dim")
_MOST = 1 << 20  # layers, heads or channels


def _check_values(plain: dict[str, Any]) -> None:
    """Refuse texts that are no Unicode (half a character cannot be written to a page), and numbers that are
    none or beyond counting."""
    for value in _leaves(plain):
        if isinstance(value, str) and not value.isascii():
            try:
                value.encode("utf-8")
            except UnicodeEncodeError:
                raise ValueError("a text in it holds half a character (a lone surrogate)") from None
        elif isinstance(value, (int, float)) and not abs(value) <= _LARGEST:  # NaN is not
            raise ValueError(f"a number in it is {value!r:.40}")


def _leaves(plain: Any) -> Iterator[Any]:
    """Every name and value in nested lists and objects."""
    todo = [plain]
    while todo:
        value = todo.pop()
        if isinstance(value, dict):
            todo += [*value, *value.values()]
        elif isinstance(value, list):
            todo += value
        else:
            yield value


def _check_shape(shape: dict[str, Any]) -> None:
    sliding = shape.get("sliding_layers", [])
    if not isinstance(sliding, list) or not all(type(layer) is int for layer in sliding):
        raise ValueError("shape.sliding_layers is no list of layers")
    for name in _SIZES:
        if name in shape and not (type(shape[name]) is int and 0 < shape[name] <= _MOST):
            raise ValueError(f"shape.{name} is {shape[name]!r:.40}")
    for name in ("dtype", "model_dtype"):
        if not isinstance(shape.get(name, ""), str):
            raise ValueError(f"shape.{name} is a {type(shape[name]).__name__}")


def _check_lanes(lanes: dict[str, Any]) -> None:
    for lane, found in lanes.items():
        if not isinstance(found.get("text"), str) or not isinstance(found.get("token_ids"), list):
            raise ValueError(f"lane {lane} lacks its text or token_ids")
        if not all(isinstance(token, int) for token in found["token_ids"]):
            raise ValueError(f"lane {lane} holds token_ids that are no numbers")


_TURN = {"prompt": str, "lanes": dict, "tokens_held": dict, "stored_bytes": dict}


def _check_turns(turns: Any) -> None:
    """Refuse turns that lack what a page shows of them."""
    if not isinstance(turns, list):
        raise ValueError(f"turns is a {type(turns).__name__}")
    for number, turn in enumerate(turns, 1):
        if not isinstance(turn, dict) or turn.keys() != _TURN.keys():
            raise ValueError(f"turn {number} of turns is no object with {', '.join(_TURN)}")
        wrong = [name for name, kind in _TURN.items() if not isinstance(turn[name], kind)]
        if wrong:
            raise ValueError(f"turn {number} of turns has as {wrong[0]} a {type(turn[wrong[0]]).__name__}")
        _check_lanes(turn["lanes"])
        _check_numbers(turn["tokens_held"])
        _check_numbers(turn["stored_bytes"])


def _check_numbers(table: dict[str, Any]) -> None:
    """Refuse a table of storage or timings (whose `clipped` has a number a part) that holds anything else."""
    for name, value in table.items():
        if isinstance(value, dict) and name == "clipped":
            _check_numbers(value)
        elif isinstance(value, bool) or not isinstance(value, (int, float, type(None))):
            raise ValueError(f"{name} is {value!r:.40}, no number")


def check_tensors(found: dict[str, Any], tokens: int) -> None:
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
    for name in ("keys_pre_rope", "queries"):
        for layer, x in found[name].items():
            _check_beside(name, layer, x, keys.get(layer), tokens)
    for lane, tables in found["effect"].items():
        _check_effect(lane, tables, tokens)


def _check_beside(name: str, layer: int, x: torch.Tensor, key: torch.Tensor | None, tokens: int) -> None:
    """Refuse keys before RoPE and queries that do not fit the keys of their layer."""
    fits = key is not None and x.dim() == 3 and x.shape[1] <= tokens and x.shape[2] == key.shape[2]
    if not fits or not x.shape[0] or x.shape[0] % key.shape[0] or not x.is_floating_point():
        beside = "none" if key is None else list(key.shape)
        raise ValueError(f"layer {layer} has {name} {list(x.shape)} ({x.dtype}) beside keys {beside}")


def _check_effect(lane: str, tables: dict[str, torch.Tensor], tokens: int) -> None:
    """Refuse an effect that lacks its tables, or whose rows are not the positions of the text."""
    needed = set() if lane == "exact" else {"kl", "top1"}
    if not needed <= tables.keys() or any(table.dim() != 1 for table in tables.values()):
        raise ValueError(f"effect of lane {lane} lacks kl or top1, or holds no row of positions")
    if any(len(table) > tokens for table in tables.values()) or len({len(tables[n]) for n in needed}) > 1:
        raise ValueError(f"effect of lane {lane} does not have the positions of {tokens} tokens")
    if lane not in ("exact", "micro", "single"):
        Recipe.parse(lane)
