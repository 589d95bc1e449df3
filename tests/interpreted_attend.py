"""Decode attention in Triton against float64 over the dequantized parts. Run as interpreted_kernels.py is."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mxviz import quantize as reference
from mxviz._hadamard import hadamard, rotate, unrotate
from mxviz.backends import Part, gpu
from mxviz.formats import Axis, Scheme

DEVICE = "cpu" if gpu.interpreted() else "cuda"
TOLERANCE = {torch.float32: 3e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
DRAWN = (
    # keys, values, tokens, head_dim of keys and of values, dtype
    ("mxfp4", "mxfp4", 100, 64, 64, torch.float32),
    ("mxfp4:axis=token", "mxfp4", 300, 64, 64, torch.bfloat16),
    ("mxfp4:axis=token,block=16", "nvfp4", 33, 40, 72, torch.float16),
    ("aint2:axis=token", "aint2", 200, 64, 64, torch.float32),
    ("aint4:block=64", "aint4:axis=token,block=64", 150, 96, 40, torch.float32),
    ("mxfp6_e2m3:axis=token", "mxfp6_e3m2:axis=token", 130, 64, 80, torch.float32),
    ("mxfp6_e3m2", "mxint8:axis=token", 70, 72, 40, torch.float32),
    ("mxfp8_e5m2", "mxint4", 31, 192, 80, torch.bfloat16),
    ("nvfp4:axis=token", "mxfp8_e4m3", 63, 128, 64, torch.float16),
    ("int8@tensor", "fp8_e4m3@channel", 70, 64, 64, torch.float32),
    ("int4@head", "int8@token", 70, 72, 40, torch.float32),
    ("fp6_e2m3@channel", "fp4@token", 65, 40, 96, torch.float32),
    ("none", "mxfp4", 70, 64, 64, torch.float32),
    ("mxfp4:axis=token", "none", 70, 64, 64, torch.float16),
    ("none", "none", 1, 64, 64, torch.float32),
)

pytestmark = pytest.mark.filterwarnings("ignore:invalid value encountered", "ignore:overflow encountered")


def stored(
    x: Tensor, scheme: str, sink: int = 0, residual: int = 0, turned: bool = False
) -> tuple[Part, Tensor]:
    """Cut x into sinks, packed and tail as a cache does; return the part and what it stands for, float32."""
    tokens = x.shape[2]
    scheme = Scheme.parse(scheme)
    unit = scheme.block if scheme.is_blocked and scheme.axis is Axis.TOKEN else 1
    sink = min(sink, tokens)
    packed = 0 if scheme.is_none else max(0, tokens - sink - residual) // unit * unit
    exact = [x[:, :, :sink], x[:, :, sink + packed :]]
    middle, blocks = x[:, :, sink : sink + packed].float(), None
    if packed:
        blocks = reference.quantize(rotate(middle) if turned else middle, scheme)
        middle = unrotate(blocks.dequantize()) if turned else blocks.dequantize()
        blocks = reference.MXBlocks(
            *(in_buffer(t) if isinstance(t, Tensor) else t for t in vars(blocks).values())
        )
    ends = [in_buffer(t) if t.shape[2] else None for t in exact]
    rotation = hadamard(x.shape[-1]).to(DEVICE) if turned else None
    return Part(ends[0], blocks, ends[1], rotation), torch.cat(
        [exact[0].float(), middle, exact[1].float()], 2
    )


def in_buffer(t: Tensor) -> Tensor:
    """The same rows as a view of a longer buffer, with NaN (or 0xFF) where nothing is stored."""
    if t.shape[2] == 1:
        return t.to(DEVICE)
    shape = (*t.shape[:2], t.shape[2] + 37, t.shape[3])
    buffer = torch.full(shape, torch.nan if t.is_floating_point() else 0xFF, dtype=t.dtype, device=DEVICE)
    buffer[:, :, : t.shape[2]] = t.to(DEVICE)
    return buffer[:, :, : t.shape[2]]


def oracle(query, keys, values, scaling, mask=None, softcap=None, sinks=None) -> Tensor:
    """Attention in float64."""
    groups = query.shape[1] // keys.shape[1]
    keys, values = (t.double().repeat_interleave(groups, 1) for t in (keys, values))
    scores = query.double() @ keys.mT * scaling
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if mask is not None:
        scores = scores + (torch.where(mask, 0.0, -torch.inf) if mask.dtype is torch.bool else mask.double())
    if sinks is not None:
        column = sinks.double()[None, :, None, None].expand(*scores.shape[:3], 1)
        return torch.cat([scores, column], -1).softmax(-1)[..., :-1] @ values
    return scores.softmax(-1) @ values


def check(query: Tensor, keys: tuple[Part, Tensor], values: tuple[Part, Tensor], **options) -> None:
    there = {k: v.to(DEVICE) if isinstance(v, Tensor) else v for k, v in options.items()}
    got = gpu.attend(query.to(DEVICE), keys[0], values[0], scaling=0.2, **there).cpu()
    want = oracle(query, keys[1], values[1], 0.2, **options)
    assert got.dtype is query.dtype
    tolerance = TOLERANCE[query.dtype]
    torch.testing.assert_close(
        got.double(), want, rtol=tolerance, atol=tolerance * values[1].abs().max().item()
    )


def drawn(batch: int, heads: int, tokens: int, dim: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(batch, heads, tokens, dim).to(dtype)


@pytest.mark.parametrize(("sink", "residual"), [(0, 0), (4, 20)])
@pytest.mark.parametrize(("keys", "values", "tokens", "k_dim", "v_dim", "dtype"), DRAWN)
def test_attend_schemes(keys, values, tokens, k_dim, v_dim, dtype, sink, residual) -> None:
    """Every kind of element and scale, both axes, keys unlike values, with and without exact ends."""
    k = stored(drawn(2, 2, tokens, k_dim, dtype), keys, sink, residual)
    v = stored(drawn(2, 2, tokens, v_dim, dtype), values, sink, residual)
    check(drawn(2, 4, 1, k_dim, dtype), k, v)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attend_options(dtype: torch.dtype) -> None:
    """Mask (bool, number, per head), softcap, learned sinks, several queries; G7's padded rows."""
    k = stored(drawn(2, 2, 90, 64, dtype), "mxfp4:axis=token", 4, 10)
    v = stored(drawn(2, 2, 90, 64, dtype), "mxfp4", 4, 10)
    seen = torch.rand(2, 1, 5, 90) > 0.4
    seen[..., 7] = True
    query = drawn(2, 6, 5, 64, dtype)
    check(query, k, v, mask=seen)
    check(query, k, v, mask=torch.randn(2, 6, 5, 90), softcap=3.0)
    check(query, k, v, sinks=torch.randn(6), mask=seen.expand(2, 6, 5, 90), softcap=1.5)
    check(query[:, :, :1], k, v, mask=seen[:, :, :1])


