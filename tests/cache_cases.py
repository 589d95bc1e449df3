"""What the tests of the cache share: configs, states, caches, and ways to look at every byte held."""

from __future__ import annotations

import torch
from transformers import LlamaConfig, MistralConfig

from mxviz.cache import MXCache

PARTS = ("key", "value")


def config(layers: int = 1, heads: int = 2, head_dim: int = 32, **more) -> LlamaConfig:
    return LlamaConfig(
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        head_dim=head_dim,
        hidden_size=heads * head_dim,
        **more,
    )


def states(tokens: int, *, batch: int = 1, heads: int = 2, head_dim: int = 32, seed: int = 0):
    """K and V `[batch, heads, tokens, head_dim]` with a wild channel in K."""
    generator = torch.Generator().manual_seed(seed)
    k, v = torch.randn(2, batch, heads, tokens, head_dim, generator=generator)
    k[..., 3] *= 20
    return k, v


def fill(cache: MXCache, k: torch.Tensor, v: torch.Tensor, sizes, layer: int = 0):
    """Feed K and V in chunks of these sizes; return what the last update gave."""
    start, given = 0, None
    for n in sizes:
        given = cache.update(k[:, :, start : start + n], v[:, :, start : start + n], layer)
        start += n
    assert start == k.shape[2]
    return given


def mx(recipe="mxfp4", *, of=None, **options) -> MXCache:
    return MXCache(of or config(), recipe, backend="reference", **options)


def stored(cache: MXCache, layer: int = 0) -> list[torch.Tensor]:
    """Every byte that is held for a layer, exact parts included."""
    found = []
    for part in PARTS:
        store = getattr(cache.layers[layer], part)
        blocks = store.blocks()
        if blocks is not None:
            found += [
                t for t in (blocks.packed, blocks.scales, blocks.zeros, blocks.global_scale) if t is not None
            ]
        found += [rows.view for rows in (store.sinks, store.tail) if len(rows)]
    return [t.clone() for t in found]


def same(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def reachable_bytes(root: object) -> int:
    """Bytes of every tensor storage that an object holds, each storage once."""
    storages, seen, todo = {}, set(), [root]
    while todo:
        item = todo.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, torch.Tensor):
            storages[item.untyped_storage()._cdata] = item.untyped_storage().nbytes()
        elif isinstance(item, dict):
            todo += item.values()
        elif isinstance(item, (list, tuple, set)):
            todo += item
        elif hasattr(item, "__dict__"):
            todo += vars(item).values()
    return sum(storages.values())


def sliding(recipe: str, window: int = 8, layers: int = 1, head_dim: int = 32) -> MXCache:
    of = MistralConfig(
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=head_dim,
        hidden_size=2 * head_dim,
        sliding_window=window,
    )
    return MXCache(of, recipe, backend="reference")
