"""Tensor files (.npy, .npz, .safetensors): sizes are checked before memory is taken, nothing is executed."""

from __future__ import annotations

import tokenize
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.lib import format as npy
from safetensors import SafetensorError, safe_open

from mxviz._schemes import quoted

MOST_MEMBERS = 10_000
_MEMBER = b"PK\x01\x02"  # an archive's table has this before each member, whatever its other records say


class Reader(NamedTuple):
    """How a kind of file is read: the names in it, and one of its tensors."""

    names: Callable[[Path], list[str]]
    read: Callable[[Path, str | None, int], np.ndarray]


def calmly(path: Path, work: Callable[[Reader], Any]) -> Any:
    """Do something with a file; whatever is wrong with it is one line."""
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        raise ValueError(f"{path} is not a tensor file; expected one of: {', '.join(_READERS)}")
    try:
        return work(reader)
    except OSError as error:
        raise ValueError(f"cannot read {path} ({error.strerror or error})") from None
    except _DAMAGE as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(f"{path} is damaged ({reason[:120]})") from None


def _from_npy(path: Path, name: str | None, most: int) -> np.ndarray:
    with path.open("rb") as file:
        return _read_npy(file, path.stat().st_size, str(path), most)


def _check_members(path: Path) -> None:
    """Refuse an archive with more members than anybody has tensors, before a table of them is made."""
    count, tail = 0, b""
    with path.open("rb") as file:
        while part := file.read(1 << 20):
            count += (tail + part).count(_MEMBER)
            tail = part[1 - len(_MEMBER) :]
            if count > MOST_MEMBERS:
                raise ValueError(f"{path} has more than {MOST_MEMBERS:,} members; expected one a tensor")


def _members(archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    return {info.filename.removesuffix(".npy"): info for info in archive.infolist()}


def _names_in_npz(path: Path) -> list[str]:
    _check_members(path)
    with zipfile.ZipFile(path) as archive:
        return list(_members(archive))


def _from_npz(path: Path, name: str | None, most: int) -> np.ndarray:
    _check_members(path)
    with zipfile.ZipFile(path) as archive:
        members = _members(archive)
        info = members[_only(list(members), name, path)]
        with archive.open(info) as file:
            return _read_npy(file, info.file_size, f"{path}:{info.filename}", most)


def _names_in_safetensors(path: Path) -> list[str]:
    with safe_open(str(path), framework="pt") as file:
        return list(file.keys())


def _from_safetensors(path: Path, name: str | None, most: int) -> np.ndarray:
    with safe_open(str(path), framework="pt") as file:
        name = _only(list(file.keys()), name, path)
        found = file.get_slice(name)
        if found.get_dtype() not in _FLOATS:
            raise ValueError(f"{path} holds {found.get_dtype()}; expected one of: {', '.join(_FLOATS)}")
        _check_size(tuple(found.get_shape()), str(path), most)
        return file.get_tensor(name).float().numpy()


_DAMAGE = (
    *(SafetensorError, zipfile.BadZipFile, zlib.error, tokenize.TokenError),
    *(EOFError, SyntaxError, TypeError, KeyError, RuntimeError, MemoryError, OverflowError),
)
_FLOATS = ("F32", "F16", "BF16", "F64", "F8_E4M3", "F8_E5M2", "I8", "U8", "I16", "I32", "I64")

_READERS = {
    ".npy": Reader(lambda path: [""], _from_npy),
    ".npz": Reader(_names_in_npz, _from_npz),
    ".safetensors": Reader(_names_in_safetensors, _from_safetensors),
}


def _read_npy(file: BinaryIO, size: int, where: str, most: int) -> np.ndarray:
    """Read one .npy stream whose header must agree with the bytes that are there."""
    try:
        version = npy.read_magic(file)
    except ValueError as error:
        raise ValueError(f"{where} is no .npy file ({error})") from None
    read_header = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}.get(version)
    if read_header is None:
        raise ValueError(f"{where} has .npy version {version}; save it again with numpy.save")
    try:
        shape, fortran, dtype = read_header(file)
    except ValueError as error:
        raise ValueError(f"{where} has a damaged .npy header ({str(error)[:80]})") from None
    if dtype.kind not in "fiu":
        raise ValueError(f"{where} holds {dtype}, not numbers; expected floats or integers")
    _check_size(shape, where, most)
    count = int(np.prod(shape, dtype=np.int64))
    needed = count * dtype.itemsize
    data = file.read(needed) if needed <= size else b""  # it may lie, and the archive about `size` too
    if len(data) != needed:
        raise ValueError(
            f"{where} is cut off: its header says {count:,} elements and {size:,} bytes are there"
        )
    return np.frombuffer(bytearray(data), dtype).reshape(shape, order="F" if fortran else "C")


def _check_size(shape: tuple[int, ...], where: str, most: int) -> None:
    count = 1
    if any(n < 0 for n in shape):
        raise ValueError(f"{where} has shape {list(shape)}; no size can be negative")
    for n in shape:
        count *= n  # Python integers: no overflow, whatever a header claims
    if count > most:
        raise ValueError(f"{where} has {count:,} elements; expected at most {most:,}, so cut it first")


def _only(names: list[str], name: str | None, path: Path) -> str:
    if name is None and len(names) == 1:
        return names[0]
    if name not in names:
        listed = ", ".join(quoted(n) for n in names[:12]) + (", …" if len(names) > 12 else "")
        came = "several tensors" if name is None else f"no tensor {quoted(name)}"
        raise ValueError(f"{path} has {came}; name one of: {listed or 'none at all'}")
    return name
