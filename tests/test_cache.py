"""MXCache as a store: what is packed, what stays exact, and what it all weighs."""

from __future__ import annotations

import pytest
import torch
from cache_cases import PARTS, config, fill, mx, reachable_bytes, same, states, stored

from mxviz.formats import SCHEMES, Axis, Reach, ScaleFormat, Scheme
from mxviz.quantize import quantize


@pytest.mark.parametrize("last", [1, 3])
def test_residual_keeps_exactly_the_newest_tokens(last):  # G3
    k, v = states(268)
    cache = mx("mxfp4;residual=32")
    fill(cache, k[:, :, :100], v[:, :, :100], [100])
    assert cache.blocks(0, "key").shape == (1, 2, 68, 32)
    sizes = [1] * (168 - last) + [last]
    keys, _ = fill(cache, k[:, :, 100:], v[:, :, 100:], sizes)
    assert cache.blocks(0, "key").shape == (1, 2, 236, 32)
    assert len(cache.layers[0].key.tail) == 32
    assert cache.get_seq_length() == cache.tokens_held == 268
    assert torch.equal(keys[:, :, 236:], k[:, :, 236:])
    want = quantize(k[:, :, :236], "mxfp4").dequantize()
    assert torch.equal(cache.layers[0].keys[:, :, :236], want)


def test_residual_along_tokens_keeps_up_to_a_block_more():
    cache = mx("mxfp4:axis=token;residual=32")
    k, v = states(200)
    for t in range(200):
        cache.update(k[:, :, t : t + 1], v[:, :, t : t + 1], 0)
        exact = len(cache.layers[0].key.tail)
        assert exact == (t + 1 if t + 1 < 64 else 32 + (t + 1) % 32)
    assert torch.equal(
        cache.layers[0].keys[:, :, :160], quantize(k[:, :, :160], "mxfp4:axis=token").dequantize()
    )


CHUNKINGS = ([100], [1] * 100, [37, 1, 1, 61], [64, 36], [3, 97])


@pytest.mark.parametrize("options", ["", ";sink=4;residual=8", ";rotate=1", ";sink=5;residual=40;rotate=1"])
@pytest.mark.parametrize(
    "scheme", ["mxfp4", "mxfp6_e2m3:axis=token", "aint2:axis=token,block=16", "aint4", "int4@token"]
)
def test_same_bytes_whatever_the_chunking(scheme, options):  # G3
    k, v = states(100, batch=2)
    made = []
    for sizes in CHUNKINGS:
        cache = mx(scheme + options)
        fill(cache, k, v, sizes)
        made.append((stored(cache), cache.nbytes))
    assert all(same(made[0][0], other) and made[0][1] == size for other, size in made[1:])


def test_same_bytes_whatever_the_chunking_once_scales_are_frozen():
    k, v = states(90)
    made = []
    for sizes in ([30, 60], [30, *[1] * 60], [30, 17, 43]):
        cache = mx("k=nvfp4;v=int4@tensor;residual=4")
        fill(cache, k, v, sizes)
        made.append(stored(cache))
    assert same(made[0], made[1]) and same(made[0], made[2])


