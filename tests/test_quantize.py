"""The reference against the independent oracle, byte for byte, and corner cases with exact bytes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import oracle
import pytest
import torch

from mxviz.analysis import race_schemes
from mxviz.formats import BLOCK_SIZES, SCHEMES, Axis, ScaleFormat, ScaleRule
from mxviz.quantize import MXBlocks, dequantize, quantize


def every_scheme() -> list[str]:
    """Every scheme with every combination of its options, as canonical strings."""
    found = []
    for scheme in SCHEMES.values():
        if scheme.is_none:
            continue
        rules = ScaleRule if scheme.scale is ScaleFormat.E8M0 else [scheme.rule]
        axes, blocks = (Axis, BLOCK_SIZES) if scheme.is_blocked else ([scheme.axis], [scheme.block])
        found += [
            str(replace(scheme, axis=axis, rule=rule, block=block))
            for axis in axes
            for rule in rules
            for block in blocks
        ]
    return found


def _ties(shape: tuple[int, ...]) -> torch.Tensor:
    """Multiples of 1/16 up to 8: every midpoint of the 4- and 6-bit grids, under many scales."""
    n = int(np.prod(shape))
    values = (torch.arange(n) % 257 - 128) / 16
    return (values * 2.0 ** ((torch.arange(n) // 257) % 9 - 4)).reshape(shape)


def _spread(shape: tuple[int, ...], seed: int = 0) -> torch.Tensor:
    """Magnitudes over all of float32's exponents, subnormals included."""
    g = torch.Generator().manual_seed(seed)
    bits = torch.randint(0, 0x7F800000, shape, generator=g, dtype=torch.int32)
    sign = torch.randint(0, 2, shape, generator=g) * 2.0 - 1
    return bits.view(torch.float32) * sign


