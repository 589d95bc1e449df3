"""The two rulers of a capture: from a block's numbers to sentence, figure, cards and table."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from mxviz.analysis import relative_error
from mxviz.blocks import BlockView, Ruled, block_view
from mxviz.capture import Capture
from mxviz.figures import Figure
from mxviz.figures.rulers import Ruler, two_rulers
from mxviz.formats import Reach, Recipe, ScaleFormat
from mxviz.pictures import short_name

_BLOCKS = 64
_RAISED = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")
_ONE = {
    Reach.TENSOR: "one ruler",
    Reach.HEAD: "one ruler for the head",
    Reach.TOKEN: "a ruler for each token",
    Reach.CHANNEL: "a ruler for each channel",
    Reach.ONE: "a ruler of fixed length",
    Reach.BLOCK: "the baseline's ruler",
}


def rulers(
    capture: Capture,
    layer: int,
    head: int,
    part: str,
    token: int,
    channel: int,
    recipe: str | None = None,
    baseline: str | None = None,
    *,
    near: bool = True,
    theme: str = "light",
    width: int = 1280,
    height: int | None = None,
) -> Figure:
    """Draw the block that holds one value of a capture, between its own ruler and the baseline's.

    Raises:
        ValueError: for a place that was not recorded, a recipe that does not parse, or an unknown theme.
    """
    view = see_block(capture, layer, head, part, token, channel, recipe, baseline)
    return two_rulers(
        _on_ruler(view, view.micro),
        _on_ruler(view, view.single),
        value_names(view),
        title=sentence(view),
        subtitle=" · ".join([short_name(capture.model), where(view), *_notes(view)]),
        at=view.at,
        near=near,
        kind=part,
        **{"theme": theme, "width": width, "height": height},
    )


def see_block(
    capture: Capture,
    layer: int,
    head: int,
    part: str,
    token: int,
    channel: int,
    recipe: str | None = None,
    baseline: str | None = None,
) -> BlockView:
    """Return a block's numbers; the last few are remembered."""
    recipes = (str(Recipe.parse(recipe or capture.recipe)), str(Recipe.parse(baseline or capture.baseline)))
    return _seen(capture, layer, head, part, token, channel, *recipes)


_seen = lru_cache(maxsize=_BLOCKS)(block_view)


def sentence(view: BlockView) -> str:
    """Say how many of the block's values become zero under each ruler; else how many lie beyond one."""
    count, (micro, single) = len(view.x), (view.micro, view.single)
    these = f"these {count} {view.part}s" if count > 1 else f"this one {view.part}"
    own = _own(view)
    if is_broken(micro):
        return f"NaN or infinity among {these}: their scale is NaN, and so is all that is read back"
    zeros = [int(lane.flushed.sum()) for lane in (micro, single)]
    if any(zeros):
        which = f"{zeros[1] or 'None'} of {these} {'lands' if zeros[1] < 2 else 'land'} on zero"
        if zeros[1] == count > 1:
            which = f"All {count} of these {view.part}s land on zero"
        end = "; here they are stored exactly" if micro.exact.all() else f", {zeros[0] or 'none'} under {own}"
        return f"{which} under {_ONE[single.scheme.reach]}{end}"
    if micro.exact.all():
        return f"{these[0].upper()}{these[1:]} {'are' if count > 1 else 'is'} stored exactly"
    beyond = [int(lane.clipped.sum()) for lane in (micro, single)]
    if any(beyond):
        ends = f"{beyond[0]} lie{'s' * (beyond[0] == 1)} beyond the end of {own}"
        ends += " ruler" if view.micro.scheme.is_blocked else ""
        if not beyond[0]:
            ends = f"{beyond[1]} lie{'s' * (beyond[1] == 1)} beyond the end of {_ONE[single.scheme.reach]}"
        return f"None of {these} becomes zero, but {ends}"
    return f"None of {these} becomes zero, under {_ONE[single.scheme.reach]} or under {own}"