@pytest.mark.parametrize("block", [32, 16])
@pytest.mark.parametrize("head_dim", [96, 80, 72, 40])
def test_head_dims_that_blocks_do_not_divide(head_dim, block):  # G4
    k, v = states(40, head_dim=head_dim)
    cache = mx(f"mxfp4:block={block}", of=config(head_dim=head_dim))
    fill(cache, k, v, [33, 1, 6])
    assert cache.blocks(0, "key").scales.shape == (1, 2, 40, -(-head_dim // block))
    assert torch.equal(cache.layers[0].keys, quantize(k, f"mxfp4:block={block}").dequantize())


def bytes_of_a_part(
    scheme: Scheme, tokens: int, heads: int, dim: int, sink: int, residual: int, width: int
) -> int:
    """Bytes per sequence, written down from the definition alone."""
    sinks = min(sink, tokens)
    rest = tokens - sinks
    if scheme.is_none:
        return tokens * heads * dim * width
    bits, block = scheme.element.bits, scheme.block
    if scheme.is_blocked and scheme.axis is Axis.TOKEN:
        packed = max(0, rest - residual) // block * block
        codes, scales = packed * bits // 8 * dim, packed // block * dim
    else:
        packed = max(0, rest - residual)
        codes = packed * -(-dim * bits // 8)
        scales = packed * (-(-dim // block) if scheme.is_blocked else scheme.reach is Reach.TOKEN)
    each = {ScaleFormat.FLOAT16_ZERO: 4, ScaleFormat.FLOAT32: 4}.get(scheme.scale, 1)
    of_sequence = {Reach.TENSOR: 4, Reach.ONE: 4, Reach.HEAD: 4 * heads, Reach.CHANNEL: 4 * heads * dim}
    single = 4 if scheme.scale is ScaleFormat.E4M3 else of_sequence.get(scheme.reach, 0)
    exact = (tokens - packed) * heads * dim * width
    return heads * (codes + scales * each) + single + exact


EVERY = [
    Scheme.parse(f"{n}:axis={a}" if s.is_blocked else n)
    for n, s in SCHEMES.items()
    for a in ("channel", "token")
]
EVERY = list({str(s): s for s in EVERY}.values())


@pytest.mark.parametrize("scheme", EVERY, ids=str)
def test_nbytes_is_the_formula(scheme):  # G9
    for dtype, sink, residual in ((torch.float32, 0, 0), (torch.bfloat16, 4, 20)):
        exact = f";sink={sink};residual={residual}" if sink and not scheme.is_none else ""
        cache = mx(str(scheme) + exact, of=config(head_dim=40))
        k, v = (x.to(dtype) for x in states(70, batch=2, head_dim=40))
        held = 0
        for n in (1, 2, 30, 31, 1, 5):
            cache.update(k[:, :, held : held + n], v[:, :, held : held + n], 0)
            held += n
            one = bytes_of_a_part(
                scheme, held, 2, 40, sink if exact else 0, residual if exact else 0, dtype.itemsize
            )
            assert cache.nbytes == 2 * 2 * one, held
            assert cache.nbytes <= cache.allocated_bytes == reachable_bytes(cache)


@pytest.mark.parametrize(
    ("scheme", "bits"), [("mxfp4", 4.25), ("nvfp4", 4.5), ("mxfp8_e4m3", 8.25), ("aint4", 5)]
)
def test_4096_tokens_cost_what_the_scheme_says(scheme, bits):  # G9
    k, v = states(4096)
    cache = mx(scheme + ";residual=32")
    fill(cache, k, v, [4000, *[32] * 3])
    exact, single = 2 * 32 * 2 * 32 * 4, 8 if scheme == "nvfp4" else 0
    assert cache.bits_per_element == bits
    assert cache.nbytes == 2 * 4064 * 2 * 32 * bits / 8 + exact + single


def test_int4_tensor_is_about_four_bits():
    cache = mx("int4@tensor")
    fill(cache, *states(512), [512])
    assert 4 < cache.bits_per_element < 4.01


@pytest.mark.parametrize(
    ("recipe", "per_token"), [("none", 147_456), ("mxfp4", 39_168), ("nvfp4", 41_472), ("mxfp8_e4m3", 76_032)]
)
def test_bytes_per_token_of_an_8b_model(recipe, per_token):  # G10
    of = config(layers=36, heads=8, head_dim=128)
    cache = mx(recipe, of=of)
    x = torch.randn(1, 8, 1, 128, dtype=torch.bfloat16)
    sizes = []
    for _ in range(3):
        for layer in range(36):
            cache.update(x, x, layer)
        sizes.append(cache.nbytes)
    assert sizes[2] - sizes[1] == sizes[1] - sizes[0] == per_token


def test_sinks_residual_skip_and_record_show_in_bytes():
    k, v = states(100)
    sizes = {}
    for recipe in ("mxfp4", "mxfp4;sink=4", "mxfp4;residual=32", "mxfp4;skip=1", "mxfp4;rotate=1", "none"):
        cache = mx(recipe, of=config(layers=2), record=True)
        for layer in (0, 1):
            fill(cache, k, v, [100], layer)
        sizes[recipe] = cache.nbytes
        assert cache.record_bytes == sizes.get("none", 2 * 2 * 100 * 2 * 32 * 4)
        assert reachable_bytes(cache) == cache.allocated_bytes + cache.record_bytes
        assert all(torch.equal(a, b) for a, b in zip(cache.recorded(1), (k, v), strict=True))
    token = 2 * 32  # elements of one part
    gap = token * 4 - token * 4.25 / 8
    assert sizes["mxfp4;sink=4"] == sizes["mxfp4"] + 4 * 4 * gap
    assert sizes["mxfp4;residual=32"] == sizes["mxfp4"] + 4 * 32 * gap
    assert sizes["mxfp4;skip=1"] == sizes["mxfp4"] + 2 * 100 * gap
    assert sizes["mxfp4;rotate=1"] == sizes["mxfp4"]


@pytest.mark.parametrize("recipe", ["mxfp4;residual=16", "mxfp4:axis=token", "aint4", "none", "nvfp4;sink=4"])
def test_buffers_grow_by_at_most_an_eighth(recipe):
    cache = mx(recipe)
    k, v = states(700)
    cache.update(k[:, :, :300], v[:, :, :300], 0)
    buffers = [rows for part in PARTS for rows in getattr(cache.layers[0], part)._rows()]
    assert all(rows.allocated_bytes == rows.nbytes for rows in buffers), (
        "a first prefill allocates what it needs"
    )
    moved = set()
    for t in range(300, 700):
        cache.update(k[:, :, t : t + 1], v[:, :, t : t + 1], 0)
        moved.add(next(rows for rows in buffers if len(rows)).buffer.data_ptr())
        most = max(rows.unit for rows in buffers)
        assert all(
            r.buffer is None or r.buffer.shape[2] <= max(len(r) + most * 4, 64) * 9 / 8 for r in buffers
        )
    assert cache.allocated_bytes <= cache.nbytes * 9 / 8 + 32 * 2 * 2 * 32 * 4 * 9 / 8
    assert len(moved) < 12, "an append must not move the buffer"


def test_a_nan_poisons_its_block_alone():
    k, v = states(100, head_dim=64)
    k[0, 1, 50, 40] = torch.nan
    cache = mx("k=mxfp4;v=none", of=config(head_dim=64))
    fill(cache, k, v, [40, 20, 40])
    bad = cache.layers[0].keys.isnan()
    assert bad[0, 1, 50, 32:].all() and int(bad.sum()) == 32
    cache = mx("k=nvfp4:axis=token;v=none", of=config(head_dim=64))
    fill(cache, k, v, [40, 20, 40])
    bad = cache.layers[0].keys.isnan()
    assert bad[0, 1, 48:64, 40].all() and int(bad.sum()) == 16


def test_a_nan_reaches_as_far_as_a_single_scale():
    k, v = states(10, batch=2)
    k[1, 0, 7, 0] = torch.nan
    cache = mx("int4@tensor")
    fill(cache, k, v, [5, 5])
    assert not cache.layers[0].keys[0].isnan().any() and cache.layers[0].keys[1].isnan().all()


@pytest.mark.parametrize("scheme", ["nvfp4", "int4@tensor", "fp8_e4m3@head", "int8@channel"])
def test_scales_are_frozen_by_the_first_update(scheme):
    k, v = states(30)
    cache = mx(f"{scheme};sink=4;residual=26")
    fill(cache, k, v, [30])
    assert cache.blocks(0, "key") is None, "nothing is packed yet, the scale is there"
    first = quantize(k, scheme)
    want = first.scales if first.global_scale is None else first.global_scale
    assert torch.equal(cache.layers[0].key.fixed, want)
    later = k * 3
    cache.update(later, v, 0)
    assert torch.equal(cache.layers[0].key.fixed, want)
    packed = torch.cat((k, later), dim=2)[:, :, 4:34]
    assert torch.equal(cache.layers[0].keys[:, :, 4:34], quantize(packed, scheme, frozen=want).dequantize())
    assert cache.clipped("value") == 0 or scheme == "nvfp4"  # an E4M3 scale rounds down, so a block may clip


def test_clips_against_a_frozen_scale_are_counted():
    cache = mx("k=int4@tensor;v=int4@tensor")
    one = torch.ones(1, 2, 4, 32)
    cache.update(one, one, 0)
    later = one.clone()
    later[0, 0, :, :3] = 2.0  # 3 of 64 elements a token
    for t in range(4):
        cache.update(later[:, :, t : t + 1], one[:, :, t : t + 1], 0)
    assert cache.clipped("key") == 12 / 512
    assert cache.clipped("value") == 0
    assert mx("mxfp4").clipped("key") is None
