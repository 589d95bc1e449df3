"""Pictures of a capture: the one place where tables become figures, for page, CLI and API alike."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from mxviz._export_provenance import provenance, provenance_line, short_name
from mxviz._export_sheet import Sheet, put_on, size_of, theme_of
from mxviz._pictures_registry import PICTURES, available, default_place, draw, place_of
from mxviz.analysis import HeadView, head_view, relative_error
from mxviz.capture import Capture
from mxviz.export import TABLES, File, kind_of, made
from mxviz.figures import FIGURES, Figure
from mxviz.formats import Recipe

__all__ = [
    "PICTURES",
    "Sheet",
    "available",
    "default_place",
    "figure_file",
    "picture",
    "see",
    "short_name",
    "write_picture",
]

_VIEWS, _LARGE_VIEWS = 32, 2  # head views kept; one of 512 tokens × 64 channels is about 1 MB
_LARGE = 1 << 18  # numbers of a head from which on its view is large: it keeps its layer's round trips alive


def picture(
    capture: Capture,
    name: str,
    *,
    theme: str = "light",
    width: int = 1280,
    height: int | None = None,
    **place: Any,
) -> Figure:
    """Draw a figure of a capture.

    Args:
        capture: the run.
        name: a name of `PICTURES`; `mxviz figure --list` describes them.
        theme: `light` or `dark`.
        width: CSS pixels; below 640 the figure is laid out for a phone.
        height: CSS pixels; by default what the figure needs.
        place: what the figure is told: some of layer, head, part, token, channel, query_head, position,
            measure, schemes, recipe and baseline, by default where the largest outlier is and the run's own;
            `PICTURES[name].options` are those that mean something to it.

    Raises:
        ValueError: for an unknown figure, part, recipe or theme, a place that was not recorded, an option
            that means nothing to the figure, or a capture that lacks what it needs.
    """
    return draw(
        capture, name, place_of(capture, name, **place), **{"theme": theme, "width": width, "height": height}
    )


def write_picture(
    capture: Capture,
    name: str,
    path: str | Path,
    *,
    theme: str = "light",
    size: str = "slide",
    title: str | None = None,
    caption: str = "",
    font_scale: float = 1.0,
    show_provenance: bool = False,
    **place: Any,
) -> Path:
    """Draw a figure of a capture into a .svg, .png, .pdf or .html file, or its numbers into .csv or .npz.

    Args:
        path: where to; its ending chooses the kind of file.
        theme: `light`, `dark`, `transparent` or `transparent-dark`; the last two have no background.
        size: a name of `mxviz.export.SIZES`.
        title: instead of the figure's own sentence; empty for none.
        caption: a text below the figure.
        font_scale: how much larger fonts and lines are, 0.5 to 3.
        show_provenance: whether the figure says where it came from; the file's metadata always does.
        place: as in `picture`.

    Raises:
        ValueError: as `picture`, and for an unknown ending or size.
        mxviz.export.ExportError: where Chrome is needed and missing, or fails.
    """
    sheet, path = Sheet(theme, size, title, caption, font_scale, show_provenance), Path(path)
    kind = kind_of(path)
    file = figure_file(capture, name, place_of(capture, name, **place), sheet, kind in TABLES)
    path.write_bytes(made([file], kind)[0])
    return path


def figure_file(
    capture: Capture, name: str, place: Mapping[str, Any], sheet: Sheet, numbers: bool = False
) -> File:
    """Return what goes into a file: the figure on its sheet, or, for a table, the numbers behind it.

    Raises:
        ValueError: for a theme, size or font scale that does not exist, or a figure that does not fit.
    """
    from mxviz._export_tables import table

    theme_of(sheet)
    size, about = size_of(sheet), provenance(capture, name, place)
    if numbers:
        return File(None, size, table(capture, name, dict(place)), about)
    fig = put_on(sheet, lambda **look: draw(capture, name, dict(place), **look), provenance_line(about))
    return File(fig, size, None, about)


def see(
    capture: Capture,
    layer: int | None,
    head: int | None,
    part: str,
    recipe: str | None = None,
    baseline: str | None = None,
) -> tuple[HeadView, int, int]:
    """Return the tables of one head, and the layer and head they are of."""
    own = default_place(capture, part) if layer is None or head is None else (layer, head)
    layer = own[0] if layer is None else layer
    head = own[1] if head is None else head
    recipes = (str(Recipe.parse(recipe or capture.recipe)), str(Recipe.parse(baseline or capture.baseline)))
    view = _large_view if capture.part(part, layer)[0].numel() > _LARGE else _view
    return view(capture, layer, head, part, *recipes), layer, head


_view, _large_view = (lru_cache(maxsize=most)(head_view) for most in (_VIEWS, _LARGE_VIEWS))


def _seen(capture: Capture, part: str, given: dict[str, Any]) -> tuple[HeadView, str, dict[str, Any]]:
    """Return a head's tables, its name, and the size its figure is to have."""
    place = {option: given.pop(option) for option in ("layer", "head", "recipe", "baseline")}
    view, layer, head = see(capture, part=part, **place)
    return view, f"{short_name(capture.model)} · layer {layer}, KV head {head}, {part}s", given


