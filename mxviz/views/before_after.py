"""What the switches changed: the run's own numbers, and the chosen ones, for keys and values."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator

import streamlit as st

from mxviz.capture import PARTS, Capture
from mxviz.formats import Recipe
from mxviz.looks import Cost, cost, cost_layers, layer_cost
from mxviz.page import literal

_STYLE = """<style>
.mx-change { overflow-x: auto; }
.mx-change table { border-collapse: collapse; font-size: 0.95rem; font-variant-numeric: tabular-nums; }
.mx-change th, .mx-change td { text-align: left; padding: 0.3rem 1.3rem 0.3rem 0; border: 0;
  border-top: 1px solid var(--grid); white-space: nowrap; font-weight: 400; }
.mx-change thead th { color: var(--muted); font-size: 0.85rem; border-top: 0; }
.mx-change tbody th, .mx-change b { font-weight: 650; }
.mx-change .mx-micro th { color: var(--micro); } .mx-change .mx-single th { color: var(--single); }
.mx-change .mx-was { color: var(--muted); }
.mx-change p { color: var(--muted); font-size: 0.85rem; margin: 0.4rem 0 0; overflow-wrap: anywhere; }
@media (max-width: 640px) {
  .mx-change table, .mx-change tbody { display: block; }
  .mx-change thead { display: none; }
  .mx-change tr { display: grid; grid-template-columns: 1fr 1fr; border-top: 1px solid var(--grid);
    padding: 0.4rem 0; }
  .mx-change tbody th { grid-column: 1 / -1; }
  .mx-change td { white-space: normal; padding-right: 0.6rem; }
  .mx-change th, .mx-change td { border: 0; padding-top: 0.1rem; padding-bottom: 0.1rem; }
  .mx-change td::before { content: attr(data-name); display: block; color: var(--muted); font-size: 0.8rem; }
}
</style>"""

_COLUMNS = {
    "bits per element": lambda c: "exact" if c.bits is None else f"{c.bits:.4g}",
    "SQNR": lambda c: _decibels(c.sqnr_db),
    "flushed to zero": lambda c: _percent(c.flushed),
    "clipped": lambda c: _percent(c.clipped),
    "scales that clip": lambda c: f"{c.clipped_blocks:,} of {c.blocks:,}" if c.blocks else "no scale",
}

_PATIENCE = 0.2  # seconds
_LANES = (("micro", "micro-scaled"), ("single", "one scale"))


def show(capture: Capture, look) -> None:
    """Show what is looked through (a `Look`) beside the run's own recipe and baseline.

    Where counting takes long, each layer is told: Streamlit then serves whoever presses a control meanwhile.
    """
    start, place = time.monotonic(), None
    todo = list(_todo(capture, look))
    for done, layer in enumerate(todo):
        layer_cost(*layer)
        if time.monotonic() - start > _PATIENCE:
            place = place or st.empty()
            place.html(f'<p class="mx-key">Counting what it costs: {done + 1:,} of {len(todo):,} layers</p>')
    (place or st).html(_STYLE + change_html(capture, look))


def _todo(capture: Capture, look) -> Iterator[tuple]:
    """Yield the arguments of `layer_cost` for every layer that the table's numbers are of."""
    for part in PARTS:
        for of, recipe, frozen in _counted(capture, look):
            for layer in cost_layers(of, part):
                yield of, recipe, part, layer, frozen


def _counted(capture: Capture, look) -> list[tuple[Capture, str, bool]]:
    """Return what is counted: the run's own recipe and the one looked through, then the baselines."""
    own, chosen = capture, look.capture
    return [
        (own, capture.recipe, False),
        (chosen, look.recipe, False),
        (own, capture.baseline, False),
        (chosen, look.baseline, look.frozen),
    ]


def change_html(capture: Capture, look) -> str:
    """Return the table: a row for keys and values under the recipe, and two under the baseline."""
    rows, counted = [], _counted(capture, look)
    for (lane, name), own, new in zip(_LANES, counted[::2], counted[1::2], strict=True):
        for part in PARTS if capture.values else PARTS[:1]:
            was, now = (cost(of, recipe, part, frozen) for of, recipe, frozen in (own, new))
            before = part == "key" and look.capture is not capture
            words = f"■ {part}s{' before RoPE' if before else ''}, {name}"
            rows.append(f'<tr class="mx-{lane}"><th scope="row">{words}</th>{_cells(was, now)}</tr>')
    return _table("".join(rows), literal(_words(capture, look)))


def _table(rows: str, words: str) -> str:
    heads = "".join(f'<th scope="col">{name}</th>' for name in ("", *_COLUMNS))
    return (
        f'<div class="mx-change"><table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>'
        f"<p>{words}</p></div>"
    )


def _cells(was: Cost, now: Cost) -> str:
    cells = []
    for name, shown in _COLUMNS.items():
        old, new = (shown(side).replace(" ", "\N{NO-BREAK SPACE}") for side in (was, now))
        text = f"<b>{new}</b>" if old == new else f'<span class="mx-was">{old} →</span> <b>{new}</b>'
        cells.append(f'<td data-name="{name}">{text}</td>')
    return "".join(cells)


def _words(capture: Capture, look) -> str:
    layers = len(look.capture.layers)
    changed = (look.recipe, look.baseline, look.frozen, look.capture) != (
        *(str(Recipe.parse(text)) for text in (capture.recipe, capture.baseline)), False, capture,
    )  # fmt: skip
    text = f"All {layers} recorded layers. Looked through: {look.recipe}; compared with: {look.baseline}"
    if look.frozen:
        text += f", its scales set by the {capture.prompt_tokens:,} tokens of the prompt and kept"
    return text + ("; the run's own stands before each arrow." if changed else ", as the run was made.")


def _decibels(value: float | None) -> str:
    if value is None:
        return "n/a"
    return f"{value:.1f} dB".replace("-", "−") if math.isfinite(value) else "no loss"


def _percent(share: float | None) -> str:
    if share is None:
        return "n/a"
    return "under 0.1 %" if 0 < share < 0.0005 else f"{100 * share:.1f} %".replace(".0 %", " %")
