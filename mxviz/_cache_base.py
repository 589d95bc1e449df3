"""What MXCache and RoundTripCache share: layers made from a model's config and a recipe, and the padding."""

from __future__ import annotations

import warnings
from collections.abc import Callable

from torch import Tensor
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

from mxviz import ops
from mxviz._cache_attention import FAMILIES, Packed, asked, updated
from mxviz._cache_layers import MXLayer
from mxviz._cache_round_trip import RoundTripLayer
from mxviz._hadamard import split
from mxviz.formats import SCHEMES, Recipe, Scheme

_NONE = Recipe(SCHEMES["none"], SCHEMES["none"])


class RecipeCache(Cache):
    """A cache with one of our layers in place of each attention layer of transformers."""

    def __init__(
        self,
        config,
        recipe: str | Scheme | Recipe,
        backend: str,
        make_layer: Callable[[Recipe, int | None], MXLayer | RoundTripLayer],
    ) -> None:
        self.recipe = Recipe.parse(recipe)
        self._asked_backend = backend
        if backend != "auto" and (backend not in ops.BACKENDS or ops.why_missing(backend)):
            ops.pick(backend)  # raises; whether it runs on the model's device shows with the first token
        stock = _stock_layers(config)
        if self.recipe.skip and self.recipe.skip[-1] >= len(stock):
            raise ValueError(
                f"skip={','.join(map(str, self.recipe.skip))} names a layer this model does not have; "
                f"expected layers from 0 to {len(stock) - 1}"
            )
        for width in _widths(config) if self.recipe.rotate else ():
            split(width)
        self.not_quantized: dict[int, str] = {}
        layers = [self._layer(i, layer, make_layer) for i, layer in enumerate(stock)]
        if not self.recipe.is_none and len(self.not_quantized) == len(layers):
            raise ValueError(
                f"recipe {self.recipe} would quantize nothing: every layer of this model stays exact "
                f"({', '.join(sorted(set(self.not_quantized.values())))}); use recipe none"
            )
        self._real: Tensor | None = None
        self._reads_packed = config.get_text_config(decoder=True).model_type in FAMILIES
        self._packed_from: int | None = None  # position where the pass begins that attends to packed parts
        super().__init__(layers=layers)

    def _layer(self, index: int, stock, make_layer):
        """Return our layer in place of transformers' own, or that one where it holds no plain K and V."""
        if type(stock) not in (DynamicLayer, DynamicSlidingWindowLayer):
            self.not_quantized[index] = f"{type(stock).__name__} of transformers"
            return stock
        window = getattr(stock, "sliding_window", None)
        why = "skipped by the recipe" if index in self.recipe.skip else self._why_exact(window)
        if why is not None:
            self.not_quantized[index] = why
        return make_layer(self.recipe if why is None else _NONE, window)

    def _why_exact(self, window: int | None) -> str | None:
        """Return why a layer with this sliding window stays exact whatever the recipe says, or None."""
        return None

    @property
    def backend(self) -> str:
        """Name of the backend that packs and unpacks, as picked for the device the tokens are on."""
        held = next((x.key.like for x in self.layers if isinstance(x, MXLayer) and x.is_initialized), None)
        if held is None and self._asked_backend != "auto":
            return self._asked_backend
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
        filling = self.get_seq_length() < self.recipe.sink
        if filling and bool((~real[:, : self.recipe.sink]).any()):
            warnings.warn(
                f"sink={self.recipe.sink} counts positions of the batch, and some of these are padding: the "
                "shorter sequences keep fewer first tokens exact; run them one by one to keep all",
                stacklevel=2,
            )
        self._real = None if bool(real.all()) else real.clone()

    def get_mask_sizes(self, *args, **kwargs) -> tuple[int, int]:
        """Return how many tokens the next update of a layer returns, and the position of the first.

        transformers asks this as a pass begins.

        Raises:
            ValueError: where a pass before was broken off between two layers.
        """
        held = [layer.key.seen for layer in self.layers if isinstance(layer, MXLayer)]
        if held and held[-1] != held[0]:
            raise ValueError(
                f"the first layer holds {held[0]} tokens and the last {held[-1]}: a pass was broken off "
                f"between them; call crop({held[-1]}), or reset() where that is refused, and run it again"
            )
        self._packed_from = None
        asked(self)
        return super().get_mask_sizes(*args, **kwargs)

    def begin_packed_pass(self, attention_mask: Tensor | None, tokens: int) -> None:
        """Take the padding mask of a pass of `tokens` tokens whose attention function takes packed parts.

        Raises:
            ValueError: for a mask that is not as long as what is held and what comes.
        """
        seen = self.get_seq_length()
        if attention_mask is not None:
            if attention_mask.shape[-1] != seen + tokens:
                raise ValueError(
                    f"an attention mask of shape {tuple(attention_mask.shape)} came; expected "
                    f"[batch, {seen + tokens}] for the {seen} tokens that are held and {tokens} new ones"
                )
            self.set_padding(attention_mask)
        self._packed_from = seen if self._reads_packed else None

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args, **kwargs
    ) -> tuple[Tensor, Tensor] | tuple[Packed, Packed]:
        """Store K and V `[batch, kv_heads, tokens, head_dim]` of a layer, return what to attend to:
        tensors, or within a pass of the attention function "mxviz" packed parts.

        Raises:
            ValueError: where shapes, dtype or device do not fit what is held, or the padding mask what comes.
        """
        updated()
        layer = self.layers[layer_idx]
        if not isinstance(layer, (MXLayer, RoundTripLayer)):
            return layer.update(key_states, value_states, *args, **kwargs)
        real = None if self._real is None else self._real_for(layer, key_states)
        packed = self._packed_from is not None and self._packed_from == layer.get_seq_length()
        return layer.update(key_states, value_states, *args, real=real, packed=packed, **kwargs)

    def _real_for(self, layer: MXLayer | RoundTripLayer, x: Tensor) -> Tensor:
        """Return the padding mask as it fits this update, repeated where generate repeats each prompt."""
        batch, tokens = self._real.shape
        seen = layer.get_seq_length()
        if x.shape[0] % batch or seen < tokens < seen + x.shape[2]:
            raise ValueError(
                f"the padding mask {(batch, tokens)} does not fit an update of batch {x.shape[0]} with "
                f"tokens {seen} to {seen + x.shape[2] - 1}; call set_padding with the mask of all tokens"
            )
        if x.shape[0] != batch or self._real.device != x.device:
            self._real = self._real.to(x.device).repeat_interleave(x.shape[0] // batch, dim=0)
        return self._real


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


def _widths(config) -> tuple[int, ...]:
    """Return how wide the keys and the values are that a layer of this model caches."""
    text = config.get_text_config(decoder=True)
    if getattr(text, "kv_lora_rank", None):  # multi-head latent attention: the latent and the RoPE part
        return text.kv_lora_rank, text.qk_rope_head_dim
    return (getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads,)
