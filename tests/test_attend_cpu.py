"""Attention over packed keys and values on the CPU against float64 over what the bytes stand for."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from mxviz import quantize as reference
from mxviz.backends import Part, cpu
from mxviz.formats import SCHEMES, Axis, Scheme

TOLERANCE = 1e-5  # of the largest number of the output
NAMES = [n for n in SCHEMES if n != "none"]
BLOCKED = [n for n in NAMES if SCHEMES[n].is_blocked]
COUNT = {"attentions": 0, "numbers": 0}


@pytest.fixture(scope="module", autouse=True)
def _report() -> Iterator[None]:
    yield
    print("\ncompared:", ", ".join(f"{n:,} {what}" for what, n in COUNT.items()))


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def _poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the backend allocates and does not write is NaN."""
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *size, **options: empty(*size, **options).fill_(float("nan")))


def _roomy(x: Tensor | None) -> Tensor | None:
    """The same numbers as the used rows of a bigger buffer, the rest NaN or 0xFF."""
    if x is None or x.shape[-2] == 1:
        return x
    filler = 0xFF if x.dtype is torch.uint8 else float("nan")
    buffer = torch.full((*x.shape[:2], x.shape[2] + 3, x.shape[3]), filler, dtype=x.dtype)
    buffer[:, :, : x.shape[2]] = x
    return buffer[:, :, : x.shape[2]]


def _part(
    x: Tensor, scheme: Scheme | None, sink: int = 0, tail: int = 0, rotation: Tensor | None = None
) -> Part:
    """x as a cache holds it: `sink` exact tokens, packed ones, `tail` exact ones."""
    end = x.shape[2] - tail
    body = x[:, :, sink:end].float()
    blocks = None
    if scheme is not None and body.shape[2]:
        blocks = reference.quantize(body if rotation is None else body @ rotation, scheme)
        blocks = replace(
            blocks, packed=_roomy(blocks.packed), scales=_roomy(blocks.scales), zeros=_roomy(blocks.zeros)
        )
    return Part(
        _roomy(x[:, :, :sink]) if sink else None, blocks, _roomy(x[:, :, end:]) if tail else None, rotation
    )


def _values(part: Part) -> Tensor:
    """What a part stands for, float64."""
    packed = None if part.blocks is None else part.blocks.dequantize().double()
    if packed is not None and part.rotation is not None:
        packed = packed @ part.rotation.double().mT
    return torch.cat([x.double() for x in (part.sink, packed, part.tail) if x is not None], dim=-2)


def _expected(
    query: Tensor, key: Part, value: Part, scaling: float, mask=None, softcap=None, sinks=None
) -> Tensor:
    k, v = _values(key), _values(value)
    group = query.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = query.double() @ k.mT * scaling
    scores = softcap * torch.tanh(scores / softcap) if softcap else scores
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype is torch.bool else scores + mask.double()
    if sinks is not None:
        scores = torch.cat((sinks.double().view(1, -1, 1, 1).expand(*scores.shape[:3], 1), scores), -1)
    weights = scores.softmax(-1)
    return weights[..., -k.shape[2] :] @ v


def _check(query: Tensor, key: Part, value: Part, tolerance: float = TOLERANCE, **options) -> None:
    scaling = query.shape[-1] ** -0.5
    got = cpu.attend(query, key, value, scaling=scaling, **options)
    expected = _expected(query, key, value, scaling, **options)
    assert got.shape == expected.shape and got.dtype == query.dtype
    error = (got.double() - expected).abs().max() / expected.abs().max()
    assert error <= tolerance, f"{error:.2e}"
    COUNT["attentions"] += 1
    COUNT["numbers"] += got.numel()


