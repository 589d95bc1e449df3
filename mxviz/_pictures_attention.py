"""From a capture's queries to sentences and figures: where one query looks, and what a head hands on."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from mxviz._pictures_effect import NAMES, share
from mxviz.attention import AttentionView, OutputErrors, attention_view, output_error, query_layers
from mxviz.capture import Capture
from mxviz.figures import Figure
from mxviz.figures.attention import attention_bars, head_errors
from mxviz.figures.labels import shorten
from mxviz.formats import Recipe
from mxviz.outliers import ChannelOutlier, layer_channel_outliers

_LITTLE = 0.01  # share of attention: where both lanes stay below, the sentence says so


def default_query(capture: Capture, layer: int | None = None) -> tuple[int, int, int]:
    """Return layer, query head and position to open with: where the strongest outlier channel of the keys
    is, that query head of its KV head whose output one scale changes most, and the last token held, which
    has the most to look at. Where no channel stands out, the worst of all heads.

    Args:
        capture: a run with queries.
        layer: keep to this layer.

    Raises:
        ValueError: where no queries were recorded.
    """
    layers = query_layers(capture) if layer is None else (layer,)
    if not layers:
        raise ValueError("no queries were recorded; run with mxviz of now, and measure the effect")
    loud = loudest(capture, layers)
    if loud is not None:
        layers = (loud.layer,)
    errors = {i: np.nan_to_num(errors_of(capture, i, None, None).single) for i in layers}
    if loud is not None:
        group = len(errors[loud.layer]) // capture.part("key", loud.layer).shape[0]
        shared = np.arange(len(errors[loud.layer])) // group == loud.head
        errors[loud.layer] = np.where(shared, errors[loud.layer], -1.0)
    worst = max(layers, key=lambda i: errors[i].max())
    return worst, int(errors[worst].argmax()), capture.tokens_held - 1


@lru_cache(maxsize=32)
def loudest(capture: Capture, layers: tuple[int, ...]) -> ChannelOutlier | None:
    """Return the strongest outlier channel of some layers' keys, None where none stands out."""
    found = [row for i in layers for row in layer_channel_outliers(capture.part("key", i), "key", i)]
    return max(found, key=lambda row: row.ratio_to_median, default=None)


def opening_words(capture: Capture, layer: int) -> str:
    """Say why a layer opens with the query head it opens with."""
    loud = loudest(capture, (layer,))
    if loud is None:
        return (
            f"No key channel of layer {layer} stands out: it opens with the head that one scale hurts most."
        )
    return (
        f"KV head {loud.head} of layer {layer} holds channel {loud.channel}, the layer's loudest at "
        f"{loud.ratio_to_median:.0f} times the median: it opens with that one of its query heads that one "
        "scale hurts most."
    )


def attention_picture(
    capture: Capture,
    *,
    layer: int | None = None,
    query_head: int | None = None,
    position: int | None = None,
    recipe: str | None = None,
    baseline: str | None = None,
    theme: str = "light",
    width: int = 1280,
    height: int | None = None,
) -> Figure:
    """Draw where one query looks under exact, micro-scaled and single-scale keys.

    Args:
        capture: a run with queries of some layers.
        layer: by default, with query_head and position, what `default_query` opens with.
        recipe: what to look through; baseline what to compare with; by default the run's own.
        theme: `light` or `dark`.
        width: CSS pixels; below 640 the figure is laid out for a phone. So is height.

    Raises:
        ValueError: where no queries were recorded, or for a place, recipe or theme that is not there.
    """
    own = default_query(capture, layer)
    layer, query_head, position = (
        mine if given is None else given
        for given, mine in zip((layer, query_head, position), own, strict=True)
    )
    view = view_of(capture, layer, query_head, position, *_plain(capture, recipe, baseline))
    token = shorten(capture.token_texts[position], 24)
    return attention_bars(
        view.exact,
        view.micro,
        view.single,
        view.tokens,
        title=attention_sentence(view),
        subtitle=f"{capture.model} · layer {layer}, query head {query_head} (KV head {view.kv_head}), asked "
        f"by token {position} {token} · {view.assumed}; height is the square root of the share",
        names=(
            "Exact",
            f"Micro-scaled, {view.micro_text}{_off(view.micro_error)}",
            f"One scale, {view.single_text}{_off(view.single_error)}",
        ),
        theme=theme,
        width=width,
        height=height,
    )


def head_errors_picture(
    capture: Capture,
    *,
    layer: int | None = None,
    recipe: str | None = None,
    baseline: str | None = None,
    theme: str = "light",
    width: int = 1280,
    height: int | None = None,
) -> Figure:
    """Draw the output error of every query head of a layer; arguments are those of `attention_picture`."""
    layer = default_query(capture)[0] if layer is None else layer
    errors = errors_of(capture, layer, *_plain(capture, recipe, baseline))
    heads, kv_heads = capture.queries[layer].shape[0], capture.part("key", layer).shape[0]
    return head_errors(
        errors.micro,
        errors.single,
        title=_errors_sentence(errors),
        subtitle=f"{capture.model} · layer {layer}, over {errors.positions:,} positions",
        group=heads // kv_heads,
        theme=theme,
        width=width,
        height=height,
    )


@lru_cache(maxsize=32)
def view_of(
    capture: Capture, layer: int, query_head: int, position: int, recipe: str, baseline: str
) -> AttentionView:
    """Return `attention_view`, kept for the next look."""
    return attention_view(capture, layer, query_head, position, recipe, baseline)


@lru_cache(maxsize=32)
def errors_of(capture: Capture, layer: int, recipe: str | None, baseline: str | None) -> OutputErrors:
    """Return `output_error`, kept for the next look."""
    return output_error(capture, layer, recipe, baseline)


def attention_sentence(view: AttentionView) -> str:
    """Say what share of the query's attention went elsewhere, the larger share first."""
    moved = {"micro": view.micro_moved, "single": view.single_moved}
    if not all(map(np.isfinite, moved.values())):
        broken = " and ".join(NAMES[lane] for lane, x in moved.items() if not np.isfinite(x))
        return f"This query's attention is not a number under {broken}: a key is not finite"
    more, less = sorted(moved, key=moved.get, reverse=True)
    if moved[more] < _LITTLE:
        return "Neither moves as much as one hundredth of this query's attention"
    return (
        f"{NAMES[more].capitalize()} moves {share(moved[more])} of this query's attention elsewhere, "
        f"{NAMES[less]} {share(moved[less])}"
    )


def _errors_sentence(errors: OutputErrors) -> str:
    medians = {"micro": errors.micro, "single": errors.single}
    if not all(np.isfinite(x).all() for x in medians.values()):
        return "What the heads hand on is not a number everywhere: a key or a value is missing or not finite"
    medians = {lane: float(np.median(x)) for lane, x in medians.items()}
    more, less = sorted(medians, key=medians.get, reverse=True)
    return (
        f"A typical head's output is off by {share(medians[more])} with {NAMES[more]}, "
        f"by {share(medians[less])} with {NAMES[less]}"
    )


def _off(error: float) -> str:
    return f" — output off by {share(error)}" if np.isfinite(error) else ""


def _plain(capture: Capture, recipe: str | None, baseline: str | None) -> tuple[str, str]:
    return str(Recipe.parse(recipe or capture.recipe)), str(Recipe.parse(baseline or capture.baseline))
