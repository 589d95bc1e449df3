"""The race: every scheme on one capture, bits against what is lost; the Pareto front; lines by layer.

The same numbers as `mxviz.metrics.part_error`, in fewer passes: layers are stacked (scales are those of one
sequence, so a layer keeps its own), what depends on x alone is computed once for all schemes, and the sums
go through the processor's cache a piece at a time, on as many threads as torch has.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import groupby
from math import isfinite

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mxviz import ops
from mxviz._engine_layers import is_one_layer
from mxviz.capture import PARTS, Capture
from mxviz.formats import SCHEMES, Axis, Reach, Recipe, ScaleFormat, Scheme
from mxviz.metrics import ErrorSums, effect_stats, error_stats, error_sums, pool, round_trip
from mxviz.quantize import MXBlocks, decode_scale

Row = dict[str, str | float | None]

_STACKED = 1 << 20  # elements that go through all passes together
_PIECE = 1 << 16  # elements of the float64 buffer that squares are made in


def race_schemes() -> Iterator[Scheme]:
    """Yield every scheme, and blocks along tokens after blocks along channels."""
    for scheme in SCHEMES.values():
        if not scheme.is_none:
            yield scheme
            if scheme.is_blocked:
                yield replace(scheme, axis=Axis.TOKEN)


def race(capture: Capture) -> list[Row]:
    """Return one row a scheme: `scheme`, `bits_per_element`, and for `key` and `value` each
    `…_sqnr_db`, `…_flushed`, `…_clipped`, pooled over all recorded layers; None for values that a capture of
    a single tensor does not have.

    Bits are those of codes and scales in whole blocks; see `Scheme.bits_per_element`.
    """
    head_dim = capture.part("key", capture.layers[0]).shape[-1]
    schemes = list(race_schemes())
    stacks = {part: _stacks(capture, part) for part in PARTS}
    jobs = [(scheme, part) for scheme in schemes for part in PARTS]
    with ThreadPoolExecutor(max(1, torch.get_num_threads()), "mxviz-race") as threads:
        found = threads.map(lambda job: error_stats(pool(_sums(x, job[0]) for x in stacks[job[1]])), jobs)
        stats = dict(zip(jobs, found, strict=True))
    return [
        {"scheme": str(scheme), "bits_per_element": scheme.bits_per_element(head_dim)}
        | {
            f"{part}_{name}": stats[scheme, part][name]
            for part in PARTS
            for name in ("sqnr_db", "flushed", "clipped")
        }
        for scheme in schemes
    ]


def layer_lines(
    capture: Capture, schemes: Sequence[str], part: str, measure: str = "sqnr_db"
) -> dict[str, list[float | None]]:
    """Return one number of every recorded layer, a list a scheme.

    Args:
        capture: what was recorded.
        schemes: by string.
        part: `key` or `value`.
        measure: `sqnr_db` (None without signal), or the shares `flushed` and `clipped`, 0 to 1.

    Raises:
        ValueError: for a scheme that does not parse, or a part that was not recorded.
    """
    layers = [_Stack.of([capture.part(part, layer)]) for layer in capture.layers]
    parsed = {name: Scheme.parse(name) for name in schemes}
    return {
        name: [error_stats(_sums(layer, scheme))[measure] for layer in layers]
        for name, scheme in parsed.items()
    }


def pareto(points: Iterable[tuple[float | None, float | None]]) -> list[int]:
    """Return which points nothing else beats, by cost: indices of those that no point undercuts in cost
    (bits) without losing value (dB), or outdoes in value at the same cost or less.

    Args:
        points: cost and value; a point with None or NaN in it is never on the front. Points that are equal
            are all on it, or none.
    """
    known = [
        (cost, value, index)
        for index, (cost, value) in enumerate(points)
        if cost is not None and value is not None and cost == cost and value == value
    ]
    best, front = None, []
    for _, same in groupby(sorted(known, key=lambda p: (p[0], -p[1])), key=lambda p: p[0]):
        row = list(same)
        top = row[0][1]
        if best is None or top > best:
            front += [index for _, value, index in row if value == top]
            best = top
    return front


def measured(capture: Capture) -> dict[str, dict[str, float | None]]:
    """Return what the capture itself knows of recipes' effect on the next token: canonical string to
    `kl_mean`, `kl_p99` (nats) and `top1_agreement`; its own recipe and baseline under their strings.

    A lane of `capture.effect` beyond these two is named by its recipe. Recipes that store one layer alone
    are left out: they are parts of a map, see `mxviz._engine_layers`.
    """
    own = {"micro": capture.recipe, "single": capture.baseline}
    layers = int(capture.shape.get("layers") or len(capture.layers))
    found = {}
    for lane, tables in capture.effect.items():
        name = _canonical(own.get(lane, lane), layers)
        if lane != "exact" and name is not None:
            found[name] = effect_stats(tables["kl"], tables["top1"])
    return found


def _canonical(text: str, layers: int) -> str | None:
    try:
        recipe = Recipe.parse(text)
    except ValueError:  # a lane of somebody's own
        return text
    return None if is_one_layer(recipe, layers) else str(recipe)


@dataclass(frozen=True)
class _Stack:
    """Keys or values of some layers of one shape, and what every scheme needs to know of them.

    Args:
        x: `[layers, kv_heads, tokens, head_dim]` float32, contiguous.
        magnitude: |x|, a NumPy array of that shape.
        zeros: places of its zeros, in a flat x.
        signal: Σ x², in float64; infinite or NaN where x is not finite.
    """

    x: Tensor
    magnitude: NDArray[np.float32]
    zeros: NDArray[np.int64]
    signal: float

    @classmethod
    def of(cls, layers: Sequence[Tensor]) -> _Stack:
        x = torch.stack(list(layers)).float().contiguous()
        values = x.numpy()
        flat = values.ravel()
        return cls(x, np.abs(values), np.flatnonzero(flat == 0), _squares(flat, np.zeros_like(flat), True))


def _stacks(capture: Capture, part: str) -> list[_Stack]:
    """Stack layers that have one shape and dtype, as many as the cache holds; none where there is no part."""
    recorded = capture.layers if part == "key" or capture.values else ()
    tensors = [capture.part(part, layer) for layer in recorded]
    stacks = []
    for _, same in groupby(tensors, key=lambda x: (x.shape, x.dtype)):
        alike = list(same)
        size = max(1, _STACKED // max(1, alike[0].numel()))
        stacks += [_Stack.of(alike[i : i + size]) for i in range(0, len(alike), size)]
    return stacks


def _sums(stack: _Stack, scheme: Scheme) -> ErrorSums:
    """`mxviz.metrics.error_sums` of a stack under a scheme."""
    blocks = ops.quantize(stack.x, scheme)
    decoded = ops.dequantize(blocks).numpy()
    flat = decoded.ravel()
    noise = _squares(stack.x.numpy().ravel(), flat, _differences_round(scheme))
    if not isfinite(stack.signal + noise):  # something is not finite: leave it out, element by element
        return error_sums(stack.x, round_trip(stack.x, scheme))
    count = flat.size
    to_zero = np.count_nonzero(flat == 0) - np.count_nonzero(flat[stack.zeros] == 0)
    clipped = _clipped(stack.magnitude, blocks)
    return ErrorSums(stack.signal, noise, count, count, clipped, count - stack.zeros.size, int(to_zero), 0)


def _differences_round(scheme: Scheme) -> bool:
    """Whether x − x̂ may be inexact in float32.

    It is exact where x̂ is 0 or within a factor of two of x (Sterbenz), as nearest rounding on a grid that
    holds 0 makes it; not with a zero point, nor far beyond a ruler.
    """
    return scheme.scale is ScaleFormat.FLOAT16_ZERO or scheme.reach is Reach.ONE


def _squares(x: NDArray[np.float32], y: NDArray[np.float32], wide: bool) -> float:
    """Return Σ (x − y)² of flat arrays, squared and summed in float64; `wide` also subtracts in it."""
    buffer, total = np.empty(_PIECE), 0.0
    for start in range(0, x.size, _PIECE):
        a, b = x[start : start + _PIECE], y[start : start + _PIECE]
        piece = buffer[: a.size]
        np.subtract(a, b, out=piece, dtype=np.float64 if wide else None)
        total += float(np.einsum("i,i->", piece, piece))  # not dot: its threads would fight with ours
    return total


def _clipped(magnitude: NDArray[np.float32], blocks: MXBlocks) -> int:
    """Count what `MXBlocks.clipped_mask` marks; every x is finite and no scale is frozen."""
    scheme, limit = blocks.scheme, np.float32(blocks.scheme.element.max_normal)
    if scheme.scale is ScaleFormat.FLOAT32:  # a scale that was measured holds everything
        return int(np.count_nonzero(magnitude / limit > 1)) if scheme.reach is Reach.ONE else 0
    if scheme.scale is ScaleFormat.FLOAT16_ZERO:
        return 0
    divisor = decode_scale(blocks.scales, scheme)
    if blocks.global_scale is not None:
        divisor = divisor * blocks.global_scale
    divisor = torch.where(divisor > 0, divisor, torch.inf).numpy()
    along, block = scheme.axis.dim % 4, scheme.block
    whole = magnitude.shape[along] // block
    in_blocks, tail = np.split(magnitude, [whole * block], along)
    scales, of_tail = np.split(divisor, [whole], along)
    shape = (*magnitude.shape[:along], whole, block, *magnitude.shape[along + 1 :])
    beyond = np.count_nonzero(in_blocks.reshape(shape) / np.expand_dims(scales, along + 1) > limit)
    return int(beyond + (np.count_nonzero(tail / of_tail > limit) if tail.size else 0))