def is_broken(ruled: Ruled) -> bool:
    """Whether the scale of the value looked at is NaN, so that nothing under it can be read."""
    return ruled.shares > 0 and ruled.ticks.size == 0


def where(view: BlockView) -> str:
    """Name the place of a block."""
    tokens, channels = (_range(name, at) for name, at in (("token", view.tokens), ("channel", view.channels)))
    return f"layer {view.layer}, KV head {view.head}, {tokens}, {channels}"


def value_names(view: BlockView) -> list[str]:
    """Name every value of a block by its token or its channel, whichever differs."""
    if view.axis == "token":
        return [f"token {t}" for t in view.tokens]
    return [f"channel {c}" for c in view.channels]


def cards(view: BlockView) -> list[tuple[str, str, str, str]]:
    """Return what to know of the two rulers: title, the block's own, the other's, and a reference."""
    lanes, kinds = (view.micro, view.single), f"{view.part}s"
    median = float(np.nanmedian(np.abs(view.micro.values))) if len(view.x) else math.nan
    zeros, cut = ([f"{int(getattr(r, name).sum())}" for r in lanes] for name in ("flushed", "clipped"))
    return [
        ("Shared scale", *(_scale(r) for r in lanes), _stored(view)),
        ("Shared by", *(f"{r.shares:,} {kinds}" if r.shares else "exact" for r in lanes), "of this layer"),
        ("Bits per element", *(_bits(r) for r in lanes), "16 uncompressed; codes and scales"),
        ("Ticks around zero", *(_gap(r) for r in lanes), f"the block's median is {_plain(median)}"),
        ("Became zero", *(f"{n} of {len(view.x)}" for n in zeros), f"clipped: {cut[0]} and {cut[1]}"),
        ("SQNR of the block", *(_sqnr(r) for r in lanes), "higher is closer; 6 dB is one bit"),
    ]


def value_words(view: BlockView) -> str:
    """Say of the value looked at what it was, and what both rulers made of it."""
    at, lanes = view.at, (("its own scale", view.micro), ("one scale", view.single))
    said = []
    for name, ruled in lanes:
        if ruled.exact[at]:
            said.append(f"{name}: exact")
            continue
        code = f"{ruled.codes[at]:0{ruled.scheme.element.bits}b}"
        said.append(f"{name}: code {code}, reads {_plain(float(ruled.decoded[at]))}")
    place = f"token {view.tokens[at]}, channel {view.channels[at]}: {_plain(float(view.x[at]), 4)}"
    return f"{place}; {'; '.join(said)}"


def table(view: BlockView) -> dict[str, list]:
    """Return a block's values as columns: the value, and for both rulers code, what it reads as and error."""
    names = value_names(view)
    if view.axis == "token":
        from mxviz.figures.labels import shorten

        names = [f"{name}: {shorten(text, 18)}" for name, text in zip(names, view.names, strict=True)]
    columns: dict[str, list] = {
        view.axis: names,
        "rotated value" if view.micro.rotated else "exact value": view.micro.values.tolist(),
    }
    for word, ruled in (("own", view.micro), ("one", view.single)):
        error = 100 * relative_error(ruled.values, ruled.decoded)
        columns |= {
            f"{word}: code": _codes(ruled),
            f"{word}: reads": ruled.decoded.tolist(),
            f"{word}: error": error.tolist(),
        }
    for name, field in (("clipped", "clipped"), ("became zero", "flushed")):
        both = zip(getattr(view.micro, field), getattr(view.single, field), strict=True)
        columns[name] = [("", "own", "one", "both")[int(own) + 2 * int(one)] for own, one in both]
    return columns


def _own(view: BlockView) -> str:
    return "their own" if view.micro.scheme.is_blocked else _ONE[view.micro.scheme.reach]


def _on_ruler(view: BlockView, ruled: Ruled) -> Ruler:
    said = f"rotated {view.part}" if ruled.rotated else ""
    kept = (ruled.ticks, ruled.values, ruled.decoded, ruled.flushed, ruled.clipped)
    return Ruler(_heading(view, ruled), *kept, said)


