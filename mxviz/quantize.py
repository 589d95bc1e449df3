"""The reference: shared scale, encode, decode and pack, in plain torch and float32.

It reads like the specification and is allowed to be slow; a kernel is right when its bytes equal these.
Sources: OCP Microscaling Formats (MX) v1.0, sections 5.3 (E8M0), 6.1 to 6.3 (dot, conversion, scale);
NVIDIA's NVFP4 for two-level scales; KIVI (arXiv 2402.02750) for zero points.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mxviz._codec import encode_float, encode_integer, lookup, over, pack, packed_bytes, power_of_two, unpack
from mxviz._scales import (
    BLOCK_SCALES,
    Scales,
    decode_scale,
    e8m0_exponent,
    reach_dims,
    set_global_scale,
    single_scale,
)
from mxviz.formats import FLT_MAX, ElementFormat, Kind, Reach, ScaleFormat, Scheme

__all__ = [
    "MXBlocks",
    "checked_axis",
    "dequantize",
    "e8m0_exponent",
    "pack",
    "packed_bytes",
    "power_of_two",
    "quantize",
    "unpack",
]

INPUT_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class MXBlocks:
    """A quantized tensor: packed codes and the scales they share.

    Args:
        packed: uint8, `shape` with `axis` replaced by bytes; low bits first, each row from a byte boundary.
        scales: E8M0 and E4M3 as uint8 bytes, float16 or float32 otherwise; `shape` with `axis` replaced by
            blocks, or (single-scale) with 1 in each dimension that shares the scale.
        scheme: what the bytes mean.
        shape: shape of the tensor that went in.
        axis: dimension along which blocks run and codes pack, negative.
        global_scale: NVFP4's float32, 1 in each of the last three dimensions.
        zeros: float16 zero points of aintN, shaped like `scales`.
    """

    packed: Tensor
    scales: Tensor
    scheme: Scheme
    shape: torch.Size
    axis: int
    global_scale: Tensor | None = None
    zeros: Tensor | None = None

    def codes(self) -> Tensor:
        """Return the element codes, uint8, of `shape`."""
        rows = unpack(self.packed.movedim(self.axis, -1), self.scheme.element.bits, self.shape[self.axis])
        return rows.movedim(-1, self.axis)

    def divisor(self) -> Tensor:
        """Return the float32 number each element was divided by, broadcast over `shape`; NaN where broken."""
        scale = decode_scale(self.scales, self.scheme)
        if self.global_scale is not None:
            scale = scale * self.global_scale
        return self._spread(scale)

    def dequantize(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return the values the bytes stand for, of `shape`; held at ±FLT_MAX (OCP MX, section 5.1)."""
        x = lookup(self.scheme.element, self.codes()) * self.divisor()
        if self.zeros is not None:
            x = x + self._spread(self.zeros.float())
        return x.clamp(-FLT_MAX, FLT_MAX).to(dtype).contiguous()  # the layout is every backend's too

    @property
    def nbytes(self) -> int:
        """Bytes of everything that is stored."""
        kept = (self.packed, self.scales, self.zeros, self.global_scale)
        return sum(t.numel() * t.element_size() for t in kept if t is not None)

    @property
    def bits_per_element(self) -> float:
        """Bits of codes, scales and zeros per element, as stored; NVFP4's global scale is left out."""
        apart = 0 if self.global_scale is None else self.global_scale.numel() * 4
        return 8 * (self.nbytes - apart) / max(1, self.shape.numel())

    def clipped_mask(self, x: Tensor) -> Tensor:
        """Return which finite elements of x lie beyond the end of their ruler (strictly).

        E8M0: |x| > max_normal·2^E; NVFP4: |x/(s·g)| > 6; other float scales: |x| > the amax that set the
        scale, tested as |x|/max_normal > s, which is the division that made s. A zero point has no such end.
        """
        magnitude, scale, element = x.float().abs(), self.divisor(), self.scheme.element
        if self.scheme.scale is ScaleFormat.FLOAT16_ZERO:
            return torch.zeros(self.shape, dtype=torch.bool, device=x.device)
        if self.scheme.scale is ScaleFormat.FLOAT32:
            beyond = over(magnitude, element.max_normal) > scale
        else:
            beyond = (magnitude / scale > element.max_normal) & (scale > 0)
        return beyond & magnitude.isfinite()

    def flushed_mask(self, x: Tensor) -> Tensor:
        """Return which non-zero elements of x came out as zero."""
        return (x != 0) & (self.dequantize() == 0)

    def clipped(self, x: Tensor) -> float:
        """Return the share of finite elements that are clipped, 0 to 1; NaN where there are none."""
        return _share(self.clipped_mask(x), x.isfinite())

    def flushed(self, x: Tensor) -> float:
        """Return the share of non-zero elements flushed to zero, 0 to 1; NaN where there are none."""
        return _share(self.flushed_mask(x), x != 0)

    def _spread(self, scale: Tensor) -> Tensor:
        """Repeat a value per block over the elements of its block."""
        if not self.scheme.is_blocked:
            return scale
        spread = scale.repeat_interleave(self.scheme.block, dim=self.axis)
        return spread.narrow(self.axis, 0, self.shape[self.axis])


