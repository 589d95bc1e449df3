"""A few tokens quantized into a cache's buffers: `quantize_rows` for a job that is kept from step to step."""

from __future__ import annotations

from enum import IntEnum

from mxviz.kernels.cpu._base import i64, kernel
from mxviz.kernels.cpu.quantize import quantize_rows


class Append(IntEnum):
    """Where the int64 array of a job holds which argument of `quantize_rows`."""

    X = 0
    WIDTH = 1
    X_B = 2
    X_H = 3
    X_T = 4
    HEADS = 5
    TOKENS = 6
    DIM = 7
    ROOM = 8
    PACKED = 9
    SCALES = 10
    ZEROS = 11
    PLAN = 12
    UNITS = 13
    GIVEN = 14  # NVFP4's global scale, or 0, and the elements from one sequence's to the next
    GIVEN_B = 15
    BEYOND = 16  # elements that were clipped, where a scale is given


@kernel
def append_rows(address):
    """Quantize the tokens of the job at an address, on this thread."""
    job = i64(address)
    beyond = address + 8 * Append.BEYOND if job[Append.GIVEN] else 0
    quantize_rows(
        job[Append.X], job[Append.WIDTH], job[Append.X_B], job[Append.X_H], job[Append.X_T],
        job[Append.HEADS], job[Append.TOKENS], job[Append.DIM], job[Append.ROOM], job[Append.PACKED],
        job[Append.SCALES], job[Append.ZEROS], job[Append.GIVEN], job[Append.GIVEN_B], 0, 0, 0, beyond,
        i64(job[Append.PLAN]), 0, job[Append.UNITS],
    )  # fmt: skip
