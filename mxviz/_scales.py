"""Shared scales: from a block's (or a tensor's) amax to what is stored. Part of the reference.

Sources: OCP MX v1.0, sections 5.3 (E8M0) and 6.3 (the scale); NVIDIA's NVFP4; KIVI (arXiv 2402.02750).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from mxviz._codec import encode_float, lookup, over, power_of_two
from mxviz.formats import ELEMENTS, ElementFormat, Reach, ScaleFormat, ScaleRule, Scheme

E8M0_NAN = 255
E4M3_NAN = 0x7F
FLOAT16_MAX = 65504.0
NVFP4_RANGE = 2688.0  # 448 × 6: the largest product of an E4M3 scale and an E2M1 element
_E4M3 = ELEMENTS["fp8_e4m3"]


class Scales(NamedTuple):
    """What a scale rule yields for blocks `[..., blocks, block]`; tensors broadcast against that."""

    stored: Tensor
    divisor: Tensor
    zeros: Tensor | None = None
    global_scale: Tensor | None = None


def reach_dims(reach: Reach, ndim: int) -> tuple[int, ...]:
    return tuple(d for d in reach.dims if d >= -ndim) or (-1,)


def _finite_amax(x: Tensor, dims: tuple[int, ...]) -> Tensor:
    """Largest finite magnitude over dims, kept as ones; 0 where there is none."""
    magnitude = torch.where(x.isfinite(), x.float().abs(), 0.0)
    if x.numel() == 0:
        return magnitude.sum(dims, keepdim=True)
    return magnitude.amax(dims, keepdim=True)


def e8m0_exponent(amax: Tensor, element: ElementFormat, rule: ScaleRule) -> Tensor:
    """Return the shared exponent E, int32 in [-127, 127], of float32 amax (OCP MX v1.0, section 6.3).

    Exponents are read from the bits, never from a logarithm. Below the smallest normal float32 only the
    binade [2^-127, 2^-126) can matter, since everything lower clamps to -127.
    """
    if rule is ScaleRule.RCEIL:
        return _ceil_log2(over(amax, element.max_normal)).clamp(-127, 127)
    if rule is ScaleRule.CEIL:
        return (_ceil_log2(amax) - element.emax).clamp(-127, 127)
    bits = amax.view(torch.int32)
    if rule is ScaleRule.EVEN:
        subnormal = (bits < 1 << 23).to(torch.int32)
        bits = bits + ((1 << (22 - element.mantissa_bits)) >> subnormal)
    return ((bits >> 23) - 127 - element.emax).clamp(-127, 127)


def _ceil_log2(x: Tensor) -> Tensor:
    """⌈log2 x⌉ of non-negative float32; anything up to 2^-127 gives -127."""
    bits = x.view(torch.int32)
    field, mantissa = bits >> 23, bits & 0x7FFFFF
    above = torch.where(field > 0, mantissa > 0, mantissa > 1 << 22)
    return field - 127 + above.to(torch.int32)


def _e8m0_scale(values: Tensor, scheme: Scheme, _global: None, broken: Tensor) -> Scales:
    exponent = e8m0_exponent(_finite_amax(values, (-1,)), scheme.element, scheme.rule)
    byte = (exponent + 127).to(torch.uint8).masked_fill(broken, E8M0_NAN)
    return Scales(byte, power_of_two(exponent))


def _nvfp4_scale(values: Tensor, scheme: Scheme, global_scale: Tensor, broken: Tensor) -> Scales:
    g = global_scale.unsqueeze(-1)
    amax = _finite_amax(values, (-1,))
    byte = encode_float(over(amax, scheme.element.max_normal) / g, _E4M3)
    divisor = lookup(_E4M3, byte) * g
    return Scales(byte.masked_fill(broken, E4M3_NAN), divisor, global_scale=global_scale)


def set_global_scale(x: Tensor, frozen: Tensor | None) -> Tensor:
    """NVFP4's g = A/2688, A the amax of the whole tensor, per sequence; 1 where that would be 0."""
    if frozen is not None:
        return frozen
    g = over(_finite_amax(x, reach_dims(Reach.TENSOR, x.dim())), NVFP4_RANGE)
    return torch.where(g == 0, 1.0, g)


def _zero_point_scale(values: Tensor, scheme: Scheme, _global: None, broken: Tensor) -> Scales:
    finite = values.isfinite()
    low = torch.where(finite, values, torch.inf).amin(-1, keepdim=True)
    high = torch.where(finite, values, -torch.inf).amax(-1, keepdim=True)
    low, high = torch.where(low > high, 0.0, low) + 0.0, torch.where(low > high, 0.0, high)  # -0 becomes 0
    zeros = low.clamp(-FLOAT16_MAX, FLOAT16_MAX).half()
    scale = over(high - low, scheme.element.max_normal).clamp(max=FLOAT16_MAX).half()
    scale = torch.where(scale == 0, torch.ones_like(scale), scale)
    divisor = scale.float()
    return Scales(scale.masked_fill(broken, float("nan")), divisor, zeros)


def single_scale(
    x: Tensor, scheme: Scheme, dims: tuple[int, ...], broken: Tensor, frozen: Tensor | None
) -> Scales:
    amax = _finite_amax(x, dims)
    if scheme.reach is Reach.ONE:
        scale = torch.ones_like(amax)
    elif frozen is not None:
        scale = frozen
    else:
        scale = over(amax, scheme.element.max_normal)
        scale = torch.where(scale == 0, 1.0, scale)
    return Scales(scale.masked_fill(broken, float("nan")), scale)


def decode_scale(stored: Tensor, scheme: Scheme) -> Tensor:
    """Stored scales as float32, NaN where broken."""
    if scheme.scale is ScaleFormat.E8M0:
        scale = power_of_two(stored.to(torch.int32) - 127)
        return scale.masked_fill(stored == E8M0_NAN, float("nan"))
    if scheme.scale is ScaleFormat.E4M3:
        return lookup(_E4M3, stored)
    return stored.float()


BLOCK_SCALES = {
    ScaleFormat.E8M0: _e8m0_scale,
    ScaleFormat.E4M3: _nvfp4_scale,
    ScaleFormat.FLOAT16_ZERO: _zero_point_scale,
}
