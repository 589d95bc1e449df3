"""A part of a cache as the CPU kernels take it: addresses, strides and sizes, kept between steps."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from mxviz.backends import HeldPart, Part
from mxviz.backends._cpu_plan import WIDTHS, address, kernels, plan_of
from mxviz.formats import Axis, Reach


def described(part: Part | HeldPart, kept: list) -> tuple[int, int]:
    """Addresses of a part as the kernels' `Held` and `Plan`; what has to outlive the call goes to `kept`."""
    if isinstance(part, HeldPart):
        known = part.memo.get("cpu")
        if known is None or not known.fits(part):
            known = part.memo["cpu"] = _Known(part)
        if not known.copied:
            return known.at(part), known.plan_at
        part = part.as_part()  # what was copied is of this step alone
    numbers, plan, _ = _described(part, kept)
    kept += (numbers, plan)
    return numbers.ctypes.data, plan.ctypes.data


class _Known:
    """What was found out about the buffers of a part; from step to step only rows come and go."""

    def __init__(self, part: HeldPart) -> None:
        kept: list[Tensor] = []
        self.numbers, self.plan, self.copied = _described(part.as_part(), kept)
        self.numbers_at, self.plan_at = self.numbers.ctypes.data, self.plan.ctypes.data
        self.state, self.base = _state(part), part.base
        field = kernels().tiles.Held
        self.tokens = int(field.TOKENS)
        counts = (int(field.SINKS), int(field.TAILS), int(field.TOKENS), None, None)
        starts = map(int, (field.SINK, field.TAIL, field.PACKED, field.SCALES, field.ZEROS))
        self.rows = [
            (i, start, count, buffer.data_ptr(), buffer.stride(2) * buffer.element_size())
            for i, ((buffer, first, end, _), start, count) in enumerate(
                zip(part.spans, starts, counts, strict=True)
            )
            if end > first
        ]

    def fits(self, part: HeldPart) -> bool:
        """Whether this is still true of a part."""
        return self.base is part.base or self.state == _state(part)

    def at(self, part: HeldPart) -> int:
        """Address of the array with the rows as they are in this step; it serves the next call alone."""
        numbers = self.numbers
        if self.base is part.base:
            numbers[self.tokens] = part.packed_tokens
            return self.numbers_at
        self.base = part.base
        for i, start, count, base, step in self.rows:
            _, first, end, _ = part.spans[i]
            numbers[start] = base + first * step
            if count is not None:
                numbers[count] = part.packed_tokens if i == 2 else end - first
        return self.numbers_at


def _state(part: HeldPart) -> tuple[int, ...]:
    """Which buffers there are, which of them hold anything (0 if not), and where shared scales lie."""
    (_, a, b, s1), (_, c, d, s2), (_, e, f, s3), (_, g, h, s4), (_, i, j, s5) = part.spans
    shared = 0 if part.fixed is None else part.fixed.data_ptr()
    return (s1 * (a < b), s2 * (c < d), s3 * (e < f), s4 * (g < h), s5 * (i < j), shared)


_NOTHING = (0, 0, 0, 0, 0, 0)


def _exact(x: Tensor | None, kept: list) -> tuple[int, ...]:
    if x is None or x.shape[-2] == 0:
        return _NOTHING
    if x.stride(-1) != 1 and x.shape[-1] != 1:
        x = x.detach().contiguous()
        kept.append(x)
    return (x.data_ptr(), WIDTHS[x.dtype], *x.stride()[:3], x.shape[-2])


def _described(part: Part, kept: list) -> tuple[np.ndarray, np.ndarray, bool]:
    """As `described`, and whether anything had to be copied."""
    exact, blocks = _exact(part.sink, kept) + _exact(part.tail, kept), part.blocks
    if blocks is None:
        numbers = (*exact, *[0] * 13, part.shape[-1], 0)
        return np.array(numbers, np.int64), np.zeros(16, np.int64), bool(kept)
    packed, scales, zeros, given = blocks.packed, blocks.scales, blocks.zeros, blocks.global_scale
    blocked = blocks.scheme.is_blocked
    if blocks.axis not in ((-1, -2) if blocked else (-1,)):
        raise ValueError(
            f"{blocks.scheme} packed along dimension {blocks.axis} came; expected -1"
            + (" or -2" if blocked else "")
        )
    if not blocked:
        scales = scales.expand(blocks.shape)
        if blocks.scheme.reach is not Reach.TOKEN:  # one token's keeps its stride, and more tokens will come
            batch_step, head_step, _, step = scales.stride()
            scales = scales.as_strided(blocks.shape, (batch_step, head_step, 0, step))
    if packed.stride(-1) != 1:
        packed = packed.contiguous()
    if scales.stride(-1) > 1 or (zeros is not None and zeros.stride() != scales.stride()):
        scales, zeros = scales.contiguous(), None if zeros is None else zeros.contiguous()
    copied = bool(kept) or packed is not blocks.packed or scales.data_ptr() != blocks.scales.data_ptr()
    kept += (packed, scales, zeros)
    _, _, tokens, dim = blocks.shape
    numbers = (
        *exact, packed.data_ptr(), *packed.stride()[:3], tokens, scales.data_ptr(), address(zeros),
        *scales.stride(), address(given), 0 if given is None or given.shape[0] == 1 else given.stride(0),
        dim, blocks.axis == Axis.TOKEN.dim,
    )  # fmt: skip
    return np.array(numbers, np.int64), plan_of(blocks.scheme).array, copied
