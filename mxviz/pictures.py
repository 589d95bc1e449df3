"""Pictures of a capture: the one place where tables become figures, for page, CLI and API alike."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import lru_cache
from itertools import product
from pathlib import Path

import numpy as np

from mxviz import __version__
from mxviz.analysis import HeadView, head_view, relative_error
from mxviz.capture import Capture
from mxviz.export import SIZES, write
from mxviz.figures import FIGURES, Figure
from mxviz.formats import Recipe
from mxviz.outliers import channel_outliers

_VIEWS = 32  # head views kept; one of 512 tokens × 64 channels is about 1 MB


def default_place(capture: Capture, part: str = "key") -> tuple[int, int]:
    """Return the layer and KV head of the largest outlier channel; the first ones where none stands out."""
    worst = max(channel_outliers(capture, part), key=lambda row: row.ratio_to_median, default=None)
    return (worst.layer, worst.head) if worst else (capture.layers[0], 0)


def picture(
    capture: Capture,
    name: str,
    *,
    layer: int | None = None,
    head: int | None = None,
    part: str = "key",
    recipe: str | None = None,
    baseline: str | None = None,
    theme: str = "light",
    width: int = 1280,
    height: int | None = None,
) -> Figure:
    """Draw a figure of one KV head of a capture.

    Args:
        capture: the run.
        name: a name of `mxviz.figures.FIGURES`.
        layer: by default, with head, the place of the largest outlier channel.
        head: KV head.
        part: `key` or `value`.
        recipe: what to look through; by default the run's own.
        baseline: what to compare with; by default the run's own.
        theme: `light` or `dark`.
        width: CSS pixels; below 640 the figure is laid out for a phone.
        height: CSS pixels; by default what the figure needs.

    Raises:
        ValueError: for an unknown figure, part, recipe or theme, or a place that was not recorded.
    """
    if name not in FIGURES:
        raise ValueError(f"no figure {name!r}; expected one of: {', '.join(FIGURES)}")
    view, layer, head = see(capture, layer, head, part, recipe, baseline)
    size = {"theme": theme, "width": width, "height": height}
    where = f"{short_name(capture.model)} · layer {layer}, KV head {head}, {part}s"
    return _DRAWN[name](view, where, part, size)


def write_picture(
    capture: Capture,
    name: str,
    path: str | Path,
    *,
    layer: int | None = None,
    head: int | None = None,
    part: str = "key",
    recipe: str | None = None,
    baseline: str | None = None,
    theme: str = "light",
    size: str = "slide",
) -> Path:
    """Draw a figure of a capture into a .svg, .png, .pdf, .html or (its numbers) .csv file.

    Args:
        path: where to; its ending chooses the kind of file.
        size: a name of `mxviz.export.SIZES`. The rest is that of `picture`.

    Raises:
        ValueError: as `picture`, and for an unknown ending or size.
        mxviz.export.ExportError: where Chrome is needed and missing, or fails.
    """
    if size not in SIZES:
        raise ValueError(f"unknown size {size!r}; expected one of: {', '.join(SIZES)}")
    view, layer, head = see(capture, layer, head, part, recipe, baseline)
    place = {"layer": layer, "head": head, "part": part, "recipe": recipe, "baseline": baseline}
    width, height = SIZES[size].width or 1280, SIZES[size].height
    figure = picture(capture, name, **place, theme=theme, width=width, height=height)
    return write(
        figure, path, size=size, table=_table(name, view), provenance=provenance(capture, name, **place)
    )


def provenance(
    capture: Capture, name: str, *, layer: int, head: int, part: str, recipe: str | None, baseline: str | None
) -> dict[str, object]:
    """Return where a figure came from, for the file's metadata; the prompt is a hash, not the text."""
    return {
        "figure": name,
        "model": capture.model,
        "revision": capture.revision,
        "prompt_sha256": hashlib.sha256(capture.prompt.encode()).hexdigest(),
        "layer": layer,
        "head": head,
        "part": part,
        "recipe": str(Recipe.parse(recipe or capture.recipe)),
        "baseline": str(Recipe.parse(baseline or capture.baseline)),
        "mxviz": __version__,
    }


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
    return _view(capture, layer, head, part, *recipes), layer, head


@lru_cache(maxsize=_VIEWS)
def _view(capture: Capture, layer: int, head: int, part: str, recipe: str, baseline: str) -> HeadView:
    return head_view(capture, layer, head, part, recipe, baseline)


def short_name(model: str) -> str:
    """Return a model's name without its owner or folder."""
    return model.rstrip("/").rsplit("/", 1)[-1] or model


# --- one function a figure: the sentence, and what it is drawn from -------------------------------


def _scales(view: HeadView, where: str, part: str, size: dict) -> Figure:
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


def _outliers(view: HeadView, where: str, part: str, size: dict) -> Figure:
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


def _error(view: HeadView, where: str, part: str, size: dict) -> Figure:
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


_DRAWN = {"scales": _scales, "outliers": _outliers, "error": _error}


def _table(name: str, view: HeadView) -> tuple[list[str], Iterator[tuple]]:
    """Return the numbers behind a figure: column names, and rows."""
    if name == "scales":
        names = ["block", "channel"] if view.axis == "token" else ["token", "block"]
        cells = product(*map(range, view.scales.shape))
        return [*names, "scale", "byte"], (
            (i, j, view.scales[i, j], view.scale_bytes[i, j]) for i, j in cells
        )
    cells = product(*map(range, view.x.shape))
    names = ["token", "text", "channel", "x", "micro", "single"]
    return names, (
        (i, view.tokens[i], j, view.x[i, j], view.micro[i, j], view.single[i, j]) for i, j in cells
    )
