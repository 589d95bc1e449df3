"""MXLayer: what transformers asks of a layer of a cache, around the two stores of its keys and values."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers.cache_utils import CacheLayerMixin

from mxviz._cache_attention import Packed
from mxviz._cache_rows import Rows
from mxviz._store import PartStore
from mxviz.formats import Recipe

PARTS = ("key", "value")


class MXLayer(CacheLayerMixin):
    """One attention layer of an MXCache.

    What `update` returns, and so what the model attends to:

    - the first update (the prompt): its own K and V, exact, as they came;
    - one token on top of something: what is stored, the new token included (packed, if it was packed);
    - several tokens on top of something: what is stored of the past, then the new K and V, exact.

    On top of something these are `Packed` where `packed` asks for it, else tensors. They stay tensors in a
    layer that is all exact, and in a sliding one where the window may cut a block along tokens or where past
    recording holds more than the window.

    Args:
        recipe: what keys and values are stored as; `none` for a layer that is skipped.
        window: the sliding window in tokens, None where every token stays.
        record: whether to keep the K and V that came in as well.
        backend: which backend of `mxviz.ops` packs and unpacks.
    """

    is_compileable = False
    is_croppable = True
    supports_early_init = False

    def __init__(self, recipe: Recipe, window: int | None, record: bool, backend: str) -> None:
        sink = 0 if window else recipe.sink
        self.key, self.value = (
            PartStore(recipe.scheme(part), sink, recipe.residual, recipe.rotate, backend) for part in PARTS
        )
        self.sliding_window, self.is_sliding = window, window is not None
        self.recording = (Rows(), Rows()) if record else ()
        self.record_past = False
        self._fits: tuple | None = None  # what came last and was checked; the same need not be checked again
        self.attends: str | None = None  # how the last update on top of something was handed out
        unit = max(store.unit for store in self.stores)
        exact = all(store.scheme.is_none for store in self.stores)
        self._can_stay_packed = not exact and (window is None or unit == 1)

    def __repr__(self) -> str:
        return f"MXLayer(k={self.key.scheme}, v={self.value.scheme}, window={self.sliding_window})"

    @property
    def stores(self) -> tuple[PartStore, PartStore]:
        return self.key, self.value

    @property
    def is_initialized(self) -> bool:
        return self.key.seen > 0

    @property
    def keys(self) -> Tensor | None:
        """The keys as stored, unpacked on the spot; None while empty."""
        return self.key.read() if self.is_initialized else None

    @property
    def values(self) -> Tensor | None:
        """The values as stored, unpacked on the spot; None while empty."""
        return self.value.read() if self.is_initialized else None

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Do nothing: the buffers come with the first tokens."""

    def update(
        self,
        key_states: Tensor,
        value_states: Tensor,
        *_args,
        real: Tensor | None = None,
        packed: bool = False,
        **_kwargs,
    ) -> tuple[Tensor, Tensor] | tuple[Packed, Packed]:
        """Store K and V `[batch, kv_heads, tokens, head_dim]`, return what to attend to (see the class).

        Args:
            real: `[batch, positions]` bool, False for padding, or None.
            packed: return `Packed` where the layer can.

        Raises:
            ValueError: where they do not fit what is held already.
        """
        k, v = key_states, value_states
        came = (k.shape, v.shape, k.dtype, v.dtype, k.device, v.device)
        if came != self._fits:
            _check(self, k, v)
            self._fits = came
        for rows, x in zip(self.recording, (key_states, value_states), strict=False):
            rows.append(x.detach())
        if not self.key.seen:
            step = self._step
        elif packed and self._can_stay_packed and not (self.is_sliding and self.record_past):
            step, self.attends = self._packed_step, "packed"
        else:
            step, self.attends = self._step, "unpacked"
        return step(self.key, key_states, real), step(self.value, value_states, real)

    def _packed_step(self, store: PartStore, x: Tensor, real: Tensor | None) -> Packed:
        window = self.sliding_window
        if x.shape[2] == 1 and window is None and not self.record_past:
            part = store.append_one(x, real)
            if part is None:
                store.append(x, real)
                part = store.expect_one()
            return Packed(part, store.backend)
        part = None if x.shape[2] == 1 else store.part(x)
        store.append(x, real, window, defer=self.record_past)
        part = store.held_part() if part is None else part
        if window is not None:
            store.trim(window - 1)
        return Packed(part, store.backend)

    def _step(self, store: PartStore, x: Tensor, real: Tensor | None) -> Tensor:
        n, window = x.shape[2], self.sliding_window
        past = None if store.seen == 0 or n == 1 else store.read()
        first = store.seen == 0
        keep = None if window is None or self.record_past else window
        store.append(x, real, keep, defer=self.record_past)
        seen = x if first else store.read() if past is None else torch.cat((past, x), dim=-2)
        if window is None:
            return seen
        if not self.record_past:
            store.trim(window - 1)
        return seen[:, :, -(window - 1 + n) :]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return how many tokens the next update returns, and the position of the first of them."""
        seen, window = self.key.seen, self.sliding_window
        if window is None:
            return seen + query_length, 0
        return min(seen, window - 1) + query_length, max(seen - window + 1, 0)

    def get_seq_length(self) -> int:
        """Return how many tokens came in, those a window left behind included."""
        return self.key.seen

    def get_max_length(self) -> int:
        """Return the window, -1 where there is none."""
        return self.sliding_window or -1

    def activate_past_recording(self) -> None:
        """Hold back packing and the window until the next `crop`, so that a crop leaves no trace."""
        self.record_past = True

    def crop(self, tokens_to_remove: int, real: Tensor | None = None) -> None:
        """Remove the newest tokens: -n removes n, a positive number is the length that stays (transformers'
        older way); then pack what `activate_past_recording` held back. Packed tokens are dropped, never
        requantized, but a residual is not filled up again, and along tokens a block that is cut
        becomes the open block again with the values its bytes stood for.

        Raises:
            ValueError: as `check_crop` does.
        """
        n = self.check_crop(tokens_to_remove)
        for store in self.stores:
            store.crop(n)
            if store.seen:
                store.settle(real)
                if self.sliding_window:
                    store.trim(self.sliding_window - 1)
        for rows in self.recording:
            rows.drop_back(min(n, len(rows)))

    def check_crop(self, tokens_to_remove: int) -> int:
        """Return how many tokens a crop would remove.

        Raises:
            ValueError: where a sliding window has left the tokens behind that would be needed.
        """
        seen = self.key.seen
        n = -tokens_to_remove if tokens_to_remove <= 0 else max(0, seen - tokens_to_remove)
        if n and self.sliding_window and self.key.held - n < min(seen - n, self.sliding_window - 1):
            raise ValueError(
                f"cannot remove {n} of {seen} tokens: this layer's window of {self.sliding_window} has left "
                "behind what it would need then; call activate_past_recording() before those tokens come in"
            )
        return n

    def select(self, index: Tensor) -> None:
        """Keep these sequences of the batch, in this order, possibly repeated."""
        self._fits = None
        for part in (*self.stores, *self.recording):
            part.select(index)

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self.select(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        if self.is_initialized:
            self.select(torch.arange(self.key.like.shape[0], device="cpu").repeat_interleave(repeats))

    def batch_select_indices(self, indices: Tensor) -> None:
        if self.is_initialized:
            rows = torch.arange(self.key.like.shape[0], device="cpu")
            self.select(rows[torch.as_tensor(indices, device="cpu")])

    def reset(self) -> None:
        """Forget everything, buffers and frozen scales included."""
        self._fits = None
        for store in self.stores:
            store.reset()
        self.recording = tuple(Rows() for _ in self.recording)

    def offload(self) -> None:
        raise ValueError("MXCache does not offload layers; it is small enough to stay on the device")

    prefetch = offload


def _check(layer: MXLayer, key: Tensor, value: Tensor) -> None:
    """Refuse K and V that do not fit each other or what the layer holds."""
    if key.dim() != 4 or value.dim() != 4 or key.shape[:3] != value.shape[:3]:
        raise ValueError(
            f"K {tuple(key.shape)} and V {tuple(value.shape)} do not fit; expected two tensors "
            "[batch, kv_heads, tokens, head_dim] that differ in head_dim at most"
        )
    for part, store, x in zip(PARTS, layer.stores, (key, value), strict=True):
        like = store.like
        if like is None:
            continue
        came = (x.shape[0], x.shape[1], x.shape[3], x.dtype, x.device)
        held = (like.shape[0], like.shape[1], like.shape[3], like.dtype, like.device)
        if came != held:
            raise ValueError(
                f"this cache holds {part}s of (batch, kv_heads, head_dim, dtype, device) {held}, but {came} "
                "came; call reset(), batch_repeat_interleave() or make a new cache"
            )
