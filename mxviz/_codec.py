"""Codes and bytes: encode an element, build powers of two, pack and unpack. Part of the reference.

Sources: OCP MX v1.0, sections 5.3 and 6.3; OFP8 v1.0 for rounding and saturation.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mxviz.formats import ElementFormat, Kind


def over(x: Tensor, constant: float) -> Tensor:
    """True division by a constant: torch on CUDA would multiply by the reciprocal of a Python number."""
    return x / torch.full((), constant, dtype=torch.float32, device=x.device)


def lookup(element: ElementFormat, codes: Tensor) -> Tensor:
    table = torch.tensor(element.values, dtype=torch.float32, device=codes.device)
    return table[codes.long()]


def power_of_two(exponent: Tensor) -> Tensor:
    """Return 2^E as float32 for E in [-127, 127], built from bits (2^-127 is subnormal)."""
    bits = torch.where(exponent > -127, (exponent + 127) << 23, 1 << 22)
    return bits.to(torch.int32).view(torch.float32)


def encode_float(x: Tensor, element: ElementFormat) -> Tensor:
    """Round float32 to a float element, nearest, ties to even, saturating; return codes (uint8).

    NaN and infinities take the NaN code where the element has one, and 0 where it has none.
    """
    finite = x.isfinite()
    magnitude = torch.where(finite, x.abs(), 0.0).clamp(max=element.max_normal)
    exponent = ((magnitude.view(torch.int32) >> 23) - 127).clamp(min=element.emin)
    steps = torch.round(magnitude / power_of_two(exponent - element.mantissa_bits))
    # A carry out of the mantissa lands in the exponent field, as it does in IEEE encodings.
    code = ((exponent - element.emin) << element.mantissa_bits) + steps.to(torch.int32)
    code = code + (torch.signbit(x).to(torch.int32) << (element.bits - 1))
    return torch.where(finite, code, element.nan_code or 0).to(torch.uint8)


def encode_integer(x: Tensor, element: ElementFormat) -> Tensor:
    """Round float32 to an integer element, nearest, ties to even, saturating symmetrically."""
    low = 0.0 if element.kind is Kind.UNSIGNED else -element.max_normal
    x = torch.where(x.isfinite(), x, 0.0).clamp(low, element.max_normal)
    steps = torch.round(x / element.min_subnormal).to(torch.int32)
    return (steps & ((1 << element.bits) - 1)).to(torch.uint8)


_GROUPS = {8: (1, 1), 6: (4, 3), 4: (2, 1), 2: (4, 1)}  # bits: (codes, bytes) of the smallest whole group


def pack(codes: Tensor, bits: int) -> Tensor:
    """Pack codes `[..., n]` (uint8) into `[..., ⌈n·bits/8⌉]` bytes, low bits first."""
    count, width = _GROUPS[bits]
    n = codes.shape[-1]
    groups = torch.nn.functional.pad(codes, (0, -n % count)).unflatten(-1, (-1, count)).to(torch.int32)
    word = sum(groups[..., i] << (bits * i) for i in range(count))
    parts = torch.stack([(word >> (8 * j)) & 0xFF for j in range(width)], dim=-1)
    return parts.flatten(-2).to(torch.uint8)[..., : packed_bytes(n, bits)]


def unpack(packed: Tensor, bits: int, n: int) -> Tensor:
    """Unpack bytes `[..., ⌈n·bits/8⌉]` into codes `[..., n]` (uint8)."""
    count, width = _GROUPS[bits]
    short = -packed.shape[-1] % width
    groups = torch.nn.functional.pad(packed, (0, short)).unflatten(-1, (-1, width)).to(torch.int32)
    word = sum(groups[..., j] << (8 * j) for j in range(width))
    parts = torch.stack([(word >> (bits * i)) & ((1 << bits) - 1) for i in range(count)], dim=-1)
    return parts.flatten(-2).to(torch.uint8)[..., :n]


def packed_bytes(n: int, bits: int) -> int:
    """Bytes of a row of n codes."""
    return (n * bits + 7) // 8
