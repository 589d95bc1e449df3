"""A row of numbers: each with its unit, and something to hold it against."""

from __future__ import annotations

from functools import lru_cache

import streamlit as st

from mxviz.capture import Capture
from mxviz.report import report


@lru_cache(maxsize=8)
def _report(capture: Capture) -> dict:
    return report(capture)


def show(capture: Capture) -> None:
    """Show bytes, bits, error and effect of the micro-scaled cache beside the single-scale one."""
    numbers = _report(capture)
    cards = [
        _card("Cache held", _held(numbers, "micro"), _held(numbers, "single"), _held_exact(numbers)),
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
    st.html(f'<div class="mx-cards">{"".join(cards)}</div>')
    st.html(
        '<p class="mx-key"><span class="mx-micro">■ micro-scaled</span> '
        '<span class="mx-single">■ one scale</span> '
        f"<span>decoded by the {numbers['backend']} backend, {numbers['threads']} threads, "
        f"on {capture.device}</span></p>"
    )


def _card(title: str, micro: str, single: str, reference: str) -> str:
    return (
        f'<section class="mx-card"><h4>{title}</h4>'
        f'<p class="mx-micro" title="micro-scaled">{micro}</p>'
        f'<p class="mx-single" title="one scale">{single}</p><p class="mx-ref">{reference}</p></section>'
    )


def _held(numbers: dict, lane: str) -> str:
    stored, exact = numbers["bytes_per_token"][lane], numbers["bytes_per_token"]["exact"]
    if not stored or not exact:
        return "n/a"
    return f"{_bytes(numbers['stored_bytes'][lane])} <small>{exact / stored:.1f}× smaller</small>"


def _held_exact(numbers: dict) -> str:
    return (
        f"{_bytes(numbers['stored_bytes']['exact'])} in bfloat16, "
        f"{numbers['bytes_per_token']['exact']:,.0f} bytes a token"
    )


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
        _n(speed["micro"], ".1f", " tokens/s"),
        _n(speed["single"], ".1f", " tokens/s"),
        f"{_n(speed['exact'], '.1f', ' tokens/s')} uncompressed, when it was recorded",
    )


def _n(value: float | None, spec: str, unit: str = "") -> str:
    return "n/a" if value is None else format(value, spec) + unit
