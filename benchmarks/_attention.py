"""Attention and cache of a model without the rest of it: SmolLM2-135M's shapes, random K and V."""

from __future__ import annotations

from collections.abc import Callable

import torch
from transformers import LlamaConfig
from transformers.cache_utils import Cache
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from benchmarks._caches import States
from mxviz.cache import MXCache

LAYERS, HEADS, KV_HEADS, DIM = 30, 9, 3, 64


def config(layers: int = LAYERS) -> LlamaConfig:
    """Return a config of these shapes; it names no model."""
    return LlamaConfig(
        num_hidden_layers=layers,
        hidden_size=HEADS * DIM,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=DIM,
    )


def random_states(tokens: int, layers: int = LAYERS) -> States:
    """Return K and V for every layer; the layers share them, a cache copies what it takes."""
    numbers = torch.Generator().manual_seed(tokens)
    k, v = (torch.randn(1, KV_HEADS, tokens, DIM, generator=numbers) for _ in range(2))
    return [(k, v)] * layers


class _Layer(torch.nn.Module):
    """What transformers' attention functions read of the layer that calls them."""

    num_key_value_groups = HEADS // KV_HEADS
    is_causal = True


def begin(cache: Cache, attention: str) -> None:
    """Do what a model does before the first layer of a step: ask for sizes, and with "mxviz" say so."""
    cache.get_mask_sizes(1, 0)
    if attention == "mxviz" and isinstance(cache, MXCache):
        cache.begin_packed_pass(None, 1)


def decode_step(attention: str) -> Callable[[Cache], None]:
    """Return one decode step of attention and cache through all layers: update, then attend."""
    attend, layer = ALL_ATTENTION_FUNCTIONS[attention], _Layer().eval()
    query, new = torch.randn(1, HEADS, 1, DIM), torch.randn(1, KV_HEADS, 1, DIM)

    def step(cache: Cache) -> None:
        begin(cache, attention)
        for index in range(len(cache)):
            k, v = cache.update(new, new, index)
            attend(layer, query, k, v, None, dropout=0.0, scaling=DIM**-0.5)

    return step
