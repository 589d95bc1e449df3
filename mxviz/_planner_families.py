"""What model families leave out of their config.json: class defaults, layer patterns, and stored heads.

Read off the configuration classes of transformers 5.24. A family is the `model_type` without `_text`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

Config = dict[str, Any]


class Kind(NamedTuple):
    """A kind of layer: whether it holds K and V that grow, the field its window is in, whether a recipe
    applies, and what to say of it where it holds none."""

    holds: bool = True
    window: str = ""
    packs: bool = True
    words: str = ""


_STATE = "linear attention, whose state has a fixed size and is not counted here"
KINDS: dict[str, Kind] = {
    "full_attention": Kind(),
    "sliding_attention": Kind(window="sliding_window"),
    "chunked_attention": Kind(window="attention_chunk_size"),
    "hybrid": Kind(packs=False),
    "linear_attention": Kind(holds=False, words=_STATE),
    "conv": Kind(holds=False, words="a short convolution, whose state has a fixed size"),
    "moe": Kind(holds=False, words="no attention in them"),
    "mlp": Kind(holds=False, words="no attention in them"),
}
"""Kinds of layer by transformers' names."""

OLD_NAMES = {
    "attention": "full_attention",
    "mamba": "linear_attention",
    "mamba2": "linear_attention",
    "recurrent": "linear_attention",
}
"""Names in older configs: those of today."""

