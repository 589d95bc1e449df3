"""One head of a capture in four maps, and what each way to cut its layer flushes."""

from __future__ import annotations

from functools import lru_cache

from mxviz._pictures_rulers import see_block
from mxviz.analysis import relative_error
from mxviz.capture import Capture
from mxviz.cuts import flushed_by_cut
from mxviz.figures import Figure
from mxviz.figures.cuts import Cut, cut_bars
from mxviz.figures.error import percent
from mxviz.figures.head import Blocks, Loss, head_maps
from mxviz.formats import Axis, Reach, Recipe, Scheme
from mxviz.pictures import _error_sentence, _outliers_sentence, _stored_exactly, see, short_name


def head(
    capture: Capture,
    layer: int | None = None,
    head: int | None = None,
    part: str = "key",
    recipe: str | None = None,
    baseline: str | None = None,
    *,
    token: int | None = None,
    channel: int | None = None,
    targets: bool = False,
    theme: str = "light",
    width: int = 1280,
    height: int | None = None,
    window: tuple[int, int] | None = None,
) -> Figure:
    """Draw a head's magnitude, scales and both errors over the same tokens and channels.

    Args:
        token: with channel, a value whose block is framed; none by default. The rest is that of
            `mxviz.pictures.picture` and `mxviz.figures.head.head_maps`.

    Raises:
        ValueError: for a place that was not recorded, a recipe that does not parse, or an unknown theme.
    """
    view, layer, head = see(capture, layer, head, part, recipe, baseline)
    opened = None
    if token is not None and channel is not None:
        block = see_block(capture, layer, head, part, token, channel, recipe, baseline)
        opened = tuple((int(at.min()), int(at.max())) for at in (block.tokens, block.channels))
    about = _outliers_sentence(view, part)
    return head_maps(
        view.x,
        view.tokens,
        Blocks(
            view.scales,
            view.axis,
            view.block,
            view.sink if view.axis == "token" else 0,
            view.scale_bytes if (view.scale_bytes >= 0).any() else None,
            _stored_exactly(view),
        ),
        Loss(relative_error(view.x, view.micro), view.micro, view.micro_text, view.micro_stats["flushed"]),
        Loss(
            relative_error(view.x, view.single), view.single, view.single_text, view.single_stats["flushed"]
        ),
        title=_error_sentence(view, part),
        subtitle=f"{short_name(capture.model)} · layer {layer}, KV head {head}, {part}s",
        marked=view.marked_channels,
        symbol="|K|" if part == "key" else "|V|",
        about=about[0].lower() + about[1:],
        opened=opened,
        targets=targets,
        **{"theme": theme, "width": width, "height": height, "window": window},
    )


def cuts(
    capture: Capture,
    layer: int,
    part: str = "key",
    recipe: str | None = None,
    baseline: str | None = None,
    *,
    theme: str = "light",
    width: int = 1280,
    height: int | None = None,
) -> Figure:
    """Draw the share of a layer's part that becomes zero under each way to cut it into blocks.

    Raises:
        ValueError: for a layer that was not recorded, a recipe that does not parse, or an unknown theme.
    """
    recipe, baseline = (
        str(Recipe.parse(recipe or capture.recipe)),
        str(Recipe.parse(baseline or capture.baseline)),
    )
    rows = see_cuts(capture, layer, part, recipe, baseline)
    chosen = {Recipe.parse(text).scheme(part) for text in (recipe, baseline)}
    bars = [
        Cut(cut_name(scheme), share, "micro" if scheme.is_blocked else "single", scheme in chosen)
        for scheme, share in rows
    ]
    return cut_bars(
        bars or [Cut("stored exactly", 0.0, "micro", True)],
        title=cuts_sentence(rows, layer, part),
        subtitle=f"{short_name(capture.model)} · layer {layer}, all KV heads, {part}s",
        **{"theme": theme, "width": width, "height": height},
    )


see_cuts = lru_cache(maxsize=64)(flushed_by_cut)


def cut_name(scheme: Scheme) -> str:
    """Return a way to share scales in words: MXFP4, a scale per 32 tokens."""
    if scheme.is_blocked:
        way = {Axis.CHANNEL: "channels", Axis.TOKEN: "tokens"}[scheme.axis]
        return f"{scheme.label}, a scale per {scheme.block} {way}"
    return scheme.label


def cuts_sentence(rows: list[tuple[Scheme, float | None]], layer: int, part: str) -> str:
    """Say how much of a layer becomes zero under each way to cut it."""
    known = {scheme: share for scheme, share in rows if share is not None}
    ways = {scheme.axis: share for scheme, share in known.items() if scheme.is_blocked}
    one = [share for scheme, share in known.items() if scheme.reach is Reach.TENSOR]
    if not known:
        return f"Nothing of layer {layer}'s {part}s becomes zero"
    said = [(f"cut along {axis.value}s", ways[axis]) for axis in (Axis.TOKEN, Axis.CHANNEL) if axis in ways]
    said += [("under one scale", one[0])] if one else []
    said = said if ways else [(f"under {cut_name(scheme)}", share) for scheme, share in known.items()]
    (way, share), *rest = said
    text = f"{way[0].upper()}{way[1:]}, {percent(share)} of layer {layer}'s {part}s become zero"
    more = ", ".join(f"{way.removeprefix('cut ')} {percent(share)}" for way, share in rest)
    return f"{text}; {more}" if more else text
