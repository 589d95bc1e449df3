"""Models and cards that the planner knows by name, from the files in assets/planner."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import NamedTuple

from mxviz._paths import ASSETS
from mxviz._schemes import quoted


class Card(NamedTuple):
    """A graphics card: its name, what its maker prints on it in GB, and the bytes its driver reports."""

    name: str
    label_gb: float
    memory: int


class Known(NamedTuple):
    """A model whose config is in the assets.

    Args:
        hub_id: its name on the hub.
        title: what a page calls it.
        config: the fields of its config.json that decide the cache.
        weights: bytes of its weights, None where nothing here says so.
        weights_from: where that number comes from.
    """

    hub_id: str
    title: str
    config: dict
    weights: int | None
    weights_from: str


@lru_cache(maxsize=1)
def cards() -> dict[str, Card]:
    """Return the known cards by name, in order of their memory."""
    found = json.loads((ASSETS / "planner" / "cards.json").read_text(encoding="utf-8"))["cards"]
    made = [Card(name, row["label_gb"], row["memory_mib"] * 2**20) for name, row in found.items()]
    return {card.name: card for card in sorted(made, key=lambda card: card.memory)}


@lru_cache(maxsize=1)
def known_models() -> dict[str, Known]:
    """Return the known models by hub id."""
    found = json.loads((ASSETS / "planner" / "models.json").read_text(encoding="utf-8"))["models"]
    return {hub_id: _known(hub_id, row) for hub_id, row in found.items()}


def _known(hub_id: str, row: dict) -> Known:
    parameters, each = row.get("parameters"), row.get("bytes_per_parameter", 2)
    if "weights_bytes" in row:
        return Known(hub_id, row["title"], row["config"], row["weights_bytes"], row["weights_from"])
    if parameters is None:
        return Known(hub_id, row["title"], row["config"], None, "")
    source = f", {row['parameters_from']}" if "parameters_from" in row else ""
    said = f"{parameters:,} parameters{source}{',' * bool(source)} at {each} byte{'s' * (each != 1)} each"
    return Known(hub_id, row["title"], row["config"], parameters * each, said)


def checked_hub_id(text: str) -> str:
    """Return a hub id, owner/name, from what was typed; the hub's address in front is taken off.

    Raises:
        ValueError: for anything else.
    """
    name = text.strip().removeprefix("https://huggingface.co/").strip("/")
    owner, slash, rest = name.partition("/")
    plain = all(
        part and all(c.isascii() and (c.isalnum() or c in "-_.") for c in part) for part in (owner, rest)
    )
    if not slash or not plain or len(name) > 140 or "." in (owner[0], rest[0]):
        raise ValueError(f"{quoted(text)} is no hub id; expected owner/name, such as Qwen/Qwen3-8B")
    return name


def card_of(text: str) -> Card:
    """Return a known card by name, or one of so many GiB.

    Raises:
        ValueError: for anything else.
    """
    known = {name.lower(): card for name, card in cards().items()}
    words = text.strip().lower()
    if words in known:
        return known[words]
    try:
        size = float(words.removesuffix("gib").removesuffix("gb"))
    except ValueError:
        size = 0.0
    if not 0.1 <= size <= 1_000_000:
        raise ValueError(f"{quoted(text)} is no card known here; choose one or type its memory in GiB, as 96")
    return Card("a card of your own", size, int(size * 2**30))


_SHORT = {"smollm2": "smollm2 135m"}  # the built-in model's name in the catalogue


def model_of(text: str) -> Known | None:
    """Return the known model that a hub id or a part of a name means; None where it means none.

    Raises:
        ValueError: where it could be several.
    """
    models, words = known_models(), text.strip().lower()
    words = _SHORT.get(words, words)
    same = [model for model in models.values() if words in (model.hub_id.lower(), model.title.lower())]
    like = same or [model for model in models.values() if words in f"{model.hub_id} {model.title}".lower()]
    if len(like) > 1:
        titles = ", ".join(model.title for model in like[:5]) + (", …" if len(like) > 5 else "")
        raise ValueError(f"{quoted(text)} could be {titles}; choose one")
    return like[0] if like else None