def _gaussian(shape: tuple[int, ...], seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def _sprinkled(shape: tuple[int, ...], value: float) -> torch.Tensor:
    x = _gaussian(shape, 3).flatten()
    x[:: max(1, x.numel() // 3)] = value
    return x.reshape(shape)


MAKERS = {
    "gaussian": _gaussian,
    "outlier": lambda shape: _sprinkled(shape, 600.0),
    "ties": _ties,
    "all exponents": _spread,
    "subnormal": lambda shape: _gaussian(shape, 1) * 1e-39,
    "smallest": lambda shape: _ties(shape).sign() * 1e-45,
    "largest": lambda shape: _sprinkled(shape, 3.4e38),
    "largest and its opposite": lambda shape: _ties(shape).sign() * 3.4028234e38,
    "zeros": torch.zeros,
    "negative zeros": lambda shape: -torch.zeros(shape),
    "positive only": lambda shape: _gaussian(shape, 2).abs() + 5,
    "one NaN": lambda shape: _sprinkled(shape, 1.0).index_put((torch.tensor([0]),) * len(shape), NAN),
    "Inf": lambda shape: _sprinkled(shape, float("inf")),
    "nothing finite": lambda shape: torch.full(shape, float("-inf")),
    "powers of two": lambda shape: 2.0 ** (_ties(shape) * 8).round().clamp(-126, 127),
}
NAN = torch.tensor(float("nan"))

SHAPES = [
    (1,),
    (31,),
    (33, 1),
    (5, 40),
    (2, 33, 63),
    (3, 1, 72),
    (2, 2, 31, 80),
    (1, 2, 35, 96),
    (2, 1, 63, 8),
]


def assert_same_bytes(x: torch.Tensor, text: str) -> int:
    """Compare one tensor's bytes with the oracle's; return how many elements were compared."""
    ours, theirs = quantize(x, text), oracle.quantize(x.float().numpy(), text)
    named = {
        "packed": (ours.packed, theirs.packed),
        "scales": (ours.scales, theirs.scales),
        "zeros": (ours.zeros, theirs.zeros),
        "global scale": (ours.global_scale, theirs.global_scale),
        "decoded": (ours.dequantize(), theirs.x_hat),
    }
    for what, (mine, right) in named.items():
        assert (mine is None) == (right is None), (text, what)
        if mine is None:
            continue
        mine = mine.numpy()
        assert mine.shape == right.shape, (text, what, mine.shape, right.shape)
        assert mine.dtype == right.dtype, (text, what)
        assert _bits(mine) == _bits(right), (text, what, x.shape)
    np.testing.assert_array_equal(ours.clipped_mask(x).numpy(), theirs.clipped, err_msg=text)
    np.testing.assert_array_equal(ours.flushed_mask(x).numpy(), theirs.flushed, err_msg=text)
    return x.numel()


def _bits(a: np.ndarray) -> bytes:
    """Bytes of an array; every NaN counts as the same NaN."""
    a = np.ascontiguousarray(a)
    return (
        np.where(np.isnan(a), np.array(np.nan, a.dtype), a).tobytes() if a.dtype.kind == "f" else a.tobytes()
    )


@pytest.mark.parametrize("maker", MAKERS)
def test_every_scheme_gives_the_oracles_bytes(maker: str) -> None:
    x = MAKERS[maker]((2, 35, 63))
    compared = sum(assert_same_bytes(x, text) for text in every_scheme())
    print(f"{maker}: {compared} elements under {len(every_scheme())} schemes, 0 mismatches")
    assert compared == 219 * x.numel()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("maker", ["ties", "one NaN", "positive only", "all exponents"])
def test_every_shape_gives_the_oracles_bytes(maker: str, shape: tuple[int, ...]) -> None:
    texts = [str(s) for s in race_schemes() if len(shape) > 1 or s.axis is Axis.CHANNEL]
    assert len(texts) >= 43
    for text in texts:
        assert_same_bytes(MAKERS[maker](shape), text)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("maker", ["gaussian", "all exponents", "subnormal", "one NaN"])
def test_half_precision_inputs_are_read_exactly(maker: str, dtype: torch.dtype) -> None:
    x = MAKERS[maker]((2, 33, 40)).to(dtype)
    for text in map(str, race_schemes()):
        assert_same_bytes(x, text)


STRIDED = {
    "transposed": lambda x: x.transpose(2, 3),
    "every second head": lambda x: x[:, ::2],
    "every third channel": lambda x: x[..., ::3],
    "expanded over the batch": lambda x: x[:1].expand(3, *x.shape[1:]),
    "expanded over tokens": lambda x: x[:, :, :1].expand(x.shape),
    "sliced behind sinks": lambda x: x[:, :, 4:],
}


@pytest.mark.parametrize("view", STRIDED)
def test_n7_strides_give_the_contiguous_copys_bytes(view: str) -> None:
    x = STRIDED[view](_gaussian((2, 4, 37, 72)))
    for text in map(str, race_schemes()):
        mine, copy = quantize(x, text), quantize(x.contiguous(), text)
        for a, b in zip(_stored(mine), _stored(copy), strict=True):
            assert torch.equal(a, b), text
        assert_same_bytes(x, text)


@pytest.mark.parametrize("shape", [(0,), (2, 0, 64), (1, 2, 0, 64), (1, 2, 5, 0)], ids=str)
def test_nothing_in_nothing_out(shape: tuple[int, ...]) -> None:
    for scheme in race_schemes():
        if len(shape) > 1 or scheme.axis is Axis.CHANNEL:
            blocks = quantize(torch.empty(shape), scheme)
            assert blocks.dequantize().shape == shape
            assert blocks.packed.numel() == 0


def test_an_axis_may_be_named_and_counts_from_either_end() -> None:
    x = _gaussian((2, 3, 33, 40))
    for axis in range(4):
        ours = quantize(x, "mxfp6_e2m3", axis)
        moved = oracle.quantize(x.movedim(axis, -1).numpy(), "mxfp6_e2m3")
        assert ours.axis == axis - 4
        assert torch.equal(ours.packed.movedim(axis, -1), torch.from_numpy(moved.packed.copy()))
        assert torch.equal(ours.packed, quantize(x, "mxfp6_e2m3", axis - 4).packed)


def test_each_sequence_has_scales_of_its_own() -> None:
    x = _gaussian((2, 2, 33, 64)) * torch.tensor([1.0, 1000.0]).view(2, 1, 1, 1)
    for text in map(str, race_schemes()):
        both, second = quantize(x, text), quantize(x[1:], text)
        assert torch.equal(both.dequantize()[1:], second.dequantize()), text


@pytest.mark.parametrize("text", ["int4@tensor", "fp8_e4m3@head", "fp4@channel"])
def test_frozen_scales_are_kept_and_later_values_clip(text: str) -> None:
    first, later = _gaussian((1, 2, 32, 64)), 3 * _gaussian((1, 2, 8, 64), 5)
    frozen = quantize(first, text).scales
    blocks = quantize(later, text, frozen=frozen)
    assert torch.equal(blocks.scales, frozen)
    limit = (frozen * blocks.scheme.element.max_normal).expand_as(later)
    assert torch.equal(blocks.clipped_mask(later), later.abs() > limit * (1 + 1e-6))
    assert blocks.clipped(later) > 0.001
    assert (blocks.dequantize().abs() <= limit).all()


def test_a_frozen_global_scale_is_kept_and_a_later_block_saturates() -> None:
    frozen = quantize(torch.full((1, 1, 1, 16), 2688.0), "nvfp4").global_scale
    blocks = quantize(torch.tensor([[[[-9000.0, 3000.0] + [1.0] * 14]]]), "nvfp4", frozen=frozen)
    assert blocks.global_scale.item() == 1.0
    assert blocks.scales.item() == 0x7E  # 448, E4M3's largest
    assert blocks.dequantize()[0, 0, 0, :3].tolist() == [-2688.0, 2688.0, 0.0]
    assert blocks.clipped_mask(torch.tensor([[[[-9000.0, 3000.0] + [1.0] * 14]]])).sum() == 2


def test_dequantize_is_the_blocks_own() -> None:
    blocks = quantize(torch.tensor([[1.0, -6.0]]), "mxfp4")
    assert dequantize(blocks).tolist() == [[1.0, -6.0]]
    assert dequantize(blocks, torch.bfloat16).dtype == torch.bfloat16


@pytest.mark.parametrize("element", [torch.int32, torch.float64, torch.bool], ids=str)
def test_other_dtypes_are_refused(element: torch.dtype) -> None:
    with pytest.raises(ValueError, match="expected float32, bfloat16 or float16"):
        quantize(torch.zeros(4, dtype=element), "mxfp4")


def test_what_cannot_be_quantized_says_so() -> None:
    with pytest.raises(ValueError, match="stores nothing packed"):
        quantize(torch.zeros(4), "none")
    with pytest.raises(ValueError, match="axis -2 does not exist"):
        quantize(torch.zeros(4), "mxfp4:axis=token")
    with pytest.raises(ValueError, match="single number"):
        quantize(torch.tensor(1.0), "mxfp4")


def _stored(blocks: MXBlocks) -> list[torch.Tensor]:
    kept = (blocks.packed, blocks.scales.view(torch.uint8), blocks.zeros, blocks.global_scale)
    return [t for t in kept if t is not None]