@pytest.mark.parametrize("axis", list(Axis), ids=[a.value for a in Axis])
@pytest.mark.parametrize("name", NAMES)
def test_every_scheme(name: str, axis: Axis) -> None:
    scheme = replace(SCHEMES[name], axis=axis) if SCHEMES[name].is_blocked else SCHEMES[name]
    for tokens, group, dim, width in ((1, 1, 64, 64), (33, 3, 40, 72), (130, 2, 80, 96), (300, 4, 64, 33)):
        k, v, q = (
            torch.randn(2, 2, tokens, dim),
            torch.randn(2, 2, tokens, width),
            torch.randn(2, 2 * group, 1, dim),
        )
        other = Scheme.parse("mxfp4:block=16")
        sink, tail = min(4, tokens // 3), min(9, tokens // 3)
        _check(q, _part(k, scheme, sink, tail), _part(v, other))
        _check(q, _part(k, other, 0, tail), _part(v, scheme, sink))


@pytest.mark.parametrize("tokens", [*range(1, 70, 6), 96, 127, 128, 129, 200, 255, 300, 511, 512, 513, 1100])
def test_lengths(tokens: int) -> None:
    k, v = torch.randn(1, 3, tokens, 64), torch.randn(1, 3, tokens, 64)
    along = Scheme.parse("mxfp4:axis=token")
    for group in (1, 3):
        for queries in (1, 2, 11):
            open_block = tokens % 32
            _check(
                torch.randn(1, 3 * group, queries, 64),
                _part(k, along, 0, open_block),
                _part(v, SCHEMES["nvfp4"]),
            )


def test_exact_parts_alone_and_their_dtypes() -> None:
    for dtype, tolerance in ((torch.float32, TOLERANCE), (torch.bfloat16, 8e-3), (torch.float16, 1e-3)):
        k, v = torch.randn(2, 2, 50, 40, dtype=dtype), torch.randn(2, 2, 50, 24, dtype=dtype)
        q = torch.randn(2, 6, 3, 40, dtype=dtype)
        _check(q, _part(k, None, 20, 30), _part(v, None, 0, 50), tolerance)
        _check(q, _part(k, SCHEMES["aint4"], 20, 5), _part(v, SCHEMES["mxfp8_e4m3"], 0, 10), tolerance)
        _check(q, _part(k, None, 0, 50), _part(v, SCHEMES["aint2"]), tolerance)
        _check(
            q, _part(k.transpose(0, 1).contiguous().transpose(0, 1), None, 50), _part(v, None, 50), tolerance
        )


@pytest.mark.parametrize("heads", [1, 6])
def test_masks(heads: int) -> None:
    key, value = (
        _part(torch.randn(2, 2, 90, 64), SCHEMES["mxfp4"], 4, 9),
        _part(torch.randn(2, 2, 90, 64), SCHEMES["int8@token"]),
    )
    q = torch.randn(2, 6, 5, 64)
    kept = torch.rand(2, heads, 5, 90) < 0.5
    kept[..., 7] = True
    kept[:, :, 0, :80] = False
    _check(q, key, value, mask=kept)
    _check(q, key, value, mask=torch.zeros(kept.shape).masked_fill(~kept, torch.finfo(torch.float32).min))
    _check(q, key, value, mask=torch.randn(2, heads, 5, 90))
    _check(q, key, value, mask=torch.randn(2, heads, 5, 120)[..., ::4].repeat(1, 1, 1, 3).bfloat16())
    _check(q, key, value, mask=torch.randn(1, 1, 1, 90))


def test_a_row_that_may_see_nothing_is_zero() -> None:
    key = value = _part(torch.randn(1, 2, 700, 64), SCHEMES["mxfp4"])
    mask = torch.ones(1, 1, 2, 700, dtype=torch.bool)
    mask[:, :, 1] = False
    out = cpu.attend(torch.randn(1, 4, 2, 64), key, value, scaling=0.1, mask=mask)
    assert (out[:, :, 1] == 0).all() and out[:, :, 0].abs().min() > 0


def test_softcap_sinks_and_both() -> None:
    q = 5 * torch.randn(2, 6, 2, 64)
    key, value = (_part(torch.randn(2, 3, 600, 64), SCHEMES["mxfp8_e5m2"], 4) for _ in range(2))
    _check(q, key, value, softcap=20.0)
    _check(q, key, value, sinks=3 * torch.randn(6))
    _check(q, key, value, sinks=torch.randn(6), softcap=5.0, mask=torch.randn(2, 1, 2, 600))


@pytest.mark.parametrize("turned", ["key", "value", "both"])
def test_rotated_packed_parts_beside_exact_ones(turned: str) -> None:
    k, v = torch.randn(1, 2, 150, 64), torch.randn(1, 2, 150, 40)
    rotation, small = (torch.linalg.qr(torch.randn(n, n)).Q for n in (64, 40))
    key = _part(k, SCHEMES["mxfp6_e2m3"], 4, 20, rotation if turned != "value" else None)
    value = _part(v, SCHEMES["mxint8"], 4, 7, small if turned != "key" else None)
    _check(torch.randn(1, 4, 3, 64), key, value)


def test_scores_far_apart_and_scales_far_out() -> None:
    k = torch.randn(1, 1, 64, 64) * torch.logspace(-3, 2, 64).view(1, 1, 64, 1)
    for name in ("mxfp4", "mxfp8_e4m3", "mxfp6_e3m2", "nvfp4", "aint4"):
        _check(3 * torch.randn(1, 2, 1, 64), _part(k, SCHEMES[name]), _part(1e6 * k, SCHEMES[name]))


def test_a_broken_block_breaks_its_head_alone() -> None:
    k, v = torch.randn(1, 2, 70, 64), torch.randn(1, 2, 70, 64)
    k[0, 1, 5, 3] = float("nan")
    out = cpu.attend(
        torch.randn(1, 4, 1, 64), _part(k, SCHEMES["mxfp4"]), _part(v, SCHEMES["mxfp4"]), scaling=0.1
    )
    assert out[:, 2:].isnan().all() and out[:, :2].isfinite().all()


def test_every_code_of_every_element_is_read() -> None:
    """Values one hot: attending to a single token gives back that token's values."""
    for name in BLOCKED:
        blocks = reference.quantize(torch.randn(1, 1, 16, 64), SCHEMES[name])
        packed = torch.arange(blocks.packed.numel()).remainder(256).to(torch.uint8).view(blocks.packed.shape)
        blocks = replace(blocks, packed=packed)
        values = blocks.dequantize()
        one_hot = torch.full((1, 1, 16, 16), -torch.inf).masked_fill(torch.eye(16, dtype=torch.bool), 0.0)
        key = Part(None, None, torch.zeros(1, 1, 16, 8))
        got = cpu.attend(torch.zeros(1, 1, 16, 8), key, Part(None, blocks, None), scaling=1.0, mask=one_hot)
        finite = values.isfinite() & (values.abs() < 1e30)
        assert finite.float().mean() > 0.7
        usable = finite.all(2, keepdim=True).expand_as(values)  # 0 · NaN is NaN: a column with one is that
        torch.testing.assert_close(got[usable], values[usable], rtol=2e-6, atol=0)


def test_threads_change_nothing() -> None:
    q = torch.randn(1, 9, 1, 64)
    key, value = (_part(torch.randn(1, 3, 3000, 64), Scheme.parse(s)) for s in ("mxfp4:axis=token", "mxfp4"))
    alone = cpu.attend(q, key, value, scaling=0.125)
    torch.set_num_threads(2)
    with ThreadPoolExecutor(8) as pool:
        for out in pool.map(lambda _: cpu.attend(q, key, value, scaling=0.125), range(32)):
            assert torch.equal(out, alone)


@pytest.mark.parametrize(
    ("shape", "values", "mask", "message"),
    [
        ((1, 4, 1, 64), 9, None, r"keys \(1, 2, 8, 64\) and values \(1, 2, 9, 64\) came"),
        (
            (1, 3, 1, 64),
            8,
            None,
            r"a query \(1, 3, 1, 64\) came; expected batch 1, a multiple of the 2 KV heads",
        ),
        (
            (1, 4, 1, 64),
            8,
            torch.zeros(1, 1, 1, 7),
            "a mask over 7 tokens came; expected one over the 8 held",
        ),
    ],
)
def test_what_does_not_fit_is_refused(shape: tuple, values: int, mask: Tensor | None, message: str) -> None:
    key = _part(torch.randn(1, 2, 8, 64), SCHEMES["mxfp4"])
    value = _part(torch.randn(1, 2, values, 64), SCHEMES["mxfp4"])
    with pytest.raises(ValueError, match=message):
        cpu.attend(torch.randn(shape), key, value, scaling=1.0, mask=mask)


def test_a_single_scale_packed_along_the_tokens_is_refused() -> None:
    key = Part(None, reference.quantize(torch.randn(1, 2, 8, 64), "int4@tensor", -2), None)
    with pytest.raises(ValueError, match="int4@tensor packed along dimension -2 came; expected -1"):
        cpu.attend(torch.randn(1, 2, 1, 64), key, key, scaling=1.0)


def test_torchs_defaults_are_not_followed() -> None:
    q, x = torch.randn(1, 2, 1, 64), torch.randn(1, 2, 40, 64)
    part = _part(x, SCHEMES["mxfp4"], 4, 4)
    expected = cpu.attend(q, part, part, scaling=0.1)
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("meta"):
            got = cpu.attend(q, part, part, scaling=0.1, sinks=None)
    finally:
        torch.set_default_dtype(torch.float32)
    assert got.device.type == "cpu" and torch.equal(got, expected)


def test_a_row_of_nothing_but_broken_scores_is_broken() -> None:
    x = torch.randn(1, 2, 700, 64)
    query = torch.randn(1, 4, 1, 64)
    query[:, 1] = torch.nan
    part = _part(x, SCHEMES["mxfp4"])
    out = cpu.attend(query, part, part, scaling=0.125)
    assert out[:, 1].isnan().all() and out[:, [0, 2, 3]].isfinite().all()
    broken = _part(x.clone().index_fill_(2, torch.tensor([3]), torch.inf), SCHEMES["int4@tensor"])
    assert cpu.attend(query, broken, part, scaling=0.125).isnan().all()
