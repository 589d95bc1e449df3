"""Schemes: an element format and how its scales are shared; their options and their grammar.

Sources: OCP MX v1.0, section 6; NVIDIA's description of NVFP4; KIVI (arXiv 2402.02750) for zero points.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from mxviz._elements import ELEMENTS, ElementFormat, Kind

_SINGLE_SCALE_TWIN = {"uint4": "int4", "uint2": None}  # all others are their own


class ScaleFormat(Enum):
    """What a shared scale is stored as; the value is its name."""

    E8M0 = "E8M0"
    E4M3 = "E4M3 × float32"  # NVFP4: a float8 scale a block, times one float32 for the tensor
    FLOAT32 = "float32"
    FLOAT16_ZERO = "float16 + zero point"

    @property
    def bits(self) -> int:
        return {"E8M0": 8, "E4M3": 8, "FLOAT32": 32, "FLOAT16_ZERO": 32}[self.name]


class Reach(Enum):
    """What shares one scale. All but BLOCK are single-scale schemes, written behind an `@`."""

    BLOCK = "block"
    TENSOR = "tensor"  # all keys (or values) of a layer, per sequence
    HEAD = "head"  # one KV head, per sequence
    TOKEN = "token"  # one token of one head
    CHANNEL = "channel"  # one channel of one head
    ONE = "one"  # no measurement at all: the scale is 1.0

    @property
    def dims(self) -> tuple[int, ...]:
        """Dimensions of [..., kv_heads, tokens, head_dim] that share one scale."""
        return {"HEAD": (-2, -1), "TOKEN": (-1,), "CHANNEL": (-2,)}.get(self.name, (-3, -2, -1))


class Axis(Enum):
    """Which way a block runs through [..., tokens, head_dim]."""

    CHANNEL = "channel"  # along head_dim, inside one token
    TOKEN = "token"  # along the sequence, inside one channel

    @property
    def dim(self) -> int:
        return -1 if self is Axis.CHANNEL else -2


class ScaleRule(Enum):
    """How an E8M0 exponent follows from a block's amax. OCP MX v1.0 section 6.3 is FLOOR."""

    FLOOR = "floor"
    EVEN = "even"
    RCEIL = "rceil"
    CEIL = "ceil"


BLOCK_SIZES = (16, 32, 64)


@dataclass(frozen=True)
class Scheme:
    """An element format and how its scales are shared.

    Micro-scaled and single-scale schemes are the same thing with a different number of rulers.

    Args:
        name: the name in the grammar, such as `mxfp4` or `int4@tensor`.
        element: the element format, None for `none`.
        scale: what a scale is stored as, None for `none`.
        reach: what shares a scale.
        block: elements in a block; only where reach is BLOCK.
        axis: which way a block runs; codes pack along it.
        rule: how an E8M0 exponent follows from amax.
    """

    name: str
    element: ElementFormat | None
    scale: ScaleFormat | None
    reach: Reach
    block: int = 32
    axis: Axis = Axis.CHANNEL
    rule: ScaleRule = ScaleRule.FLOOR

    @property
    def is_none(self) -> bool:
        return self.element is None

    @property
    def is_blocked(self) -> bool:
        return self.scale is not None and self.reach is Reach.BLOCK

    @property
    def options(self) -> tuple[str, ...]:
        """The options that apply, in canonical order."""
        blocked = ("axis", "block") if self.is_blocked else ()
        return blocked[:1] + (("scale",) if self.scale is ScaleFormat.E8M0 else ()) + blocked[1:]

    @property
    def is_frozen_while_generating(self) -> bool:
        """Whether a growing cache must fix a scale at its first update (it spans later tokens)."""
        spans = self.reach in (Reach.TENSOR, Reach.HEAD, Reach.CHANNEL)
        return self.scale is ScaleFormat.E4M3 or (self.scale is ScaleFormat.FLOAT32 and spans)

    def bits_per_element(self, head_dim: int | None = None) -> float | None:
        """Bits an element costs with its share of the scale; scales of a whole tensor, head or channel
        are left out (they vanish with length), None for `none` (the model's own width).

        Args:
            head_dim: width of a row, needed to spread the scale of `@token`.
        """
        if self.is_none:
            return None
        if self.is_blocked:
            return self.element.bits + self.scale.bits / self.block
        if self.reach is Reach.TOKEN and head_dim:
            return self.element.bits + self.scale.bits / head_dim
        return float(self.element.bits)

    def twin(self) -> Scheme:
        """Return the fair baseline: the same marks on the ruler, one ruler for the whole tensor.

        Raises:
            ValueError: for aint2, which has no signed two-bit twin.
        """
        if self.is_none:
            return self
        element = _SINGLE_SCALE_TWIN.get(self.element.name, self.element.name)
        if element is None:
            raise ValueError(
                f"{self.name} has no single-scale twin: there is no symmetric 2-bit integer; "
                "name a baseline yourself, for instance int4@tensor"
            )
        return SCHEMES[f"{element}@tensor"]

    @property
    def label(self) -> str:
        """The field's own spelling, for titles: MXFP4, NVFP4, INT4 @tensor."""
        base, _, reach = self.name.partition("@")
        base = base.upper().replace("_", " ")
        return f"{base}, {_REACH_WORDS[self.reach]}" if reach else base

    def describe(self) -> str:
        """One phrase for captions: element, block, direction and scale rule."""
        if self.is_none:
            return "uncompressed"
        if not self.is_blocked:
            return f"{self.label} (float32 scale)" if self.reach is not Reach.ONE else self.label
        way = {"CHANNEL": "channels", "TOKEN": "tokens"}[self.axis.name]
        text = f"{self.label}, {self.scale.value} scale per {self.block} {way}"
        if self.scale is ScaleFormat.E8M0:
            text += f", rule {self.rule.value}"
        return text + (" (not in OCP MX; the teaching twin of INT4)" if self.name == "mxint4" else "")

    def __str__(self) -> str:
        default = SCHEMES[self.name]
        shown = [
            f"{option}={_OPTIONS[option].show(self)}"
            for option in self.options
            if _OPTIONS[option].show(self) != _OPTIONS[option].show(default)
        ]
        return self.name + (":" + ",".join(shown) if shown else "")

    @classmethod
    def parse(cls, text: str) -> Scheme:
        """Read a scheme such as `mxfp4:axis=token,scale=rceil`.

        Raises:
            ValueError: for an unknown name, or an option that is unknown, repeated or does not apply.
        """
        name, colon, tail = str(text).strip().partition(":")
        scheme = SCHEMES.get(name.strip())
        if scheme is None:
            raise ValueError(f"unknown scheme {quoted(name)}; expected one of: {_listed_schemes()}")
        seen: set[str] = set()
        for part in tail.split(",") if colon else ():
            option, _, value = (p.strip() for p in part.partition("="))
            if option not in _OPTIONS:
                raise ValueError(
                    f"unknown option {quoted(part)} of {scheme.name}; expected "
                    + ("no option" if not scheme.options else "one of: " + ", ".join(scheme.options))
                )
            if option not in scheme.options:
                raise ValueError(f"option {option}= does not apply to {scheme.name}; {_options_of(scheme)}")
            if option in seen:
                raise ValueError(f"option {option}= is given twice in {quoted(text)}; keep one of them")
            seen.add(option)
            scheme = _OPTIONS[option].apply(scheme, value)
        return scheme


