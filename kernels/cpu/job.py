"""Decode attention as one job that any number of threads work off together, each taking the next split.

A job is an array of numbers and addresses (`Job`). Threads count themselves through it with atomic additions,
so whoever is free takes what is left, and the last to finish merges. The sums of a split do not depend on who
takes it, nor does the merge: the result is the same on any number of threads.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numba import cfunc, types

from mxviz.kernels.cpu._base import Width, address_of, device, f32, fetch_add, float_of, i64, kernel, widen
from mxviz.kernels.cpu.attend import ROWS, TILE, TILE_NUMBERS, attend_split, merge_row
from mxviz.kernels.cpu.tiles import Held, segment_end


class Job(IntEnum):
    """Where the int64 array of a job holds which address, stride (in elements) or number."""

    NEXT = 0  # the next unit nobody has taken
    DONE = 1  # units that are finished
    UNITS = 2  # (batch, KV head) × tiles of query rows × splits
    QUERY = 3  # [batch, heads, group · queries, key dim] and its strides
    QUERY_WIDTH = 4
    QUERY_B = 5
    QUERY_H = 6  # from a query head to the next
    QUERY_T = 7
    TURNED = 8  # float32, laid out as one piece: what packed keys are scored with, 0 for the query itself
    GROUP = 9  # query heads a KV head
    QUERIES = 10
    HEADS = 11  # KV heads
    KEY = 12  # arrays that `Held` describes, with their plans
    KEY_PLAN = 13
    VALUE = 14
    VALUE_PLAN = 15
    MASK = 16  # [batch, heads · group, queries, tokens], its kind and strides
    MASK_KIND = 17
    MASK_B = 18
    MASK_H = 19
    MASK_Q = 20
    MASK_K = 21
    SCALING = 22  # float32 bits
    SOFTCAP = 23  # float32 bits
    SPLIT = 24  # tokens of a split
    APART = 25  # 2 where values of the packed part are summed apart from the exact ones, else 1
    ACC = 26  # float32 [batch · heads, rows, splits, apart · value dim]
    SUMS = 27  # float32 [batch · heads, rows, splits, 2]
    SINKS = 28  # float32 logits [heads · group] that take weight and give nothing, or 0
    OUT = 29  # float32 [batch · heads, rows, apart · value dim]


@device
def _rows(job, place, r0, count, dim, out):
    """Write `count` query rows from r0 on of a (batch, KV head), times the scaling, to an address."""
    width = job[Job.QUERY_WIDTH]
    scaling = float_of(np.int32(job[Job.SCALING]))
    for r in range(count):
        inner, position = divmod(r0 + r, job[Job.QUERIES])
        at = place[0] * job[Job.QUERY_B] + position * job[Job.QUERY_T]
        at += (place[1] * job[Job.GROUP] + inner) * job[Job.QUERY_H]
        target = f32(out + 4 * r * dim)
        if width == Width.FLOAT32:
            source = f32(job[Job.QUERY] + 4 * at)
            for i in range(dim):
                target[i] = source[i] * scaling
        else:
            widen(job[Job.QUERY] + 2 * at, width, dim, target)
            for i in range(dim):
                target[i] *= scaling


@device
def _work(address):
    """Take units of a job until none is left; then, if all the others are done too, merge."""
    job = i64(address)
    key, key_plan = i64(job[Job.KEY]), i64(job[Job.KEY_PLAN])
    value, value_plan = i64(job[Job.VALUE]), i64(job[Job.VALUE_PLAN])
    rows, dim, width = job[Job.GROUP] * job[Job.QUERIES], key[Held.DIM], value[Held.DIM]
    total, split, apart = segment_end(key, 2), job[Job.SPLIT], job[Job.APART]
    splits, row_tiles = (total + split - 1) // split, (rows + ROWS - 1) // ROWS
    tile = TILE
    while tile > 8 and tile * max(dim, width) > TILE_NUMBERS:
        tile //= 2
    most, wide = tile * max(dim, width), apart * width
    codes = np.empty(most + 4, np.uint8)
    at_once = min(ROWS, rows)
    floats = np.empty(3 * most + at_once * (TILE + wide + dim) + 2 * ROWS, np.float32)
    mask_strides = (job[Job.MASK_B], job[Job.MASK_H], job[Job.MASK_Q], job[Job.MASK_K])
    softcap = float_of(np.int32(job[Job.SOFTCAP]))
    while True:
        unit = fetch_add(address + 8 * Job.NEXT, 1)
        if unit >= job[Job.UNITS]:
            return
        work, part = divmod(unit, splits)
        outer, row_tile = divmod(work, row_tiles)
        batch, head = divmod(outer, job[Job.HEADS])
        place, r0 = (batch, head), row_tile * ROWS
        count = min(ROWS, rows - r0)
        # Addresses are taken in the loop: an array that is not used behind them would be freed under them.
        numbers, codes_at = np.int64(floats.ctypes.data), np.int64(codes.ctypes.data)
        scores = numbers + 12 * most
        weighted = scores + 4 * at_once * TILE
        query = weighted + 4 * at_once * wide
        tops = query + 4 * at_once * dim
        _rows(job, place, r0, count, dim, query)
        row = outer * rows + r0
        turned = job[Job.TURNED] + 4 * row * dim if job[Job.TURNED] else query
        scratch = (
            codes_at, numbers + 4 * most, numbers + 8 * most, numbers, scores, weighted, tops,
        )  # fmt: skip
        at = row * splits + part
        attend_split(
            query, turned, job[Job.GROUP], job[Job.QUERIES], key, key_plan, value, value_plan,
            job[Job.MASK], job[Job.MASK_KIND], mask_strides, softcap, apart, place, outer, r0, count,
            part * split, min(total, (part + 1) * split), tile, scratch,
            (job[Job.ACC] + 4 * at * wide, 4 * splits * wide), (job[Job.SUMS] + 8 * at, 8 * splits),
        )  # fmt: skip
        if fetch_add(address + 8 * Job.DONE, 1) == job[Job.UNITS] - 1:
            _merge(job, rows, splits, wide)


@device
def _merge(job, rows, splits, wide):
    """Bring the splits of all query rows to one softmax each."""
    for row in range(job[Job.UNITS] // (splits * ((rows + ROWS - 1) // ROWS)) * rows):
        logit = np.float32(-np.inf)
        if job[Job.SINKS]:
            outer, inner = divmod(row // job[Job.QUERIES], job[Job.GROUP])
            logit = f32(job[Job.SINKS])[outer % job[Job.HEADS] * job[Job.GROUP] + inner]
        at = row * splits
        merge_row(
            job[Job.ACC] + 4 * at * wide, job[Job.SUMS] + 8 * at, splits, wide, logit,
            f32(job[Job.OUT] + 4 * row * wide),
        )  # fmt: skip


@kernel
def attend_job(address):
    """Work on the job at an address until nothing is left of it; for one thread, or several of a pool."""
    _work(address)


@cfunc(types.void(types.voidptr), cache=True, error_model="numpy")
def attend_team(pointer):
    """The same as a plain function of C, for a team of threads of another library."""
    _work(address_of(pointer))
