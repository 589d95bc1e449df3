"""Where a model comes from: a folder, a .gguf file or the hub; and one line for whatever goes wrong."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

from mxviz._models_config import check_config
from mxviz._models_gguf import check_gguf
from mxviz._schemes import quoted


class Found(NamedTuple):
    """A model and its tokenizer, as they came from a source."""

    model: Any
    tokenizer: Any
    revision: str | None = None
    notes: tuple[str, ...] = ()


@contextmanager
def quiet() -> Iterator[None]:
    """Keep transformers' progress bars and advice off standard error: our errors are one line."""
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity(logging.CRITICAL)
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def from_folder(folder: Path, dtype: torch.dtype) -> Found:
    """Load a folder that `save_pretrained` wrote or a hub repository was copied to."""
    if not (folder / "config.json").is_file():
        inside = sorted(p.name for p in folder.glob("*.gguf"))
        hint = f"; give the file itself: {folder / inside[0]}" if inside else ""
        raise ValueError(f"folder {folder} holds no model: it has no config.json{hint}")
    if not any(folder.glob("*.safetensors")):
        pickled = next((p.name for p in folder.glob("*.bin")), None)
        if pickled:
            raise ValueError(
                f"folder {folder} has only pickled weights ({pickled}), which can run code when they are "
                "read; convert them to safetensors"
            )
        raise ValueError(f"folder {folder} holds no weights: expected a .safetensors file beside config.json")
    try:
        check_config(folder)
        return _pretrained(str(folder), dtype, local_files_only=True)
    except Exception as error:  # transformers raises whatever its many loaders meet
        raise ValueError(f"folder {folder} cannot be loaded: {_explain(error)}") from None


def from_gguf(path: Path, dtype: torch.dtype) -> Found:
    """Load a .gguf file, its weights turned back to plain numbers."""
    if not path.is_file():
        raise ValueError(f"no file {path}; give the path of a .gguf file")
    with path.open("rb") as file:
        magic = file.read(4)
    if magic != b"GGUF":
        raise ValueError(
            f"{path} is not a GGUF file: it begins with {quoted(magic.decode('latin-1'))} and not with 'GGUF'"
        )
    try:
        check_gguf(path)
        return _pretrained(str(path.parent.resolve()), dtype, gguf_file=path.name, local_files_only=True)
    except Exception as error:  # as above, and gguf's reader fails in NumPy on a file that is cut short
        unknown = re.search(r"architecture (\S+) is not supported", str(error))
        if unknown:
            raise ValueError(
                f"{path} holds a model of architecture {quoted(unknown[1])}, which transformers cannot "
                "read from GGUF; use a safetensors folder or hub id of it"
            ) from None
        if isinstance(error, ImportError) or "accelerate" in str(error):
            raise ValueError(f"{path} cannot be loaded: {first_line(error)}") from None
        raise ValueError(f"{path} is damaged or cut short: {_explain(error)}") from None


def from_hub(name: str, dtype: torch.dtype, revision: str | None, known: Collection[str]) -> Found:
    """Load a hub repository, fetching what is not on disk yet."""
    try:
        local = not _is_reachable(name, revision)
        found = _pretrained(name, dtype, revision=revision or "main", local_files_only=local)
    except Exception as error:  # as above, and the hub's client and network
        at = f" at revision {quoted(revision)}" if revision else ""
        reason = _explain(error).replace("CATALOGUE", ", ".join(known))
        raise ValueError(f"model {name}{at} cannot be loaded: {reason}") from None
    return found._replace(revision=getattr(found.model.config, "_commit_hash", None) or revision)


