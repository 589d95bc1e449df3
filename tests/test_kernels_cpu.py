"""The Numba kernels against the reference: the same bytes, for every scheme, axis, dtype, tail and stride."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from mxviz import ops
from mxviz import quantize as reference
from mxviz.backends import cpu
from mxviz.formats import BLOCK_SIZES, FLT_MAX, SCHEMES, Axis, ScaleFormat, ScaleRule, Scheme
from mxviz.quantize import MXBlocks

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
SHAPES = ((2, 3, 1, 40), (1, 2, 31, 72), (2, 1, 33, 80), (1, 3, 63, 96))
FIELDS = ("packed", "scales", "zeros", "global_scale")
GUARD = 64  # bytes before and behind every buffer the backend allocates
COUNT = {"combinations": 0, "bytes": 0, "values": 0}


def _variants() -> Iterator[Scheme]:
    """Every scheme with every axis, block and scale rule; a single-scale scheme also packs either way."""
    for scheme in SCHEMES.values():
        rules = ScaleRule if scheme.scale is ScaleFormat.E8M0 else (ScaleRule.FLOOR,)
        for block in BLOCK_SIZES if scheme.is_blocked else (scheme.block,):
            for rule in () if scheme.is_none else rules:
                for axis in Axis:
                    yield replace(scheme, axis=axis, block=block, rule=rule)


VARIANTS = list(_variants())
DEFAULTS = [s for s in VARIANTS if s.block == SCHEMES[s.name].block and s.rule is ScaleRule.FLOOR]


def _names(schemes: list[Scheme]) -> list[str]:
    return [f"{s}-{s.axis.value}" for s in schemes]


@pytest.fixture(scope="module", autouse=True)
def _report() -> Iterator[None]:
    yield
    print("\ncompared:", ", ".join(f"{n:,} {what}" for what, n in COUNT.items()))


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """The reference is quickest on one thread with tensors this small."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def _poisoned(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Give the backend buffers full of 0xA5 between guard bytes, and check the guards afterwards."""
    empty, buffers = torch.empty, []

    def poisoned(*size, dtype: torch.dtype = torch.float32, **options) -> Tensor:
        like = empty(*size, dtype=dtype, device="meta")
        buffer = torch.full((like.nbytes + 2 * GUARD,), 0xA5, dtype=torch.uint8)
        buffers.append(buffer)
        return buffer[GUARD : GUARD + like.nbytes].view(dtype).view(like.shape)

    monkeypatch.setattr(torch, "empty", poisoned)
    yield
    for buffer in buffers:
        assert (buffer[:GUARD] == 0xA5).all() and (buffer[-GUARD:] == 0xA5).all()


def _same(a: Tensor | None, b: Tensor | None) -> bool:
    """Equal in shape, dtype and every bit, all NaNs being one."""
    if a is None or b is None:
        return a is b
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[a.element_size()]
    equal = a.contiguous().view(bits) == b.contiguous().view(bits) if a.shape == b.shape else torch.zeros(1)
    return a.dtype == b.dtype and a.shape == b.shape and bool((equal | (a.isnan() & b.isnan())).all())


def _check(
    x: Tensor, scheme: Scheme, frozen: Tensor | None = None, dtype: torch.dtype = torch.float32
) -> None:
    """Quantize and dequantize on both and compare everything."""
    axis = scheme.axis.dim
    expected = reference.quantize(x, scheme, axis, frozen=frozen)
    got = cpu.quantize(x, scheme, axis, frozen)
    where = f"{scheme} axis {axis} {tuple(x.shape)} {x.dtype}"
    for field in FIELDS:
        assert _same(getattr(got, field), getattr(expected, field)), f"{field} of {where}"
    assert (got.shape, got.axis, got.scheme) == (expected.shape, expected.axis, expected.scheme)
    assert _same(cpu.dequantize(got, dtype), expected.dequantize(dtype)), f"values of {where}"
    COUNT["combinations"] += 1
    COUNT["bytes"] += got.nbytes
    COUNT["values"] += x.numel()


