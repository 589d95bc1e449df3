"""From a capture to the figures of the outliers page: a head in profile, and as a surface."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mxviz._outliers_profile import HeadProfile, Side, head_profile, origin, rope_pairing
from mxviz._outliers_survey import survey
from mxviz.capture import Capture
from mxviz.figures import Figure
from mxviz.figures._traces import number
from mxviz.figures.labels import shorten
from mxviz.figures.profile import channel_profile, token_profile
from mxviz.figures.surface import surface

_SYMBOLS = {"key": "|K|", "value": "|V|"}
_MARKS = 12


class _Head(NamedTuple):
    """What every picture of a head begins with."""

    profile: HeadProfile
    where: str
    layer: int
    head: int


def default_head(capture: Capture, part: str = "key") -> tuple[int, int]:
    """Return layer and KV head of the largest outlier channel; the first ones where none stands out."""
    worst = next(iter(survey(capture, part).channels), None)
    return (worst.layer, worst.head) if worst else (capture.layers[0], 0)


def channel_picture(
    capture: Capture,
    *,
    layer: int | None = None,
    head: int | None = None,
    part: str = "key",
    channel: int | None = None,
    token: int | None = None,
    theme: str = "light",
    width: int = 1280,
    height: int | None = None,
) -> Figure:
    """Draw a head's channels in profile.

    Args:
        capture: the run.
        layer: by default, with head, the place of the largest outlier channel.
        head: KV head.
        part: `key` or `value`.
        channel: the channel one looks at; with `token`, the single value that is marked.
        theme: `light` or `dark`.
        width: CSS pixels; below 640 the figure is laid out for a phone. So is height.

    Raises:
        ValueError: for a place that was not recorded, an unknown part or theme.
    """
    seen = _seen(capture, layer, head, part)
    profile, pairing = seen.profile, rope_pairing(capture, seen.layer) if part == "key" else None
    marked = [row.channel for row in profile.marked[:_MARKS]]
    if channel in marked:
        marked = [channel, *(c for c in marked if c != channel)]
    spot = None if channel is None or token is None else _spot(capture, seen, part, token, channel)
    side = profile.channels
    return channel_profile(
        *side[:4],
        marked=marked,
        partners={c: p for c, p in enumerate(pairing.partner) if p is not None} if pairing else {},
        bias=profile.bias,
        reference=profile.median or None,
        here=channel,
        spot=spot,
        symbol=_SYMBOLS[part],
        title=_value_sentence(capture, seen, part, token, channel)
        if spot
        else _channel_sentence(capture, seen, part, channel),
        subtitle=f"{seen.where}{_here('channel', profile.channels, channel)}{_broken(profile)}",
        **{"theme": theme, "width": width, "height": height},
    )


def token_picture(
    capture: Capture,
    *,
    layer: int | None = None,
    head: int | None = None,
    part: str = "key",
    token: int | None = None,
    theme: str = "light",
    width: int = 1280,
    height: int | None = None,
) -> Figure:
    """Draw a head's tokens in profile, its outlier channels apart; `token` is the one that one looks at.

    The rest is that of `channel_picture`.
    """
    seen = _seen(capture, layer, head, part)
    profile = seen.profile
    loud, quiet = _unusual(capture, seen, part)
    loud, quiet = (
        [t for t in [token] if t in these] + [t for t in these if t != token] for these in (loud, quiet)
    )
    out = [row.channel for row in profile.marked]
    name = f"largest of channel{'s' * (len(out) > 1)} {', '.join(map(str, out[:3]))}{', …' * (len(out) > 3)}"
    return token_profile(
        *profile.tokens[:4],
        capture.token_texts[: len(profile.tokens.amax)],
        loud=loud[:_MARKS],
        quiet=quiet[:_MARKS],
        apart=profile.apart,
        apart_name=name,
        reference=profile.median or None,
        here=token,
        symbol=_SYMBOLS[part],
        title=_token_sentence(capture, seen, part, token, loud, quiet),
        subtitle=f"{seen.where}{_here('token', profile.tokens, token)}{_broken(profile)}",
        **{"theme": theme, "width": width, "height": height},
    )


def _seen(capture: Capture, layer: int | None, head: int | None, part: str) -> _Head:
    own = default_head(capture, part) if layer is None or head is None else (layer, head)
    layer, head = own[0] if layer is None else layer, own[1] if head is None else head
    model = capture.model.rstrip("/").rsplit("/", 1)[-1] or capture.model
    where = f"{model} · layer {layer}, KV head {head}, {part}s"
    return _Head(head_profile(capture, layer, head, part), where, layer, head)


def _broken(profile: HeadProfile) -> str:
    count = profile.not_finite
    return f" · {count:,} NaN or infinite number{'s' * (count > 1)} left out" if count else ""


def _here(what: str, side: Side, at: int | None) -> str:
    """The numbers of the channel or the token one looks at."""
    if at is None or not np.isfinite(side.amax[at]):
        return ""
    return f" · {what} {at}: largest {number(side.amax[at], 4)}, median {number(side.median[at])}"


def _unusual(capture: Capture, seen: _Head, part: str) -> tuple[list[int], list[int]]:
    """The loud and the quiet tokens of a head, the most unusual first."""
    found = survey(capture, part)
    at = (seen.layer, seen.head)
    return (
        [row.token for row in found.tokens if (row.layer, row.head) == at],
        [row.token for row in found.quiet if (row.layer, row.head) == at],
    )


def _channel_sentence(capture: Capture, seen: _Head, part: str, channel: int | None) -> str:
    profile = seen.profile
    if not profile.median:
        return _no_median(profile, part)
    marked = [row.channel for row in profile.marked]
    if not marked:
        largest = np.nanmax(profile.channels.amax, initial=0) / profile.median
        return f"No channel stands out: the largest {part} of this head is {largest:,.0f} times the median"
    worst = channel if channel in marked else marked[0]
    ratio = profile.channels.amax[worst] / profile.median
    comes = origin(capture, seen.layer, seen.head, worst) if part == "key" else None
    said = f"Channel {worst} peaks at {ratio:,.0f} times the layer's median {part}"
    if comes is None or comes.reaches is None or comes.reaches < 0.1:
        return said
    return f"{said}; the bias of k_proj alone reaches {100 * comes.reaches:.0f}\N{NO-BREAK SPACE}% of that"


def _no_median(profile: HeadProfile, part: str) -> str:
    if not np.isfinite(profile.channels.amax).any():
        return f"Not one {part} of this head is finite"
    return f"Half or more of this layer's {part}s are zero: there is no median to measure against"


def _spot(
    capture: Capture, seen: _Head, part: str, token: int, channel: int
) -> tuple[int, float, str] | None:
    value = float(capture.part(part, seen.layer)[seen.head, token, channel].float())
    if not np.isfinite(value):
        return None
    return channel, abs(value), f"token {token} {shorten(capture.token_texts[token], 14)} · {number(value)}"


def _value_sentence(capture: Capture, seen: _Head, part: str, token: int, channel: int) -> str:
    place = (seen.layer, seen.head, token, channel)
    row = next((row for row in survey(capture, part).values if row[1:5] == place), None)
    if row is None:
        return f"This {part} does not stand alone: its channel, its token or its layer keep up with it"
    return f"One {part} stands alone: {row.ratio:,.0f} times what its channel, token and layer usually hold"


def _token_sentence(
    capture: Capture, seen: _Head, part: str, token: int | None, loud: list[int], quiet: list[int]
) -> str:
    profile = seen.profile
    if not profile.median:
        return _no_median(profile, part)
    if token in loud or (loud and token not in quiet and not quiet):
        t = token if token in loud else loud[0]
        ratio, channel = profile.tokens.amax[t] / profile.median, profile.tokens.at[t]
        return (
            f"{_name(capture, t)} peaks at {ratio:,.0f} times the layer's median {part}, in channel {channel}"
        )
    if quiet:
        t = token if token in quiet else quiet[0]
        row = next(r for r in survey(capture, part).quiet if (r.layer, r.head, r.token) == (*seen[2:], t))
        share = f"{100 * row.share_of_median:.0f}\N{NO-BREAK SPACE}%"
        return f"{_name(capture, t)} is nearly silent: its median {part} is {share} of its head's"
    largest = np.nanmax(profile.tokens.amax, initial=0) / profile.median
    return f"No token stands out: the largest {part} {_beside(profile)} is {largest:,.0f} times the median"


def _beside(profile: HeadProfile) -> str:
    return "beside the outlier channels" if profile.marked else "of this head"


def _name(capture: Capture, token: int) -> str:
    return f"Token {token}, {shorten(capture.token_texts[token], 18)},"


def surface_picture(
    capture: Capture,
    *,
    layer: int | None = None,
    head: int | None = None,
    part: str = "key",
    theme: str = "light",
    width: int = 1280,
    height: int | None = None,
) -> Figure:
    """Draw a head as a surface over tokens and channels; the arguments are those of `channel_picture`."""
    seen = _seen(capture, layer, head, part)
    profile = seen.profile
    return surface(
        capture.part(part, seen.layer)[seen.head].float().numpy(),
        capture.token_texts[: capture.tokens_held],
        marked=[row.channel for row in profile.marked],
        symbol=_SYMBOLS[part],
        title=_surface_sentence(profile, part),
        subtitle=f"{seen.where}{_broken(profile)}",
        **{"theme": theme, "width": width, "height": height},
    )


def _surface_sentence(profile: HeadProfile, part: str) -> str:
    if not profile.marked:
        return f"No ridge runs through these {part}s"
    worst, count = profile.marked[0], len(profile.marked)
    high = f"the highest, channel {worst.channel}, at {worst.ratio_to_median:,.0f} times the median"
    if count == 1:
        return f"Channel {worst.channel} runs through these {part}s as a ridge, {high.partition(', at ')[2]}"
    return f"{count} ridges run through these {part}s, {high}"
