"""From a finished run to its Capture: what is kept, in which dtype, and how it is counted."""

from __future__ import annotations

import platform
from importlib.metadata import version
from typing import Any

import torch
from torch import Tensor

from mxviz import __version__
from mxviz._engine_effect import Effect
from mxviz._engine_lanes import LaneState
from mxviz._engine_probe import Probe
from mxviz._engine_settings import STORE_DTYPES, Settings
from mxviz.cache import MXCache
from mxviz.capture import Capture
from mxviz.models import Loaded, token_texts

BITS_EXACT = 16.0


def layers_to_record(cache: MXCache, asked: tuple[int, ...] | None) -> tuple[int, ...]:
    """Return the layers whose keys and values the exact lane's cache took in.

    Raises:
        ValueError: for an asked layer the model does not have.
    """
    wrong = [layer for layer in asked or () if not 0 <= layer < len(cache.layers)]
    if wrong:
        raise ValueError(
            f"layer {wrong[0]} does not exist; expected layers from 0 to {len(cache.layers) - 1}"
        )
    return tuple(
        index
        for index, layer in enumerate(cache.layers)
        if (asked is None or index in asked) and getattr(layer, "recording", ()) and layer.is_initialized
    )


def build_capture(
    loaded: Loaded,
    settings: Settings,
    read: tuple[int, ...],
    lanes: dict[str, LaneState],
    effect: Effect | None,
    probe: Probe | None,
    **rest: Any,
) -> Capture:
    """Copy what a run produced to plain CPU tensors and describe it; `read` is all that was read."""
    exact, recipes = lanes["exact"], settings.recipes()
    dtype = STORE_DTYPES.get(settings.store_dtype or str(loaded.dtype).removeprefix("torch."), torch.float32)

    def plain(tensors: dict[Any, Tensor]) -> dict[Any, Tensor]:
        return {key: x.detach().to("cpu", dtype, copy=True).contiguous() for key, x in tensors.items()}

    layers = layers_to_record(exact.cache, settings.layers)
    states = {layer: exact.cache.recorded(layer) for layer in layers}
    keys = plain({layer: key[0] for layer, (key, _) in states.items()})
    values = plain({layer: value[0] for layer, (_, value) in states.items()})
    before, queries, biases = ({}, {}, {}) if probe is None else map(plain, probe.found(keys))
    ids = (*read, *exact.ids)
    return Capture(
        model=loaded.name,
        revision=loaded.revision,
        recipe=str(recipes["micro"]),
        baseline=str(recipes["single"]),
        prompt=settings.prompt,
        prompt_tokens=len(read),
        token_ids=ids,
        token_texts=token_texts(loaded.tokenizer, ids),
        lanes={name: lane.wrote for name, lane in lanes.items()},
        keys=keys,
        values=values,
        keys_pre_rope=before,
        queries=queries,
        key_bias=biases,
        **_effect_fields(effect),
        sampling={
            name: getattr(settings, name)
            for name in ("temperature", "top_p", "max_new_tokens", "seed", "raw")
        },
        shape=_shape(loaded, exact.cache, keys, values, dtype),
        storage={name: _storage(lane) for name, lane in lanes.items()},
        versions=_versions(),
        backend=lanes["micro"].cache.backend,
        device=loaded.device,
        threads=torch.get_num_threads(),
        **rest,
    )


def _effect_fields(effect: Effect | None) -> dict[str, Any]:
    if effect is None:
        return {}
    copied = {
        lane: {name: x.to("cpu", copy=True) for name, x in tables.items()}
        for lane, tables in effect.tables.items()
    }
    return {
        "effect": copied,
        "top_ids": effect.top_ids.to("cpu", copy=True),
        "top_logprobs": effect.top_logprobs.to("cpu", copy=True),
    }


def _shape(
    loaded: Loaded,
    cache: MXCache,
    keys: dict[int, Tensor],
    values: dict[int, Tensor],
    dtype: torch.dtype,
) -> dict[str, Any]:
    key, value = (next(iter(x.values()), None) for x in (keys, values))
    found = {
        "layers": len(cache.layers),
        "query_heads": getattr(loaded.model.config.get_text_config(), "num_attention_heads", None),
        "dtype": str(dtype).removeprefix("torch."),
        "model_dtype": str(loaded.dtype).removeprefix("torch."),
        "sliding_layers": [i for i, layer in enumerate(cache.layers) if getattr(layer, "is_sliding", False)],
    }
    if key is not None:
        found |= {"kv_heads": key.shape[0], "head_dim": key.shape[-1], "value_dim": value.shape[-1]}
    return found


def _storage(lane: LaneState) -> dict[str, Any]:
    cache, exact = lane.cache, lane.name == "exact"
    return {
        "tokens_held": cache.tokens_held,
        "stored_bytes": lane.stored_bytes,
        "allocated_bytes": cache.allocated_bytes,
        "bits_per_element": BITS_EXACT if exact else cache.bits_per_element,
        "clipped": {part: None if exact else cache.clipped(part) for part in ("key", "value")},
    }


def _versions() -> dict[str, str]:
    found = {name: version(name) for name in ("torch", "transformers", "numpy")}
    return {"mxviz": __version__, **found, "python": platform.python_version()}