_REACH_WORDS = {
    Reach.TENSOR: "one scale for the layer",
    Reach.HEAD: "one scale per head",
    Reach.TOKEN: "one scale per token",
    Reach.CHANNEL: "one scale per channel",
    Reach.ONE: "scale fixed at 1.0",
}


def _listed_schemes() -> str:
    """Name every scheme, the single-scale ones by element: int4@(tensor, head, token, channel)."""
    listed = [name for name in SCHEMES if "@" not in name]
    for element in dict.fromkeys(name.partition("@")[0] for name in SCHEMES if "@" in name):
        reaches = [name.partition("@")[2] for name in SCHEMES if name.startswith(f"{element}@")]
        listed.append(f"{element}@({', '.join(reaches)})")
    return ", ".join(listed)


def quoted(text: object, limit: int = 60) -> str:
    """Show what came, cut to a length that fits a line, control characters escaped."""
    text = str(text)
    return repr(text if len(text) <= limit else text[: limit - 1] + "…")


def _options_of(scheme: Scheme) -> str:
    return f"it takes {', '.join(scheme.options)}" if scheme.options else "it takes no options"


@dataclass(frozen=True)
class _Option:
    field: str
    choices: dict[str, object]

    def show(self, scheme: Scheme) -> str:
        value = getattr(scheme, self.field)
        return str(value.value if isinstance(value, Enum) else value)

    def apply(self, scheme: Scheme, value: str) -> Scheme:
        if value not in self.choices:
            raise ValueError(
                f"unknown {self.field} {quoted(value)} for {scheme.name}; "
                f"expected one of: {', '.join(self.choices)}"
            )
        return replace(scheme, **{self.field: self.choices[value]})


_OPTIONS: dict[str, _Option] = {
    "axis": _Option("axis", {a.value: a for a in Axis}),
    "scale": _Option("rule", {r.value: r for r in ScaleRule}),
    "block": _Option("block", {str(n): n for n in BLOCK_SIZES}),
}


def _schemes() -> dict[str, Scheme]:
    made = [
        Scheme(f"mx{e}", ELEMENTS[e], ScaleFormat.E8M0, Reach.BLOCK)
        for e in ("fp8_e4m3", "fp8_e5m2", "fp6_e2m3", "fp6_e3m2", "fp4", "int8", "int4")
    ]
    made.append(Scheme("nvfp4", ELEMENTS["fp4"], ScaleFormat.E4M3, Reach.BLOCK, block=16))
    for bits in ("4", "2"):
        made.append(Scheme(f"aint{bits}", ELEMENTS[f"uint{bits}"], ScaleFormat.FLOAT16_ZERO, Reach.BLOCK))
    for element in ELEMENTS.values():
        for reach in Reach:
            fits = reach is not Reach.BLOCK and element.kind is not Kind.UNSIGNED
            if fits and (reach is not Reach.ONE or element.kind is Kind.FLOAT):
                made.append(Scheme(f"{element.name}@{reach.value}", element, ScaleFormat.FLOAT32, reach))
    made.append(Scheme("none", None, None, Reach.BLOCK))
    return {s.name: s for s in made}


SCHEMES: dict[str, Scheme] = _schemes()
"""Every scheme by name, with its default options."""
