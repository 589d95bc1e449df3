"""What quantization costs, as plain numbers: SQNR, mean squared error, flushed and clipped shares, KL.

Everything is summed in float64. An element that is not finite, or whose block holds one that is not, is left
out of every number and counted apart, so that one NaN poisons nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from mxviz import ops
from mxviz._hadamard import rotate as turn
from mxviz._hadamard import unrotate
from mxviz.capture import Capture
from mxviz.formats import Recipe, Scheme
from mxviz.quantize import MXBlocks


class RoundTrip(NamedTuple):
    """What came back from storage; all `[kv_heads, tokens, head_dim]`.

    Args:
        x_hat: float32, in the frame of x (rotated back where it was rotated).
        clipped: which finite elements lie beyond their ruler, counted as they were stored (rotated).
        flushed: which non-zero elements were stored as zero, counted likewise.
        stored_from: what went into the quantizer: x, or x rotated, float32.
        blocks: the packed blocks of the tokens behind the sinks; None where everything stays exact.
    """

    x_hat: Tensor
    clipped: Tensor
    flushed: Tensor
    stored_from: Tensor
    blocks: MXBlocks | None


class ErrorSums(NamedTuple):
    """Sums that add up exactly over tensors; see `pool` and `error_stats`.

    Args:
        signal: Σ x².
        noise: Σ (x − x̂)².
        count: elements in those two sums (both x and x̂ finite).
        finite: finite elements of x, among which `clipped` were counted.
        clipped: elements beyond their ruler.
        non_zero: non-zero elements of x, among which `flushed` were counted.
        flushed: elements that came out as zero.
        not_finite: elements left out, because they or one in their block are NaN or infinite.
    """

    signal: float = 0.0
    noise: float = 0.0
    count: int = 0
    finite: int = 0
    clipped: int = 0
    non_zero: int = 0
    flushed: int = 0
    not_finite: int = 0


def sqnr_db(x: Tensor, x_hat: Tensor) -> float | None:
    """Return the signal-to-quantization-noise ratio 10·log10(Σx² / Σ(x−x̂)²) in dB.

    Positions where either is not finite are left out. A perfect copy gives infinity, a signal of zero None:
    both are "n/a" on a page and null in a report.
    """
    return _ratio_db(*_signal_and_noise(x, x_hat)[:2])


def mse(x: Tensor, x_hat: Tensor) -> float | None:
    """Return the mean of (x−x̂)² over positions where both are finite; None where there are none."""
    _, noise, count = _signal_and_noise(x, x_hat)
    return noise / count if count else None


def round_trip(
    x: Tensor,
    scheme: Scheme | str,
    *,
    sink: int = 0,
    rotate: bool = False,
    frozen: Tensor | None = None,
    backend: str = "auto",
) -> RoundTrip:
    """Store a layer's keys or values under a scheme and read them back.

    Args:
        x: `[..., kv_heads, tokens, head_dim]`.
        scheme: a Scheme or its string; under `none` everything stays exact.
        sink: first tokens that stay exact and enter no scale; blocks along tokens count from behind them.
        rotate: turn head_dim by a Hadamard matrix before and back after.
        frozen: scales set earlier; see `mxviz.quantize.quantize`.
        backend: see `mxviz.ops.pick`.

    Raises:
        ValueError: for what `mxviz.ops.quantize` refuses, or a head_dim without a Hadamard matrix.
    """
    scheme = Scheme.parse(scheme) if isinstance(scheme, str) else scheme
    x = x.float()
    if scheme.is_none or sink >= x.shape[-2]:
        untouched = torch.zeros(x.shape, dtype=torch.bool)
        return RoundTrip(x, untouched, untouched, x, None)
    turned = turn(x) if rotate else x
    kept = turned[..., sink:, :]
    blocks = ops.quantize(kept, scheme, frozen=frozen, backend=backend)
    decoded = ops.dequantize(blocks, torch.float32, backend=backend)
    back = unrotate(decoded) if rotate else decoded
    clipped, flushed = blocks.clipped_mask(kept), (kept != 0) & (decoded == 0)
    if sink:
        back = torch.cat([x[..., :sink, :], back], -2)
        clipped, flushed = (torch.nn.functional.pad(mask, (0, 0, sink, 0)) for mask in (clipped, flushed))
    return RoundTrip(back, clipped, flushed, turned, blocks)


def error_sums(x: Tensor, trip: RoundTrip) -> ErrorSums:
    """Return the sums behind every error number; any part of x and of its round trip may be given.

    Args:
        x: what went in, `[...]`.
        trip: what came back, cut like x; see `cut`.
    """
    signal, noise, count = _signal_and_noise(x, trip.x_hat)
    stored = trip.stored_from
    return ErrorSums(
        signal=signal,
        noise=noise,
        count=count,
        finite=count if count == x.numel() else int(stored.isfinite().sum()),
        clipped=int(trip.clipped.count_nonzero()),
        non_zero=int(stored.count_nonzero()),
        flushed=int(trip.flushed.count_nonzero()),
        not_finite=x.numel() - count,
    )


def cut(trip: RoundTrip, head: int) -> RoundTrip:
    """Return one head's part of a round trip, `[tokens, head_dim]`; its blocks are left out."""
    return RoundTrip(*(t[head] for t in trip[:4]), None)


