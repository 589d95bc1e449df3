"""Token text that is literal: nothing in it is markup or TeX, and everything in it can be seen.

Plotly reads `<b>`, `&lt;`, `%{x}` and, where MathJax is loaded, `$x$` in any text it is given. Tokens hold
all of those, and spaces, newlines and control characters besides. `visible` makes a token visible, one
picture for one text; `escape` makes any text safe to hand to Plotly.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Sequence
from typing import NamedTuple

CUT = "⋯"
_SHOWN = {" ": "·", "\n": "↵", "\t": "⇥", "\r": "␍"}
# What a stand-in looks like must not also be what a literal character looks like.
_RESERVED = frozenset(_SHOWN.values()) | {CUT, "⟨", "⟩", "◌"}
_INVISIBLE = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zs", "Zl", "Zp"})
_JOINER = "\u200d"
_MARKUP = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", "$": "&#36;", "%": "&#37;"})
_UNWRITABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff\ufffe\uffff]")
_SPECIAL = re.compile(r"<\|?[^<>|\s]+\|?>|\[[A-Z]+\]|<｜.+｜>")
_NARROW = frozenset("iljtfrI1.,:;|!'`·()[]{}⟨⟩-/\\ ")
_BROAD = frozenset("mwMW@%↵⇥⋯<>_")


def escape(text: str) -> str:
    """Return text with nothing in it that Plotly would read as markup, template or TeX, or XML refuses."""
    return _UNWRITABLE.sub(lambda match: _number(match[0]), text).translate(_MARKUP)


def visible(token: str) -> str:
    """Return a token as it is shown: a space as `·`, a newline as `↵`, an unseen character by its number.

    Different tokens give different pictures: a literal `·` is shown as ⟨U+00B7⟩, an empty token as ⟨empty⟩.
    """
    if not token:
        return "⟨empty⟩"
    shown = [_shown(token, i) for i in range(len(token))]
    leading = unicodedata.category(token[0]).startswith("M")
    return ("◌" if leading else "") + "".join(shown)


def _shown(token: str, i: int) -> str:
    char = token[i]
    if char in _SHOWN:
        return _SHOWN[char]
    # A joiner inside an emoji is part of one glyph; anywhere else it would hide.
    inside = char == _JOINER and 0 < i < len(token) - 1 and _is_symbol(token[i + 1])
    if inside and (_is_symbol(token[i - 1]) or token[i - 1] == "\ufe0f"):
        return char
    if char in _RESERVED or unicodedata.category(char) in _INVISIBLE:
        return _number(char)
    return char


def _number(char: str) -> str:
    return f"⟨U+{ord(char):04X}⟩"


def _is_symbol(char: str) -> bool:
    return unicodedata.category(char) in ("So", "Sk")


def shorten(token: str, limit: int) -> str:
    """Return a token made visible, at most about `limit` characters: the middle gives way to `⋯`."""
    if len(token) > 4 * limit:  # never walk a megabyte to show eighteen characters
        token = token[: 2 * limit] + token[-2 * limit :]
    shown = visible(token)
    if len(shown) <= limit:
        return shown
    tail = limit // 3
    return shown[: limit - tail - 1] + CUT + shown[-tail:]


def label(token: str, limit: int = 16) -> str:
    """Return a token for a tick: visible, short and escaped."""
    return escape(shorten(token, limit))


def hover_label(token: str, limit: int = 96) -> str:
    """Return a token for a hover: visible and escaped, with its length where it had to be cut."""
    cut = f" ({len(token):,} characters)" if len(visible(token[: limit + 1])) > limit else ""
    return label(token, limit) + cut


def is_special(token: str) -> bool:
    """Return whether a token looks like a marker of the tokenizer, such as `<|im_start|>`."""
    return _SPECIAL.fullmatch(token) is not None


def text_width(text: str, size: float) -> float:
    """Return about how many pixels a text takes at a font size; no font is measured."""
    return size * sum(map(_em, text))


def _em(char: str) -> float:
    if char in _NARROW:
        return 0.36
    if char in _BROAD or char.isupper():
        return 0.72
    if unicodedata.east_asian_width(char) in "WF":
        return 1.05
    return 0.0 if unicodedata.category(char).startswith("M") else 0.56


def wrap(text: str, width: float, size: float) -> list[str]:
    """Return the lines a plain text breaks into, at spaces, at a width in pixels; a long word stays whole.

    A no-break space does not break, nor does the space before a percent sign.
    """
    lines: list[str] = []
    for word in filter(None, re.split(r"[ \t\n]+(?!%)", text)):
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and text_width(longer, size) <= width:
            lines[-1] = longer
        else:
            lines.append(word)
    return lines


def balance(text: str, width: float, size: float) -> list[str]:
    """Return the lines of `wrap`, made about equally long where there are several: no word stands alone."""
    lines = wrap(text, width, size)
    for share in (0.6, 0.7, 0.8, 0.9):
        tighter = wrap(text, share * width, size)
        if len(lines) > 1 and len(tighter) == len(lines):
            return tighter
    return lines


class TokenTicks(NamedTuple):
    """Which columns are labelled: positions, escaped texts, angle in degrees, height and reach in pixels."""

    positions: list[int]
    texts: list[str]
    angle: int
    height: float
    special: list[bool]


SLANT = -55


def token_ticks(
    tokens: Sequence[str],
    width: float,
    size: float,
    *,
    priority: Collection[int] = (),
    window: tuple[int, int] | None = None,
    limit: int = 16,
) -> TokenTicks:
    """Choose the token labels that fit side by side without touching.

    Args:
        tokens: one text a column.
        width: of the axis, pixels.
        size: of the font, pixels.
        priority: columns that are labelled first, before special tokens and those in between.
        window: first and last column in sight; all by default.
        limit: characters of a label.

    Returns:
        The chosen columns in order; level where all of them fit, slanted otherwise.
    """
    first, last = window or (0, len(tokens) - 1)
    columns = range(first, last + 1)
    pitch = width / max(1, len(columns))
    plain = {i: shorten(tokens[i], limit) for i in _candidates(tokens, columns, priority, pitch, size)}
    level = len(plain) == len(columns) and all(text_width(t, size) + 8 <= pitch for t in plain.values())
    apart = 1 if level else -(-1.45 * size // pitch)
    chosen: list[int] = []
    for i in plain:
        if all(abs(i - j) >= apart for j in chosen):
            chosen.append(i)
    chosen.sort()
    longest = max((text_width(plain[i], size) for i in chosen), default=0.0)
    return TokenTicks(
        chosen,
        [escape(plain[i]) for i in chosen],
        0 if level else SLANT,
        1.5 * size if level else 0.82 * longest + size,
        [is_special(tokens[i]) for i in chosen],
    )


def _candidates(
    tokens: Sequence[str], columns: range, priority: Collection[int], pitch: float, size: float
) -> dict[int, None]:
    """Columns in the order they are offered a place: wanted ones, special tokens (a third of the places
    at most, or they would be all there is), then an even spread."""
    order = dict.fromkeys(i for i in priority if i in columns)
    stride = max(1, int(-(-1.7 * size // pitch)))
    special = [i for i in columns if is_special(tokens[i])]
    places = max(1, len(columns) // stride)
    order.update(dict.fromkeys(special[:: 1 + 3 * len(special) // places] if stride > 1 else special))
    order.update(dict.fromkeys(columns[::stride]))
    return order
