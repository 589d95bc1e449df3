"""Codes to bytes and back, along a row or along the rows."""

from __future__ import annotations

import numpy as np

from mxviz.kernels.cpu._base import device


@device
def pack_row(codes, n, bits, out):
    """n codes to ⌈n·bits/8⌉ bytes, low bits first; three codes behind the last have to be 0."""
    if bits == 8:
        for i in range(n):
            out[i] = codes[i]
    elif bits == 4:
        for i in range((n + 1) // 2):
            out[i] = codes[2 * i] | np.uint8(codes[2 * i + 1] << 4)
    elif bits == 2:
        for i in range((n + 3) // 4):
            low = codes[4 * i] | np.uint8(codes[4 * i + 1] << 2)
            out[i] = low | np.uint8(codes[4 * i + 2] << 4) | np.uint8(codes[4 * i + 3] << 6)
    else:
        for i in range(n // 4):
            _six(codes[4 * i], codes[4 * i + 1], codes[4 * i + 2], codes[4 * i + 3], out, 3 * i)
        left, at = n % 4, n // 4
        if left:
            last = np.zeros(3, np.uint8)
            _six(codes[4 * at], codes[4 * at + 1], codes[4 * at + 2], np.uint8(0), last, 0)
            for j in range((left * 6 + 7) // 8):
                out[3 * at + j] = last[j]


@device
def _six(a, b, c, d, out, at):
    out[at] = a | np.uint8(b << 6)
    out[at + 1] = np.uint8(b >> 2) | np.uint8(c << 4)
    out[at + 2] = np.uint8(c >> 4) | np.uint8(d << 2)


@device
def unpack_row(packed, n, bits, codes):
    """⌈n·bits/8⌉ bytes to n codes; nothing behind them is read."""
    if bits == 8:
        for i in range(n):
            codes[i] = packed[i]
    elif bits == 4:
        for i in range(n // 2):
            codes[2 * i] = packed[i] & 15
            codes[2 * i + 1] = packed[i] >> 4
        if n % 2:
            codes[n - 1] = packed[n // 2] & 15
    elif bits == 2:
        for i in range((n + 3) // 4):  # codes has room for a whole last group
            for j in range(4):
                codes[4 * i + j] = (packed[i] >> (2 * j)) & 3
    else:
        for i in range(n // 4):
            _unsix(packed[3 * i], packed[3 * i + 1], packed[3 * i + 2], codes, 4 * i)
        left, at = n % 4, n // 4
        if left:
            second = packed[3 * at + 1] if left > 1 else np.uint8(0)
            third = packed[3 * at + 2] if left > 2 else np.uint8(0)
            _unsix(packed[3 * at], second, third, codes, 4 * at)


@device
def _unsix(a, b, c, codes, at):
    codes[at] = a & 63
    codes[at + 1] = (a >> 6) | np.uint8((b & 15) << 2)
    codes[at + 2] = (b >> 4) | np.uint8((c & 3) << 4)
    codes[at + 3] = c >> 2


@device
def pack_columns(codes, stride, rows, n, bits, out, out_stride):
    """Pack rows of n codes along the rows, as `pack_row` does along a row; rows up to the next four are 0."""
    if bits == 8:
        for r in range(rows):
            a, to = codes[r * stride :], out[r * out_stride :]
            for i in range(n):
                to[i] = a[i]
        return
    count = 2 if bits == 4 else 4
    for g in range((rows + count - 1) // count):
        a, b = codes[g * count * stride :], codes[(g * count + 1) * stride :]
        if bits == 4:
            to = out[g * out_stride :]
            for i in range(n):
                to[i] = a[i] | np.uint8(b[i] << 4)
            continue
        c, d = codes[(g * count + 2) * stride :], codes[(g * count + 3) * stride :]
        if bits == 2:
            to = out[g * out_stride :]
            for i in range(n):
                to[i] = a[i] | np.uint8(b[i] << 2) | np.uint8(c[i] << 4) | np.uint8(d[i] << 6)
            continue
        left = min(4, rows - g * 4)
        first, second, third = (
            out[3 * g * out_stride :],
            out[(3 * g + 1) * out_stride :],
            out[(3 * g + 2) * out_stride :],
        )
        for i in range(n):
            first[i] = a[i] | np.uint8(b[i] << 6)
        if left > 1:
            for i in range(n):
                second[i] = np.uint8(b[i] >> 2) | np.uint8(c[i] << 4)
        if left > 2:
            for i in range(n):
                third[i] = np.uint8(c[i] >> 4) | np.uint8(d[i] << 2)


@device
def unpack_columns(packed, stride, begin, end, n, bits, codes):
    """Rows begin … end - 1 of n codes from rows packed along the rows; only bytes that exist are read."""
    mask, t = np.uint8((1 << bits) - 1), begin
    while t < end:
        out, shift = codes[(t - begin) * n :], t * bits % 8
        low = packed[t * bits // 8 * stride :]
        if bits == 4 and shift == 0 and t + 1 < end:
            second = codes[(t + 1 - begin) * n :]
            for i in range(n):
                out[i] = low[i] & 15
                second[i] = low[i] >> 4
            t += 1
        elif shift + bits <= 8:
            for i in range(n):
                out[i] = (low[i] >> shift) & mask
        else:
            high = packed[(t * bits // 8 + 1) * stride :]
            for i in range(n):
                out[i] = ((low[i] >> shift) | np.uint8(high[i] << (8 - shift))) & mask
        t += 1
