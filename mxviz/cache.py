"""MXCache: a transformers cache that is really stored micro-scaled; RoundTripCache: what that costs, in one pass.

Both go where transformers takes a cache: `model.generate(..., past_key_values=MXCache(model.config, "mxfp4"))`.
What a model attends to is said in one place: `mxviz._cache_layers.MXLayer`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

from mxviz import ops
from mxviz._cache_layers import PARTS, MXLayer, RoundTripLayer
from mxviz._hadamard import split
from mxviz.formats import SCHEMES, Recipe, Scheme
from mxviz.quantize import MXBlocks

_NONE = Recipe(SCHEMES["none"], SCHEMES["none"])


class _RecipeCache(Cache):
    """What both caches share: layers made from a model's config and a recipe, and the padding."""

    def __init__(
        self,
        config,
        recipe: str | Scheme | Recipe,
        backend: str,
        make_layer: Callable[[Recipe, int | None], MXLayer | RoundTripLayer],
    ) -> None:
        self.recipe = Recipe.parse(recipe)
        self._asked_backend = backend
        if backend != "auto":
            ops.pick(backend)
        stock = _stock_layers(config)
        if self.recipe.skip and self.recipe.skip[-1] >= len(stock):
            raise ValueError(
                f"skip={','.join(map(str, self.recipe.skip))} names a layer this model does not have; "
                f"expected layers from 0 to {len(stock) - 1}"
            )
        if self.recipe.rotate:
            split(_head_dim(config))
        self.not_quantized: dict[int, str] = {}
        layers = [self._layer(i, layer, make_layer) for i, layer in enumerate(stock)]
        if not self.recipe.is_none and len(self.not_quantized) == len(layers):
            raise ValueError(
                f"recipe {self.recipe} would quantize nothing: every layer of this model stays exact "
                f"({', '.join(sorted(set(self.not_quantized.values())))}); use recipe none"
            )
        self._real: Tensor | None = None
        super().__init__(layers=layers)

    def _layer(self, index: int, stock, make_layer):
        """Return our layer in place of transformers' own, or that one where it holds no plain K and V."""
        if type(stock) not in (DynamicLayer, DynamicSlidingWindowLayer):
            self.not_quantized[index] = f"{type(stock).__name__} of transformers"
            return stock
        window = getattr(stock, "sliding_window", None)
        if index in self.recipe.skip:
            self.not_quantized[index] = "skipped by the recipe"
            return make_layer(_NONE, window)
        return make_layer(self.recipe, window)

    @property
    def backend(self) -> str:
        """Name of the backend that packs and unpacks, as picked for the device the tokens are on."""
        held = next((x.key.like for x in self.layers if isinstance(x, MXLayer) and x.is_initialized), None)
        return ops.pick(self._asked_backend, "cpu" if held is None else held.device)

    def set_padding(self, attention_mask: Tensor | None) -> None:
        """Say which tokens are padding, before the update that brings them.

        Padding is zeroed before it is quantized and counts in no scale. Positions, sinks and blocks along
        tokens are counted over the batch, padding included.

        Args:
            attention_mask: `[batch, tokens]` from the first token of the cache, 1 or True for a real one;
                tokens behind its end are real. None forgets it.

        Raises:
            ValueError: for a mask of another shape, or one shorter than what is held.
        """
        if attention_mask is None:
            self._real = None
            return
        if attention_mask.dim() != 2 or attention_mask.shape[1] < self.get_seq_length():
            raise ValueError(
                f"a padding mask of shape {tuple(attention_mask.shape)} came; expected [batch, tokens] with "
                f"at least the {self.get_seq_length()} tokens that are held"
            )
        real = attention_mask.detach().bool()
        if self.recipe.sink and bool((~real[:, : self.recipe.sink]).any()):
            warnings.warn(
                f"sink={self.recipe.sink} counts positions of the batch, and some of these are padding: the "
                "shorter sequences keep fewer first tokens exact; run them one by one to keep all",
                stacklevel=2,
            )
        self._real = None if bool(real.all()) else real.clone()

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args, **kwargs
    ) -> tuple[Tensor, Tensor]:
        """Store K and V `[batch, kv_heads, tokens, head_dim]` of a layer, return what to attend to.

        Raises:
            ValueError: where shapes, dtype or device do not fit what is held, or the padding mask what comes.
        """
        layer = self.layers[layer_idx]
        if not isinstance(layer, (MXLayer, RoundTripLayer)):
            return layer.update(key_states, value_states, *args, **kwargs)
        real = None if self._real is None else self._real_for(layer, key_states)
        return layer.update(key_states, value_states, *args, real=real, **kwargs)

    def _real_for(self, layer: MXLayer | RoundTripLayer, x: Tensor) -> Tensor:
        """Return the padding mask as it fits this update, repeated where generate repeats each prompt."""
        batch, tokens = self._real.shape
        seen = layer.get_seq_length()
        if x.shape[0] % batch or seen < tokens < seen + x.shape[2]:
            raise ValueError(
                f"the padding mask {(batch, tokens)} does not fit an update of batch {x.shape[0]} that brings "
                f"tokens {seen} to {seen + x.shape[2] - 1}; call set_padding with the mask of all tokens"
            )
        if x.shape[0] != batch or self._real.device != x.device:
            self._real = self._real.to(x.device).repeat_interleave(x.shape[0] // batch, dim=0)
        return self._real


class MXCache(_RecipeCache):
    """A cache whose keys and values are stored as a recipe says: codes and shared scales, packed.

    Args:
        config: the model's config (`model.config`); it is read, never changed.
        recipe: what to store, such as `mxfp4` or `k=mxfp4:axis=token;v=mxfp4;sink=4`; see `mxviz.formats`.
        record: also keep the K and V that came in, exact; see `recorded`.
        backend: `auto`, or a backend of `mxviz.ops` by name.

    Raises:
        ValueError: for an unknown recipe or backend, a layer in `skip=` that the model does not have, a
            head_dim that cannot be rotated, or a model with no layer to quantize.
    """

    def __init__(
        self, config, recipe: str | Scheme | Recipe = "mxfp4", *, record: bool = False, backend: str = "auto"
    ) -> None:
        self.record = record
        super().__init__(config, recipe, backend, lambda r, window: MXLayer(r, window, record, backend))

    def __repr__(self) -> str:
        return f"MXCache({str(self.recipe)!r}, {len(self)} layers, {self.tokens_held} tokens)"

    @property
    def _mx_layers(self) -> list[MXLayer]:
        return [layer for layer in self.layers if isinstance(layer, MXLayer)]

    @property
    def _stores(self) -> list:
        return [store for layer in self._mx_layers for store in layer.stores]

    @property
    def tokens_held(self) -> int:
        """Tokens that are held, in the layer that holds most."""
        return max((layer.key.held for layer in self._mx_layers), default=0)

    @property
    def nbytes(self) -> int:
        """Bytes in use: codes, scales, zeros, fixed scales, and all that is exact; the record is apart."""
        return sum(store.nbytes for store in self._stores) + self._foreign_bytes

    @property
    def allocated_bytes(self) -> int:
        """Bytes the buffers take, spare room included; the record is apart."""
        mask = 0 if self._real is None else self._real.numel()
        return sum(store.allocated_bytes for store in self._stores) + self._foreign_bytes + mask

    @property
    def record_bytes(self) -> int:
        """Bytes that the record of exact K and V takes."""
        return sum(rows.allocated_bytes for layer in self._mx_layers for rows in layer.recording)

    @property
    def _foreign_bytes(self) -> int:
        """Bytes of transformers' own layers, where a model has other than attention layers."""
        foreign = [layer for layer in self.layers if not isinstance(layer, MXLayer)]
        return sum(t.numel() * t.element_size() for layer in foreign for t in _tensors(vars(layer)))

    @property
    def bits_per_element(self) -> float | None:
        """Bits of codes and scales per packed element (NVFP4's global scale apart), None with nothing packed."""
        elements = sum(store.packed_elements for store in self._stores)
        return 8 * sum(s.code_and_scale_bytes for s in self._stores) / elements if elements else None

    def blocks(self, layer: int, part: str) -> MXBlocks | None:
        """Return views of the packed part of a layer's `key` or `value`, None where nothing is packed."""
        return self._store(layer, part).blocks()

    def clipped(self, part: str) -> float | None:
        """Return the share of packed elements beyond the end of their ruler (counted as packed, so rotated
        under rotate=1; padding never clips), 0 to 1; None where nothing was packed or the scheme cannot clip.
        """
        stores = [self._store(i, part) for i, x in enumerate(self.layers) if isinstance(x, MXLayer)]
        counted = [store for store in stores if store.clipped is not None]
        total = sum(store.ever_packed for store in counted)
        return sum(int(store.clipped) for store in counted) / total if total else None

    def recorded(self, layer: int) -> tuple[Tensor, Tensor]:
        """Return the K and V that came into a layer, exact, `[batch, kv_heads, tokens, head_dim]`.

        Raises:
            ValueError: without `record=True`, or where the layer took nothing in.
        """
        rows = getattr(self.layers[layer], "recording", ())
        if not rows or not len(rows[0]):
            raise ValueError(
                f"layer {layer} recorded nothing; make the cache with record=True and run a model"
            )
        return rows[0].view, rows[1].view

    def _store(self, layer: int, part: str):
        if part not in PARTS:
            raise ValueError(f"unknown part {part!r}; expected one of: {', '.join(PARTS)}")
        found = self.layers[layer] if -len(self) <= layer < len(self) else None
        if not isinstance(found, MXLayer):
            why = self.not_quantized.get(layer, f"this model has layers 0 to {len(self) - 1}")
            raise ValueError(f"layer {layer} holds no keys or values of mxviz: {why}")
        return getattr(found, part)

    def crop(self, tokens_to_remove: int) -> None:
        """Remove the newest tokens: -n removes n, a positive number is the length that stays."""
        for layer in self.layers:
            if isinstance(layer, MXLayer):
                layer.crop(tokens_to_remove, self._real)
            else:
                layer.crop(tokens_to_remove)

    def reset(self) -> None:
        """Forget everything, frozen scales and padding included."""
        super().reset()
        self._real = None

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Reorder the batch for beam search; bytes are copied, nothing is quantized again."""
        super().reorder_cache(beam_idx)
        self._select_real(lambda real: real.index_select(0, beam_idx.to(real.device)))

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat each sequence of the batch."""
        super().batch_repeat_interleave(repeats)
        self._select_real(lambda real: real.repeat_interleave(repeats, dim=0))

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep only these sequences of the batch."""
        super().batch_select_indices(indices)
        self._select_real(lambda real: real[torch.as_tensor(indices, device=real.device)])

    def _select_real(self, select: Callable[[Tensor], Tensor]) -> None:
        if self._real is not None:
            self._real = select(self._real)

    def summary(self) -> dict[str, object]:
        """Return what a report says of this cache, as plain values."""
        return {
            "recipe": str(self.recipe),
            "backend": self.backend,
            "tokens_held": self.tokens_held,
            "stored_bytes": self.nbytes,
            "allocated_bytes": self.allocated_bytes,
            "record_bytes": self.record_bytes,
            "bits_per_element": self.bits_per_element,
            "clipped": {part: self.clipped(part) for part in PARTS},
            "not_quantized": dict(self.not_quantized),
        }


class RoundTripCache(_RecipeCache):
    """A cache that returns K and V as their bytes would give them and holds nothing: for measuring in one pass.

    Every update is quantized and dequantized as a whole: a scale of the whole tensor (NVFP4's global scale,
    `@tensor` and its like) is taken over the tokens of this update that are quantized, so not over sinks; a
    short last block along tokens is quantized too. The first `sink` tokens and skipped layers are exact,
    `residual` is ignored, `rotate` holds. Under recipe `none` it returns its input untouched.

    Args and errors are those of `MXCache`.
    """

    def __init__(self, config, recipe: str | Scheme | Recipe = "mxfp4", backend: str = "auto") -> None:
        super().__init__(config, recipe, backend, lambda r, window: RoundTripLayer(r, window, backend))


def _stock_layers(config) -> list:
    """Return the layers that transformers would make for this model."""
    if not hasattr(config, "get_text_config"):
        raise ValueError(f"a {type(config).__name__} came as config; expected the model's own, model.config")
    layers = DynamicCache(config=config).layers
    if not layers:
        raise ValueError(
            f"{type(config).__name__} says nothing about its layers, so there is nothing to cache"
        )
    return layers


def _head_dim(config) -> int:
    text = config.get_text_config(decoder=True)
    return getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads


def _tensors(values: dict) -> list[Tensor]:
    """Return the tensors among these values and, one step down, in their dicts."""
    found = [t for t in values.values() if isinstance(t, Tensor)]
    return found + [
        t for d in values.values() if isinstance(d, dict) for t in d.values() if isinstance(t, Tensor)
    ]