def _scales(capture: Capture, part: str, **given: Any) -> Figure:
    view, where, size = _seen(capture, part, given)
    return FIGURES["scales"].draw(
        view.scales,
        view.tokens,
        axis=view.axis,
        block=view.block,
        channels=view.x.shape[1],
        first=view.sink if view.axis == "token" else 0,
        exact=_stored_exactly(view),
        stored=view.scale_bytes if (view.scale_bytes >= 0).any() else None,
        title=_scales_sentence(view, part),
        subtitle=f"{where} · {view.micro_text}",
        **size,
    )


def _stored_exactly(view: HeadView) -> np.ndarray:
    """Where no scale is because nothing was quantized: the sinks' rows, or all of it."""
    exact = np.zeros(view.scales.shape, bool)
    if view.block is None:
        return exact | (view.micro_text.startswith("uncompressed"))
    if view.axis == "channel":
        exact[: view.sink] = True
    return exact


def _scales_sentence(view: HeadView, part: str) -> str:
    known = view.scales[np.isfinite(view.scales) & (view.scales > 0)]
    if known.size == 0:
        return f"These {part}s are stored exactly: no scale is shared"
    if known.size == 1:
        return f"One ruler of length {known[0]:.3g} measures every one of these {part}s"
    longest = float(known.max() / np.median(known))
    if longest < 1.5:
        return f"Every block of these {part}s needs about the same ruler"
    return f"The longest ruler among these {part}s is {longest:,.0f} times the usual one"


def _outliers(capture: Capture, part: str, **given: Any) -> Figure:
    view, where, size = _seen(capture, part, given)
    marked, half = view.marked_channels, view.x.shape[1] // 2
    partners = {c: (c + half) % view.x.shape[1] for c in marked} if part == "key" else {}
    return FIGURES["outliers"].draw(
        view.x,
        view.tokens,
        marked=marked,
        partners=partners,
        symbol="|K|" if part == "key" else "|V|",
        title=_outliers_sentence(view, part),
        subtitle=f"{where} · as the model made them; the median of the layer is {view.median:.3g}",
        **size,
    )


def _outliers_sentence(view: HeadView, part: str) -> str:
    if view.median == 0:
        return f"More than half of these {part}s are zero"
    if not view.marked_channels:
        ratio = view.amax / view.median
        return f"No channel stands out: the largest of these {part}s is {ratio:,.0f} times the median"
    peaks = {c: float(np.nanmax(np.abs(view.x[:, c]))) for c in view.marked_channels}
    worst = max(peaks, key=peaks.get)
    return f"Channel {worst} peaks at {peaks[worst] / view.median:,.0f} times the layer's median {part}"


def _error(capture: Capture, part: str, **given: Any) -> Figure:
    view, where, size = _seen(capture, part, given)
    return FIGURES["error"].draw(
        relative_error(view.x, view.micro),
        relative_error(view.x, view.single),
        view.tokens,
        flushed_micro=view.micro_stats["flushed"],
        flushed_single=view.single_stats["flushed"],
        names=(view.micro_text, view.single_text),
        axis=view.axis if view.block else None,
        block=view.block,
        first=view.sink if view.axis == "token" else 0,
        values=view.x,
        decoded=(view.micro, view.single),
        title=_error_sentence(view, part),
        subtitle=f"{where} · relative error of every stored number",
        **size,
    )


def _error_sentence(view: HeadView, part: str) -> str:
    micro, single = view.micro_stats["flushed"], view.single_stats["flushed"]
    if micro is None or single is None:
        return f"These {part}s are all zero, and stay it"
    if max(micro, single) < 0.02:
        return f"Hardly one of these {part}s becomes zero under either"
    return (
        f"One scale flushes {_percent(single)} of these {part}s to zero, a scale per block {_percent(micro)}"
    )


def _percent(share: float) -> str:
    return f"{100 * share:.1f}\N{NO-BREAK SPACE}%"
