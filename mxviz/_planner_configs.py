"""What a model's config says of its KV cache: layer by layer, what transformers will hold.

A config is a plain dict, as a config.json holds it. Sources: the configuration and modelling files of
transformers 5.24, whose caches are counted; the kinds of layer are those of its `layer_types`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

from mxviz import _planner_families as families
from mxviz._schemes import quoted

MAX_CHARACTERS = 200_000
"""A config.json is shorter than this; longer texts are not read."""


class Layer(NamedTuple):
    """What one layer caches for a token.

    Args:
        heads: KV heads that are stored; 0 where the layer holds nothing that grows.
        key_dim: channels of a key.
        value_dim: channels of a value.
        window: the sliding window in tokens, None where every token stays.
        packs: whether a recipe applies; a layer with a second state beside its K and V stays exact.
    """

    heads: int
    key_dim: int
    value_dim: int
    window: int | None = None
    packs: bool = True


HOLDS_NOTHING = Layer(0, 0, 0)


class Shape(NamedTuple):
    """What a config says: its layers, the tokens the model was made for (or None), and what to know."""

    layers: tuple[Layer, ...]
    context: int | None
    notes: tuple[str, ...]


def read_json(text: str) -> dict[str, Any]:
    """Return the object in a pasted config.json.

    Raises:
        ValueError: one line for a text that is too long, no JSON, or no object.
    """
    if len(text) > MAX_CHARACTERS:
        raise ValueError(
            f"this text has {len(text):,} characters; a config.json has fewer than {MAX_CHARACTERS:,}"
        )
    try:
        found = json.loads(text, parse_constant=_refused)
    except RecursionError:
        raise ValueError("this JSON is nested too deep for a config.json; paste the file as it is") from None
    except ValueError as error:
        where = f"line {error.lineno}: {error.msg}" if isinstance(error, json.JSONDecodeError) else str(error)
        raise ValueError(
            f"this is no JSON ({where[:80]}); paste a whole config.json, braces included"
        ) from None
    if not isinstance(found, dict):
        came = {list: "list", str: "text", int: "number", float: "number"}.get(type(found), "word")
        raise ValueError(f"this JSON is a {came}; expected an object in braces, a config.json")
    return found


def _refused(name: str) -> None:
    raise ValueError(f"{name} is no number of a config")


def shape_of(config: Mapping[str, Any]) -> Shape:
    """Return what a model with this config caches.

    Args:
        config: a config.json as a dict; a multimodal model's language part is found inside.

    Raises:
        ValueError: one line that names the field that is missing or wrong, or what the planner cannot count.
    """
    config = families.completed(_language_part(config))
    if config.get("is_encoder_decoder") is True:
        raise ValueError("this model has an encoder; its second cache is not counted, only decoders are")
    if any(config.get(name) is not None for name in ("index_head_dim", "index_topk")):
        raise ValueError("this model's indexer keeps keys of its own, which the planner does not count")
    kinds = _kinds(config)
    layers = [_layer(_overridden(config, i, kind), kind) for i, kind in enumerate(kinds)]
    shared = _whole(config, ("num_kv_shared_layers",), largest=len(layers), least=0, default=0)
    layers[len(layers) - shared :] = [HOLDS_NOTHING] * shared
    if all(layer.heads == 0 for layer in layers):
        raise ValueError(
            "no layer of this model holds keys and values that grow, so there is nothing to plan"
        )
    names = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")
    context = next((config[n] for n in names if type(config.get(n)) is int and config[n] > 0), None)
    return Shape(tuple(layers), context, _notes(config, kinds, layers, shared))


_NESTED = ("text_config", "llm_config", "language_config", "decoder", "generator", "thinker_config")


def _language_part(config: Mapping[str, Any]) -> dict[str, Any]:
    config = dict(config)
    for _ in range(4):
        inner = next((config[n] for n in _NESTED if isinstance(config.get(n), dict) and config[n]), None)
        if inner is None:
            break
        config = {"model_type": config.get("model_type"), **inner}
    return config


def _kinds(config: dict[str, Any]) -> list[str]:
    """The kind of every layer, by transformers' names."""
    count = _whole(config, ("num_hidden_layers", "n_layer", "num_layers", "n_layers"), largest=10_000)
    named = next((config[n] for n in ("layer_types", "layers_block_type") if config.get(n)), None)
    if named is None:
        named = families.layer_kinds(config, count)
    if not isinstance(named, list) or not all(isinstance(kind, str) for kind in named):
        raise ValueError(f"layer_types is {quoted(named)}; expected a list of names, one a layer")
    if len(named) != count:
        raise ValueError(f"layer_types names {len(named)} layers, but num_hidden_layers is {count}")
    named = [families.OLD_NAMES.get(kind, kind) for kind in named]
    unknown = sorted(set(named) - set(families.KINDS))
    if unknown:
        known = ", ".join(families.KINDS)
        raise ValueError(f"layers of type {quoted(unknown[0])} are not counted; expected: {known}")
    return named


