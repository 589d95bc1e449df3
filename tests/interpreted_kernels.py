"""The Triton kernels against the reference, to the byte. Not collected by itself, because it needs either

- Triton's interpreter, on before Triton is imported: `TRITON_INTERPRET=1 pytest tests/interpreted_kernels.py`
  (test_kernels_gpu.py runs that, in a process of its own), or
- a GPU: `pytest tests/interpreted_kernels.py`, and the same tests run on the device.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mxviz import ops
from mxviz import quantize as reference
from mxviz.backends import gpu
from mxviz.formats import ELEMENTS, SCHEMES, Kind, Scheme

DEVICE = "cpu" if gpu.interpreted() else "cuda"
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
RULED = [f"mx{e}:scale={rule}" for e in ("fp8_e4m3", "fp4", "int8") for rule in ("even", "rceil", "ceil")]
SIZED = [f"{name}:block={n}" for name in ("mxfp6_e2m3", "nvfp4", "aint2") for n in (16, 32, 64)]
EVERY = [*(name for name in SCHEMES if name != "none"), *RULED, *SIZED]

pytestmark = pytest.mark.filterwarnings("ignore:invalid value encountered", "ignore:overflow encountered")


def bits(t: Tensor | None) -> Tensor | None:
    """A tensor's bytes as integers, so that NaN equals NaN and -0 is not 0."""
    if t is None:
        return None
    return t.cpu().contiguous().view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[t.element_size()])


def assert_same_bytes(got: reference.MXBlocks, want: reference.MXBlocks) -> None:
    assert (got.scheme, got.shape, got.axis) == (want.scheme, want.shape, want.axis)
    for part in ("packed", "scales", "zeros", "global_scale"):
        a, b = getattr(got, part), getattr(want, part)
        assert (a is None) == (b is None), part
        if a is not None:
            assert (a.dtype, a.shape) == (b.dtype, b.shape), part
            assert torch.equal(bits(a), bits(b)), part


def assert_same_values(got: Tensor, want: Tensor) -> None:
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    torch.testing.assert_close(got.cpu(), want.cpu(), rtol=0, atol=0, equal_nan=True)
    assert torch.equal(
        torch.signbit(got.cpu()).masked_fill(want.cpu().isnan(), False),
        torch.signbit(want.cpu()).masked_fill(want.cpu().isnan(), False),
    )


def check(x: Tensor, scheme: str, axis: int | None = None, frozen: Tensor | None = None) -> None:
    """Quantize and dequantize on both sides, and compare everything."""
    want = reference.quantize(x, scheme, axis, frozen=frozen)
    there = None if frozen is None else frozen.to(DEVICE)
    got = ops.quantize(x.to(DEVICE) if DEVICE != "cpu" else x, scheme, axis, frozen=there, backend="gpu")
    assert_same_bytes(got, want)
    assert_same_values(ops.dequantize(got, x.dtype, backend="gpu"), want.dequantize(x.dtype))