def _share(mask: Tensor, among: Tensor) -> float:
    count = int(among.sum())
    return int(mask.sum()) / count if count else float("nan")


def quantize(
    x: Tensor, scheme: Scheme | str, axis: int | None = None, *, frozen: Tensor | None = None
) -> MXBlocks:
    """Quantize a tensor to packed codes and shared scales.

    Args:
        x: `[..., kv_heads, tokens, head_dim]` (fewer dimensions are read from the right), any strides;
            float32, bfloat16 or float16.
        scheme: a Scheme or its string; not `none`.
        axis: dimension along which blocks run and codes pack; by default the scheme's own, -1 for
            `axis=channel` and -2 for `axis=token`.
        frozen: a scale set earlier that this call must keep: NVFP4's global scale, or the scales of an
            `@tensor`, `@head` or `@channel` scheme. Values beyond it clip.

    Raises:
        ValueError: for a dtype, an axis or a scheme that cannot be quantized.
    """
    scheme = Scheme.parse(scheme) if isinstance(scheme, str) else scheme
    axis = checked_axis(x, scheme, axis)
    rows = x.float().movedim(axis, -1)
    if scheme.is_blocked:
        values = _into_blocks(rows, scheme.block)
        broken = ~values.isfinite().all(-1, keepdim=True)
        global_scale = set_global_scale(x, frozen) if scheme.scale is ScaleFormat.E4M3 else None
        scales = BLOCK_SCALES[scheme.scale](values, scheme, global_scale, broken)
    else:
        values = rows
        dims = reach_dims(scheme.reach, x.dim())
        broken = (~x.isfinite()).sum(dims, keepdim=True) > 0
        if scheme.reach is Reach.ONE and scheme.element.nan_code is not None:
            broken = torch.zeros_like(broken)  # the element holds its own NaN, so the constant scale stays
        scales = single_scale(x, scheme, dims, broken, frozen)
        broken, divisor = broken.movedim(axis, -1), scales.divisor.movedim(axis, -1)
        scales = scales._replace(divisor=divisor)
    codes = _encode(values, scales, scheme.element).masked_fill(broken, 0)
    if scheme.is_blocked:
        codes = codes.flatten(-2)[..., : rows.shape[-1]]
    packed = pack(codes, scheme.element.bits).movedim(-1, axis).contiguous()

    def stored(t: Tensor | None) -> Tensor | None:
        return None if t is None else t.squeeze(-1).movedim(-1, axis).contiguous()

    if not scheme.is_blocked:
        return MXBlocks(packed, scales.stored, scheme, x.shape, axis)
    return MXBlocks(
        packed, stored(scales.stored), scheme, x.shape, axis, scales.global_scale, stored(scales.zeros)
    )


def dequantize(blocks: MXBlocks, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return the values that packed blocks stand for."""
    return blocks.dequantize(dtype)


def checked_axis(x: Tensor, scheme: Scheme, axis: int | None) -> int:
    """Check what quantize was given, for every backend, and return the axis as a negative number."""
    if scheme.is_none:
        raise ValueError(
            "scheme none stores nothing packed; keep the tensor as it is, or name a scheme such as mxfp4"
        )
    if x.dtype not in INPUT_DTYPES:
        raise ValueError(
            f"cannot quantize {x.dtype}; expected float32, bfloat16 or float16, so convert it first, "
            "for instance x.float()"
        )
    axis = scheme.axis.dim if axis is None else axis
    if not -x.dim() <= axis < x.dim():
        raise ValueError(
            f"axis {axis} does not exist in a tensor of shape {tuple(x.shape)}; "
            f"expected -{x.dim()} to {x.dim() - 1}"
            if x.dim()
            else "cannot quantize a single number; expected a tensor with at least one dimension"
        )
    return axis if axis < 0 else axis - x.dim()


def _into_blocks(rows: Tensor, block: int) -> Tensor:
    """`[..., n]` to `[..., blocks, block]`; a row's last block is filled up with the row's last element,
    which changes no amax, no minimum and no maximum."""
    short = -rows.shape[-1] % block
    filling = rows[..., -1:].expand(*rows.shape[:-1], short)
    return torch.cat([rows, filling], -1).unflatten(-1, (-1, block))


def _encode(values: Tensor, scales: Scales, element: ElementFormat) -> Tensor:
    """Codes (uint8) of values under scales; where the scale is 0 every value becomes a signed zero."""
    offset = 0.0 if scales.zeros is None else scales.zeros.float()
    scaled = torch.where(scales.divisor == 0, values * 0.0, (values - offset) / scales.divisor)
    if element.kind is Kind.FLOAT:
        return encode_float(scaled, element)
    return encode_integer(scaled, element)