def _overridden(config: dict[str, Any], i: int, kind: str) -> dict[str, Any]:
    """The config as layer i has it."""
    own = config.get("per_layer_config")
    found = (own.get(str(i)) or own.get(i)) if isinstance(own, dict) else None
    if isinstance(found, dict):
        return {**config, **found}
    return families.of_layer(config, kind)


def _layer(config: dict[str, Any], kind: str) -> Layer:
    what = families.KINDS[kind]
    if not what.holds:
        return HOLDS_NOTHING
    window = None
    if what.window:
        window = _whole(config, (what.window,), largest=10**9)
    if families.is_latent(config):
        latent = _whole(config, ("kv_lora_rank",), largest=_WIDEST)
        return Layer(1, latent, _whole(config, ("qk_rope_head_dim",), largest=_WIDEST), window, what.packs)
    heads = _whole(config, ("num_attention_heads", "n_head", "n_heads", "num_heads"), largest=_WIDEST)
    width = _whole(config, ("head_dim", "attention_head_dim", "kv_channels"), largest=_WIDEST, default=0)
    if not width:
        hidden = _whole(config, ("hidden_size", "n_embd", "d_model", "n_embed"), largest=10**7)
        width = hidden // heads
        if not width:
            raise ValueError(f"hidden_size {hidden:,} is less than num_attention_heads {heads:,}")
    values = _whole(config, ("v_head_dim",), largest=_WIDEST, default=width)
    return Layer(_kv_heads(config, heads), width, values, window, what.packs)


def _kv_heads(config: dict[str, Any], heads: int) -> int:
    """KV heads that the cache stores; all heads where the config names none."""
    stored = families.stored_heads(config, heads)
    if stored is not None:
        return stored
    inner = config.get("attn_config")
    found = _whole(
        {**(inner if isinstance(inner, dict) else {}), **config},
        ("num_key_value_heads", "num_kv_heads", "n_kv_heads", "kv_n_heads", "multi_query_group_num"),
        largest=_WIDEST,
        default=1 if config.get("multi_query") is True else heads,
    )
    if found > heads:
        raise ValueError(f"num_key_value_heads is {found:,}, more than the {heads:,} num_attention_heads")
    return found


_WIDEST = 1_000_000


def _whole(
    config: Mapping[str, Any],
    names: tuple[str, ...],
    *,
    largest: int,
    least: int = 1,
    default: int | None = None,
) -> int:
    """The first of these fields that is there, a whole number in bounds."""
    name = next((n for n in names if config.get(n) is not None), None)
    if name is None and default is not None:
        return default
    if name is None:
        raise ValueError(f"{names[0]} is missing; paste the whole config.json, or give the model's hub id")
    value = config[name]
    if type(value) is not int or not least <= value <= largest:
        shown = f"{quoted(value, 30)} (a text)" if isinstance(value, str) else str(value)[:30]
        raise ValueError(f"{name} is {shown}; expected a whole number from {least} to {largest:,}")
    return value


def _notes(config: dict[str, Any], kinds: list[str], layers: list[Layer], shared: int) -> tuple[str, ...]:
    """What somebody who checks the numbers has to know, in sentences."""
    said, total = [], len(layers)
    if families.is_latent(config):
        said.append(
            "Multi-head latent attention: one latent vector and one RoPE part a token and layer, as "
            "transformers 5.24 caches them; engines that expand them to all heads take far more."
        )
    windows = Counter(layer.window for layer in layers if layer.heads and layer.window)
    for window, count in windows.items():
        said.append(
            f"{count} of {total} layers slide: they stop growing at their window of {window:,} tokens, of "
            f"which transformers keeps {window - 1:,} between two steps."
        )
    idle = Counter(families.KINDS[kind].words for kind in kinds if not families.KINDS[kind].holds)
    said += [f"{count} of {total} layers hold no keys and values: {words}." for words, count in idle.items()]
    if shared:
        said.append(
            f"The last {shared} of {total} layers read earlier layers' keys and values: they hold none."
        )
    if any(not layer.packs for layer in layers):
        said.append("Layers that hold a recurrent state beside their keys and values stay uncompressed.")
    return (*said, *families.remarks(config))
