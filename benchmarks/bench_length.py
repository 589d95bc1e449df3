"""How the cost of attention and cache grows with the tokens held, and its exponent.

A step is 30 layers of update and attention with SmolLM2-135M's shapes, without the rest of a model. The
exponent is the slope of log time over log length: 1 where twice the tokens take twice the time, 0 where they
make no difference.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch

from benchmarks._attention import LAYERS, config, decode_step, random_states
from benchmarks._caches import BASE, CACHES, OURS, States, Walk, around, fill
from benchmarks._rows import Row, timed_row
from benchmarks._timing import in_rounds

LENGTHS = (256, 512, 1024, 2048, 4096, 8192, 16384)
NAMES = (BASE, OURS, "MXCache k=mxfp4:axis=token;v=mxfp4", "MXCache mxfp4, unpacked for sdpa")
EXPONENT = "exponent"


def measure(quick: bool = False) -> Iterator[Row]:
    """Measure all lengths; `quick` takes the first two and few layers."""
    if quick:
        return rows(LENGTHS[:2], rounds=3, layers=2)
    return rows(LENGTHS, rounds=15)


def rows(lengths: Sequence[int], rounds: int, layers: int = LAYERS, steps: int = 2) -> Iterator[Row]:
    """Measure NAMES at these lengths, then fit an exponent for each."""
    times: dict[str, list[float]] = {name: [] for name in NAMES}
    for tokens in lengths:
        taken = _at_length(tokens, rounds, layers, steps)
        for name, ms in taken.items():
            ratios = [a / b for a, b in zip(ms, taken[BASE], strict=True)]
            row = timed_row("length", f"{tokens} tokens", name, "ms/step", ms, ratios, f"{layers} layers")
            times[name].append(row.median)
            yield row
    for name, ms in times.items():
        note = f"fitted over {lengths[0]} to {lengths[-1]} tokens"
        yield Row("length", EXPONENT, name, "", median=exponent(lengths, ms), rounds=rounds, note=note)


def exponent(lengths: Sequence[int], ms: Sequence[float]) -> float:
    """Return the slope of log ms over log length, least squares."""
    return float(np.polyfit(np.log(lengths), np.log(ms), 1)[0])


def _at_length(tokens: int, rounds: int, layers: int, steps: int) -> Mapping[str, list[float]]:
    lengths = around(tokens, rounds * steps, steps)
    states = random_states(lengths.start, layers)
    with torch.inference_mode():
        taken, _ = in_rounds({name: _walk(name, states, lengths, steps) for name in NAMES}, rounds)
    return taken


def _walk(name: str, states: States, lengths: range, steps: int) -> Walk:
    contender = CACHES[name]
    return Walk(
        make=lambda: fill(contender.make(config(len(states))), states, lengths.start),
        step=decode_step(contender.attention),
        lengths=lengths,
        steps=steps,
    )
