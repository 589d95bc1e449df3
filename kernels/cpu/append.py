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


@kernel
def append_rows(address):
    """Quantize the tokens of the job at an address, on this thread."""
    job = i64(address)
    quantize_rows(
        job[Append.X], job[Append.WIDTH], job[Append.X_B], job[Append.X_H], job[Append.X_T],
        job[Append.HEADS], job[Append.TOKENS], job[Append.DIM], job[Append.ROOM], job[Append.PACKED],
        job[Append.SCALES], job[Append.ZEROS], 0, 0, 0, 0, 0, i64(job[Append.PLAN]), 0, job[Append.UNITS],
    )  # fmt: skip
