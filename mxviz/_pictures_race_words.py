"""What a race says in words, from its numbers: what is flushed and what moves the next word come first.

SQNR is never told alone: one huge channel can hold nearly all of a layer's squares, and then a scheme that
stores that channel well and flushes everything else looks good by it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np

from mxviz._pictures_race_table import rows, words
from mxviz.capture import Capture
from mxviz.figures.race import Entry, Line
from mxviz.formats import Scheme
from mxviz.race import layer_lines

LINES = {"sqnr": "sqnr_db", "flushed": "flushed"}
"""Measure of lines layer by layer, and its name in `mxviz.race`."""
TIMES = {"sqnr": 1, "flushed": 100}
"""What a number of `mxviz.race` is multiplied with to be drawn."""

ONE, BLOCKS = "fp4@tensor", ("mxfp4", "mxfp4:axis=token")
"""The schemes of a sentence at 4 bits: the same elements with one scale, and with one per 32 both ways."""
SPACE = "\N{NO-BREAK SPACE}"
_MUCH = 15  # per cent: by so much a layer must be worse than all of them together to be named
_MANY = 0.5  # share of a layer's numbers: where one scale flushes more, SQNR is taken apart


@lru_cache(maxsize=32)
def layer_values(
    capture: Capture, schemes: tuple[str, ...], part: str, measure: str = "sqnr_db"
) -> dict[str, list[float | None]]:
    """Return `mxviz.race.layer_lines`, kept for the next look."""
    return layer_lines(capture, schemes, part, measure)


def loss_sentence(capture: Capture, measure: str, part: str) -> str:
    """Say what one scale and blocks flush at 4 bits, and in `sqnr`'s race whether SQNR shows it."""
    found = {row["scheme"]: row for row in rows(capture)}
    flushed = {name: _percent(found[name][f"{part}_flushed"]) for name in (ONE, *BLOCKS)}
    if not np.isfinite(list(flushed.values())).all():
        return f"What every scheme costs, and what it loses of these {part}s"
    few, many = sorted(flushed[name] for name in BLOCKS)
    blocks = f"{few:.0f}{SPACE}%" if f"{few:.0f}" == f"{many:.0f}" else f"{few:.0f} to {many:.0f}{SPACE}%"
    told = (
        f"one scale flushes {flushed[ONE]:.0f}{SPACE}% of these {part}s to zero"
        f"{_worst_layer(capture, part, flushed[ONE])}, a scale per block {blocks}"
    )
    if measure == "flushed":
        return f"At 4 bits {told}"
    sqnr = {name: found[name][f"{part}_sqnr_db"] or np.nan for name in (ONE, *BLOCKS)}
    gap = max(sqnr[name] for name in BLOCKS) - sqnr[ONE]
    if flushed[ONE] - few > _MUCH and gap < 3:
        return f"SQNR hides it: at 4 bits {told}"
    return f"At 4 bits {told}, {abs(gap):.1f}{SPACE}dB of SQNR {'above' if gap > 0 else 'below'} it at best"


def _worst_layer(capture: Capture, part: str, all_layers: float) -> str:
    """Name the layer in which one scale flushes most, where it is much worse than the rest."""
    shares = [_percent(v) for v in layer_values(capture, (ONE,), part, "flushed")[ONE]]
    if len(shares) < 2 or not np.isfinite(shares).any() or np.nanmax(shares) - all_layers < _MUCH:
        return ""
    worst = int(np.nanargmax(shares))
    return f" ({shares[worst]:.0f}{SPACE}% in layer {capture.layers[worst]})"


def effect_sentence(entries: Mapping[str, Entry]) -> str:
    """Say how far the next word moves at 4 bits, with one scale and with blocks both ways."""
    values = {name: entry.value for name, entry in entries.items() if np.isfinite(entry.value)}
    tokens, channels = "k=mxfp4:axis=token;v=mxfp4", "mxfp4"
    if values.keys() >= {tokens, channels, ONE}:
        return (
            f"At 4 bits one scale moves the next word by {_nats(values[ONE])}, MXFP4 along channels by "
            f"{_nats(values[channels])}, with keys along tokens by {_nats(values[tokens])}"
        )
    if values.keys() >= {tokens, channels}:
        return (
            f"MXFP4 with keys cut along tokens moves the next word by {_nats(values[tokens])}, "
            f"along channels by {_nats(values[channels])}"
        )
    if not values:
        return "What these recipes do to the next word was not measured"
    least = min(values, key=values.get)
    return f"Of {len(values)} recipes {entries[least].name} moves the next word least: {_nats(values[least])}"


def lines_sentence(lines: Sequence[Line], layers: Sequence[int], part: str, measure: str) -> str:
    """Say in which layer a scheme fares worst: of all that are drawn, or, by SQNR, the least even one."""
    known = [line for line in lines if np.isfinite(np.asarray(line.values, dtype=float)).any()]
    if not known:
        return f"How each layer's {part}s fare"
    if measure == "flushed":
        worst = max(known, key=lambda line: np.nanmax(line.values))
        best = min(known, key=lambda line: np.nanmax(line.values))
        layer, most = layers[int(np.nanargmax(worst.values))], float(np.nanmax(worst.values))
        told = f"{worst.name} flushes {most:.1f}{SPACE}% of the {part}s of layer {layer} to zero"
        less = f", {best.name} at most {np.nanmax(best.values):.1f}{SPACE}% of any layer's"
        return told + (less if best is not worst else "")
    worst = max(known, key=lambda line: np.nanmax(line.values) - np.nanmin(line.values))
    low, high = float(np.nanmin(worst.values)), float(np.nanmax(worst.values))
    layer = layers[int(np.nanargmin(worst.values))]
    return f"{worst.name} is least even: {low:.1f} dB in layer {layer}, {high - low:.0f} dB below its best"


def hidden_by_squares(capture: Capture, schemes: Sequence[str], part: str) -> str | None:
    """Say where SQNR flatters one scale among some schemes: a layer that it flushes and that looks well.

    Returns:
        A few sentences with the numbers; None where no such layer is flushed by half or more.
    """
    singles = tuple(name for name in schemes if not Scheme.parse(name).is_blocked)
    flushed = layer_values(capture, singles, part, "flushed")
    worst = {name: max(((v or 0.0), i) for i, v in enumerate(found)) for name, found in flushed.items()}
    if not worst or max(worst.values())[0] < _MANY:
        return None
    name = max(worst, key=worst.get)
    share, i = worst[name]
    sqnr = layer_values(capture, (name,), part)[name]
    if sqnr[i] is None:
        return None
    rank = 1 + sum(v is not None and v > sqnr[i] for v in sqnr)
    place = "the best" if rank == 1 else f"number {rank}"
    return (
        f"{words(Scheme.parse(name))} in layer {capture.layers[i]}: SQNR {sqnr[i]:.1f} dB, {place} of its "
        f"{len(sqnr)} layers, and yet {100 * share:.1f}{SPACE}% of these {part}s are flushed to zero. SQNR "
        "sums squares, and a few outliers hold nearly all of them: it tells how well those were stored. The "
        "flushed share counts every number once."
    )


def _percent(share: float | None) -> float:
    return np.nan if share is None else 100 * share


def _nats(value: float) -> str:
    return f"{value:.2g}{SPACE}nats"
