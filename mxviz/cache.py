"""MXCache: a transformers cache, really stored micro-scaled. RoundTripCache: what that loses, in one pass.

Both go where transformers takes one: `model.generate(ids, past_key_values=MXCache(model.config, "mxfp4"))`.
What a model attends to is said in one place: `mxviz._cache_layers.MXLayer`. With
`model.set_attn_implementation("mxviz")` it attends to the packed bytes themselves: `mxviz._cache_attention`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from mxviz._cache_attention import attending_packed
from mxviz._cache_base import RecipeCache
from mxviz._cache_layers import PARTS, MXLayer
from mxviz._cache_round_trip import RoundTripLayer
from mxviz._cache_scales import tokens_packed_at_once
from mxviz.formats import Recipe, Scheme
from mxviz.quantize import MXBlocks

__all__ = ["MXCache", "RoundTripCache", "attending_packed"]


class MXCache(RecipeCache):
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

    def _why_exact(self, window: int | None) -> str | None:
        quantized = [scheme for scheme in (self.recipe.key, self.recipe.value) if not scheme.is_none]
        if window is None or not quantized:
            return None
        if any(window >= self.recipe.residual + tokens_packed_at_once(scheme) for scheme in quantized):
            return None
        return f"its window of {window} tokens holds no more than what stays exact"

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
        """Bits of codes and scales per packed element (NVFP4's global scale apart), None without any."""
        elements = sum(store.packed_elements for store in self._stores)
        return 8 * sum(s.code_and_scale_bytes for s in self._stores) / elements if elements else None

    @property
    def attention(self) -> str | None:
        """How the last step attended to the quantized layers: `packed`, `unpacked`, or to how many of them
        packed; None before anything is attended to on top of something.
        """
        layers = [x for x in self._mx_layers if not all(store.scheme.is_none for store in x.stores)]
        how = [layer.attends for layer in layers if layer.attends]
        if len(set(how)) > 1:
            return f"packed in {how.count('packed')} of {len(how)} layers"
        return how[0] if how else None

    def blocks(self, layer: int, part: str) -> MXBlocks | None:
        """Return views of the packed part of a layer's `key` or `value`, None where nothing is packed."""
        return self._store(layer, part).blocks()

    def clipped(self, part: str) -> float | None:
        """Return the share of packed `key` or `value` elements beyond a frozen scale, 0 to 1, counted while
        generating (rotated under rotate=1, padding left out); None where no scale is frozen.
        """
        stores = [getattr(layer, part) for layer in self._mx_layers]
        total = sum(store.ever_packed for store in stores)
        return sum(int(s.clipped) for s in stores if s.clipped is not None) / total if total else None

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

    def activate_past_recording(self) -> None:
        """Hold back packing until the next `crop`, so that a crop leaves no trace (assisted decoding)."""
        for layer in self.layers:
            if hasattr(layer, "activate_past_recording"):
                layer.activate_past_recording()

    def crop(self, tokens_to_remove: int) -> None:
        """Remove the newest tokens: -n removes n, a positive number is the length that stays.

        Raises:
            ValueError: where a layer cannot go back; then none of them has.
        """
        self._packed_from = None
        for index, layer in enumerate(self.layers):
            if isinstance(layer, MXLayer):
                layer.check_crop(tokens_to_remove)
            elif tokens_to_remove and not getattr(layer, "is_croppable", True):
                raise ValueError(
                    f"cannot remove tokens: the state of layer {index}, a {type(layer).__name__} of "
                    "transformers, does not go back; keep a copy.deepcopy of the cache to return to"
                )
        for layer in self.layers:
            if isinstance(layer, MXLayer):
                layer.crop(tokens_to_remove, self._real)
            else:
                layer.crop(tokens_to_remove)

    def reset(self) -> None:
        """Forget everything, frozen scales and padding included."""
        super().reset()
        self._packed_from = None
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
            "attention": self.attention,
            "tokens_held": self.tokens_held,
            "stored_bytes": self.nbytes,
            "allocated_bytes": self.allocated_bytes,
            "record_bytes": self.record_bytes,
            "bits_per_element": self.bits_per_element,
            "clipped": {part: self.clipped(part) for part in PARTS},
            "not_quantized": dict(self.not_quantized),
        }


class RoundTripCache(RecipeCache):
    """A cache that returns K and V as their bytes give them and holds nothing: for measuring in one pass.

    Every update is quantized and dequantized as a whole: a scale of the whole tensor (NVFP4's global scale,
    `@tensor` and its like) is taken over the tokens of this update that are quantized, so not over sinks; a
    short last block along tokens is quantized too. The first `sink` tokens and skipped layers are exact,
    `residual` is ignored, `rotate` holds. Under recipe `none` it returns its input untouched.

    Args and errors are those of `MXCache`.
    """

    def __init__(self, config, recipe: str | Scheme | Recipe = "mxfp4", backend: str = "auto") -> None:
        super().__init__(config, recipe, backend, lambda r, window: RoundTripLayer(r, window, backend))


def _tensors(values: dict) -> list[Tensor]:
    """Return the tensors among these values and, one step down, in their dicts."""
    found = [t for t in values.values() if isinstance(t, Tensor)]
    return found + [
        t for d in values.values() if isinstance(d, dict) for t in d.values() if isinstance(t, Tensor)
    ]
