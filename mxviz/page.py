"""A run as HTML: texts, numbers and figures, for the app's pages and for a report that works offline.

Everything a model or a user wrote goes through `literal`: it is shown, never interpreted.
"""

from __future__ import annotations

import html
import os

from mxviz._paths import ASSETS
from mxviz.capture import LANES, Capture
from mxviz.figures import FIGURES, alt_text
from mxviz.figures.theme import THEMES, Theme
from mxviz.pictures import available, picture
from mxviz.report import report

ORDER = ("overview", "outliers", "scales", "error", "rulers", "divergence")
"""Figures in the order a reader meets them: where to look, what sticks out, what it does to the scales, what
that costs, and whether it mattered."""

REPORT_WIDTH = 1200
"""CSS pixels of a report's figures; a narrower window scrolls them sideways."""

TITLES = {"exact": "Exact", "micro": "Micro-scaled", "single": "One scale"}


def literal(text: str) -> str:
    """Escape text for HTML; control characters are shown as pictures of themselves."""
    return html.escape("".join(c if ord(c) > 31 or c in "\n\t" else chr(0x2400 + ord(c)) for c in text))


def stylesheet(theme: Theme) -> str:
    """Return the page's CSS with the meaning colours of a theme."""
    names = ("ink", "muted", "grid", "paper", "exact", "micro", "single", "outlier")
    variables = "".join(f"--{name}: {getattr(theme, name)};" for name in names)
    return f":root {{ {variables} }}\n" + (ASSETS / "app.css").read_text(encoding="utf-8")


def lanes_html(
    texts: dict[str, str], schemes: dict[str, str], where: dict[str, int | None] | None = None
) -> str:
    """Return three texts side by side, what differs from the exact one marked.

    Args:
        texts: lane to text.
        schemes: lane to how its cache is stored.
        where: lane to the index of its first new token that differs, or None; left out while running.
    """
    cards = "".join(
        f'<section class="mx-lane mx-{lane}"><h3>{TITLES[lane]}</h3>'
        f'<p class="mx-scheme">{literal(schemes[lane])}</p>'
        f'<p class="mx-text">{_marked(texts["exact"], texts[lane])}</p>'
        f'<p class="mx-where">{_said(lane, where)}</p></section>'
        for lane in LANES
    )
    return f'<div class="mx-lanes">{cards}</div>'


def prompt_html(prompt: str, limit: int = 400) -> str:
    """Return the prompt on a line of its own, cut where it is long."""
    shown = prompt if len(prompt) <= limit else prompt[: limit - 1] + "…"
    return f'<p class="mx-prompt"><span>Prompt</span> {literal(shown)}</p>'


def capture_lanes_html(capture: Capture) -> str:
    """Return the three texts of a capture."""
    schemes = {"exact": "uncompressed", "micro": capture.recipe, "single": capture.baseline}
    where = {lane: capture.first_divergence(lane) for lane in LANES}
    return lanes_html({lane: capture.lanes[lane].text for lane in LANES}, schemes, where)


def _marked(exact: str, text: str) -> str:
    same = len(os.path.commonprefix([exact, text]))
    if same == len(text):
        return literal(text)
    return f"{literal(text[:same])}<mark>{literal(text[same:])}</mark>"


def _said(lane: str, where: dict[str, int | None] | None) -> str:
    if lane == "exact" or where is None:
        return ""
    if where[lane] is None:
        return "the same tokens as exact"
    return f"◆ differs from new token {where[lane] + 1} on"


def numbers_html(capture: Capture, numbers: dict) -> str:
    """Return a row of numbers, each with its unit and something to hold it against.

    Args:
        capture: the run, for what is timed.
        numbers: its report.
    """
    cards = [
        _card("Bytes per token", _per_token(numbers, "micro"), _per_token(numbers, "single"), _held(numbers)),
        _card(
            "Bits per element",
            _n(numbers["bits_per_element"]["micro"], ".2f"),
            _n(numbers["bits_per_element"]["single"], ".2f"),
            "16 uncompressed; codes and scales",
        ),
        _error(numbers, "key"),
        _error(numbers, "value"),
        _effect(
            numbers, "kl_mean", "Next-token KL", ".3f", " nats", "0 is the exact model; mean over the text"
        ),
        _effect(numbers, "top1_agreement", "Same top token", ".0%", "", "100 % is the exact model"),
        _speed(capture),
    ]
    return (
        f'<div class="mx-cards">{"".join(cards)}</div>'
        '<p class="mx-key"><span class="mx-micro">■ micro-scaled</span> '
        '<span class="mx-single">■ one scale</span> '
        f"<span>decoded by the {numbers['backend']} backend, {numbers['threads']} "
        f"thread{'' if numbers['threads'] == 1 else 's'}, "
        f"on {capture.device}</span></p>"
    )


