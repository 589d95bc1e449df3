"""Recipes: what a cache stores keys and values as, and what of them stays exact."""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass, replace

from mxviz._schemes import SCHEMES, Scheme, quoted


@dataclass(frozen=True)
class Recipe:
    """What a cache stores its keys and values as, and what of them it keeps exact.

    Args:
        key: scheme of the keys.
        value: scheme of the values.
        sink: first tokens that stay exact (attention sinks).
        residual: newest tokens that stay exact.
        skip: layers that stay exact, ascending.
        rotate: whether head_dim is turned by a Hadamard matrix before quantization.
    """

    key: Scheme
    value: Scheme
    sink: int = 0
    residual: int = 0
    skip: tuple[int, ...] = ()
    rotate: bool = False

    def __post_init__(self) -> None:
        if self.is_none and (self.sink or self.residual or self.skip or self.rotate):
            raise ValueError(
                "sink, residual, skip and rotate do nothing where neither keys nor values are quantized; "
                "leave them out or name a scheme"
            )

    @property
    def is_none(self) -> bool:
        return self.key.is_none and self.value.is_none

    def scheme(self, part: str) -> Scheme:
        """Return the scheme of `key` or `value`."""
        return {"key": self.key, "value": self.value}[part]

    def twin(self) -> Recipe:
        """Return the recipe with each scheme's single-scale twin and the same exact parts."""
        return replace(self, key=self.key.twin(), value=self.value.twin())

    def describe(self) -> str:
        """One phrase for captions."""
        same = self.key == self.value
        text = self.key.describe() if same else f"keys {self.key.describe()}; values {self.value.describe()}"
        if self.sink:
            text += f"; first {self.sink} tokens exact"
        if self.residual:
            text += f"; newest {self.residual} tokens exact"
        if self.skip:
            text += f"; layers {', '.join(map(str, self.skip))} exact"
        return text + ("; rotated" if self.rotate else "")

    def __str__(self) -> str:
        same = self.key == self.value
        parts = [str(self.key)] if same else [f"k={self.key}", f"v={self.value}"]
        parts += [f"sink={self.sink}"] if self.sink else []
        parts += [f"residual={self.residual}"] if self.residual else []
        parts += ["skip=" + ",".join(map(str, self.skip))] if self.skip else []
        parts += ["rotate=1"] if self.rotate else []
        return ";".join(parts)

    @classmethod
    def parse(cls, text: str | Scheme | Recipe) -> Recipe:
        """Read a recipe such as `k=mxfp4:axis=token;v=mxfp4;sink=4;residual=32;skip=0,23;rotate=1`.

        A bare scheme means both keys and values; `kivi2` and `kivi4` are names for whole recipes. A missing
        `k=` or `v=` means `none` and is warned about (an unquoted `;` is eaten by a shell).

        Raises:
            ValueError: for anything unknown, repeated or that does not apply; the line lists what is valid.
        """
        if isinstance(text, Recipe):
            return text
        if isinstance(text, Scheme):
            return cls(text, text)
        found: dict[str, object] = {}
        for item in str(text).strip().split(";"):
            for name, value in _recipe_item(item.strip(), str(text)):
                if name in found:
                    raise ValueError(f"{name}= is given twice in recipe {quoted(text)}; keep one of them")
                found[name] = value
        if not found.keys() & {"k", "v"}:
            raise ValueError(f"recipe {quoted(text)} names no scheme; begin with one, for instance mxfp4")
        for name in ("k", "v"):
            if name not in found:
                warnings.warn(
                    f"recipe {quoted(text)} gives no {name}=, so the "
                    f"{'keys' if name == 'k' else 'values'} stay uncompressed; write {name}=none if that is "
                    "meant, and quote the recipe in a shell",
                    stacklevel=2,
                )
        none = SCHEMES["none"]
        key, value = found.pop("k", none), found.pop("v", none)
        return cls(key, value, **found)


RECIPES: dict[str, str] = {f"kivi{n}": f"k=aint{n}:axis=token;v=aint{n};residual=128" for n in (2, 4)}
"""Recipes that have a name of their own."""

_MAX_COUNT = 1_000_000


def _recipe_item(item: str, text: str) -> list[tuple[str, object]]:
    """Read one `;`-separated part of a recipe into (field, value) pairs."""
    name, equals, value = (p.strip() for p in item.partition("="))
    if not item:
        raise ValueError(f"recipe {quoted(text)} has an empty part; write it like mxfp4;sink=4")
    if item in RECIPES:
        return [pair for part in RECIPES[item].split(";") for pair in _recipe_item(part, text)]
    if equals and name in ("k", "v"):
        return [(name, Scheme.parse(value))]
    if equals and name in ("sink", "residual"):
        return [(name, _count(name, value))]
    if equals and name == "skip":
        layers = [_count("skip", layer.strip()) for layer in value.split(",")]
        if len(set(layers)) != len(layers):
            raise ValueError(f"skip={quoted(value)} names a layer twice; name each once")
        return [("skip", tuple(sorted(layers)))]
    if equals and name == "rotate":
        if value not in ("0", "1"):
            raise ValueError(f"rotate={quoted(value)} is not valid; expected rotate=0 or rotate=1")
        return [("rotate", value == "1")]
    if equals and ":" not in name:
        raise ValueError(
            f"unknown part {quoted(item)} of recipe {quoted(text)}; expected a scheme or one of: "
            "k=, v=, sink=, residual=, skip=, rotate="
        )
    if item in ("k", "v", *_EXAMPLES):
        raise ValueError(
            f"{item} in recipe {quoted(text)} needs a value, for instance {_EXAMPLES.get(item, 'k=mxfp4')}"
        )
    scheme = Scheme.parse(item)
    return [("k", scheme), ("v", scheme)]


_EXAMPLES = {"sink": "sink=4", "residual": "residual=32", "skip": "skip=0,23", "rotate": "rotate=1"}


def _count(name: str, value: str) -> int:
    if not re.fullmatch(r"[0-9]{1,7}", value) or int(value) > _MAX_COUNT:
        raise ValueError(
            f"{name}={quoted(value)} is not valid; expected a whole number from 0 to {_MAX_COUNT:,}"
        )
    return int(value)
