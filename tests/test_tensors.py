"""A tensor of the user's own: what is read, and what is refused in one line that names the file."""

from __future__ import annotations

import struct
import warnings
import zipfile

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from mxviz.tensors import (
    arranged,
    as_capture,
    likely_axes,
    possible_axes,
    read_tensor,
    tensor_names,
)


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


LAYERS, HEADS, TOKENS, CHANNELS = "layers", "heads", "tokens", "channels"


@pytest.mark.parametrize(
    ("shape", "axes", "clear"),
    [
        ((256, 128), (TOKENS, CHANNELS), True),
        ((128, 66000), (TOKENS, CHANNELS), False),
        ((2, 512, 64), (HEADS, TOKENS, CHANNELS), True),
        ((66000, 8, 128), (TOKENS, HEADS, CHANNELS), False),
        ((8, 4, 64), (HEADS, TOKENS, CHANNELS), False),
        ((24, 2, 155, 64), (LAYERS, HEADS, TOKENS, CHANNELS), False),
    ],
)
def test_what_sizes_most_likely_count(shape, axes, clear):
    assert likely_axes(shape) == (axes, clear)


def test_every_way_to_read_a_shape_is_offered_once():
    assert [len(possible_axes(n)) for n in (2, 3, 4)] == [2, 12, 24]
    for n in (2, 3, 4):
        assert len(set(possible_axes(n))) == len(possible_axes(n))
        assert all({TOKENS, CHANNELS} <= set(axes) for axes in possible_axes(n))
        shape = (2, 3, 4, 5)[:n]
        assert likely_axes(shape)[0] in possible_axes(n)


@pytest.mark.parametrize("dimensions", [2, 3, 4])
def test_any_order_of_axes_comes_to_the_same_capture(dimensions):
    x = np.arange(2 * 3 * 5 * 7, dtype=np.float32).reshape(2, 3, 5, 7)
    for axes in possible_axes(dimensions):
        names = [name for name in (LAYERS, HEADS, TOKENS, CHANNELS) if name in axes]
        part = x[tuple(slice(None) if name in axes else 0 for name in (LAYERS, HEADS, TOKENS, CHANNELS))]
        stored = part.transpose([names.index(name) for name in axes])
        back = arranged(stored, axes)
        assert back.shape == tuple(
            x.shape[i] if n in axes else 1 for i, n in enumerate((LAYERS, HEADS, TOKENS, CHANNELS))
        )
        assert np.array_equal(back.reshape(part.shape), part)
        capture = as_capture(stored, "x", "mxfp4", "fp4@tensor", axes)
        assert capture.layers == tuple(range(back.shape[0])) and capture.shape["layers"] == back.shape[0]
        assert np.array_equal(capture.keys[back.shape[0] - 1].numpy(), back[-1])


@pytest.mark.parametrize(
    "axes", [(TOKENS,), (TOKENS, TOKENS), (HEADS, TOKENS), (TOKENS, "colours"), (LAYERS, *(TOKENS, CHANNELS))]
)
def test_axes_that_do_not_fit_are_refused(axes):
    with pytest.raises(ValueError, match="do not name the sizes") as error:
        arranged(np.ones((2, 3)), axes)
    assert "\n" not in str(error.value)


def test_the_names_in_a_file(tmp_path):
    np.save(tmp_path / "x.npy", np.ones((2, 3)))
    np.savez(tmp_path / "x.npz", one=np.ones((2, 3)), two=np.ones(3))
    save_file({"k": torch.ones(2, 3), "v": torch.ones(2, 3)}, tmp_path / "x.safetensors")
    assert tensor_names(tmp_path / "x.npy") == [""]
    assert tensor_names(tmp_path / "x.npz") == ["one", "two"]
    assert sorted(tensor_names(tmp_path / "x.safetensors")) == ["k", "v"]
    (tmp_path / "bad.npz").write_bytes(b"PK\x03\x04 no zip")
    for name in ("bad.npz", "none.safetensors", "x.pt"):
        with pytest.raises(ValueError, match=name) as error:
            tensor_names(tmp_path / name)
        assert "\n" not in str(error.value)


def test_a_page_may_ask_for_less(tmp_path):
    np.save(tmp_path / "x.npy", np.ones((8, 8)))
    assert read_tensor(tmp_path / "x.npy", most=64).shape == (8, 8)
    with pytest.raises(ValueError, match="64 elements; expected at most 63, so cut it first"):
        read_tensor(tmp_path / "x.npy", most=63)
