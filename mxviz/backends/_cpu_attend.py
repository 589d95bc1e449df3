"""Decode attention on the CPU backend: what the kernels are handed for a query and two packed parts."""

from __future__ import annotations

import struct
import threading
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from mxviz.backends import HeldPart, Part
from mxviz.backends import _numba_host as host
from mxviz.backends._cpu_held import described
from mxviz.backends._cpu_plan import WIDTHS, address, buffer, kernels

FEW, SPLIT_OF_FEW, SPLIT = 1024, 128, 512
"""Up to so many tokens small splits serve, there being few to share out; tokens of a split. They depend on
nothing else, so that the sums are taken in the same order on any number of threads."""


def attend(
    query: Tensor,
    key: Part | HeldPart,
    value: Part | HeldPart,
    *,
    scaling: float,
    mask: Tensor | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """See `mxviz.ops.attend`. Made for a few queries; a long prompt is quicker unpacked once."""
    plain = mask is None and sinks is None and type(key) is HeldPart and type(value) is HeldPart
    last = key.memo.get("attended") if plain else None
    if last is not None and last.fits(query, key, value, scaling, softcap):
        return last.again(query, key, value)
    key_shape, value_shape = key.shape, value.shape
    _check(query, key_shape, value_shape, mask)
    batch, query_heads, queries, _ = query.shape
    _, heads, total, _ = key_shape
    group, apart = query_heads // heads, 1 if value.rotation is None else 2
    dtype = query.dtype
    query = query if dtype in WIDTHS else query.float()
    query = query if query.stride(-1) == 1 else query.contiguous()
    turned = None if key.rotation is None else (query.float() * scaling) @ key.rotation.float()
    mask_kind, mask, mask_strides = _mask(mask, (batch, query_heads, queries, total))
    sinks = None if sinks is None else sinks.detach().float().contiguous()
    held: list[Tensor | None] = []  # keeps copies that the kernels read alive
    (key_at, key_plan), (value_at, value_plan) = described(key, held), described(value, held)
    run, width = _Run((batch, query_heads, queries, apart * value_shape[-1]), heads), value_shape[-1]
    run.job[3:26] = (
        0, WIDTHS[query.dtype], *query.stride()[:3], address(turned), group, queries, heads, key_at, key_plan,
        value_at, value_plan, address(mask), mask_kind, *mask_strides, _bits(scaling), _bits(softcap or 0.0),
        0, apart,
    )  # fmt: skip
    run.job[28] = address(sinks)
    if plain and not held and apart == 1 and turned is None and dtype is torch.float32:
        key.memo["attended"] = _Last(run, query, key, value, scaling, softcap)
    out = run(query, total)
    if apart == 2:
        out = out[..., :width] + out[..., width:] @ value.rotation.float().mT
    return out if dtype is torch.float32 else out.to(dtype)


class _Run:
    """A job, numbered as `mxviz.kernels.cpu.job.Job` says, but for the query, the tokens and working memory.

    Args:
        shape: of what comes out, `[batch, query_heads, queries, width]`.
        heads: KV heads.
    """

    def __init__(self, shape: tuple[int, int, int, int], heads: int) -> None:
        batch, query_heads, queries, self.width = self.shape = shape
        self.rows = batch * query_heads * queries
        self.tiles = batch * heads * -(-query_heads // heads * queries // kernels().attend.ROWS)
        modules = kernels().job
        self.job = np.zeros(len(modules.Job), np.int64)
        self.at, self.kernel, self.team = self.job.ctypes.data, modules.attend_job, modules.attend_team

    def __call__(self, query: Tensor, tokens: int) -> Tensor:
        """Attend to so many tokens."""
        job, split = self.job, SPLIT if tokens > FEW else SPLIT_OF_FEW
        splits = -(-tokens // split)
        units, sums = self.tiles * splits, self.rows * splits * self.width
        acc_at = _scratch(sums + self.rows * splits * 2)
        out = query.new_empty(self.shape, dtype=torch.float32)
        job[:4] = 0, 0, units, query.data_ptr()
        job[24], job[26], job[27], job[29] = split, acc_at, acc_at + 4 * sums, out.data_ptr()
        host.together(self.kernel, self.team, self.at, units, self.rows * tokens * self.width)
        return out


class _Last:
    """How a layer was attended to in the last step; mostly the next one differs in tokens and query alone."""

    def __init__(
        self,
        run: _Run,
        query: Tensor,
        key: HeldPart,
        value: HeldPart,
        scaling: float,
        softcap: float | None,
    ) -> None:
        self.run, self.factors = run, (scaling, softcap)
        self.shape, self.strides = query.shape, query.stride()
        self.key_base, self.value_base = key.base, value.base

    def fits(
        self, query: Tensor, key: HeldPart, value: HeldPart, scaling: float, softcap: float | None
    ) -> bool:
        """Whether that is so."""
        return (
            key.base is self.key_base
            and value.base is self.value_base
            and key.shape[2] == value.shape[2]
            and query.dtype is torch.float32
            and query.shape == self.shape
            and query.stride() == self.strides
            and (scaling, softcap) == self.factors
        )

    def again(self, query: Tensor, key: HeldPart, value: HeldPart) -> Tensor:
        """Attend as in the last step."""
        kept: list[Tensor | None] = []
        self.run.job[12:16] = (*described(key, kept), *described(value, kept))
        return self.run(query, key.shape[2])


_own = threading.local()


def _scratch(floats: int) -> int:
    """Address of so many floats that belong to this thread until its next call."""
    held = getattr(_own, "scratch", None)
    if held is None or held.numel() < floats:
        held = _own.scratch = buffer((floats,))
    return held.data_ptr()


@lru_cache(maxsize=64)
def _bits(number: float) -> int:
    return int.from_bytes(struct.pack("<f", number), "little", signed=True)


def _check(query: Tensor, key: Sequence[int], value: Sequence[int], mask: Tensor | None) -> None:
    batch, heads, tokens, dim = key
    if (batch, heads, tokens) != tuple(value[:3]):
        raise ValueError(
            f"keys {tuple(key)} and values {tuple(value)} came; "
            "expected one value for each key: they may differ in head_dim alone"
        )
    if query.shape[0] != batch or query.shape[1] % heads or query.shape[3] != dim:
        raise ValueError(
            f"a query {tuple(query.shape)} came; expected batch {batch}, a multiple of the {heads} KV heads, "
            f"and the keys' head_dim {dim}"
        )
    if mask is not None and mask.shape[-1] != tokens:
        raise ValueError(f"a mask over {mask.shape[-1]} tokens came; expected one over the {tokens} held")


def _mask(mask: Tensor | None, shape: tuple[int, ...]) -> tuple[int, Tensor | None, tuple[int, ...]]:
    """Return the kernel's word for a mask, the mask and its strides over `shape`."""
    if mask is None:
        return 0, None, (0, 0, 0, 0)
    if mask.dtype is torch.bool:
        return 2, mask, mask.expand(shape).stride()
    mask = mask.float()
    return 1, mask, mask.expand(shape).stride()
