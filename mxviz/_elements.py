"""Element formats: what one number is stored as. Limits follow from field widths.

Sources: OCP Microscaling Formats (MX) v1.0, section 5; OCP 8-bit Floating Point (OFP8) v1.0.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import cached_property

FLT_MAX = 3.4028234663852886e38
"""Largest finite float32."""


class Kind(Enum):
    """How the bits of an element are read."""

    FLOAT = "float"
    SIGNED = "signed"
    UNSIGNED = "unsigned"


class Specials(Enum):
    """Which codes of a float element are not finite."""

    NONE = "none"
    NAN = "nan"  # all ones is NaN, nothing is infinite (OFP8 E4M3)
    IEEE = "ieee"  # the top exponent holds infinities and NaNs (OFP8 E5M2)


@dataclass(frozen=True)
class ElementFormat:
    """A small number format for one element.

    Args:
        name: the format's name in the grammar, such as `fp8_e4m3`.
        kind: float, signed (two's complement times 2**-mantissa_bits) or unsigned (steps of one).
        exponent_bits: 0 for integers.
        mantissa_bits: bits behind the leading one; for a signed integer the bits behind the point.
        specials: which codes are not finite.
    """

    name: str
    kind: Kind
    exponent_bits: int
    mantissa_bits: int
    specials: Specials = Specials.NONE

    @cached_property
    def bits(self) -> int:
        extra = {Kind.FLOAT: 1, Kind.SIGNED: 2, Kind.UNSIGNED: 0}[self.kind]
        return extra + self.exponent_bits + self.mantissa_bits

    @cached_property
    def bias(self) -> int:
        return (1 << (self.exponent_bits - 1)) - 1 if self.kind is Kind.FLOAT else 0

    @cached_property
    def emax(self) -> int:
        """Exponent of the largest finite value (what OCP MX, section 6.3, subtracts from amax's)."""
        if self.kind is not Kind.FLOAT:
            return 0
        reserved = 1 if self.specials is Specials.IEEE else 0
        return (1 << self.exponent_bits) - 1 - reserved - self.bias

    @cached_property
    def emin(self) -> int:
        """Exponent of the smallest normal value; for a signed integer that of its whole grid."""
        return 1 - self.bias if self.kind is Kind.FLOAT else 0

    @cached_property
    def min_subnormal(self) -> float:
        """Smallest positive value; for integers the step."""
        return 1.0 if self.kind is Kind.UNSIGNED else 2.0 ** (self.emin - self.mantissa_bits)

    @cached_property
    def values(self) -> tuple[float, ...]:
        """Value of every code, indexed by the code (NaN and infinities included)."""
        return tuple(self._decode(code) for code in range(1 << self.bits))

    def _decode(self, code: int) -> float:
        if self.kind is Kind.UNSIGNED:
            return float(code)
        half = 1 << (self.bits - 1)
        if self.kind is Kind.SIGNED:
            return (code - 2 * half if code >= half else code) * self.min_subnormal
        sign = -1.0 if code >= half else 1.0
        magnitude = code % half
        field, mantissa = magnitude >> self.mantissa_bits, magnitude % (1 << self.mantissa_bits)
        if self.specials is Specials.NAN and magnitude == half - 1:
            return float("nan")
        if self.specials is Specials.IEEE and field == (1 << self.exponent_bits) - 1:
            return float("nan") if mantissa else sign * float("inf")
        if field:
            mantissa += 1 << self.mantissa_bits
        return sign * mantissa * 2.0 ** (max(field, 1) - self.bias - self.mantissa_bits)

    @cached_property
    def max_normal(self) -> float:
        """Largest finite value that is produced."""
        return max(v for v in self.values if abs(v) < float("inf"))

    @cached_property
    def nan_code(self) -> int | None:
        """The NaN code that is produced (positive, all ones), or None where the format has none."""
        return None if self.specials is Specials.NONE else (1 << (self.bits - 1)) - 1

    @cached_property
    def ticks(self) -> tuple[float, ...]:
        """The marks on this format's ruler: every finite value that is produced, ascending, 0 once."""
        return tuple(sorted({v + 0.0 for v in self.values if abs(v) <= self.max_normal}))


_F, _S, _U = Kind.FLOAT, Kind.SIGNED, Kind.UNSIGNED
ELEMENTS: dict[str, ElementFormat] = {
    e.name: e
    for e in (
        ElementFormat("fp8_e4m3", _F, 4, 3, Specials.NAN),
        ElementFormat("fp8_e5m2", _F, 5, 2, Specials.IEEE),
        ElementFormat("fp6_e2m3", _F, 2, 3),
        ElementFormat("fp6_e3m2", _F, 3, 2),
        ElementFormat("fp4", _F, 2, 1),
        ElementFormat("int8", _S, 0, 6),
        ElementFormat("int4", _S, 0, 2),
        ElementFormat("uint4", _U, 0, 4),
        ElementFormat("uint2", _U, 0, 2),
    )
}
"""Every element format by name."""
