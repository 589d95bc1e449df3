"""The lesson's saboteur: one value of a real block is multiplied, and rulers that share it stretch.

INT4 elements throughout: one float32 scale for the room (`int4@tensor`), or E8M0 scales for parts of it
(`mxint4`, which is not in OCP MX: the teaching twin of INT4).
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch

from mxviz.capture import Capture
from mxviz.formats import SCHEMES, Scheme
from mxviz.quantize import quantize


class Measured(NamedTuple):
    """Values under one ruler; arrays are `[values]`.

    Args:
        step: the smallest tick above zero.
        ticks: `[ticks]`, ascending: all that the ruler can hold.
        decoded: what the values read as, float32.
        flushed: which became zero without being zero.
    """

    step: float
    ticks: np.ndarray
    decoded: np.ndarray
    flushed: np.ndarray


class Sabotage(NamedTuple):
    """A room of two real blocks, into the second of which an outlier was planted.

    Args:
        times: what one value was multiplied by.
        room: `[64]` float32, as stored; the first 32 are the block that is watched, and untouched.
        at: where the outlier stands in the room.
        one: the watched block under one INT4 scale for the room.
        own: the watched block under an MXINT4 scale of its own.
    """

    times: int
    room: np.ndarray
    at: int
    one: Measured
    own: Measured

    @property
    def watched(self) -> np.ndarray:
        return self.room[:BLOCK]


BLOCK = 32
TIMES = (1, 4, 16, 64)
"""What the saboteur multiplies a value by."""
PLANTED = 16
"""What the planted value of the step on personal rulers was multiplied by."""
ROOM = {"layer": 8, "head": 0, "channel": 5, "first": 32}
"""The room: keys of one channel of one head, 64 tokens in a row."""


@lru_cache(maxsize=16)
def sabotage(capture: Capture, times: int) -> Sabotage:
    """Multiply the largest value of the second block of `ROOM` and store the room, with one ruler and two.

    Raises:
        ValueError: for a capture without that room.
    """
    room, at = planted(capture, times)
    x = torch.from_numpy(room)[None]
    one, own = (_measured(x, scheme) for scheme in (SCHEMES["int4@tensor"], SCHEMES["mxint4"]))
    return Sabotage(times, room, at, one, own)


def planted(capture: Capture, times: int) -> tuple[np.ndarray, int]:
    """Return the room `[64]` float32 with one value multiplied, and where that value stands."""
    keys, first = capture.part("key", ROOM["layer"]), ROOM["first"]
    if keys.shape[1] < first + 2 * BLOCK:
        raise ValueError(
            f"{keys.shape[1]} tokens were recorded; the lesson's room ends at {first + 2 * BLOCK}"
        )
    room = keys[ROOM["head"], first : first + 2 * BLOCK, ROOM["channel"]].float().numpy().copy()
    at = BLOCK + int(np.abs(room[BLOCK:]).argmax())
    room[at] *= times
    return room, at


def _measured(x: torch.Tensor, scheme: Scheme) -> Measured:
    """Store x `[1, values]`; return its first block and the ruler that this lies on."""
    blocks = quantize(x, scheme, axis=-1)
    decoded, scale = blocks.dequantize()[0, :BLOCK].numpy(), float(blocks.divisor()[0, 0])
    ticks = np.array(scheme.element.ticks) * scale
    flushed = (x[0, :BLOCK].numpy() != 0) & (decoded == 0)
    return Measured(float(ticks[ticks > 0].min()), ticks, decoded, flushed)


class Shared(NamedTuple):
    """The block with the outlier under several rulers.

    Args:
        size: values that share a ruler.
        bits: per element, an 8-bit scale a ruler included.
        values: `[32]` float32; decoded and flushed are those of `Measured`.
        limits: `[32]`, half of the first tick of each value's ruler: what is no larger becomes zero.
        at: where the outlier stands.
    """

    size: int
    bits: float
    values: np.ndarray
    decoded: np.ndarray
    flushed: np.ndarray
    limits: np.ndarray
    at: int


RULERS = (1, 2, 4, 8, 16, 32)
"""Into how many rulers the block is cut."""


@lru_cache(maxsize=16)
def personal_rulers(capture: Capture, rulers: int, times: int = PLANTED) -> Shared:
    """Store the block that holds the outlier as MXINT4 with so many scales for its 32 values.

    Raises:
        ValueError: for a number that is not in `RULERS`.
    """
    if rulers not in RULERS:
        raise ValueError(f"{rulers} rulers do not divide {BLOCK} values; expected one of: {RULERS}")
    room, at = planted(capture, times)
    scheme = replace(SCHEMES["mxint4"], block=BLOCK // rulers)
    values = room[BLOCK:]
    blocks = quantize(torch.from_numpy(values)[None], scheme, axis=-1)
    decoded = blocks.dequantize()[0].numpy()
    limits = blocks.divisor()[0].numpy() * scheme.element.min_subnormal / 2
    flushed = (values != 0) & (decoded == 0)
    bits = scheme.bits_per_element()
    return Shared(scheme.block, bits, values, decoded, flushed, limits, at - BLOCK)
