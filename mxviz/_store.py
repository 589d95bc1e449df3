"""PartStore: the keys (or the values) of one layer, packed, with the parts of them that stay exact."""

from __future__ import annotations

import torch
from torch import Tensor

from mxviz import ops
from mxviz._cache_bytes import CountedBytes
from mxviz._cache_in_place import InPlace
from mxviz._cache_rows import Rows
from mxviz._cache_scales import fill_pads, fixed_scales, is_scaled_per_row, tokens_packed_at_once
from mxviz._hadamard import rotate, rotation, unrotate
from mxviz.backends import HeldPart, Part
from mxviz.formats import Scheme
from mxviz.quantize import MXBlocks


class PartStore(CountedBytes):
    """Keys or values `[batch, kv_heads, tokens, head_dim]` of one layer: sinks, packed tokens, tail.

    The first `sink` tokens and the newest (the residual, and along tokens the open block) are exact, in the
    dtype they came in. What lies between is packed once and never touched again. Layout of the buffers,
    for kernels that read them (inner two dimensions contiguous):

    - blocks along channels and single scales: packed uint8 `[B, H, cap, row_bytes]`; scales
      `[B, H, cap, blocks]`, `@token` `[B, H, cap, 1]`, others fixed: `@tensor` and `@one` `[B, 1, 1, 1]`,
      `@head` `[B, H, 1, 1]`, `@channel` `[B, H, 1, D]`;
    - blocks along tokens: packed uint8 `[B, H, cap·bits/8, D]`, scales `[B, H, cap/block, D]`;
    - zeros like scales; NVFP4's global scale `[B, 1, 1, 1]`.

    Args:
        scheme: what is packed; `none` keeps everything exact.
        sink: first tokens that stay exact.
        residual: newest tokens that stay exact.
        turned: whether packed tokens are turned by a Hadamard matrix first.
        backend: which backend of `mxviz.ops` packs and unpacks.
    """

    def __init__(self, scheme: Scheme, sink: int, residual: int, turned: bool, backend: str) -> None:
        self.scheme, self.sink, self.residual = scheme, sink, residual
        self.turned, self.backend = turned, backend
        self._exact, self._frozen = scheme.is_none, scheme.is_frozen_while_generating
        self.unit = tokens_packed_at_once(scheme)
        self.along_tokens = self.unit > 1
        self.scale_per_row = is_scaled_per_row(scheme)
        self._rows_fit = scheme.is_blocked and not self.along_tokens
        self._rows_of_unit = (self.unit * scheme.element.bits // 8) if self.along_tokens else 1
        self.reset()

    def reset(self) -> None:
        """Forget everything, buffers and frozen scales included."""
        self.sinks, self.tail = Rows(), Rows(self.unit)
        self.packed, self.scales, self.zeros = Rows(self._rows_of_unit), Rows(), Rows()
        self.fixed: Tensor | None = None  # scales that all tokens share, set by the first update
        self.like: Tensor | None = None  # an empty tensor with the shape, dtype and device of what came in
        self.clipped: Tensor | None = None  # how many elements were beyond a frozen scale
        self.ever_packed = 0  # out of how many, padding left out
        self.memo: dict[str, object] = {}  # what a backend knows of the buffers
        self._latest: HeldPart | None = None  # where all the next token asks for is one more row
        self._in_place = InPlace(self.scheme, self.backend, self.packed, self.scales, self.zeros)
        self.seen = 0  # tokens that ever came in: the position of the next one
        self.gone = 0  # of the packed part's first block, tokens that a sliding window has left behind

    def __getstate__(self) -> dict[str, object]:
        """What a copy takes along: nothing that knows where the buffers of this store lie."""
        return self.__dict__ | {"memo": {}, "_latest": None}

    @property
    def packed_tokens(self) -> int:
        """Tokens in the packed part, those of a block that the window cut included."""
        return len(self.packed) // self._rows_of_unit * self.unit

    @property
    def held(self) -> int:
        """Tokens that `read` returns."""
        return len(self.sinks) + self.packed_tokens - self.gone + len(self.tail)

    def append(
        self, x: Tensor, real: Tensor | None = None, keep: int | None = None, defer: bool = False
    ) -> None:
        """Take the next tokens.

        Args:
            x: `[batch, kv_heads, n, head_dim]`.
            real: `[batch, positions]` bool from the first position of the cache, False for padding, which is
                zeroed and counts in no scale; None where everything is real.
            keep: tokens of these that a sliding window will still want; older ones need not be packed.
            defer: leave packing to a later `settle`.
        """
        x, self._latest = x.detach(), None
        if real is not None and real.shape[1] > self.seen:
            x = x.masked_fill(~real[:, None, self.seen : self.seen + x.shape[2], None], 0)
        if self.seen == 0:
            self.like = x[:, :, :0].clone()
            self.fixed = fixed_scales(rotate(x) if self.turned else x, self.scheme)
        self.seen += x.shape[2]
        room = min(self.sink - len(self.sinks), x.shape[2])
        if room > 0:
            self.sinks.append(x[:, :, :room])
            x = x[:, :, room:]
        if keep is not None:
            x = self._pass_over(x, keep)
        new, waiting = x.shape[2], len(self.tail)
        packable = 0 if defer else self._packable(new)
        if packable == new and not waiting:  # the usual step without a residual; slices cost time
            if new:
                self._pack(x, new, real)
            return
        if packable > waiting:
            if waiting:
                x = torch.cat((self.tail.view, x), dim=-2)
                self.tail.clear()
            self._pack(x[:, :, :packable], x.shape[2], real)
            x = x[:, :, packable:]
        elif packable:
            self._pack(self.tail.view[:, :, :packable], waiting + new, real)
            self.tail.drop_front(packable)
        if x.shape[2]:
            self.tail.append(x)

    def settle(self, real: Tensor | None = None) -> None:
        """Pack what an append with `defer` left in the tail."""
        packable, self._latest = self._packable(0), None
        if packable:
            self._pack(self.tail.view[:, :, :packable], len(self.tail), real)
            self.tail.drop_front(packable)

    def _packable(self, more: int) -> int:
        """Oldest tokens to pack once `more` follow the tail: whole blocks beyond the residual."""
        if self._exact:
            return 0
        return max(0, len(self.tail) + more - self.residual) // self.unit * self.unit

    def _pass_over(self, x: Tensor, keep: int) -> Tensor:
        """Drop, in whole blocks, what the window will have left behind before it could be read again."""
        past = max(0, len(self.tail) + x.shape[2] - keep) // self.unit * self.unit
        if past == 0:
            return x
        self._clear_packed()
        from_tail = min(past, len(self.tail))
        self.tail.drop_front(from_tail)
        return x[:, :, past - from_tail :]

    def _pack(self, x: Tensor, waiting: int, real: Tensor | None) -> None:
        """Pack x, the oldest of the newest `waiting` tokens."""
        first = self.seen - waiting
        pads = None
        if real is not None and real.shape[1] > first:
            pads = ~real[:, None, first : first + x.shape[2], None]
            pads = torch.nn.functional.pad(pads, (0, 0, 0, x.shape[2] - pads.shape[2]))
        x = rotate(x) if self.turned else x
        if pads is not None and self.along_tokens:
            x = fill_pads(x, pads, self.unit)
        frozen = self.fixed if self._frozen else None
        if self._rows_fit and not (self._frozen and pads is not None) and self._append_in_place(x):
            return
        blocks = ops.quantize(x, self.scheme, frozen=frozen, backend=self.backend)
        self.packed.append(blocks.packed)
        if self.scale_per_row:
            self.scales.append(blocks.scales)
        else:  # a NaN reaches as far as its scale does
            self.fixed = torch.where(blocks.scales.isnan(), blocks.scales, self.fixed)
        if blocks.zeros is not None:
            self.zeros.append(blocks.zeros)
        if self._frozen:
            self._count_clipped(blocks, x, pads)

    def append_one(self, x: Tensor, real: Tensor | None) -> HeldPart | None:
        """Take one token and return what is held, where that is to write a row, as it was for the last one.

        Most steps are such, and there are as many as layers times tokens. None, and nothing done, elsewhere.
        """
        latest = self._latest
        if latest is None or (real is not None and real.shape[1] > self.seen):
            return None
        if not self._append_in_place(x):
            return None
        self.seen += 1
        self._latest = latest = latest.and_one()
        return latest

    def expect_one(self) -> HeldPart:
        """Return what is held, and let `append_one` take the next token where that is a row again."""
        part, tail = self.held_part(), self.tail
        plain = self._rows_fit and not (self.turned or self.residual or tail.end > tail.start)
        if plain and self._in_place.is_ready and self.seen >= self.sink:
            self._latest = part
        return part

    def _append_in_place(self, x: Tensor) -> bool:
        """Pack x straight into the buffers, where these have room; return whether they had."""
        if not self._frozen:
            return self._in_place.append(x) is not None
        clipped = self._in_place.append(x, self.fixed)
        if clipped is not None:
            self.ever_packed += x.numel()
            self.clipped = self.clipped + clipped
        return clipped is not None

    def _count_clipped(self, blocks: MXBlocks, x: Tensor, pads: Tensor | None) -> None:
        """Count what lies beyond a frozen scale; other schemes measure each block and need no watch."""
        real = x.shape[0] * x.shape[2] if pads is None else int((~pads).sum())
        self.ever_packed += real * x.shape[1] * x.shape[3]
        beyond = blocks.clipped_mask(x)
        count = (beyond if pads is None else beyond & ~pads).sum()
        self.clipped = count if self.clipped is None else self.clipped + count

    def held_part(self) -> HeldPart:
        """Return what is held, for attention, with views made only if they are asked for."""
        (batch, heads, _, dim), packed = self.like.shape, self.packed_tokens
        spans = (self.sinks.span, self.tail.span, self.packed.span, self.scales.span, self.zeros.span)
        turn = rotation(dim, self.like.device) if self.turned and packed else None
        shape = (batch, heads, len(self.sinks) + packed + len(self.tail), dim)
        return HeldPart(spans, shape, packed, self.scheme, self.fixed, turn, self.memo)

    def blocks(self) -> MXBlocks | None:
        """Return views of the packed part, None while nothing is packed."""
        return self.held_part().as_part().blocks if self.packed_tokens else None

    def read(self) -> Tensor:
        """Return what is stored, `[batch, kv_heads, held, head_dim]`, in the dtype that came in."""
        sink, blocks, tail, _ = self.part()
        packed = None if blocks is None else self._unpack(blocks)[:, :, self.gone :]
        parts = [x for x in (sink, packed, tail) if x is not None]
        if len(parts) > 1:
            return torch.cat(parts, dim=-2)
        return parts[0] if parts else self.like

    def part(self, newest: Tensor | None = None) -> Part:
        """Return views of what is held, for attention; they keep their values until a crop.

        Args:
            newest: tokens that are not held (yet) and stand behind what is, exact.
        """
        held = self.held_part().as_part()
        tail = newest if newest is None or held.tail is None else torch.cat((held.tail, newest), dim=-2)
        return held if newest is None else held._replace(tail=tail)

    def _unpack(self, blocks: MXBlocks) -> Tensor:
        if not self.turned:
            return ops.dequantize(blocks, self.like.dtype, backend=self.backend)
        return unrotate(ops.dequantize(blocks, backend=self.backend)).to(self.like.dtype)

    def trim(self, keep: int) -> None:
        """Drop the oldest tokens until `keep` are held; a block along tokens goes once wholly outside."""
        excess = self.held - keep
        if excess <= 0:
            return
        self._latest = None
        from_packed = min(excess, self.packed_tokens - self.gone)
        whole = (self.gone + from_packed) // self.unit
        self.gone = self.gone + from_packed - whole * self.unit
        self._drop_packed(whole, front=True)
        self.tail.drop_front(excess - from_packed)

    def crop(self, n: int) -> None:
        """Remove the newest n tokens. Where that cuts a packed block along tokens, what is left of the block
        goes back into the open block as the values its bytes stood for.
        """
        n, self._latest = min(n, self.held), None
        self.seen -= n
        from_tail = min(n, len(self.tail))
        self.tail.drop_back(from_tail)
        from_packed = min(n - from_tail, self.packed_tokens - self.gone)
        if from_packed:
            held = self.held - from_packed
            values = self.read()[:, :, :held] if from_packed % self.unit else None
            self._drop_packed(-(-from_packed // self.unit), front=False)
            if not len(self.packed):
                self.gone = 0
            if held > self.held:
                self.tail.append(values[:, :, self.held :])
        self.sinks.drop_back(n - from_tail - from_packed)
        if self.seen == 0:
            self.reset()

    def _drop_packed(self, units: int, front: bool) -> None:
        for rows, count in ((self.packed, self._rows_of_unit), (self.scales, 1), (self.zeros, 1)):
            if len(rows):
                (rows.drop_front if front else rows.drop_back)(units * count)

    def _clear_packed(self) -> None:
        self.gone = 0
        for rows in (self.packed, self.scales, self.zeros):
            rows.clear()

    def select(self, index: Tensor) -> None:
        """Keep these sequences of the batch, in this order, possibly repeated; bytes are copied."""
        self._latest = None
        for rows in self._rows():
            rows.select(index)
        if self.like is not None:
            index = index.to(self.like.device)
            self.like = self.like.index_select(0, index)
            self.fixed = None if self.fixed is None else self.fixed.index_select(0, index)

    def _rows(self) -> tuple[Rows, ...]:
        return self.sinks, self.packed, self.scales, self.zeros, self.tail
