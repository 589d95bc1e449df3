"""RoundTripLayer: a layer of a cache that stores nothing and returns what the bytes would have given."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers.cache_utils import CacheLayerMixin

from mxviz import ops
from mxviz._cache_layers import PARTS
from mxviz._cache_scales import fill_pads, tokens_packed_at_once
from mxviz._hadamard import rotate, unrotate
from mxviz.formats import Recipe, Scheme


class RoundTripLayer(CacheLayerMixin):
    """One attention layer of a RoundTripCache: returns K and V as their bytes give them, holds nothing."""

    is_compileable = False
    is_croppable = True
    supports_early_init = False
    is_initialized = False
    keys = values = None

    def __init__(self, recipe: Recipe, window: int | None, backend: str) -> None:
        self.recipe, self.backend = recipe, backend
        self.sliding_window, self.is_sliding = window, window is not None

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Do nothing: nothing is held."""

    def update(
        self, key_states: Tensor, value_states: Tensor, *_args, real: Tensor | None = None, **_kwargs
    ) -> tuple[Tensor, Tensor]:
        """Return K and V after quantize and dequantize."""
        pads = None if real is None else ~real[:, None, : key_states.shape[2], None]
        return tuple(
            self._round_trip(x, self.recipe.scheme(part), pads)
            for part, x in zip(PARTS, (key_states, value_states), strict=True)
        )

    def _round_trip(self, x: Tensor, scheme: Scheme, pads: Tensor | None) -> Tensor:
        sink = 0 if self.is_sliding else self.recipe.sink
        if scheme.is_none or x.shape[2] <= sink:
            return x
        exact, rest = x[:, :, :sink], x[:, :, sink:].detach()
        if pads is not None:
            rest = rest.masked_fill(pads[:, :, sink:], 0)
        rest = rotate(rest) if self.recipe.rotate else rest
        if pads is not None and tokens_packed_at_once(scheme) > 1:
            rest = fill_pads(rest, pads[:, :, sink:], scheme.block)
        back = ops.dequantize(
            ops.quantize(rest, scheme, backend=self.backend),
            torch.float32 if self.recipe.rotate else x.dtype,
            backend=self.backend,
        )
        back = unrotate(back).to(x.dtype) if self.recipe.rotate else back
        return torch.cat((exact, back), dim=-2) if sink else back

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return query_length, 0

    def get_seq_length(self) -> int:
        return 0

    def get_max_length(self) -> int:
        return self.sliding_window or -1

    def crop(self, tokens_to_remove: int) -> None:
        """Do nothing: nothing is held."""

    def reset(self) -> None:
        """Do nothing: nothing is held."""

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Do nothing: nothing is held."""
