"""Read a tensor of the user's own from .npy, .npz or .safetensors: sizes are checked before memory is taken.

Nothing in a file is executed: object arrays (which hold pickles) are refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from pathlib import Path

import numpy as np
import torch

from mxviz._tensors_files import calmly
from mxviz.capture import Capture

MAX_ELEMENTS = 1 << 28
"""Largest tensor that is read: 268 million elements, 1 GiB as float32."""


AXES = ("layers", "heads", "tokens", "channels")
"""What the sizes of a tensor may count, in the order they are brought to."""

_USUAL = {2: AXES[2:], 3: AXES[1:], 4: AXES}
_MOST_CHANNELS = 1024
_MOST_HEADS = 128


def read_tensor(path: str | Path, name: str | None = None, *, most: int = MAX_ELEMENTS) -> np.ndarray:
    """Read one tensor as float32, with two to four dimensions in the order they are stored in.

    Args:
        path: a .npy, .npz or .safetensors file.
        name: which tensor of a file that holds several.
        most: elements that are read at most.

    Raises:
        ValueError: for a file that is missing, damaged, not numbers, too large, or has several tensors.
    """
    path = Path(path)
    array = calmly(path, lambda reader: reader.read(path, name, most))
    if not 2 <= array.ndim <= 4 or not array.size:
        raise ValueError(
            f"{path} has shape {list(array.shape)}; expected [tokens, channels], [heads, tokens, channels] "
            "or [layers, heads, tokens, channels], none of them 0"
        )
    return array.astype(np.float32, copy=False)


def tensor_names(path: str | Path) -> list[str]:
    """Return the names of the tensors in a file; of a .npy file, which holds one without a name, `[""]`.

    Raises:
        ValueError: for a file that is missing, damaged or of another kind.
    """
    path = Path(path)
    return calmly(path, lambda reader: reader.names(path))


def likely_axes(shape: Sequence[int]) -> tuple[tuple[str, ...], bool]:
    """Return what the sizes of a tensor most likely count, and whether that is beyond doubt.

    Two sizes are tokens and channels, three heads before them, four layers before those. It is doubtful with
    four sizes, with more channels than any model has, and with more heads than tokens.
    """
    usual = _USUAL[len(shape)]
    if len(shape) == 2:
        return usual, shape[1] <= _MOST_CHANNELS
    if len(shape) == 4:
        return usual, False
    heads, tokens, channels = shape
    if heads > _MOST_HEADS and tokens <= _MOST_HEADS:
        return ("tokens", "heads", "channels"), False
    return usual, heads <= tokens and channels <= _MOST_CHANNELS


def possible_axes(dimensions: int) -> list[tuple[str, ...]]:
    """Return the ways to read so many dimensions, the usual one first."""
    sets = {2: [AXES[2:]], 3: [AXES[1:], (AXES[0], *AXES[2:])], 4: [AXES]}[dimensions]
    return [order for names in sets for order in permutations(names)]


def arranged(array: np.ndarray, axes: Sequence[str] | None = None) -> np.ndarray:
    """Return a tensor as `[layers, heads, tokens, channels]`; what it does not have is 1.

    Args:
        array: two to four dimensions.
        axes: what each counts, names of `AXES`; by default tokens and channels, before them heads, then
            layers.

    Raises:
        ValueError: for axes that do not fit it, or without tokens or channels.
    """
    axes = _USUAL.get(array.ndim, ()) if axes is None else tuple(axes)
    known = set(axes) <= set(AXES) and {"tokens", "channels"} <= set(axes)
    if not known or len(set(axes)) != len(axes) or len(axes) != array.ndim:
        raise ValueError(
            f"axes {', '.join(axes) or 'none'} do not name the sizes {list(array.shape)}; expected tokens, "
            "channels and at most heads and layers, one for each size"
        )
    present = [name for name in AXES if name in axes]
    moved = array.transpose([axes.index(name) for name in present])
    sizes = dict(zip(present, moved.shape, strict=True))
    return moved.reshape([sizes.get(name, 1) for name in AXES])


def as_capture(
    array: np.ndarray, title: str, recipe: str, baseline: str, axes: Sequence[str] | None = None
) -> Capture:
    """Return a capture that holds a tensor as keys, so that every table and figure applies to it.

    Args:
        array: as returned by `read_tensor`.
        title: what the figures call it.
        recipe: canonical recipe to look through.
        baseline: canonical recipe to compare with.
        axes: what its dimensions count; see `arranged`.

    Raises:
        ValueError: as `arranged`.
    """
    layers = torch.from_numpy(np.ascontiguousarray(arranged(array, axes)))
    keys = dict(enumerate(layers))
    tokens = layers.shape[-2]
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
        shape={"layers": len(keys), "dtype": "float32"},
        notes=("a tensor, not a run: no model, no text, no values",),
    )
