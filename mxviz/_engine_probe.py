"""Probe: what attention layers compute before the cache sees it: keys before RoPE, biases, queries.

Module layouts differ from family to family. So nothing is trusted by name: what was taken is kept only if
turning it by the layer's own RoPE angles gives the keys that the cache was given.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

_AGREE = 0.02  # relative error between keys of one pass and keys of single steps; bfloat16 gives about 0.005


class Probe:
    """Watches the attention layers of a model during one pass over one text.

    Args:
        model: a causal language model.
        layers: the layers to watch.
        query_layers: those of them whose queries are kept too.
    """

    def __init__(self, model: Any, layers: tuple[int, ...], query_layers: tuple[int, ...] = ()) -> None:
        self._modules = {
            module.layer_idx: module
            for module in model.modules()
            if hasattr(module, "k_proj") and getattr(module, "layer_idx", None) in layers
        }
        self._query_layers = query_layers
        self._seen: dict[tuple[int, str], Any] = {}

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Keep what passes while this is open."""
        handles = []
        for layer, module in self._modules.items():
            handles.append(module.register_forward_pre_hook(self._angles(layer), with_kwargs=True))
            for name in ("k", "q") if layer in self._query_layers else ("k",):
                # a norm between projection and RoPE belongs to what RoPE turns
                source = getattr(module, f"{name}_norm", None) or getattr(module, f"{name}_proj", None)
                if isinstance(source, torch.nn.Module):
                    handles.append(source.register_forward_hook(self._output(layer, name)))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _angles(self, layer: int):
        def hook(_module: Any, _args: Any, keywords: dict[str, Any]) -> None:
            self._seen[layer, "angles"] = keywords.get("position_embeddings")

        return hook

    def _output(self, layer: int, name: str):
        def hook(_module: Any, _args: Any, output: Tensor) -> None:
            self._seen[layer, name] = output

        return hook

    def found(
        self, keys: dict[int, Tensor]
    ) -> tuple[dict[int, Tensor], dict[int, Tensor], dict[int, Tensor]]:
        """Return keys before RoPE `[kv_heads, positions, head_dim]`, queries after RoPE
        `[query_heads, positions, head_dim]` and k_proj biases `[kv_heads, head_dim]`, by layer.

        Args:
            keys: layer to the keys after RoPE that the cache was given, `[kv_heads, tokens, head_dim]`.
        """
        before, queries, biases = {}, {}, {}
        for layer, module in self._modules.items():
            after, angles = keys.get(layer), self._seen.get((layer, "angles"))
            key = None if after is None else _by_head(self._seen.get((layer, "k")), after.shape[-1])
            if key is None or key.shape[0] != after.shape[0] or not _is_turned_into(key, after, angles):
                continue
            before[layer] = key
            bias = getattr(module.k_proj, "bias", None)
            if bias is not None:
                biases[layer] = bias.detach().view(after.shape[0], after.shape[-1])
            query = _by_head(self._seen.get((layer, "q")), after.shape[-1])
            if query is not None:
                queries[layer] = turned(query, *angles)
        return before, queries, biases


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Return x `[heads, positions, head_dim]` turned by RoPE: channel i with its partner half a turn away.

    Args:
        x: keys or queries.
        cos: `[1, positions, width]`; channels from width on are not turned.
        sin: the same.
    """
    width = cos.shape[-1]
    part, rest = x[..., :width], x[..., width:]
    first, second = part.chunk(2, dim=-1)
    return torch.cat((part * cos[0] + torch.cat((-second, first), -1) * sin[0], rest), -1)


def _by_head(output: Any, head_dim: int) -> Tensor | None:
    """Bring the output of a projection or of a norm behind it to `[heads, positions, head_dim]`."""
    if not isinstance(output, Tensor) or output.shape[0] != 1 or output.shape[-1] % head_dim:
        return None
    if output.dim() == 3:  # [1, positions, heads · head_dim]
        return output[0].unflatten(-1, (-1, head_dim)).transpose(0, 1)
    if output.dim() != 4 or output.shape[-1] != head_dim:
        return None
    # Qwen3's norm sees [1, positions, heads, head_dim], Gemma's the transpose of it; memory order is the same
    x = output[0]
    return x if x.stride(0) < x.stride(1) else x.transpose(0, 1)


def _is_turned_into(before: Tensor, after: Tensor, angles: Any) -> bool:
    if not isinstance(angles, tuple) or len(angles) != 2 or before.shape[1] < after.shape[1]:
        return False
    tokens = after.shape[1]
    made = turned(before, *angles)[:, :tokens].float()
    after = after.to(made.device).float()
    return bool((made - after).norm() <= _AGREE * after.norm())
