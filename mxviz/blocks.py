"""One block under two rulers: every value in it, the code it was stored as, and what the code reads as."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from mxviz.capture import Capture
from mxviz.formats import FLT_MAX, SCHEMES, Axis, Recipe, Scheme
from mxviz.metrics import kept_trip, recipe_of, sinks_of
from mxviz.outliers import finite_amax
from mxviz.quantize import MXBlocks, decode_scale


class Ruled(NamedTuple):
    """A block's values under one ruler; arrays are `[values]` unless said otherwise.

    Args:
        scheme: what they are stored as.
        shares: how many values of the cache share the scale of the value looked at; 0 where it is exact.
        rotated: whether a Hadamard matrix turned the values before they were stored.
        exact: bool, stored as it is.
        values: float32, what went into the quantizer (x itself, or x rotated).
        decoded: float32, what the codes read as; NaN where the scale is broken.
        codes: uint8 element codes; 0 where exact.
        scales: float32 that each value was divided by, NVFP4's global scale included; NaN where broken or
            exact. The values of a micro-scaled block share it; those of another lane may not.
        ticks: `[ticks]` float32, ascending: every number that the ruler of the value looked at can hold;
            empty where that value is exact or its scale broken.
        byte: stored scale byte of the value looked at, None where none is stored.
        block_scale: its decoded scale without a global one; NaN where broken or exact.
        global_scale: NVFP4's float32, else None.
        zero: the zero point of the value looked at, None where the scheme has none.
        clipped: bool, beyond the end of its ruler.
        flushed: bool, not zero and stored as zero.
    """

    scheme: Scheme
    shares: int
    rotated: bool
    exact: np.ndarray
    values: np.ndarray
    decoded: np.ndarray
    codes: np.ndarray
    scales: np.ndarray
    ticks: np.ndarray
    byte: int | None
    block_scale: float
    global_scale: float | None
    zero: float | None
    clipped: np.ndarray
    flushed: np.ndarray


class BlockView(NamedTuple):
    """One block of the micro-scaled cache, and the same values under the baseline.

    Where the micro-scaled recipe has no block at this place (a single-scale scheme, sinks, `none`), 32
    neighbours are shown.

    Args:
        part: `key` or `value`.
        layer: layer number.
        head: KV head.
        axis: `channel` or `token`, the way the block runs.
        tokens: `[values]` token of each value.
        channels: `[values]` channel of each value.
        names: text of each value's token, literal.
        at: index of the value looked at.
        x: `[values]` float32, as the model produced them.
        holds_largest: whether the largest finite |x| of the whole layer's part lies in this block.
        micro: under the micro-scaled recipe.
        single: under the baseline.
    """

    part: str
    layer: int
    head: int
    axis: str
    tokens: np.ndarray
    channels: np.ndarray
    names: list[str]
    at: int
    x: np.ndarray
    holds_largest: bool
    micro: Ruled
    single: Ruled


def block_view(
    capture: Capture,
    layer: int,
    head: int,
    part: str,
    token: int,
    channel: int,
    recipe: Recipe | str | None = None,
    baseline: Recipe | str | None = None,
) -> BlockView:
    """Return the block that holds one value of a capture, under the recipe and under its baseline.

    Scales are taken over the whole recorded tensor, the kindest baseline; the residual is ignored.

    Raises:
        ValueError: for a part, layer, head, token or channel that was not recorded, or a recipe that does
            not parse.
    """
    recipe = recipe_of(capture, capture.recipe if recipe is None else recipe)
    baseline = recipe_of(capture, capture.baseline if baseline is None else baseline)
    whole = capture.part(part, layer)
    for name, index, count in zip(
        ("KV head", "token", "channel"), (head, token, channel), whole.shape, strict=True
    ):
        if not 0 <= index < count:
            raise ValueError(f"{name} {index} does not exist in layer {layer}; expected 0 to {count - 1}")
    scheme, sink = _scheme(recipe, part, layer), sinks_of(capture, recipe, layer)
    tokens, channels = _members(scheme, sink, token, channel, whole.shape[-2:])
    rows, columns = np.broadcast_arrays(
        np.arange(tokens.start, tokens.stop), np.arange(channels.start, channels.stop)
    )
    x = whole[head].float()
    block = x[tokens, channels].flatten()
    at = (token - tokens.start) + (channel - channels.start)
    micro, single = (
        _ruled(capture, lane, part, layer, (head, tokens, channels), at) for lane in (recipe, baseline)
    )
    return BlockView(
        part=part,
        layer=layer,
        head=head,
        axis="token" if len(set(rows)) > 1 else "channel" if len(set(columns)) > 1 else scheme.axis.value,
        tokens=rows,
        channels=columns,
        names=[capture.token_texts[i] for i in rows],
        at=at,
        x=block.numpy(),
        holds_largest=finite_amax(block) == finite_amax(whole) > 0,
        micro=micro,
        single=single,
    )


def _scheme(recipe: Recipe, part: str, layer: int) -> Scheme:
    return SCHEMES["none"] if layer in recipe.skip else recipe.scheme(part)


def _members(
    scheme: Scheme, sink: int, token: int, channel: int, shape: tuple[int, int]
) -> tuple[slice, slice]:
    """Return the tokens and the channels of the block that holds a place; one of the two is a single one."""
    along = scheme.axis is Axis.TOKEN
    place, end = (token, shape[0]) if along else (channel, shape[1])
    first = sink if along else 0  # blocks along tokens count from behind the sinks
    if place < first:
        first, end = 0, min(first, end)
    start = first + (place - first) // scheme.block * scheme.block
    run = slice(start, min(start + scheme.block, end))
    return (run, slice(channel, channel + 1)) if along else (slice(token, token + 1), run)


def _ruled(
    capture: Capture, recipe: Recipe, part: str, layer: int, where: tuple[int, slice, slice], at: int
) -> Ruled:
    """Look at some values of one head through a recipe."""
    head, tokens, channels = where
    trip = kept_trip(capture, recipe, part, layer)
    x = capture.part(part, layer)[head, tokens, channels].float()
    sink = tokens.stop if trip.blocks is None else sinks_of(capture, recipe, layer)
    kept = min(max(sink - tokens.start, 0), len(x))  # first rows that are stored as they are
    exact = (torch.arange(len(x)) < kept).unsqueeze(1).expand(x.shape)
    values = torch.where(exact, x, trip.stored_from[head, tokens, channels])
    decoded, codes = x.clone(), torch.zeros(x.shape, dtype=torch.uint8)
    scales, ruler = torch.full(x.shape, torch.nan), _NO_RULER
    if kept < len(x):
        rows = slice(tokens.start + kept - sink, tokens.stop - sink)
        decoded[kept:], codes[kept:], scales[kept:] = _read(trip.blocks, head, rows, channels)
    if not exact.flatten()[at]:
        row, column = divmod(at, x.shape[1])
        ruler = _ruler(trip.blocks, head, tokens.start + row - sink, channels.start + column)
    flat = {"exact": exact, "values": values, "decoded": decoded, "codes": codes, "scales": scales}
    flat |= {name: getattr(trip, name)[head, tokens, channels] for name in ("clipped", "flushed")}
    return Ruled(
        scheme=_scheme(recipe, part, layer),
        rotated=recipe.rotate and trip.blocks is not None,
        **{name: tensor.flatten().numpy() for name, tensor in flat.items()},
        **ruler,
    )


_NO_RULER = {
    **{"shares": 0, "ticks": np.zeros(0, np.float32), "byte": None, "block_scale": float("nan")},
    **{"global_scale": None, "zero": None},
}


def _read(blocks: MXBlocks, head: int, tokens: slice, channels: slice) -> tuple[Tensor, Tensor, Tensor]:
    """Decode a few rows of one head, as MXBlocks does: values, codes and scales, `[tokens, channels]`."""
    along_channels = blocks.axis == -1
    other, run = (-2, tokens) if along_channels else (-1, channels)

    def narrow(t: Tensor | None) -> Tensor | None:
        for dim, lane in ((-3, slice(head, head + 1)), (other, run)):
            if t is not None and t.shape[dim] > 1:
                t = t.narrow(dim, lane.start, lane.stop - lane.start)
        return t

    shape = list(blocks.shape)
    shape[-3], shape[other] = 1, run.stop - run.start
    few = replace(
        blocks,
        packed=narrow(blocks.packed),
        scales=narrow(blocks.scales),
        zeros=narrow(blocks.zeros),
        shape=torch.Size(shape),
    )
    inside = (0, slice(None), channels) if along_channels else (0, tokens, slice(None))
    return few.dequantize()[inside], few.codes()[inside], few.divisor().expand(shape)[inside]


def _ruler(blocks: MXBlocks, head: int, token: int, channel: int) -> dict[str, object]:
    """Return the ruler of one value, as the fields of `Ruled` that describe it."""
    scheme, shape = blocks.scheme, blocks.shape
    place = [head, token, channel]
    if scheme.is_blocked:
        place[blocks.axis] //= scheme.block
        shares = min(scheme.block, shape[blocks.axis] - place[blocks.axis] * scheme.block)
    else:
        shares = int(np.prod([shape[dim] for dim in scheme.reach.dims]))
    place = tuple(i if size > 1 else 0 for i, size in zip(place, blocks.scales.shape, strict=True))
    stored = blocks.scales[place]
    block_scale = decode_scale(stored, scheme)
    both = block_scale if blocks.global_scale is None else block_scale * blocks.global_scale.flatten()[0]
    ticks = torch.tensor(scheme.element.ticks) * both
    if blocks.zeros is not None:
        ticks = ticks + blocks.zeros[place].float()
    ticks = ticks.clamp(-FLT_MAX, FLT_MAX)[~ticks.isnan()]
    return {
        "shares": shares,
        "ticks": np.unique(ticks.numpy() + np.float32(0)),  # -0 and 0 are one tick
        "byte": None if stored.dtype.is_floating_point else int(stored),
        "block_scale": float(block_scale),
        "global_scale": None if blocks.global_scale is None else float(blocks.global_scale.flatten()[0]),
        "zero": None if blocks.zeros is None else float(blocks.zeros[place]),
    }
