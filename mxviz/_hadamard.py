"""Orthonormal Hadamard matrices: the rotation that spreads an outlier channel over all channels.

Sources: Sylvester's doubling for powers of two; Paley's first construction for orders 12 and 20.
QuaRot (arXiv 2404.00456) for rotating what a cache stores.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

_PALEY = {12: 11, 20: 19}  # order: the prime (3 mod 4) whose quadratic residues build it


def split(n: int) -> tuple[int, int]:
    """Return (doublings, core) with n = 2^doublings × core, core 1, 12 or 20.

    Raises:
        ValueError: where mxviz has no Hadamard matrix of order n.
    """
    for core in (1, *_PALEY):
        if n > 0 and n % core == 0 and (n // core) & (n // core - 1) == 0:
            return (n // core).bit_length() - 1, core
    raise ValueError(
        f"rotate=1 needs a Hadamard matrix of order head_dim={n}; there is one for a power of two and for 12 "
        "or 20 times a power of two (64, 80, 96, 128, …), so leave rotate out for this model"
    )


@lru_cache
def _core(order: int) -> tuple[tuple[float, ...], ...]:
    """Rows of the ±1 matrix of order 1, 12 or 20."""
    if order == 1:
        return ((1.0,),)
    prime = _PALEY[order]
    residues = {i * i % prime for i in range(1, prime)}

    def entry(i: int, j: int) -> float:
        if i == 0 or j == 0:
            return -1.0 if i > j else 1.0
        if i == j:
            return 1.0
        return 1.0 if (j - i) % prime in residues else -1.0

    return tuple(tuple(entry(i, j) for j in range(order)) for i in range(order))


def hadamard(n: int) -> Tensor:
    """Return the orthonormal Hadamard matrix `[n, n]`, float32, on the CPU; `rotate(x)` is `x @ hadamard(n)`.

    Raises:
        ValueError: where there is none.
    """
    return rotate(torch.eye(n, device="cpu"))


def rotate(x: Tensor) -> Tensor:
    """Turn the last dimension of x by the Hadamard matrix, in float32.

    Additions in a fixed order rather than a matrix product, so that a row's bits do not depend on how many
    rows come with it: the same bytes whatever the chunking.
    """
    doublings, order = split(x.shape[-1])
    y = x.float()
    if order > 1:
        rows = torch.tensor(_core(order), device=x.device).unbind()
        blocks = y.unflatten(-1, (-1, order))
        y = sum(blocks[..., i : i + 1] * rows[i] for i in range(order)).flatten(-2)
    for step in range(doublings):
        pair = y.unflatten(-1, (-1, 2, order << step))
        a, b = pair.unbind(-2)
        y = torch.stack((a + b, a - b), dim=-2).flatten(-3)
    return y * x.shape[-1] ** -0.5


@lru_cache
def rotation(n: int, device: torch.device) -> Tensor:
    """Return `hadamard(n)` on a device, the same tensor at every call."""
    with torch.inference_mode(False):
        return hadamard(n).to(device)


@lru_cache
def _inverse(n: int, device: torch.device) -> Tensor:
    with torch.inference_mode(False):
        return hadamard(n).T.contiguous().to(device)


def unrotate(x: Tensor) -> Tensor:
    """Turn the last dimension back, in float32."""
    return x.float() @ _inverse(x.shape[-1], x.device)
