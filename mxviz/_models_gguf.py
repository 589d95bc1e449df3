"""GGUF headers, walked before a library reads them: what they declare must fit into the file.

The library believes a header: an array that claims 10⁹ numbers makes it loop so often, and tensors that share
their bytes become as many tensors in memory. Source: ggml's docs/gguf.md, version 3.
"""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import BinaryIO

_VERSIONS = (2, 3)
_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_STRING, _ARRAY = 8, 9
_MOST_DIMENSIONS = 4
_MOST_A_BYTE = 8  # elements: no format of GGML has fewer than one bit for each
_LONGEST_NAME = 65_535


def check_gguf(path: Path) -> None:
    """Refuse a GGUF file that declares more than is in it.

    Raises:
        ValueError: in one line, with what it claims.
    """
    with path.open("rb") as file:
        size = path.stat().st_size
        file.seek(4)  # the magic was looked at
        version, tensors, pairs = struct.unpack("<IQQ", _take(file, 20))
        if version not in _VERSIONS:
            raise ValueError(f"it has GGUF version {version}; expected one of: 2, 3")
        if tensors * 24 + pairs * 12 > size:
            raise ValueError(f"it declares {tensors:,} tensors and {pairs:,} fields in {size:,} bytes")
        for _ in range(pairs):
            _text(file, size)
            _value(file, size, _number(file, "<I"))
        elements = sum(_tensor(file, size) for _ in range(tensors))
        if elements > _MOST_A_BYTE * size:
            raise ValueError(f"its tensors declare {elements:,} elements in {size:,} bytes")


def _value(file: BinaryIO, size: int, kind: int) -> None:
    """Pass over a value."""
    if kind == _STRING:
        _text(file, size)
    elif kind == _ARRAY:
        inner, count = struct.unpack("<IQ", _take(file, 12))
        width = 8 if inner == _STRING else _width(inner)
        if count * width > size - file.tell():
            raise ValueError(f"an array declares {count:,} items and {size - file.tell():,} bytes are left")
        if inner != _STRING:
            file.seek(count * width, 1)
            return
        for _ in range(count):
            _text(file, size)
    else:
        _take(file, _width(kind))


def _width(kind: int) -> int:
    if kind not in _SIZES:
        raise ValueError(f"a field has type {kind}, which GGUF does not know there")
    return _SIZES[kind]


def _tensor(file: BinaryIO, size: int) -> int:
    """Pass over the description of a tensor; return its elements."""
    if _text(file, size) > _LONGEST_NAME:
        raise ValueError("a tensor's name is longer than any")
    dimensions = _number(file, "<I")
    if dimensions > _MOST_DIMENSIONS:
        raise ValueError(f"a tensor has {dimensions:,} dimensions; expected at most {_MOST_DIMENSIONS}")
    shape = struct.unpack(f"<{dimensions}Q", _take(file, 8 * dimensions))
    _take(file, 12)
    return math.prod(shape)


def _text(file: BinaryIO, size: int) -> int:
    """Pass over a text; return its bytes."""
    length = _number(file, "<Q")
    if length > size - file.tell():
        raise ValueError(f"a text declares {length:,} bytes and {size - file.tell():,} are left")
    file.seek(length, 1)
    return length


def _number(file: BinaryIO, kind: str) -> int:
    return struct.unpack(kind, _take(file, struct.calcsize(kind)))[0]


def _take(file: BinaryIO, count: int) -> bytes:
    found = file.read(count)
    if len(found) < count:
        raise ValueError("its header is cut off")
    return found