def test_attend_many_queries() -> None:
    """More query rows than a tile has (20 queries of 4 heads a KV head), causal."""
    k = stored(drawn(1, 2, 83, 40), "nvfp4", 3)
    v = stored(drawn(1, 2, 83, 40), "mxfp8_e4m3", 3)
    causal = torch.ones(20, 83, dtype=torch.bool).tril(63)[None, None]
    check(drawn(1, 8, 20, 40), k, v, mask=causal)


def test_attend_rotated() -> None:
    """rotate=1: packed tokens are turned, sinks and tail are not; either part alone as well."""
    x, y = drawn(1, 2, 100, 80), drawn(1, 2, 100, 64)
    query = drawn(1, 4, 2, 80)
    for k_turned, v_turned in ((True, True), (True, False), (False, True)):
        k = stored(x, "mxfp4:axis=token", 4, 0, k_turned)
        check(query, k, stored(y, "mxfp4", 4, 0, v_turned))
    turned = stored(y, "mxfp4", 4, 8, True)
    check(drawn(1, 4, 2, 64).bfloat16(), turned, turned)


def test_attend_long() -> None:
    """Many splits, and parts that are cut at different places."""
    k = stored(drawn(1, 1, 1500, 64), "mxfp4:axis=token", 4, 128)
    v = stored(drawn(1, 1, 1500, 64), "aint4", 0, 0)
    check(drawn(1, 2, 1, 64), k, v)


def test_attend_masked_everywhere() -> None:
    """A row that may see nothing gives zeros, not NaN; a NaN in a block comes through."""
    x = drawn(2, 1, 70, 64)
    k = stored(x, "mxfp4")[0]
    mask = torch.ones(2, 1, 1, 70, dtype=torch.bool)
    mask[1] = False
    got = gpu.attend(drawn(2, 2, 1, 64).to(DEVICE), k, k, scaling=1.0, mask=mask.to(DEVICE))
    assert got[0].isfinite().all() and (got[0] != 0).any() and (got[1] == 0).all()
    x[0, 0, 40, 3] = torch.nan
    got = gpu.attend(drawn(2, 2, 1, 64).to(DEVICE), k, stored(x, "mxfp4")[0], scaling=1.0)
    assert got[0, :, :, :32].isnan().all() and got[0, :, :, 32:].isfinite().all() and got[1].isfinite().all()


def test_attend_refuses() -> None:
    """G8: lengths and heads that do not fit are named."""
    k, v = stored(drawn(1, 2, 40, 64), "mxfp4")[0], stored(drawn(1, 2, 39, 64), "mxfp4")[0]
    query = drawn(1, 4, 1, 64).to(DEVICE)
    with pytest.raises(ValueError, match="40 keys and 39 values"):
        gpu.attend(query, k, v, scaling=1.0)
    with pytest.raises(ValueError, match="mask over 39 tokens"):
        gpu.attend(query, k, k, scaling=1.0, mask=torch.zeros(1, 1, 1, 39, device=DEVICE))
    with pytest.raises(ValueError, match="3 query heads"):
        gpu.attend(query[:, :3], k, k, scaling=1.0)
    with pytest.raises(ValueError, match="4 sinks of the keys, 0 of the values"):
        along = [stored(drawn(1, 2, 100, 64), "mxfp4:axis=token", sink)[0] for sink in (4, 0)]
        gpu.attend(query, *along, scaling=1.0)


def test_attend_whatever_the_defaults() -> None:
    """G13's kind: torch's default dtype and device change nothing."""
    k = stored(drawn(1, 2, 40, 64), "mxfp4", 2)
    query, mask = drawn(1, 4, 1, 64), torch.ones(1, 1, 1, 40, dtype=torch.bool)
    before = gpu.attend(query.to(DEVICE), k[0], k[0], scaling=1.0, mask=mask.to(DEVICE))
    torch.set_default_dtype(torch.float64)
    torch.set_default_device("meta")
    try:
        after = gpu.attend(query.to(DEVICE), k[0], k[0], scaling=1.0, mask=mask.to(DEVICE))
        blocks = gpu.quantize(query.to(DEVICE), Scheme.parse("nvfp4"), -1, None)
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_default_device(None)
    assert torch.equal(before, after)
    assert blocks.dequantize().device.type == DEVICE
