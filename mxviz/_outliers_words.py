"""What the outliers page says about a list: how much is in it, why it is empty, what was left out."""

from __future__ import annotations

from mxviz._outliers_advice import Advice, said
from mxviz._outliers_list import ROWS, Row
from mxviz._outliers_survey import Survey, survey
from mxviz.capture import Capture


def list_words(capture: Capture, part: str, kind: str, text: str, rows: tuple[Row, ...]) -> str:
    """Return a sentence or two about a list, plain text.

    Args:
        capture: the run.
        part: `key` or `value`.
        kind: what is listed; one of `mxviz._outliers_list.KINDS`.
        text: what was searched for, or nothing.
        rows: the list.
    """
    text = text.strip()
    if text:
        return _found_words(capture, part, kind, text, len(rows))
    found = survey(capture, part)
    words = _COUNTS[kind](found, part, len(capture.layers)) + _silent_words(found, part)
    return words + (f" Shown are the {ROWS} that stand out most." if len(rows) == ROWS else "")


def _found_words(capture: Capture, part: str, kind: str, text: str, count: int) -> str:
    if kind == "channels":
        if count:
            return f"Channel {text.split()[-1]} in {_many(count, 'head')}, the wildest first."
        width = capture.part(part, capture.layers[0]).shape[-1]
        return f"There is no channel {text.split()[-1]}: these heads have channels 0 to {width - 1}."
    if count:
        return f"{_many(count, 'token')} for {text}, each listed where it stands out most."
    return f"No token of this run holds {text}. A number alone is a channel; a token goes in double quotes."


def _channel_words(found: Survey, part: str, layers: int) -> str:
    wild = len({row.layer for row in found.channels})
    if not wild:
        return f"No channel stands out: none peaks at ten times its layer's median {part} and stays high."
    return (
        f"{_many(len(found.channels), 'channel')} peak at ten times their layer's median {part} or more and "
        f"stay high, in {wild} of {_many(layers, 'layer')}."
    )


def _token_words(found: Survey, part: str, layers: int) -> str:
    return (
        f"{_many(len(found.quiet), 'time')} a token is quiet, its median {part} below a fifth of its head's, "
        f"as attention sinks are; {_many(len(found.tokens), 'time')} one is loud beside the outlier channels."
    )


def _value_words(found: Survey, part: str, layers: int) -> str:
    if not found.values:
        return f"No single {part} is above ten times the medians of its channel, its token and its layer."
    return (
        f"{_many(len(found.values), part)} {'stands' if len(found.values) == 1 else 'stand'} alone: above "
        "ten times the medians of channel, token and layer."
    )


_COUNTS = {"channels": _channel_words, "tokens": _token_words, "single values": _value_words}


def _silent_words(found: Survey, part: str) -> str:
    """Say where the median is zero, so that nothing can be measured against it."""
    silent = tuple(layer for layer, median in found.medians.items() if median == 0)
    if not silent:
        return ""
    return (
        f" In {_layers(silent)} half of the {part}s or more are zero or not finite: there is no median to "
        "measure against."
    )


def broken_words(capture: Capture, part: str) -> str:
    """Return how many numbers are NaN or infinite, and where; empty where all are finite."""
    broken = survey(capture, part).not_finite
    if not broken:
        return ""
    count = sum(broken.values())
    return (
        f"{_many(count, part)} {'is' if count == 1 else 'are'} NaN or infinite, in {_layers(tuple(broken))}; "
        "what is listed and drawn here leaves them out."
    )


def harm_words(found: Advice, part: str) -> str:
    """Return in which layers outlier channels do harm, or why they do none."""
    if not found.harmed:
        return found.safe
    words = (
        f"In {_layers(found.harmed)} a channel peaks at more than {found.limit:,.0f} times the median "
        f"{part}: a number as small as the median becomes zero when it shares a scale with it."
    )
    return f"{words} {found.safe}" if found.safe else words


def _layers(layers: tuple[int, ...]) -> str:
    return f"layer{'s' * (len(layers) > 1)} {said(layers)}"


def _many(count: int, what: str) -> str:
    return f"{count:,} {what}{'s' * (count != 1)}"