def _is_reachable(name: str, revision: str | None) -> bool:
    """Ask the hub once about a repository, so that no network shows in seconds and not after five retries.

    Raises:
        Exception: what the hub's client raises for a missing or gated repository, or one without safetensors.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    try:
        info = HfApi().model_info(name, revision=revision, timeout=10)
    except HfHubHTTPError:
        raise
    except Exception:  # no network, offline mode, a proxy: each client library has its own errors
        return False
    names = [file.rfilename for file in info.siblings or ()]
    if not any(file.endswith(".safetensors") for file in names):
        raise ValueError(_NO_SAFETENSORS)
    return True


def is_hub_id(name: str) -> bool:
    """Return whether a name has the form owner/name."""
    return re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", name, re.ASCII) is not None


def is_on_disk(name: str) -> bool:
    """Return whether the hub's cache folder has this repository's weights."""
    from huggingface_hub import try_to_load_from_cache

    files = ("model.safetensors", "model.safetensors.index.json")
    return any(isinstance(try_to_load_from_cache(name, file), str) for file in files)


def context_length(config: Any, tokenizer: Any) -> int | None:
    """Return how many tokens a model can hold, None where nothing says so."""
    text = config.get_text_config()
    for name in ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length"):
        if isinstance(getattr(text, name, None), int):
            return getattr(text, name)
    limit = getattr(tokenizer, "model_max_length", None)
    return limit if isinstance(limit, int) and limit < 10**9 else None


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text, or its type's name."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def _pretrained(place: str, dtype: torch.dtype, **where: Any) -> Found:
    tokenizer = AutoTokenizer.from_pretrained(place, trust_remote_code=False, **where)
    weights = {} if "gguf_file" in where else {"use_safetensors": True}
    model, info = AutoModelForCausalLM.from_pretrained(
        place, dtype=dtype, trust_remote_code=False, output_loading_info=True, **weights, **where
    )
    absent = sorted(info["missing_keys"]) + sorted(str(key) for key in info["mismatched_keys"])
    if absent:  # transformers would fill these with random numbers and go on
        raise ValueError(f"{len(absent)} weights are missing or of another shape, such as {absent[0]}")
    return Found(model, tokenizer)


_NO_SAFETENSORS = "it has no safetensors weights; pickled weights are not read"
_REASONS = (
    ("GatedRepoError", "it is gated: accept its terms on the hub and log in with: hf auth login"),
    ("RevisionNotFoundError", "the hub has no such revision"),
    ("RepositoryNotFoundError", "the hub has no such model (or it is private: hf auth login)"),
    ("EntryNotFoundError", _NO_SAFETENSORS),
    ("SafetensorError", "its weights file is damaged or cut short"),
)
_UNREACHABLE = (
    "the hub cannot be reached and the model is not on disk; without a network use smollm2, a folder or a "
    ".gguf file (catalogue: CATALOGUE)"
)
_OFFLINE = (
    "LocalEntryNotFoundError",
    "OfflineModeIsEnabled",
    "ConnectError",
    "ConnectionError",
    "ProxyError",
)
_SAYS = (
    ("gated repo", _REASONS[0][1]),
    ("trust_remote_code", "it needs code of its own, which mxviz never runs"),
    ("couldn't connect to", _UNREACHABLE),
    ("valid git identifier", _REASONS[1][1]),
    ("not a valid model identifier", _REASONS[2][1]),
    ("does not appear to have a file named model.safetensors", _NO_SAFETENSORS),
    ("Unrecognized configuration class", "it is not a causal language model"),
)


def _explain(error: BaseException) -> str:
    """Say in one line what an error from a loader means; what it was caused by counts as well."""
    chain: list[BaseException] = []
    while error is not None and error not in chain:
        chain.append(error)
        error = error.__cause__ or error.__context__
    names = {cls.__name__ for e in chain for cls in type(e).__mro__}
    for name, reason in _REASONS[:3]:
        if name in names:
            return reason
    if names & set(_OFFLINE):
        return _UNREACHABLE
    for words, reason in _SAYS:
        if any(words in str(e) for e in chain):
            return reason
    for name, reason in _REASONS[3:]:
        if name in names:
            return reason
    return first_line(chain[0])
