"""The lesson's pictures: from runs and formulas to sentence and figure, before and after the guess."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from mxviz import _lesson_saboteur as saboteur
from mxviz import _pictures_head, lesson
from mxviz._pictures_effect import share
from mxviz._pictures_lesson_words import MODEL, TOKENS, token_words
from mxviz._pictures_race_table import name_of
from mxviz.capture import Capture
from mxviz.figures import Figure
from mxviz.figures._nats import plain
from mxviz.figures._traces import number
from mxviz.figures.error import percent
from mxviz.figures.lesson import (
    Bar,
    Curve,
    Mark,
    Row,
    curves,
    look_back_bars,
    named_bars,
    ruler_rows,
    shared_block,
)
from mxviz.figures.rulers import Ruler, two_rulers
from mxviz.formats import ELEMENTS, SCHEMES
from mxviz.pictures import picture, short_name

if TYPE_CHECKING:  # its libraries take seconds to import, and a first page needs none of them
    from mxviz._engine_lesson import Cooked

ABOUT = (
    "Pictures of the lesson: each stands before and after a guess, and is computed from a recorded run, from "
    "a formula or from the quantizer itself. Nothing in them was drawn by hand."
)
"""What a reader sees in these figures."""

TWIN = "not in OCP MX; the teaching twin of INT4"
"""What has to be said wherever MXINT4 is shown."""


def look_back_picture(capture: Capture, *, hidden: bool = False, **size) -> Figure:
    """Draw what one token of a run looks back at; `hidden` leaves the answer out.

    `size` is theme, width and height here and below, as in `mxviz.pictures.picture`.

    Raises:
        ValueError: where no queries were recorded, or for an unknown theme; so below.
    """
    seen = lesson.look_back(capture)
    asking = f"{token_words(seen.tokens, seen.position)}, token {seen.position},"
    title = f"{asking} was just written: where does this head look?"
    if not hidden:
        top = f"{token_words(seen.tokens, seen.top)}, token {seen.top}"
        title = f"{asking} gives {percent(float(seen.weights[seen.top]))} of its attention to {top}"
    where = f"{short_name(capture.model)} · layer {seen.layer}, query head {seen.query_head}"
    return look_back_bars(
        seen.weights, seen.tokens, title=title, subtitle=f"{where} · exact keys", hidden=hidden, **size
    )


def passes_picture(*, hidden: bool = False, **size) -> Figure:
    """Draw how token passes add up with a cache and without, for the first few steps or for all."""
    steps = list(range(1, (4 if hidden else TOKENS) + 1))
    both = [lesson.passes(n) for n in steps]
    with_cache, without = both[-1]
    first = "The first 4 steps" if hidden else f"{TOKENS} steps"
    return curves(
        [
            Curve("without a cache", steps, [row[1] for row in both], "ink", "dash"),
            Curve("with a cache", steps, [row[0] for row in both], "exact"),
        ],
        title=f"{first}: {without:,} token passes without a cache, {with_cache:,} with one",
        subtitle="arithmetic, not a measurement: n(n+1)/2 against n",
        **{"x_name": "steps n", "y_name": "token passes so far"},
        **size,
    )


_HELD_UP = 2.0  # a step that takes so many times what four of five take is left out of the picture


def cooked_picture(steps: Sequence[Cooked], total: int, model: str, **size) -> Figure:
    """Draw the time of each step, with the cache and without, as measured on this machine.

    Args:
        steps: what was timed so far, at least one.
        total: steps there will be.
        model: its name.
    """
    last, places = steps[-1], [step.step for step in steps]
    with_cache, without = lesson.passes(last.step)
    same = sum(step.same for step in steps)
    times = np.array([(step.without_ms, step.with_ms) for step in steps])
    high = float(min(times.max(), _HELD_UP * np.quantile(times[:, 0], 0.8)))
    beyond = int((times > high).any(1).sum())
    held_up = f" · above the picture, where something else had the machine: {beyond}" if beyond else ""
    return curves(
        [
            Curve("without a cache", places, times[:, 0], "ink", "dash"),
            Curve("with a cache", places, times[:, 1], "exact"),
        ],
        title=f"Step {last.step} took {number(last.without_ms)} ms without a cache, "
        f"{number(last.with_ms)} ms with one",
        subtitle=f"{model}, measured on this machine just now · {without:,} token passes so far against "
        f"{with_cache:,} · the same next word in {same} of {len(steps)} steps{held_up}",
        **{"x_name": "step", "y_name": "ms for this step", "x_end": total, "y_end": high},
        **size,
    )


def memory_picture(model: str = MODEL, tokens: int = 4_000, **size) -> Figure:
    """Draw what a cache of so many tokens takes, stored in four ways, against the memory of cards."""
    shape = lesson.MODELS[model]
    held = {name: tokens * lesson.bytes_per_token(shape, lesson.bits_stored(name)) for name in lesson.STORED}
    bars = [
        Bar(name, size_, size_words(size_), "exact" if lesson.STORED[name] is None else "micro")
        for name, size_ in held.items()
    ]
    said = f"{size_words(held['bfloat16'])} uncompressed, {size_words(held['MXFP4'])} as MXFP4"
    formula = f"2 × {shape.layers} layers × {shape.kv_heads} KV heads × {shape.head_dim}"
    each = f"{lesson.bytes_per_token(shape):,.0f} bytes per token in bfloat16"
    ticks = {2.0**25: "32 MiB", 2.0**30: "1 GiB", 2.0**35: "32 GiB", 2.0**40: "1 TiB"}
    return named_bars(
        bars,
        title=f"{model}: the cache of {tokens:,} tokens takes {said}",
        subtitle=f"{formula} × 2 bytes = {each}; the cache alone, the weights come on top",
        axis="bytes, logarithmic",
        span=(2.0**22, 2.0**40),
        ticks=ticks,
        marks=[Mark(gib * 2.0**30, f"{name} {gib} GiB") for name, gib in lesson.CARDS.items()],
        **size,
    )


def size_words(count: float) -> str:
    """Return bytes in words, three digits: 17.2 GiB."""
    for unit, one in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= one:
            return f"{number(count / one)}\N{NO-BREAK SPACE}{unit}"
    return f"{count:.0f} bytes"


def ticks_picture(*, hidden: bool = False, **size) -> Figure:
    """Draw element formats as rulers: those of 8 bits, or of 8, 6 and 4."""
    names = {"int8": "INT8", "fp8_e4m3": "FP8 E4M3"}
    if not hidden:
        names |= {"fp6_e2m3": "FP6 E2M3", "int4": "INT4", "fp4": "FP4 E2M1"}
    count = {name: len(ELEMENTS[name].ticks) for name in names}
    title = f"8 bits: INT8 spreads {count['int8']} ticks evenly, FP8 crowds {count['fp8_e4m3']} around zero"
    if not hidden:
        title = f"4 bits leave {count['int4']} ticks: INT4 spreads them evenly, FP4 crowds them around zero"
    rows = [Row(label, lesson.ruler(name), f"{count[name]} ticks") for name, label in names.items()]
    return ruler_rows(rows, title=title, subtitle="each ruler as long as its largest number", **size)


def sabotage_picture(capture: Capture, times: int, **size) -> Figure:
    """Draw the watched block under the room's INT4 ruler and its own, the room's outlier × times."""
    seen, count = saboteur.sabotage(capture, times), saboteur.BLOCK
    one, own = (int(lane.flushed.sum()) for lane in (seen.one, seen.own))
    first = saboteur.ROOM["first"]
    words = f"Neighbour × {times}" if times > 1 else "Without sabotage"
    verb = "falls" if one == 1 else "fall"
    return two_rulers(
        _ruler(seen.own, seen.watched, f"MXINT4 ({TWIN})", count),
        _ruler(seen.one, seen.watched, "INT4, one scale for the room", 2 * count),
        [f"token {first + i}" for i in range(count)],
        title=f"{words}: {one or 'none'} of these {count} keys {verb} to zero under the room's ruler, "
        f"{own or 'none'} under their own",
        subtitle=f"{_room_words(capture)} · the room's largest is "
        f"{number(float(abs(seen.room).max()), 4)}, at token {first + int(abs(seen.room).argmax())}",
        kind="key",
        **size,
    )


def _ruler(lane: saboteur.Measured, values, name: str, shared: int) -> Ruler:
    heading = f"{name}: ticks {number(lane.step)} apart, shared by {shared} keys"
    return Ruler(heading, lane.ticks, values, lane.decoded, lane.flushed, abs(values) > lane.ticks.max())


def _room_words(capture: Capture) -> str:
    room = saboteur.ROOM
    place = f"layer {room['layer']}, KV head {room['head']}, channel {room['channel']}"
    return f"{short_name(capture.model)} · {place}"


def personal_picture(capture: Capture, rulers: int, **size) -> Figure:
    """Draw the block with the outlier under so many rulers, and which values become zero."""
    seen = saboteur.personal_rulers(capture, rulers)
    zeros = int(seen.flushed.sum())
    each = f"{rulers} rulers, {seen.size} value{'s' * (seen.size > 1)} each" if rulers > 1 else "One ruler"
    return shared_block(
        seen.values,
        seen.decoded,
        seen.limits,
        seen.size,
        at=seen.at,
        title=f"{each}: {zeros or 'none'} of {len(seen.values)} become{'s' * (zeros == 1)} zero, "
        f"at {seen.bits:.4g} bits per element",
        subtitle=f"{_room_words(capture)}, outlier × {saboteur.PLANTED} · MXINT4 ({TWIN}) · what lies in a "
        "shaded part is nearer to zero than to its ruler's first tick",
        **size,
    )


def cut_picture(capture: Capture, *, hidden: bool = False, **size) -> Figure:
    """Draw the head with the loud channel, or what each way to cut the layer flushes."""
    layer, part = lesson.CUT["layer"], lesson.CUT["part"]
    if hidden:
        return picture(capture, "outliers", layer=layer, head=0, part=part, **size)
    return _pictures_head.cuts(capture, layer, part, lesson.CUT["recipe"], lesson.CUT["baseline"], **size)


def effect_picture(capture: Capture, **size) -> Figure:
    """Draw KL of several ways to store the cache, 8 bits first.

    Raises:
        ValueError: where none of them was measured.
    """
    rows = lesson.effects(capture)
    one = {row.bits: row for row in rows if not row.blocked and row.recipe.startswith(("fp8", "int4"))}
    if not {8, 4} <= one.keys():
        raise ValueError("the effect of FP8 and INT4 with one scale was not measured; record the run with it")
    bars = [
        Bar(
            _stored_words(row.recipe),
            max(row.kl, 1e-4),
            f"{plain(row.kl, 2)} nats · {share(row.top1)} kept",
            "micro" if row.blocked else "single",
        )
        for row in rows
    ]
    return named_bars(
        bars,
        title=f"One scale for a layer keeps {share(one[8].top1)} of the first choices at 8 bits (FP8), "
        f"{share(one[4].top1)} at 4 (INT4)",
        subtitle=f"{short_name(capture.model)} · KL(exact‖quantized) of the next token, mean over "
        f"{len(capture.effect['micro']['kl']):,} positions; kept: same first choice; hatched: one scale",
        axis="mean KL, nats, logarithmic (0 is the exact model)",
        span=(1e-3, 10.0),
        ticks={0.001: "0.001", 0.01: "0.01", 0.1: "0.1", 1.0: "1", 10.0: "10"},
        **size,
    )


def _stored_words(recipe: str) -> str:
    name = name_of(recipe)
    return name.replace(" per tensor", ", one scale") if recipe in SCHEMES else name
