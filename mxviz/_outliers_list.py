"""Outliers as rows for a list, and finding a channel or a token by name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

import numpy as np

from mxviz._outliers_profile import origin, rope_pairing
from mxviz._outliers_survey import QUIET_LIMIT, survey
from mxviz.capture import Capture
from mxviz.outliers import RATIO_LIMIT

KINDS = ("channels", "tokens", "single values")
ROWS = 300
"""Most rows of a list."""

Row = dict[str, Any]
"""`layer`, `head`, `token` and `channel` say where; what else there is depends on the kind of the list."""

_CHANNEL = re.compile(r"(?:ch|channel)?\.?\s*(\d{1,6})", re.IGNORECASE)
_TOKEN = re.compile(r"tok(?:en)?\.?\s*(\d{1,7})", re.IGNORECASE)


@lru_cache(maxsize=16)
def listed(capture: Capture, part: str, kind: str) -> tuple[Row, ...]:
    """Return the outliers of one kind, what stands out most first, at most `ROWS`.

    Every row has `layer`, `head`, `token` and `channel`. Channels have `peak`, `ratio` (to the layer's
    median), `share` of tokens where they are high, `partner`, `bias` and `reaches` (None where not known);
    tokens `peak` and `ratio` outside the outlier channels, `usual` (their median over their head's) and
    `why`; single values `value` and `ratio` (over the largest of three medians).

    Raises:
        ValueError: for an unknown part or kind.
    """
    if kind not in KINDS:
        raise ValueError(f"unknown kind {kind!r}; expected one of: {', '.join(KINDS)}")
    found = survey(capture, part)
    if kind == "channels":
        places = [(row.layer, row.head, row.channel) for row in found.channels[:ROWS]]
        return tuple(_channel_row(capture, part, *place) for place in places)
    if kind == "tokens":
        loud = [(row.layer, row.head, row.token) for row in found.tokens]
        quiet = [(row.layer, row.head, row.token) for row in found.quiet]
        return _token_rows(capture, part, dict.fromkeys(loud + quiet))
    kept = ("layer", "head", "token", "channel", "value", "ratio")
    return tuple({name: getattr(row, name) for name in kept} for row in found.values[:ROWS])


def find(capture: Capture, part: str, text: str) -> tuple[str, tuple[Row, ...]]:
    """Return what a text names: the kind of the list (`channels` or `tokens`) and its rows.

    `31`, `ch 31` and `channel 31` are a channel of every layer and head. `token 5` is a position, anything
    else a token that holds the text, in any case; in double quotes, the text itself with its spaces. A token
    is listed once, where it stands out most.
    """
    text = text if text.startswith('"') else text.strip()
    if match := _CHANNEL.fullmatch(text):
        return "channels", _every_channel(capture, part, int(match[1]))
    heads, tokens = _heads(capture, part), capture.tokens_held
    if match := _TOKEN.fullmatch(text):
        wanted = [int(match[1])] if int(match[1]) < tokens else []
    else:
        wanted = list(_positions(capture.token_texts[:tokens], text))
    return "tokens", tuple(_worst_row(capture, part, heads, token) for token in wanted[:ROWS])


def _positions(texts: Iterable[str], text: str) -> Iterator[int]:
    exact = len(text) > 2 and text[0] == text[-1] == '"'
    for i, token in enumerate(texts):
        if (token == text[1:-1]) if exact else text and text.casefold() in token.casefold():
            yield i


def _heads(capture: Capture, part: str) -> list[tuple[int, int]]:
    return [(layer, head) for layer in capture.layers for head in range(capture.part(part, layer).shape[0])]


def _every_channel(capture: Capture, part: str, channel: int) -> tuple[Row, ...]:
    places = [
        (layer, head, channel)
        for layer, head in _heads(capture, part)
        if channel < capture.part(part, layer).shape[-1]
    ]
    rows = [_channel_row(capture, part, *place) for place in places]
    return tuple(sorted(rows, key=lambda row: -(row["ratio"] or 0))[:ROWS])


def _channel_row(capture: Capture, part: str, layer: int, head: int, channel: int) -> Row:
    size = np.abs(capture.part(part, layer)[head, :, channel].float().numpy())
    size = np.where(np.isfinite(size), size, 0)
    median, token = survey(capture, part).medians[layer], int(size.argmax())
    pairing = rope_pairing(capture, layer) if part == "key" else None
    comes = origin(capture, layer, head, channel) if part == "key" else None
    return {
        **{"layer": layer, "head": head, "token": token, "channel": channel},
        "peak": float(size[token]),
        "ratio": float(size[token]) / median if median else None,
        "share": float((size > RATIO_LIMIT / 2 * median).mean()) if median else None,
        "partner": pairing.partner[channel] if pairing else None,
        "bias": comes.bias if comes else None,
        "reaches": comes.reaches if comes else None,
    }


def _token_rows(
    capture: Capture, part: str, places: Iterable[tuple[int, int, int]], most: int = ROWS
) -> tuple[Row, ...]:
    """Rows of tokens at places (layer, head, token), the most unusual first."""
    found = survey(capture, part)
    rows = []
    for layer, head, token in places:
        peak, median = float(found.token_amax[layer][head, token]), found.medians[layer]
        of_head = float(found.head_median[layer][head])
        rows.append(
            {
                **{"layer": layer, "head": head, "token": token, "peak": peak},
                "ratio": peak / median if median else None,
                "usual": float(found.token_median[layer][head, token]) / of_head if of_head else None,
            }
        )
    rows.sort(key=lambda row: -unusual(row))
    return tuple(row | _more(capture, part, row) for row in rows[:most])


def unusual(row: Row) -> float:
    """Return how many times a token is louder than the median, or quieter, whichever is more."""
    ratio, usual = row["ratio"] or 0.0, row["usual"]
    return max(ratio, 0.0 if usual is None else 1 / max(usual, 1e-3))


def _more(capture: Capture, part: str, row: Row) -> Row:
    """Where a token's largest number stands outside the outlier channels, and why the token is listed."""
    out = [
        c.channel for c in survey(capture, part).channels if (c.layer, c.head) == (row["layer"], row["head"])
    ]
    size = np.abs(capture.part(part, row["layer"])[row["head"], row["token"]].float().numpy())
    size = np.where(np.isfinite(size), size, 0)
    size[out] = 0
    ratio, usual = row["ratio"] or 0, row["usual"]
    why = [
        *(["loud"] if ratio > RATIO_LIMIT else []),
        *(["quiet"] if usual is not None and usual * QUIET_LIMIT < 1 else []),
    ]
    return {"channel": int(size.argmax()), "why": " and ".join(why) or "usual"}


def _worst_row(capture: Capture, part: str, heads: list[tuple[int, int]], token: int) -> Row:
    return _token_rows(capture, part, [(layer, head, token) for layer, head in heads], 1)[0]