def _wild(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:
    """Numbers over many magnitudes, zeros of both signs, a zero stretch and a few that are not finite."""
    x = torch.randn(shape) * torch.randn(shape).mul(4).exp()
    x.view(-1)[::7] = 0.0
    x.view(-1)[3::11] = -0.0
    x[..., -1, : shape[-1] // 2] = 0.0
    if x.numel() > 1000:
        x.view(-1)[500], x.view(-1)[900] = float("nan"), float("-inf")
    return x.to(dtype)


@pytest.mark.parametrize("scheme", VARIANTS, ids=_names(VARIANTS))
def test_bytes_equal_the_reference(scheme: Scheme) -> None:
    for shape in SHAPES:
        for dtype in DTYPES:
            _check(_wild(shape, dtype), scheme)


@pytest.mark.parametrize("scheme", DEFAULTS, ids=_names(DEFAULTS))
def test_strides_dimensions_and_sizes(scheme: Scheme) -> None:
    x = _wild((2, 3, 33, 66))
    views = (
        x.transpose(2, 3),
        x[:, ::2],
        x[..., ::2],
        x[:, :, ::3],
        x.transpose(0, 1),
        x[:, :1].expand(2, 4, 33, 66),
    )
    for view in (*views, x[0], x[0, 0], x[None], x[:, :, :0], x[:0]):
        _check(view, scheme)
        _check(view.bfloat16(), scheme)
    _check(_wild((1, 1, 5, 2100)), scheme, dtype=torch.bfloat16)
    _check(_wild((1, 1, 70, 300)), scheme, dtype=torch.float16)
    if scheme.axis is Axis.CHANNEL:
        _check(_wild((1, 2100))[0], scheme)


def _adversarial(scheme: Scheme) -> Tensor:
    """Every tie of the element, one ulp to each side, under rulers from tiny to huge; then the ends."""
    ticks = np.array(scheme.element.ticks, np.float32)
    ties = (ticks[:-1] + ticks[1:]) / np.float32(2)
    near = [ties, np.nextafter(ties, np.float32(np.inf)), np.nextafter(ties, np.float32(-np.inf)), ticks]
    base = np.concatenate(near)
    top = np.float32(scheme.element.max_normal)
    with np.errstate(over="ignore", under="ignore"):
        rows = [
            np.resize(base * np.float32(2.0**e), 64 * 16).reshape(-1, 64)
            for e in (-149, -140, -128, -127, -126, -100, -10, -1, 0, 1, 10, 100, 115, 120)
        ]
    for e in (-3, 0, 5):  # the block's maximum is the end of the ruler, so that ties stay ties
        row = np.resize(base, 64 * 16).reshape(-1, 64) * np.float32(2.0**e)
        row[:, ::16] = top * np.float32(2.0**e)
        rows.append(row)
    ends = [0.0, -0.0, 1e-45, -1e-45, 5.877e-39, 1e-38, 1.1754944e-38, 1e38, 3.4e38, FLT_MAX, -FLT_MAX]
    for value in ends:
        rows.append(np.full((1, 64), value, np.float32))
        rows.append(np.eye(2, 64, dtype=np.float32) * np.float32(value))
    for value in (np.nan, np.inf, -np.inf):
        row = np.linspace(-3, 3, 256, dtype=np.float32).reshape(4, 64)
        row[1, 40] = value
        rows.append(row)
    x = torch.from_numpy(np.concatenate(rows))
    return torch.where(x.isfinite() | (torch.arange(len(x))[:, None] > len(x) - 13), x, 0.0)


@pytest.mark.parametrize("scheme", VARIANTS, ids=_names(VARIANTS))
def test_adversarial_values(scheme: Scheme) -> None:
    x = _adversarial(scheme)
    x = x if scheme.axis is Axis.CHANNEL else x.T.contiguous()
    _check(x.unflatten(-2 if scheme.axis is Axis.CHANNEL else -1, (1, -1)), scheme)
    per_sequence = (
        x if scheme.axis is Axis.CHANNEL else x.T
    )  # each row its own tensor: no scale covers it all
    _check(per_sequence[:, None, None].transpose(-1, scheme.axis.dim).contiguous(), scheme)


@pytest.mark.parametrize("scheme", DEFAULTS, ids=_names(DEFAULTS))
def test_random_bits(scheme: Scheme) -> None:
    """Any float32 there is, neighbours a few binades apart."""
    exponent = torch.randint(0, 255, (64, 1, 1, 1)) + torch.randint(-9, 1, (64, 2, 48, 64))
    bits = (exponent.clamp(0, 254) << 23) | torch.randint(0, 1 << 23, exponent.shape)
    sign = torch.where(torch.rand(exponent.shape) < 0.5, -1.0, 1.0)
    _check(bits.to(torch.int32).view(torch.float32) * sign, scheme)


@pytest.mark.parametrize("name", ["nvfp4", *(n for n in SCHEMES if "@" in n and "@one" not in n)])
def test_frozen_scales_are_kept(name: str) -> None:
    for axis in Axis:
        scheme = replace(SCHEMES[name], axis=axis)
        first = reference.quantize(torch.randn(2, 3, 7, 40), scheme)
        frozen = first.scales if first.global_scale is None else first.global_scale
        frozen = frozen[:, :, :1]  # of @token one that fits any length
        x = _wild((2, 3, 9, 40))
        _check(x, scheme, frozen)
        _check(x[..., :1, :], scheme, torch.zeros_like(frozen) if first.global_scale is None else frozen)


@pytest.mark.parametrize("scheme", DEFAULTS, ids=_names(DEFAULTS))
def test_every_byte_decodes(scheme: Scheme) -> None:
    """Codes and scales that are never produced have a value too."""
    blocks = reference.quantize(torch.randn(2, 2, 64, 48), scheme)
    packed = torch.randint(0, 256, blocks.packed.shape).to(torch.uint8)
    scales = blocks.scales
    if scales.dtype is torch.uint8:
        scales = torch.randint(0, 256, scales.shape).to(torch.uint8)
    elif scheme.scale is ScaleFormat.FLOAT16_ZERO:
        scales = torch.randint(-(2**15), 2**15, scales.shape).to(torch.int16).view(torch.float16)
    for changed in (replace(blocks, packed=packed), replace(blocks, packed=packed, scales=scales)):
        for dtype in DTYPES:
            assert _same(cpu.dequantize(changed, dtype), changed.dequantize(dtype))


@pytest.mark.parametrize("scheme", DEFAULTS, ids=_names(DEFAULTS))
def test_views_of_bigger_buffers_decode(scheme: Scheme) -> None:
    """What a cache hands over: the used rows of buffers that have room for more."""
    for shape in ((2, 3, 33, 72), (1, 3, 64, 64)):
        blocks = reference.quantize(_wild(shape), scheme)

        def roomy(part: Tensor | None) -> Tensor | None:
            if part is None or part.shape[-2] == 1:
                return part
            buffer = torch.full((*part.shape[:2], part.shape[2] + 5, part.shape[3]), 99, dtype=part.dtype)
            buffer[:, :, : part.shape[2]] = part
            return buffer[:, :, : part.shape[2]]

        view = replace(
            blocks, packed=roomy(blocks.packed), scales=roomy(blocks.scales), zeros=roomy(blocks.zeros)
        )
        assert _same(cpu.dequantize(view, torch.float32), blocks.dequantize())


def test_eight_threads_at_once_change_no_byte() -> None:
    x = torch.randn(2, 3, 1500, 64)
    schemes = [Scheme.parse(s) for s in ("mxfp4", "nvfp4:axis=token", "aint4", "int4@channel")]
    expected = [reference.quantize(x, s) for s in schemes]

    def work(i: int) -> MXBlocks:
        blocks = cpu.quantize(x, schemes[i % 4], schemes[i % 4].axis.dim, None)
        return replace(blocks, packed=blocks.packed + 0), cpu.dequantize(blocks, torch.float32)

    torch.set_num_threads(2)
    assert cpu.threads() == 2
    with ThreadPoolExecutor(8) as pool:
        for i, (blocks, values) in enumerate(pool.map(work, range(64))):
            assert all(_same(getattr(blocks, f), getattr(expected[i % 4], f)) for f in FIELDS)
            assert _same(values, expected[i % 4].dequantize())


@pytest.mark.parametrize("count", [1, 2, 5])
def test_thread_count_changes_no_byte(count: int) -> None:
    torch.set_num_threads(count)
    for name in ("mxfp6_e3m2:axis=token", "mxfp8_e5m2", "nvfp4", "fp4@tensor", "fp6_e2m3@channel"):
        _check(_wild((1, 5, 1001, 72)), Scheme.parse(name))


def test_auto_takes_these_kernels() -> None:
    assert cpu.missing() is None and cpu.supports("cpu") and not cpu.supports("cuda")
    assert ops.pick("cpu") == "cpu"
    cpu.warm_up()
    assert ops.is_compiled()
    x = _wild((1, 2, 33, 64))
    x.requires_grad_()
    assert _same(ops.quantize(x, "mxfp4", backend="cpu").packed, reference.quantize(x, "mxfp4").packed)


@pytest.mark.parametrize("name", ["mxfp4", "mxfp4:axis=token", "nvfp4:axis=token", "int4@channel"])
def test_what_is_decoded_lies_in_memory_as_the_references(name: str) -> None:
    x = _wild((1, 33, 3, 64)).transpose(1, 2)
    for backend in ("reference", "cpu"):
        assert ops.dequantize(ops.quantize(x, name, backend=backend), backend=backend).is_contiguous()


def test_postponed_kernels_come_back_with_the_warm_up() -> None:
    ops.postpone()
    assert ops.pick() == "reference"
    ops.warm_up()
    assert ops.pick() == "cpu"


def test_an_axis_before_the_tokens_is_the_references() -> None:
    x = torch.randn(2, 5, 3, 8)
    expected = reference.quantize(x, "mxfp4", -3)
    got = cpu.quantize(x, SCHEMES["mxfp4"], -3, None)
    assert _same(got.packed, expected.packed)
    assert _same(cpu.dequantize(got, torch.float32), expected.dequantize())


def test_torchs_defaults_are_not_followed() -> None:
    """They are somebody else's, and a buffer of another size would be written beyond its end."""
    x = _wild((1, 2, 33, 64))
    for name in ("mxfp4", "nvfp4", "aint4", "int4@tensor", "int8@channel", "fp8_e4m3@one"):
        expected = reference.quantize(x, name)
        torch.set_default_dtype(torch.bfloat16)
        try:
            with torch.device("meta"):
                got = cpu.quantize(x, SCHEMES[name], -1, None)
                values = cpu.dequantize(got, torch.float32)
        finally:
            torch.set_default_dtype(torch.float32)
        assert all(_same(getattr(got, f), getattr(expected, f)) for f in FIELDS)
        assert _same(values, expected.dequantize())