def wild(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Numbers over many binades, with a zero block, a NaN and an infinity in places of their own."""
    x = torch.randn(shape) * torch.exp2(torch.randn(shape) * 4)
    x[..., 0, : shape[-1] // 2] = 0
    x[..., -1, -1, 3], x[..., -1, shape[-2] // 2, -1] = torch.nan, -torch.inf
    return x.to(dtype)


@pytest.mark.parametrize("scheme", EVERY)
@pytest.mark.parametrize(("axis", "dtype"), [(-1, torch.bfloat16), (-2, torch.float32), (-1, torch.float16)])
def test_quantize_every_scheme(scheme: str, axis: int, dtype: torch.dtype) -> None:
    check(wild(2, 1, 33, 40, dtype=dtype), scheme, axis)


@pytest.mark.parametrize("scheme", ["mxfp4", "mxfp6_e3m2", "nvfp4", "aint2", "fp4@channel"])
@pytest.mark.parametrize("head_dim", [72, 80, 96, 192])
@pytest.mark.parametrize("tokens", [1, 31, 63])
def test_quantize_tails(scheme: str, tokens: int, head_dim: int) -> None:
    for axis in (-1, -2):
        check(torch.randn(1, 1, tokens, head_dim), scheme, axis)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scheme", ["mxfp4", "aint4", "fp6_e2m3@head"])
def test_quantize_strides(scheme: str, dtype: torch.dtype) -> None:
    """N7: a view's bytes are its contiguous copy's."""
    x = torch.randn(2, 3, 34, 64).to(dtype)
    for view in (
        x.transpose(2, 3),
        x[:, ::2],
        x[..., 5:38, ::3],
        x[:, :1].expand(2, 4, 34, 64),
        x.mT.flip(1),
    ):
        check(view, scheme)
        check(view.contiguous(), scheme)


def test_quantize_other_ranks() -> None:
    """Fewer and more than four dimensions, blocks along any of them."""
    for shape, axes in (
        ((70,), (-1,)),
        ((5, 70), (-1, -2)),
        ((2, 3, 2, 5, 34), (-1, -2, -3)),
        ((0, 2, 3, 32), (-1,)),
    ):
        for axis in axes:
            check(torch.randn(shape), "mxfp4", axis)
            check(torch.randn(shape), "int8@token", axis)
    check(torch.randn(2, 40, 2, 3, 5), "mxfp8_e4m3", -4)
    check(torch.randn(40, 2, 3, 5), "mxfp6_e2m3", -4)
    check(torch.randn(2, 3, 4, 40)[:, :0], "nvfp4")


@pytest.mark.parametrize(
    "scheme",
    ["nvfp4", *(f"{e}@{r}" for e in ("int8", "fp8_e5m2", "fp4") for r in ("tensor", "head", "channel"))],
)
def test_quantize_frozen_scale(scheme: str) -> None:
    """A scale set by the first tokens is kept by later, larger ones."""
    first = reference.quantize(torch.randn(2, 3, 10, 40), scheme)
    frozen = first.scales if first.global_scale is None else first.global_scale
    later = torch.randn(2, 3, 7, 40) * 5
    later[0, 1, 2, 3] = torch.nan
    check(later, scheme, frozen=frozen)
    check(later, scheme, frozen=frozen * 0)


@pytest.mark.parametrize("scheme", [s for s in EVERY if "@" not in s])
def test_quantize_any_bits(scheme: str) -> None:
    """Every exponent a float32 can have, subnormals included, and float16's subnormals."""
    random = torch.randint(-(2**31), 2**31, (32, 64), dtype=torch.int64).to(torch.int32)
    binade = (random & 0x807FFFFF) | (torch.arange(32, dtype=torch.int32)[:, None] * 8 << 23)
    low = (random & 0x80FFFFFF).clamp(max=0xFFFFFF)
    for pattern in (random, binade, low):
        check(pattern.view(torch.float32), scheme)
    check((random & 0x83FF).to(torch.int16).view(torch.float16), scheme)


@pytest.mark.parametrize("element", [e for e in ELEMENTS.values() if e.kind is not Kind.UNSIGNED], ids=str)
def test_round_every_midpoint(element) -> None:
    """Each midpoint of the ruler and one ulp to either side, under a scale of one, with both signs."""
    ticks = torch.tensor([t for t in element.ticks if t >= 0])
    middle = (ticks[1:] + ticks[:-1]) / 2
    up, down = (torch.nextafter(middle, torch.tensor(end)) for end in (torch.inf, -torch.inf))
    beyond = element.max_normal * torch.tensor([1.0, 1.03, 1.5, 1e9])
    probes = torch.cat([ticks, middle, up, down, beyond])
    probes = torch.cat([probes, -probes])
    padded = torch.nn.functional.pad(probes, (0, -len(probes) % 31)).view(-1, 31)
    pinned = torch.nn.functional.pad(
        padded.clamp(-element.max_normal, element.max_normal), (1, 0), value=element.max_normal
    )
    check(pinned, f"mx{element.name}")
    check(padded, f"{element.name}@tensor", frozen=torch.ones(1, 1))
    if element.kind is Kind.FLOAT:
        check(padded, f"{element.name}@one")


def test_scale_bytes() -> None:
    """DESIGN's table, from bfloat16 too; -0 keeps its sign; N12's packing; N10's ends."""
    for amax, bytes_ in (
        (5.5, (127, 127, 127, 128)),
        (6.5, (127, 127, 128, 128)),
        (7.0, (127, 128, 128, 128)),
    ):
        for rule, byte in zip(("floor", "even", "rceil", "ceil"), bytes_, strict=True):
            for dtype in DTYPES:
                got = ops.quantize(
                    torch.tensor([amax, 0.1], dtype=dtype, device=DEVICE),
                    f"mxfp4:scale={rule}",
                    backend="gpu",
                )
                assert got.scales.tolist() == [byte]
    assert ops.quantize(torch.tensor([1.0, -6.0], device=DEVICE), "mxfp4", backend="gpu").packed.tolist() == [
        0xF2
    ]
    for lone, byte, value in ((1e-38, 0, 8.816207631167156e-39), (3.4e38, 252, 2.5521177519070385e38)):
        got = ops.quantize(torch.tensor([lone], device=DEVICE), "mxfp4", backend="gpu")
        assert (got.scales.item(), got.dequantize().item()) == (byte, pytest.approx(value, rel=1e-6))
        assert ops.dequantize(got, backend="gpu").item() == got.dequantize().item()


def test_decode_every_code() -> None:
    """Codes that are never produced (-128, infinities) decode as the format says, on every scale."""
    for name in ("mxfp8_e4m3", "mxfp8_e5m2", "mxint8", "mxfp6_e3m2", "mxint4", "nvfp4", "aint4"):
        scheme = SCHEMES[name]
        codes = torch.arange(1 << scheme.element.bits, dtype=torch.uint8)
        packed = reference.pack(codes, scheme.element.bits).expand(256, -1).contiguous()
        blocks = -(-len(codes) // scheme.block)
        scales = torch.arange(256, dtype=torch.uint8)[:, None].expand(256, blocks)
        zeros = g = None
        if name == "aint4":
            scales = scales.to(torch.float16) / 7
            zeros = scales - 3
        if name == "nvfp4":
            g = torch.full((1, 1), 0.37)
        want = reference.MXBlocks(packed, scales, scheme, torch.Size((256, len(codes))), -1, g, zeros)
        got = reference.MXBlocks(*(t.to(DEVICE) if isinstance(t, Tensor) else t for t in vars(want).values()))
        for dtype in DTYPES:
            assert_same_values(ops.dequantize(got, dtype, backend="gpu"), want.dequantize(dtype))


def test_interpreter_reads_bfloat16() -> None:
    """K1's canaries: 4.5 is rounded from 2.5 + 2.0 as bfloat16, and -5 lies below -2."""
    x = torch.tensor([2.5, 2.0], dtype=torch.bfloat16).sum(0, keepdim=True)
    got = ops.dequantize(
        ops.quantize(x.to(DEVICE), "mxfp8_e4m3", backend="gpu"), torch.bfloat16, backend="gpu"
    )
    assert got.tolist() == [4.5]
    got = ops.quantize(
        torch.tensor([-5.0, -2.0], dtype=torch.bfloat16, device=DEVICE), "aint4", backend="gpu"
    )
    assert got.zeros.tolist() == [-5.0]


@pytest.mark.parametrize("axis", [-1, -2])
@pytest.mark.parametrize("scheme", ["mxfp4", "mxfp6_e2m3", "aint2", "int8@token"])
@pytest.mark.parametrize(("tokens", "head_dim"), [(1, 72), (33, 80), (1, 96), (33, 192)])
def test_guard_bytes(scheme: str, axis: int, tokens: int, head_dim: int) -> None:
    """K5: nothing is written beside the rows, neither by quantize nor by dequantize."""
    scheme = Scheme.parse(scheme)
    x = torch.randn(1, 2, tokens, head_dim, device=DEVICE)
    blocks, plan = gpu.plan_quantize(x, scheme, axis, None)
    written = [1, 2, 3] if scheme.is_blocked else [1]
    roomy = {i: _with_guards(plan.arguments[i]) for i in written}
    plan._replace(
        arguments=tuple(roomy[i][0] if i in roomy else a for i, a in enumerate(plan.arguments))
    ).run(x)
    assert torch.equal(roomy[1][0].movedim(-1, axis).cpu(), reference.quantize(x, scheme, axis).packed.cpu())
    out, plan = gpu.plan_dequantize(reference.quantize(x, scheme, axis), torch.float32)
    view, buffer = _with_guards(plan.arguments[0])
    plan._replace(arguments=(view, *plan.arguments[1:])).run(x)
    assert_same_values(view.movedim(-1, axis), reference.quantize(x, scheme, axis).dequantize())
    for guarded in (*(r[1] for r in roomy.values()), buffer):
        assert (guarded[:512] == 0xAB).all() and (guarded[-512:] == 0xAB).all()


def _with_guards(t: Tensor) -> tuple[Tensor, Tensor]:
    """A view like t (same strides) in the middle of a buffer of 0xAB bytes, and the buffer."""
    size = t.numel() * t.element_size()
    buffer = torch.full((size + 1024,), 0xAB, dtype=torch.uint8, device=t.device)
    return buffer[512:-512].view(t.dtype).as_strided(t.shape, t.stride()), buffer
