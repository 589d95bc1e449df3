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

SPLIT = 512
"""Tokens of a split. Fixed, so that the sums are taken in the same order on any number of threads."""


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
    key_shape, value_shape = key.shape, value.shape
    _check(query, key_shape, value_shape, mask)
    batch, query_heads, queries, _ = query.shape
    _, heads, total, _ = key_shape
    group, width = query_heads // heads, value_shape[-1]
    rows, splits, apart = group * queries, -(-total // SPLIT), 1 if value.rotation is None else 2
    dtype = query.dtype
    query = query if dtype in WIDTHS else query.float()
    query = query if query.stride(-1) == 1 else query.contiguous()
    turned = None if key.rotation is None else (query.float() * scaling) @ key.rotation.float()
    mask_kind, mask, mask_strides = _mask(mask, (batch, query_heads, queries, total))
    sinks = None if sinks is None else sinks.detach().float().contiguous()
    held: list[Tensor | None] = []  # keeps copies that the kernels read alive
    (key_at, key_plan), (value_at, value_plan) = described(key, held), described(value, held)
    wide, outputs = apart * width, batch * query_heads * queries
    sums = outputs * splits * wide  # behind the sums of every split for each row: its maximum and its weight
    acc_at = _scratch(sums + outputs * splits * 2)
    out = buffer((batch, query_heads, queries, wide))
    modules = kernels()
    units = batch * heads * -(-rows // modules.attend.ROWS) * splits
    job = np.array(
        (
            0, 0, units, query.data_ptr(), WIDTHS[query.dtype], *query.stride()[:3], address(turned), group,
            queries, heads, key_at, key_plan, value_at, value_plan, address(mask), mask_kind, *mask_strides,
            _bits(scaling), _bits(softcap or 0.0), SPLIT, apart, acc_at, acc_at + 4 * sums, address(sinks),
            out.data_ptr(),
        ),
        np.int64,
    )  # fmt: skip
    cost = batch * heads * rows * total * width
    host.together(modules.job.attend_job, modules.job.attend_team, job.ctypes.data, units, cost)
    if apart == 2:
        out = out[..., :width] + out[..., width:] @ value.rotation.float().mT
    return out if dtype is torch.float32 else out.to(dtype)


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
