"""Open or save: a run as a file, and files as something to look at."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import streamlit as st

from mxviz.capture import Capture, is_capture
from mxviz.tensors import as_capture, likely_axes, possible_axes, read_tensor, tensor_names
from mxviz.views import memory
from mxviz.views.limits import limits

KINDS = ("safetensors", "npy", "npz")

_MOST_NAMES = 500  # tensors of a file that are offered
_RECIPE, _BASELINE = "mxfp4", "fp4@tensor"


def fold(name: str, capture: Capture) -> tuple[str, Capture] | None:
    """Draw the fold; return the label and the capture of a file that was opened just now, else None."""
    with st.expander("Open or save"):
        st.download_button(
            "Save this run",
            data=lambda: _bytes(capture),
            file_name=f"mxviz-{name}.safetensors",
            mime="application/octet-stream",
            icon=":material/download:",
            on_click="ignore",
            key="save",
        )
        st.caption("One .safetensors file with everything the pages show; it opens here and in `mxviz`.")
        file = st.file_uploader(
            "Open a saved run, or a tensor of your own",
            KINDS,
            key=f"upload-{st.session_state.setdefault('uploads', 0)}",
            max_upload_size=limits().upload_megabytes,
            help="Nothing in a file is executed, and nothing is sent elsewhere.",
        )
        most = limits()
        st.caption(
            f".npy, .npz or .safetensors, at most {most.upload_megabytes} MB and "
            f"{most.upload_numbers // 10**6} million numbers: `[tokens, channels]`, with heads before them, "
            "and layers before those."
        )
        return None if file is None else _opened(file)


def _opened(file: Any) -> tuple[str, Capture] | None:
    """Read an uploaded file, asking what it does not say; one calm line where it cannot be read."""
    label, found, said = plain(Path(file.name).stem), None, None
    try:
        with _on_disk(file) as path:
            try:
                memory.check_room(3 * file.size, "opening this file", "wait until others are done")
                found = Capture.load(path) if is_capture(path) else _tensor(path, label)
            except ValueError as error:
                said = " ".join(str(error).split()).replace(str(path), "This file")
    except MemoryError:
        said = "This file is too large for the memory that is free; cut it first"
    except OSError as error:
        said = f"This file cannot be kept for a moment ({error.strerror})"
    if said is not None:
        st.error(plain(said, keep="'\",;:()/=@+?"), icon=":material/info:")
    if found is None:
        return None
    st.session_state["uploads"] += 1  # a fresh uploader: what was opened is in the choice above now
    return label, found


def _tensor(path: Path, label: str) -> Capture | None:
    """Read the tensor of a file; None while it is not clear which one, or what its sizes count."""
    names = sorted(tensor_names(path))[:_MOST_NAMES]
    name = names[0] if len(names) == 1 else None
    if name is None:
        if not names:
            raise ValueError(f"{path} holds no tensor; expected at least one")
        name = st.selectbox(f"It holds {len(names):,} tensors: which one?", names, key="upload-name")
    array = read_tensor(path, name, most=limits().upload_numbers)
    axes, clear = likely_axes(array.shape)
    if clear and len(names) == 1:
        return as_capture(array, label, _RECIPE, _BASELINE)
    sizes = " × ".join(f"{n:,}" for n in array.shape)
    orders = possible_axes(array.ndim)
    axes = st.selectbox(
        f"Its sizes are {sizes}. What do they count?",
        orders,
        index=orders.index(axes),
        format_func=lambda order: " × ".join(order),
        key=f"upload-axes-{array.ndim}",
    )
    if st.button("Open this tensor", key="upload-open"):
        return as_capture(array, label, _RECIPE, _BASELINE, axes)
    return None


def plain(text: str, keep: str = "") -> str:
    """Return text with nothing in it that a label would take for markup, at most 160 characters of it."""
    kept = "".join(c if c.isalnum() or c in " .-" + keep else " " for c in text)
    return " ".join(kept.split())[:160] or "a file"


@contextmanager
def _on_disk(file: Any) -> Iterator[Path]:
    """Put an upload where readers can open it, under a name of ours."""
    with tempfile.TemporaryDirectory(prefix="mxviz-") as folder:
        path = Path(folder, "file" + Path(file.name).suffix.lower())
        path.write_bytes(file.getbuffer())
        yield path


def _bytes(capture: Capture) -> bytes:
    with tempfile.TemporaryDirectory(prefix="mxviz-") as folder:
        path = Path(folder, "run.safetensors")
        capture.save(path)
        return path.read_bytes()