def pool(sums: Iterable[ErrorSums]) -> ErrorSums:
    """Add sums up, so that the numbers of a pool are those of all its elements."""
    return ErrorSums(*(sum(column) for column in zip(ErrorSums(), *sums, strict=True)))


def error_stats(sums: ErrorSums) -> dict[str, float | None]:
    """Return `sqnr_db` (dB), `mse`, `flushed` (share of non-zero) and `clipped` (share of finite elements).

    Shares run from 0 to 1. None stands for a share of nothing, and for an SQNR without signal; a perfect
    copy has an infinite SQNR.
    """
    return {
        "sqnr_db": _ratio_db(sums.signal, sums.noise),
        "mse": _share(sums.noise, sums.count),
        "flushed": _share(sums.flushed, sums.non_zero),
        "clipped": _share(sums.clipped, sums.finite),
    }


def layer_trip(capture: Capture, recipe: Recipe, part: str, layer: int, backend: str = "auto") -> RoundTrip:
    """Round-trip one recorded layer, `[kv_heads, tokens, head_dim]`, as a recipe would store it.

    Whole-tensor scales, sinks and skipped layers exact, short tail blocks quantized, residual ignored.
    """
    scheme = Scheme.parse("none") if layer in recipe.skip else recipe.scheme(part)
    sink = sinks_of(capture, recipe, layer)
    return round_trip(capture.part(part, layer), scheme, sink=sink, rotate=recipe.rotate, backend=backend)


@lru_cache(maxsize=4)
def kept_trip(capture: Capture, recipe: Recipe, part: str, layer: int) -> RoundTrip:
    """Round-trip one recorded layer as `layer_trip`; the last few are kept, and not to be written to.

    A page looks at one layer in several figures: its recipe's trip and its baseline's serve them all. One of
    8,000 tokens with 3 heads of 64 channels is 16 MB.
    """
    return layer_trip(capture, recipe, part, layer)


def recipe_of(capture: Capture, recipe: Recipe | str) -> Recipe:
    """Return a recipe that fits the model of a capture.

    Raises:
        ValueError: for a recipe that does not parse, or skips a layer that the model does not have.
    """
    recipe = Recipe.parse(recipe)
    layers = capture.shape.get("layers") or 1 + max(capture.layers, default=0)
    missing = [layer for layer in recipe.skip if layer >= layers]
    if missing:
        raise ValueError(f"skip={missing[0]}: the model has layers 0 to {layers - 1}; name one of them")
    return recipe


def sinks_of(capture: Capture, recipe: Recipe, layer: int) -> int:
    """Return how many first tokens stay exact in a layer: a sliding layer, which drops them, keeps none."""
    return 0 if layer in capture.shape.get("sliding_layers", ()) else recipe.sink


def part_error(
    capture: Capture, recipe: Recipe | str, part: str, backend: str = "auto"
) -> dict[str, float | None]:
    """Return `error_stats` pooled over all recorded layers of `key` or `value`.

    Exact tokens and layers count as signal without noise. Clipped and flushed are counted rotated where the
    recipe rotates, SQNR and MSE unrotated.
    """
    recipe = Recipe.parse(recipe)
    return error_stats(
        pool(
            error_sums(capture.part(part, layer).float(), layer_trip(capture, recipe, part, layer, backend))
            for layer in capture.layers
        )
    )


def effect_stats(kl: Tensor, top1: Tensor) -> dict[str, float | None]:
    """Return `kl_mean` and `kl_p99` (nats; linear interpolation) and `top1_agreement` (share, 0 to 1).

    Args:
        kl: KL(exact‖quantized) of each position, `[positions]`; what is not finite is left out.
        top1: whether the most probable next token is the same, bool `[positions]`.
    """
    nats = kl.double().numpy()
    nats = nats[np.isfinite(nats)]
    return {
        "kl_mean": float(nats.mean()) if nats.size else None,
        "kl_p99": float(np.percentile(nats, 99)) if nats.size else None,
        "top1_agreement": float(top1.double().mean()) if top1.numel() else None,
    }


def json_safe(value: object) -> object:
    """Return a copy fit for JSON: what is not finite becomes None, keys become text, tuples lists."""
    if isinstance(value, dict):
        return {str(key): json_safe(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_safe(item) for item in value]
    if isinstance(value, float | np.floating):
        return float(value) if math.isfinite(value) else None
    return value.item() if isinstance(value, np.generic) else value


def _signal_and_noise(x: Tensor, x_hat: Tensor) -> tuple[float, float, int]:
    x, x_hat = x.double().flatten(), x_hat.double().flatten()
    signal, noise = _sum_of_squares(x), _sum_of_squares(x - x_hat)
    if math.isfinite(signal + noise):  # squares of float32 do not overflow float64: all were finite
        return signal, noise, x.numel()
    both = x.isfinite() & x_hat.isfinite()
    x, x_hat = x[both], x_hat[both]
    return _sum_of_squares(x), _sum_of_squares(x - x_hat), x.numel()


def _sum_of_squares(x: Tensor) -> float:
    return float(x.dot(x))


def _ratio_db(signal: float, noise: float) -> float | None:
    if signal == 0:
        return None
    return 10 * math.log10(signal / noise) if noise else math.inf


def _share(part: float, among: int) -> float | None:
    return part / among if among else None
