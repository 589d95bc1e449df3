"""A config from the hub: its config.json alone, read as JSON. No code is run, no weights are fetched."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

from mxviz._planner_configs import read_json, shape_of
from mxviz._planner_known import Known, checked_hub_id
from mxviz._schemes import quoted

_REASONS = {
    "GatedRepoError": "it is gated: accept its terms on the hub and log in with: hf auth login",
    "RepositoryNotFoundError": "the hub has no such model (or it is private)",
    "EntryNotFoundError": "it has no config.json; paste one below",
    "LocalEntryNotFoundError": "the hub cannot be reached; choose a listed model or paste its config.json",
    "OfflineModeIsEnabled": "the hub is switched off here; choose a listed model or paste its config.json",
}
_BYTES = {"F64": 8, "F32": 4, "BF16": 2, "F16": 2, "I64": 8, "I32": 4, "I16": 2}  # all others: one byte


@lru_cache(maxsize=32)
def from_hub(text: str) -> Known:
    """Return a model of the hub, with the bytes of its weights where the hub lists them.

    Raises:
        ValueError: one line for no hub id, no network, a gated or missing model, or a config that cannot be
            counted.
    """
    name = checked_hub_id(text)
    try:
        listed = _listed(name)
        config = read_json(_config_text(name, offline=listed is None))
        shape_of(config)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    return Known(name, name.partition("/")[2], config, *_weights(listed))


def _listed(name: str) -> Any:
    """What the hub says of a model, asked once so that no network shows in seconds; None without one."""
    from huggingface_hub import HfApi

    try:
        return HfApi().model_info(name, timeout=8)
    except Exception as error:  # the client, the network and a proxy each have errors of their own
        kinds = {cls.__name__ for cls in type(error).__mro__}
        if "RepositoryNotFoundError" in kinds:
            raise ValueError(_REASONS["RepositoryNotFoundError"]) from None
        return None


def _config_text(name: str, offline: bool) -> str:
    from huggingface_hub import hf_hub_download

    try:
        path = hf_hub_download(name, "config.json", etag_timeout=8, local_files_only=offline)
        return Path(path).read_text(encoding="utf-8")
    except Exception as error:  # as above
        names = [cls.__name__ for cls in type(error).__mro__]
        reason = next((_REASONS[n] for n in names if n in _REASONS), _REASONS["LocalEntryNotFoundError"])
        raise ValueError(reason) from None


def _weights(listed: Any) -> tuple[int | None, str]:
    """Bytes of the weights as the hub counts them, and in words; None where it does not say."""
    try:
        counted = {str(kind): int(count) for kind, count in listed.safetensors.parameters.items()}
    except AttributeError:  # nothing listed, or no safetensors: then it is for the reader to say
        return None, ""
    total = sum(count * _BYTES.get(kind, 1) for kind, count in counted.items())
    kinds = quoted(", ".join(counted), 40)
    return total, f"{sum(counted.values()):,} parameters in {kinds}, as the hub counts them"