# Fields that hub files of these families leave out, as their classes set them.
_DEFAULTS: dict[str, Config] = {
    "gemma": {"head_dim": 256},
    "gemma2": {"num_key_value_heads": 4, "head_dim": 256, "sliding_window": 4096},
    "gemma3": {
        **{"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "sliding_window": 4096},
        "max_position_embeddings": 131_072,
    },
    "gemma3n": {
        **{"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 256, "sliding_window": 512},
        "num_kv_shared_layers": 15,
    },
    "gemma4": {"head_dim": 256, "global_head_dim": 512, "sliding_window": 512},
    "mistral": {"num_key_value_heads": 8, "sliding_window": 4096},
    "mixtral": {"num_key_value_heads": 8},
    "qwen2": {"use_sliding_window": False},
    "qwen2_moe": {"use_sliding_window": False},
    "qwen2_vl": {"use_sliding_window": False},
    "qwen2_5_vl": {"use_sliding_window": False},
    "qwen3": {"head_dim": 128, "use_sliding_window": False},
    "qwen3_moe": {"use_sliding_window": False},
    "qwen3_next": {"head_dim": 256, "num_key_value_heads": 2},
    "smollm3": {"num_key_value_heads": 4, "use_sliding_window": False},
    "gpt_oss": {"num_key_value_heads": 8, "head_dim": 64, "sliding_window": 128},
    "cohere2": {"sliding_window": 4096},
    "olmo3": {"sliding_window": 4096},
    "llama4": {"num_key_value_heads": 8, "head_dim": 128, "attention_chunk_size": 8192},
    "falcon": {"multi_query": True},
    "gpt_bigcode": {"multi_query": True},
}
_INHERITS = {"kimi_k2": "deepseek_v3", "gemma4_unified": "gemma4", "qwen3_5_moe": "qwen3_5"}


def family(config: Config) -> str:
    """Return the family a config belongs to; empty where it does not say."""
    name = config.get("model_type")
    name = name.removesuffix("_text") if isinstance(name, str) else ""
    return _INHERITS.get(name, name)


def completed(config: Config) -> Config:
    """Return a config with what its family's class would fill in."""
    config = {**_DEFAULTS.get(family(config), {}), **config}
    if config.get("use_sliding_window") is False:
        config["sliding_window"] = None
    if family(config) == "recurrent_gemma":
        config["sliding_window"] = config.get("attention_window_size", 2048)
    if family(config) == "longcat_flash" and type(config.get("num_layers")) is int:
        config["num_hidden_layers"] = 2 * config["num_layers"]  # two attention layers in each
    return config


def _every(period: int, field: str = "", other: str = "sliding_attention") -> Callable[[Config, int], list]:
    """Every so-manieth layer is a full one; a field of the config may say another period."""

    def kinds(config: Config, count: int) -> list[str]:
        own = config.get(field)
        step = own if type(own) is int and own > 0 else period
        return ["full_attention" if (i + 1) % step == 0 else other for i in range(count)]

    return kinds


def _late_windows(config: Config, count: int) -> list[str]:
    first = config.get("max_window_layers", 28)
    first = first if type(first) is int else count
    return ["sliding_attention" if i >= first else "full_attention" for i in range(count)]


def _early_windows(config: Config, count: int) -> list[str]:
    last = config.get("max_window_layers", 28)
    last = last if type(last) is int else 0
    return ["sliding_attention" if i % 2 == 0 and i < last else "full_attention" for i in range(count)]


def _last_full(config: Config, count: int) -> list[str]:
    return [*_every(6, "sliding_window_pattern")(config, count)[:-1], "full_attention"]


def _llama4(config: Config, count: int) -> list[str]:
    ropes = config.get("no_rope_layers")
    step = config.get("no_rope_layer_interval", 4)
    if not isinstance(ropes, list) or len(ropes) != count:
        ropes = [(i + 1) % step != 0 if type(step) is int and step > 0 else True for i in range(count)]
    return ["chunked_attention" if rope else "full_attention" for rope in ropes]


def _smollm3(config: Config, count: int) -> list[str]:
    ropes = _llama4(config, count)  # its layers without RoPE are the ones that slide
    return ["sliding_attention" if kind == "full_attention" else "full_attention" for kind in ropes]


def _jamba(config: Config, count: int) -> list[str]:
    period, offset = config.get("attn_layer_period", 8), config.get("attn_layer_offset", 4)
    if type(period) is not int or type(offset) is not int or period < 1:
        raise ValueError("attn_layer_period and attn_layer_offset must be whole numbers")
    return ["full_attention" if i % period == offset else "linear_attention" for i in range(count)]


def _listed(field: str, other: str) -> Callable[[Config, int], list[str]]:
    """A field lists the layers that are full ones; without it all are (LFM2) or none."""

    def kinds(config: Config, count: int) -> list[str]:
        full = config.get(field)
        full = full if isinstance(full, list) else range(count)
        return ["full_attention" if i in full else other for i in range(count)]

    return kinds


def _nemotron_h(config: Config, count: int) -> list[str]:
    letters = {"M": "linear_attention", "*": "full_attention", "-": "mlp", "E": "moe"}
    pattern = config.get("hybrid_override_pattern")
    if not isinstance(pattern, str) or len(pattern) != count or set(pattern) - set(letters):
        raise ValueError("hybrid_override_pattern must have one of M * - E for each layer")
    return [letters[letter] for letter in pattern]


def _kimi_linear(config: Config, count: int) -> list[str]:
    inner = config.get("linear_attn_config")
    full = inner.get("full_attn_layers") if isinstance(inner, dict) else None
    if not isinstance(full, list):
        raise ValueError("linear_attn_config names no full_attn_layers; give the model's hub id")
    return ["full_attention" if i + 1 in full else "linear_attention" for i in range(count)]  # from 1 on


def _recurrent_gemma(config: Config, count: int) -> list[str]:
    blocks = config.get("block_types") or ["recurrent", "recurrent", "attention"]
    if not isinstance(blocks, list):
        raise ValueError("block_types must be a list such as recurrent, recurrent, attention")
    names = {"recurrent": "linear_attention", "attention": "sliding_attention"}
    return [names.get(str(blocks[i % len(blocks)]), "unknown block") for i in range(count)]


_PATTERNS: dict[str, Callable[[Config, int], list[str]]] = {
    "gemma2": _every(2),
    "gemma3": _every(6, "sliding_window_pattern"),
    "gemma3n": _every(5),
    "gemma4": _last_full,
    "gpt_oss": _every(2),
    "vaultgemma": _every(2),
    "cohere2": _every(4, "sliding_window_pattern"),
    "olmo3": _every(4),
    "exaone4": _every(4, "sliding_window_pattern"),
    "llama4": _llama4,
    "smollm3": _smollm3,
    **dict.fromkeys(("qwen2", "qwen3", "qwen2_vl", "qwen2_5_vl"), _late_windows),
    "qwen2_moe": _early_windows,
    "qwen3_next": _every(4, "full_attention_interval", "linear_attention"),
    "qwen3_5": _every(4, "full_attention_interval", "linear_attention"),
    "minimax": _every(2, "", "linear_attention"),
    "jamba": _jamba,
    "bamba": _listed("attn_layer_indices", "linear_attention"),
    "lfm2": _listed("full_attn_idxs", "conv"),
    "falcon_h1": lambda config, count: ["hybrid"] * count,
    "nemotron_h": _nemotron_h,
    "kimi_linear": _kimi_linear,
    "recurrent_gemma": _recurrent_gemma,
}


def layer_kinds(config: Config, count: int) -> list[str]:
    """Return the kinds of layer of a config that lists none: its family's pattern, or transformers' rule."""
    windowed = config.get("sliding_window") is not None
    if family(config) in _PATTERNS:
        kinds = _PATTERNS[family(config)](config, count)
        if not windowed:
            kinds = ["full_attention" if kind == "sliding_attention" else kind for kind in kinds]
        return kinds
    if windowed:
        return ["sliding_attention"] * count
    chunked = config.get("attention_chunk_size") is not None
    return ["chunked_attention" if chunked else "full_attention"] * count


def of_layer(config: Config, kind: str) -> Config:
    """Return the config as a layer of this kind has it."""
    if family(config) != "gemma4" or kind != "full_attention":
        return config
    wide = {"head_dim": config["global_head_dim"]}
    heads = config.get("num_global_key_value_heads")
    if heads is not None and config.get("attention_k_eq_v", False):
        wide["num_key_value_heads"] = heads
    return config | wide


def is_latent(config: Config) -> bool:
    """Return whether attention caches a latent vector in place of heads (MLA)."""
    return config.get("kv_lora_rank") is not None and config.get("qk_rope_head_dim") is not None


def stored_heads(config: Config, heads: int) -> int | None:
    """Return the KV heads a cache stores where a family has a rule of its own, else None."""
    if family(config) == "falcon":
        if config.get("new_decoder_architecture") is True:
            return heads
        return 1 if config.get("multi_query") is True else None
    if family(config) == "gpt_bigcode":
        return 1 if config.get("multi_query") is True else heads
    return None


def remarks(config: Config) -> tuple[str, ...]:
    """Return what is special about how a family is cached, in sentences."""
    said = []
    if family(config) == "falcon" and config.get("new_decoder_architecture") is True:
        said.append(
            "Falcon repeats its KV heads for every query head before it caches them: all are counted."
        )
    if not family(config):
        said.append("The config names no model_type, so it is counted as plain attention.")
    return tuple(said)
