"""A model's config.json, looked at before a library builds what it describes: its weights must be there."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from safetensors import safe_open

MOST_BYTES = 4 << 20
"""A config.json is far smaller; longer files are not read."""

_MOST = {
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers"), 2_048),
    **dict.fromkeys(("num_local_experts", "num_experts", "n_routed_experts"), 8_192),
    **dict.fromkeys(("num_attention_heads", "n_head", "num_key_value_heads", "head_dim"), 65_536),
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "intermediate_size", "n_inner"), 1 << 22),
    "vocab_size": 1 << 26,
}
_WIDTH = ("hidden_size", "n_embd", "d_model")
_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
_PACKED = 32  # weights that one stored number may hold, and more
_SPARE = 1 << 24


def check_config(folder: Path) -> None:
    """Refuse a folder whose config describes far more than its safetensors files hold.

    Raises:
        ValueError: in one line, with what it claims.
    """
    path = folder / "config.json"
    if path.stat().st_size > MOST_BYTES:
        raise ValueError(f"its config.json has {path.stat().st_size:,} bytes, more than any has")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(f"its config.json is no JSON ({reason[:100]})") from None
    if not isinstance(config, dict):
        raise ValueError(f"its config.json is a {type(config).__name__}; expected an object")
    for part in _parts(config):
        for name, most in _MOST.items():
            if isinstance(part.get(name), (int, float)) and not 0 <= part[name] <= most:
                raise ValueError(f"its config.json says {name} {part[name]!r:.40}; expected 0 to {most:,}")
    declared, stored = max(map(_declared, _parts(config))), _stored(folder)
    if declared > _PACKED * stored + _SPARE:
        raise ValueError(
            f"its config.json describes at least {declared:,} weights and {stored:,} numbers are stored"
        )


def _parts(config: dict[str, Any]) -> list[dict[str, Any]]:
    """The config, and those of the parts of a model that has several."""
    return [config, *(value for value in config.values() if isinstance(value, dict))]


def _declared(config: dict[str, Any]) -> int:
    """Weights that a config asks for at least: its table of words, and a square matrix a layer."""
    width, layers = (_first(config, names) for names in (_WIDTH, _LAYERS))
    return width * (_first(config, ("vocab_size",)) + layers * max(1, width // 64))


def _first(config: dict[str, Any], names: tuple[str, ...]) -> int:
    return next((config[n] for n in names if type(config.get(n)) is int), 0)


def _stored(folder: Path) -> int:
    """Numbers that the safetensors files of a folder hold, as their headers say."""
    count = 0
    for path in folder.glob("*.safetensors"):
        with safe_open(str(path), framework="pt") as file:
            count += sum(math.prod(file.get_slice(name).get_shape()) for name in file.keys())  # noqa: SIM118
    return count