def _card(title: str, micro: str, single: str, reference: str) -> str:
    return (
        f'<section class="mx-card"><h4>{title}</h4>'
        f'<p class="mx-micro" title="micro-scaled">{micro}</p>'
        f'<p class="mx-single" title="one scale">{single}</p><p class="mx-ref">{reference}</p></section>'
    )


def _per_token(numbers: dict, lane: str) -> str:
    stored, exact = numbers["bytes_per_token"][lane], numbers["bytes_per_token"]["exact"]
    if not stored or not exact:
        return "n/a"
    return f"{stored:,.0f} <small>{exact / stored:.1f}× smaller</small>"


def _held(numbers: dict) -> str:
    exact, tokens = numbers["bytes_per_token"]["exact"], numbers["tokens_held"]["exact"]
    if not exact:
        return "not measured"
    held = _bytes(numbers["stored_bytes"]["exact"])
    return f"{exact:,.0f} in bfloat16; {tokens:,} tokens fill {held} uncompressed"


def _bytes(count: float) -> str:
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count:.0f} B"


def _error(numbers: dict, part: str) -> str:
    sqnr = {lane: _n(numbers["error"][lane][part]["sqnr_db"], ".1f", " dB") for lane in ("micro", "single")}
    flushed = {lane: _n(numbers["error"][lane][part]["flushed"], ".1%") for lane in ("micro", "single")}
    title = "Key SQNR" if part == "key" else "Value SQNR"
    return _card(title, *sqnr.values(), f"flushed to zero: {flushed['micro']} and {flushed['single']}")


def _effect(numbers: dict, name: str, title: str, spec: str, unit: str, reference: str) -> str:
    shown = [_n((numbers["effect"].get(lane) or {}).get(name), spec, unit) for lane in ("micro", "single")]
    return _card(title, *shown, reference)


def _speed(capture: Capture) -> str:
    speed = {lane: capture.timings.get(f"tokens_per_second.{lane}") for lane in ("exact", "micro", "single")}
    return _card(
        "Speed",
        _n(speed["micro"], ".1f", " <small>tokens/s</small>"),
        _n(speed["single"], ".1f", " <small>tokens/s</small>"),
        f"{_n(speed['exact'], '.1f', ' tokens/s')} uncompressed, in the same run",
    )


def _n(value: float | None, spec: str, unit: str = "") -> str:
    return "n/a" if value is None else format(value, spec) + unit


def html_report(capture: Capture, theme: str = "light") -> str:
    """Return a page of a run (texts, numbers, figures) that works offline, as one HTML text."""
    figures = []
    known = available(capture)
    for index, name in enumerate(name for name in ORDER if name in known):
        family, figure = FIGURES[name], picture(capture, name, theme=theme, width=REPORT_WIDTH)
        drawn = figure.to_html(full_html=False, include_plotlyjs=index == 0, config={"displaylogo": False})
        figures.append(
            f'<figure aria-label="{literal(alt_text(figure))}">{drawn}'
            f"<figcaption>{literal(family.about)}</figcaption></figure>"
        )
    colours = THEMES[theme]
    notes = "".join(f"<li>{literal(note)}</li>" for note in capture.notes)
    title = f"{capture.model}: {capture.recipe}"
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{literal(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{stylesheet(colours)}\n'
        f"body {{ background: {colours.paper}; color: {colours.ink}; font-family: system-ui, sans-serif; "
        "max-width: 76rem; margin: 2rem auto; padding: 0 1rem; } "
        f"figure {{ margin: 2rem 0; overflow-x: auto; }} figure > div {{ width: {REPORT_WIDTH}px; }} "
        "figcaption { color: var(--muted); }</style></head><body>"
        f'<header class="mx-head"><h1>{literal(capture.model)}</h1>'
        f"<p>{literal(capture.recipe)} against {literal(capture.baseline)}</p></header>"
        f"{_written(capture)}<ul>{notes}</ul>{''.join(figures)}</body></html>\n"
    )


def _written(capture: Capture) -> str:
    """Return prompt, texts and numbers of a run; nothing for a tensor, which has none."""
    if not set(LANES) <= capture.lanes.keys():
        return ""
    texts = prompt_html(capture.prompt) + capture_lanes_html(capture)
    return texts + numbers_html(capture, report(capture))
