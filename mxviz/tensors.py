"""Read a tensor of the user's own from .npy, .npz or .safetensors: sizes are checked before memory is taken.

Nothing in a file is executed: object arrays (which hold pickles) are refused.
"""

from __future__ import annotations

import tokenize
import zipfile
import zlib
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from numpy.lib import format as npy
from safetensors import SafetensorError, safe_open

from mxviz._schemes import quoted
from mxviz.capture import Capture

MAX_ELEMENTS = 1 << 28
"""Largest tensor that is read: 268 million elements, 1 GiB as float32."""


def read_tensor(path: str | Path, name: str | None = None) -> np.ndarray:
    """Read one tensor as float32, `[tokens, channels]` or with heads, then layers in front.

    Args:
        path: a .npy, .npz or .safetensors file.
        name: which tensor of a file that holds several.

    Raises:
        ValueError: for a file that is missing, damaged, not numbers, too large, or has several tensors.
    """
    path = Path(path)
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        raise ValueError(f"{path} is not a tensor file; expected one of: {', '.join(_READERS)}")
    try:
        array = reader(path, name)
    except OSError as error:
        raise ValueError(f"cannot read {path} ({error.strerror or error})") from None
    except _DAMAGE as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(f"{path} is damaged ({reason[:120]})") from None
    if not 2 <= array.ndim <= 4 or not array.size:
        raise ValueError(
            f"{path} has shape {list(array.shape)}; expected [tokens, channels], [heads, tokens, channels] "
            "or [layers, heads, tokens, channels], none of them 0"
        )
    return array.astype(np.float32, copy=False)


def as_capture(array: np.ndarray, title: str, recipe: str, baseline: str) -> Capture:
    """Return a capture that holds a tensor as keys, so that every table and figure applies to it.

    Args:
        array: as returned by `read_tensor`.
        title: what the figures call it.
        recipe: canonical recipe to look through.
        baseline: canonical recipe to compare with.
    """
    layers = torch.from_numpy(np.ascontiguousarray(array)).reshape(
        -1, *((1,) * (3 - array.ndim)), *array.shape[-3:]
    )
    keys = dict(enumerate(layers))
    tokens = array.shape[-2]
    return Capture(
        model=title,
        revision=None,
        recipe=recipe,
        baseline=baseline,
        prompt="",
        prompt_tokens=tokens,
        token_ids=tuple(range(tokens)),
        token_texts=tuple(str(i) for i in range(tokens)),
        lanes={},
        keys=keys,
        values={},
        notes=("a tensor, not a run: no model, no text, no values",),
    )


def _from_npy(path: Path, name: str | None) -> np.ndarray:
    with path.open("rb") as file:
        return _read_npy(file, path.stat().st_size, str(path))


def _from_npz(path: Path, name: str | None) -> np.ndarray:
    with zipfile.ZipFile(path) as archive:
        members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        info = members[_only(list(members), name, path)]
        with archive.open(info) as file:
            return _read_npy(file, info.file_size, f"{path}:{info.filename}")


def _from_safetensors(path: Path, name: str | None) -> np.ndarray:
    with safe_open(str(path), framework="pt") as file:
        name = _only(list(file.keys()), name, path)
        found = file.get_slice(name)
        if found.get_dtype() not in _FLOATS:
            raise ValueError(f"{path} holds {found.get_dtype()}; expected one of: {', '.join(_FLOATS)}")
        _check_size(tuple(found.get_shape()), str(path))
        return file.get_tensor(name).float().numpy()


_DAMAGE = (
    *(SafetensorError, zipfile.BadZipFile, zlib.error, tokenize.TokenError),
    *(EOFError, SyntaxError, TypeError, KeyError, RuntimeError, MemoryError, OverflowError),
)
_FLOATS = ("F32", "F16", "BF16", "F64", "F8_E4M3", "F8_E5M2", "I8", "U8", "I16", "I32", "I64")

_READERS = {".npy": _from_npy, ".npz": _from_npz, ".safetensors": _from_safetensors}


def _read_npy(file: BinaryIO, size: int, where: str) -> np.ndarray:
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
    _check_size(shape, where)
    count = int(np.prod(shape, dtype=np.int64))
    data = file.read(count * dtype.itemsize)
    if len(data) != count * dtype.itemsize:
        raise ValueError(
            f"{where} is cut off: its header says {count:,} elements and {size:,} bytes are there"
        )
    return np.frombuffer(bytearray(data), dtype).reshape(shape, order="F" if fortran else "C")


def _check_size(shape: tuple[int, ...], where: str) -> None:
    count = 1
    if any(n < 0 for n in shape):
        raise ValueError(f"{where} has shape {list(shape)}; no size can be negative")
    for n in shape:
        count *= n  # Python integers: no overflow, whatever a header claims
    if count > MAX_ELEMENTS:
        raise ValueError(
            f"{where} has {count:,} elements; expected at most {MAX_ELEMENTS:,}, so cut it first"
        )


def _only(names: list[str], name: str | None, path: Path) -> str:
    if name is None and len(names) == 1:
        return names[0]
    if name not in names:
        listed = ", ".join(quoted(n) for n in names[:12]) + (", …" if len(names) > 12 else "")
        came = "several tensors" if name is None else f"no tensor {quoted(name)}"
        raise ValueError(f"{path} has {came}; name one of: {listed or 'none at all'}")
    return name
