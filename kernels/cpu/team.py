"""The kernels that work through units, as plain functions of C that a team of threads runs together.

A job holds the kernel's arguments behind four numbers of its own. Every thread takes the next few units until
none is left, so that one which is held up elsewhere holds up nobody.
"""

from __future__ import annotations

from enum import IntEnum

from numba import cfunc, types
from numba.np.unsafe.ndarray import to_fixed_tuple

from mxviz.kernels.cpu._base import address_of, device, fetch_add, i64
from mxviz.kernels.cpu.dequantize import dequantize_columns, dequantize_rows
from mxviz.kernels.cpu.quantize import quantize_columns, quantize_rows

_function = cfunc(types.void(types.voidptr), cache=True, error_model="numpy")


class Team(IntEnum):
    """Where the int64 array of a job holds what."""

    NEXT = 0  # the first unit nobody has taken
    UNITS = 1
    CHUNK = 2  # units that are taken at once
    PLAN = 3  # address of the plan
    ARGUMENTS = 4  # all arguments before it


@device
def _take(job, address):
    """Take the next units: the first of them, and the one behind the last; none are left where these meet."""
    first = fetch_add(address + 8 * Team.NEXT, job[Team.CHUNK])
    return min(first, job[Team.UNITS]), min(first + job[Team.CHUNK], job[Team.UNITS])


@_function
def quantize_rows_team(pointer):
    address = address_of(pointer)
    job = i64(address)
    arguments = to_fixed_tuple(job[Team.ARGUMENTS :], 18) + (i64(job[Team.PLAN]),)
    first, end = _take(job, address)
    while first < end:
        quantize_rows(*(arguments + (first, end)))
        first, end = _take(job, address)


@_function
def quantize_columns_team(pointer):
    address = address_of(pointer)
    job = i64(address)
    arguments = to_fixed_tuple(job[Team.ARGUMENTS :], 16) + (i64(job[Team.PLAN]),)
    first, end = _take(job, address)
    while first < end:
        quantize_columns(*(arguments + (first, end)))
        first, end = _take(job, address)


@_function
def dequantize_rows_team(pointer):
    address = address_of(pointer)
    job = i64(address)
    arguments = to_fixed_tuple(job[Team.ARGUMENTS :], 16) + (i64(job[Team.PLAN]),)
    first, end = _take(job, address)
    while first < end:
        dequantize_rows(*(arguments + (first, end)))
        first, end = _take(job, address)


@_function
def dequantize_columns_team(pointer):
    address = address_of(pointer)
    job = i64(address)
    arguments = to_fixed_tuple(job[Team.ARGUMENTS :], 16) + (i64(job[Team.PLAN]),)
    first, end = _take(job, address)
    while first < end:
        dequantize_columns(*(arguments + (first, end)))
        first, end = _take(job, address)
