"""Where a figure came from: as metadata, and as a line to stand below it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from mxviz import __version__
from mxviz.capture import PARTS, Capture
from mxviz.formats import Recipe, ScaleFormat


def provenance(capture: Capture, name: str, place: Mapping[str, Any]) -> dict[str, Any]:
    """Return where a figure came from, for the file's metadata; the prompt is a hash, not the text."""
    recipe = str(Recipe.parse(place.get("recipe") or capture.recipe))
    return {
        "figure": name,
        "model": capture.model,
        "revision": capture.revision,
        "prompt_sha256": hashlib.sha256(capture.prompt.encode("utf-8", "replace")).hexdigest(),
        **{option: value for option, value in place.items() if value is not None},
        "recipe": recipe,
        "baseline": str(Recipe.parse(place.get("baseline") or capture.baseline)),
        "scale_rule": _rule(recipe),
        "mxviz": __version__,
    }


def _rule(recipe: str) -> str | None:
    """Return by which rule E8M0 scales are chosen; None where there are none."""
    schemes = [Recipe.parse(recipe).scheme(part) for part in PARTS]
    rules = [s.rule.value for s in schemes if s.is_blocked and s.scale is ScaleFormat.E8M0]
    return ", ".join(dict.fromkeys(rules)) or None


def provenance_line(about: Mapping[str, Any]) -> str:
    """Return the provenance as one line to stand below a figure."""
    words = {"layer": "layer", "head": "KV head", "query_head": "query head", "position": "position"}
    words |= {"token": "token", "channel": "channel"}
    place = [f"{word} {about[option]}" for option, word in words.items() if option in about]
    place += [f"{about['part']}s"] if "part" in about else []
    rule = f", scale rule {about['scale_rule']}" if about["scale_rule"] else ""
    return " · ".join(
        [
            short_name(about["model"]),
            *([f"revision {about['revision'][:12]}"] if about["revision"] else []),
            f"prompt {about['prompt_sha256'][:12]}",
            *([", ".join(place)] if place else []),
            f"{about['recipe']} against {about['baseline']}{rule}",
            f"mxviz {about['mxviz']}",
        ]
    )


def short_name(model: str) -> str:
    """Return a model's name without its owner or folder."""
    return model.rstrip("/").rsplit("/", 1)[-1] or model
