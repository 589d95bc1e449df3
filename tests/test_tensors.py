"""A tensor of the user's own: what is read, and what is refused in one line that names the file."""

from __future__ import annotations

import struct
import warnings
import zipfile

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from mxviz.tensors import as_capture, read_tensor


def npy(shape: str, descr: str = "'<f4'", data: bytes = b"") -> bytes:
    """A .npy file that says this of itself, whatever is behind it."""
    header = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}".encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + data


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64, np.int8])
def test_npy_comes_back_as_float32(tmp_path, order, dtype):
    x = np.asarray(np.arange(24).reshape(2, 3, 4), dtype=dtype, order=order)
    np.save(tmp_path / "x.npy", x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read = read_tensor(tmp_path / "x.npy")
        capture = as_capture(read, "x", "mxfp4", "fp4@tensor")
    assert read.dtype == np.float32 and np.array_equal(read, x)
    assert capture.part("key", 0).shape == (2, 3, 4)


def test_npz_and_safetensors_by_name(tmp_path):
    x = np.ones((4, 8), np.float32)
    np.savez(tmp_path / "x.npz", one=x, two=2 * x)
    assert read_tensor(tmp_path / "x.npz", "two").max() == 2
    save_file({"k": torch.full((1, 2, 4, 8), 3.0, dtype=torch.bfloat16)}, tmp_path / "x.safetensors")
    read = read_tensor(tmp_path / "x.safetensors")
    assert read.max() == 3 and as_capture(read, "x", "mxfp4", "fp4@tensor").layers == (0,)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.npy", b"", "no .npy file"),
        ("a.npy", b"hello, this is text", "no .npy file"),
        ("a.npy", b"\x93NUMPY\x02\x00\xff\xff\xff\xff", "a.npy"),
        ("a.npy", b"\x93NUMPY\x01\x00\x20\x00{'descr': '<f4', 'shape': (4\x00", "a.npy"),
        ("a.npy", npy("(1000000000, 1000)"), "expected at most"),
        ("a.npy", npy("(-4, -4)"), "negative"),
        ("a.npy", npy("(4, 4)", data=b"\0" * 10), "cut off"),
        ("a.npy", npy("(4, 4)", "'|O'", b"\x80\x04."), "not numbers"),
        ("a.npz", b"PK\x03\x04 no zip", "damaged"),
        ("a.safetensors", b"\xff" * 16, "damaged"),
        ("a.safetensors", struct.pack("<Q", 1 << 40) + b"{}", "damaged"),
        ("a.txt", b"1 2 3", "not a tensor file"),
    ],
)
def test_what_is_no_tensor_is_refused_in_one_line(tmp_path, name, content, said):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match="a\\.") as error:
        read_tensor(tmp_path / name)
    assert said in str(error.value) and "\n" not in str(error.value)


def test_a_zip_that_claims_more_than_it_holds(tmp_path):
    with zipfile.ZipFile(tmp_path / "bomb.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", npy("(100000, 100000)", data=b"\0" * 1000))
    with pytest.raises(ValueError, match="expected at most"):
        read_tensor(tmp_path / "bomb.npz")


@pytest.mark.parametrize("dtype", [torch.complex64, torch.bool])
def test_safetensors_that_hold_no_real_numbers(tmp_path, dtype):
    save_file({"x": torch.zeros(4, 4, dtype=dtype)}, tmp_path / "x.safetensors")
    with pytest.raises(ValueError, match="expected one of: F32"):
        read_tensor(tmp_path / "x.safetensors")