def _heading(view: BlockView, ruled: Ruled) -> str:
    if not ruled.shares:
        return "stored exactly: no scale, no ticks"
    if is_broken(ruled):
        return f"{ruled.scheme.label}: the scale is NaN, and nothing can be read"
    text = f"{ruled.scheme.label}: {_scale(ruled)}, shared by {ruled.shares:,} {view.part}s"
    if len(np.unique(ruled.scales[~np.isnan(ruled.scales)])) > 1:
        other = "token" if view.axis == "token" else "channel"
        place = (view.tokens if view.axis == "token" else view.channels)[view.at]
        return f"{text} (that of {other} {place}; the others have their own)"
    return f"{text}; ticks {_gap(ruled)} apart around zero" if ruled.zero is None else text


def _notes(view: BlockView) -> list[str]:
    largest = [f"holds the layer's largest {view.part}"] if view.holds_largest else []
    rotated = ["rotated by a Hadamard matrix"] if view.micro.rotated else []
    return [view.micro.scheme.describe(), *largest, *rotated]


def _range(name: str, at: np.ndarray) -> str:
    first, last = int(at.min()), int(at.max())
    return f"{name} {first}" if first == last else f"{name}s {first}–{last}"


def _plain(value: float, digits: int = 3) -> str:
    return "n/a" if not math.isfinite(value) else f"{value:.{digits}g}".replace("-", "−").replace("e−0", "e−")


def power_words(value: float) -> str:
    """Return a scale in words: 2⁵ = 32 for a power of two, its digits otherwise."""
    if not math.isfinite(value) or value <= 0 or math.frexp(value)[0] != 0.5:
        return _plain(value)
    return f"2{str(math.frexp(value)[1] - 1).translate(_RAISED)} = {_plain(value)}"


def _scale(ruled: Ruled) -> str:
    if not ruled.shares:
        return "exact"
    if is_broken(ruled):
        return "NaN"
    scale = ruled.block_scale * (1.0 if ruled.global_scale is None else ruled.global_scale)
    zero = "" if ruled.zero is None else f", zero point {_plain(ruled.zero)}"
    return (power_words(scale) if ruled.scheme.scale is ScaleFormat.E8M0 else _plain(scale)) + zero


def _stored(view: BlockView) -> str:
    """Say how the block's own scale is stored: byte, format, rule; NVFP4's two factors."""
    ruled = view.micro
    if not ruled.shares:
        return "nothing is quantized here"
    text = (
        ruled.scheme.scale.value if ruled.byte is None else f"byte {ruled.byte}, {ruled.scheme.scale.value}"
    )
    if ruled.global_scale is not None:
        text += f": {_plain(ruled.block_scale)} × {_plain(ruled.global_scale)}"
    return text + (f", rule {ruled.scheme.rule.value}" if ruled.scheme.scale is ScaleFormat.E8M0 else "")


def _bits(ruled: Ruled) -> str:
    bits = ruled.scheme.bits_per_element()
    return "exact" if bits is None or not ruled.shares else f"{bits:.4g}"


def _gap(ruled: Ruled) -> str:
    """Return how far the ticks next to zero lie from it; for a zero point, from each other."""
    if ruled.ticks.size < 2:
        return "none"
    if ruled.zero is not None:
        return _plain(float(np.diff(ruled.ticks).min()))
    return _plain(float(ruled.ticks[ruled.ticks > 0].min()))


def _sqnr(ruled: Ruled) -> str:
    there = np.isfinite(ruled.values) & np.isfinite(ruled.decoded)
    values, decoded = (a[there].astype(np.float64) for a in (ruled.values, ruled.decoded))
    signal, noise = float(np.square(values).sum()), float(np.square(values - decoded).sum())
    return "n/a" if not signal else "exact" if not noise else f"{10 * math.log10(signal / noise):.1f} dB"


def _codes(ruled: Ruled) -> list[str]:
    bits = ruled.scheme.element.bits if ruled.shares else 0
    return ["" if exact else f"{code:0{bits}b}" for code, exact in zip(ruled.codes, ruled.exact, strict=True)]
