"""Profiles in words: the hover of each column, and the alt text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from mxviz.figures._profile import Lines
from mxviz.figures._traces import number
from mxviz.figures.labels import CUT, escape, hover_label, label, visible


def _numbers(lines: Lines, i: int, symbol: str) -> str:
    if not np.isfinite(lines.amax[i]):
        return "nothing finite"
    return (
        f"largest {escape(symbol)} {number(lines.amax[i], 4)}<br>median {number(lines.median[i])}, "
        f"5–95 %: {number(lines.low[i])} to {number(lines.high[i])}"
    )


def channel_hovers(
    lines: Lines, bias: NDArray[np.float64] | None, partners: Mapping[int, int], symbol: str
) -> list[str]:
    """Return the hover of each channel, escaped."""
    texts = []
    for c in range(len(lines.amax)):
        text = f"<b>channel {c}</b><br>{_numbers(lines, c, symbol)}"
        text += "" if bias is None else f"<br>|bias of k_proj| {number(bias[c])}"
        texts.append(text + (f"<br>RoPE partner {partners[c]}" if c in partners else ""))
    return texts


def token_hovers(lines: Lines, tokens: Sequence[str], symbol: str) -> list[str]:
    """Return the hover of each column of tokens, escaped."""
    texts = []
    for i, (a, b) in enumerate(zip(lines.edges[:-1], lines.edges[1:], strict=True)):
        first, last = round(a + 0.5), round(b - 0.5)
        name = hover_label(tokens[first]) + ("" if first == last else f" {CUT} {label(tokens[last])}")
        where = f"token {first}" if first == last else f"tokens {first}–{last}"
        texts.append(f"<b>{name}</b><br>{where}<br>{_numbers(lines, i, symbol)}")
    return texts


def channel_alt(lines: Lines, marked: Sequence[int], bias: NDArray[np.float64] | None, symbol: str) -> str:
    """Return what a profile of channels shows, in words."""
    named = [
        f"channel {c} peaks at {number(lines.amax[c], 4)}"
        + ("" if bias is None else f" where the bias of k_proj is {number(bias[c])}")
        for c in marked
    ]
    return (
        f"Profile of {symbol} for {len(lines.amax)} channels on a logarithmic axis: largest, median and the "
        f"band of 5 to 95 % of the tokens. "
        + (f"Marked as outliers: {', '.join(named)}." if named else "None is marked.")
    )


def token_alt(
    lines: Lines, tokens: Sequence[str], loud: Sequence[int], quiet: Sequence[int], symbol: str
) -> str:
    """Return what a profile of tokens shows, in words."""
    named = [f"token {t}, {visible(tokens[t][:40])}, peaks at {number(lines.amax[t], 4)}" for t in loud]
    named += [
        f"token {t}, {visible(tokens[t][:40])}, is quiet: median {number(lines.median[t])}" for t in quiet
    ]
    return (
        f"Profile of {symbol} for {len(tokens):,} tokens on a logarithmic axis: largest, median and the band "
        f"of 5 to 95 % of the channels. "
        + (f"Marked: {'; '.join(named[:12])}." if named else "None is marked.")
    )
