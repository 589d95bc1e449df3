"""The list of outliers: a table whose chosen row says where one looks, and a sentence about it."""

from __future__ import annotations

from typing import Any

import streamlit as st

from mxviz._outliers_list import Row, find, listed
from mxviz._outliers_profile import rope_pairing
from mxviz._outliers_words import broken_words, list_words
from mxviz.capture import Capture
from mxviz.figures.labels import shorten
from mxviz.figures.theme import is_compact
from mxviz.outliers import RATIO_LIMIT
from mxviz.page import literal
from mxviz.views import glossary
from mxviz.views import place as places

_HEIGHT = 248
"""CSS pixels of the table: six rows and the head."""

SHORT = {
    "channels": ("layer", "KV head", "channel", "× median"),
    "tokens": ("token", "is", "its median"),
    "single values": ("layer", "KV head", "channel", "value"),
}
"""Columns that a phone shows, by kind; the figure below the list tells the rest."""


def rows_of(capture: Capture, part: str, kind: str, text: str) -> tuple[str, tuple[Row, ...]]:
    """Return the kind of the list and its rows: what the text names, or all outliers of a kind."""
    return find(capture, part, text) if text.strip() else (kind, listed(capture, part, kind))


def go(capture: Capture, run: str, row: Row) -> None:
    """Look at the place of a row."""
    places.put(capture, run, **{name: row[name] for name in ("layer", "head", "token", "channel")})


def search(capture: Capture, run: str, kind: str, text: str) -> str:
    """Look at the first of what a text names; return the kind of what the list then holds."""
    kind, rows = rows_of(capture, places.get(capture, run).part, kind, text)
    if text.strip() and rows:
        go(capture, run, rows[0])
    return kind


def show(capture: Capture, run: str, part: str, kind: str, text: str, width: int) -> str:
    """Draw the list; choosing a row moves the place. Return the kind of what is listed.

    Args:
        capture: the run.
        run: its name.
        part: `key` or `value`.
        kind: one of `mxviz._outliers_list.KINDS`.
        text: what is searched for, or nothing.
        width: CSS pixels of the page; a phone gets the columns of `SHORT`.
    """
    kind, rows = rows_of(capture, part, kind, text)
    words = literal(list_words(capture, part, kind, text, rows))
    st.html(f'<div class="mx-section"><p>{words}</p></div>')
    if broken := broken_words(capture, part):
        st.warning(broken, icon=":material/warning:")
    if not rows:
        return kind
    key = f"outliers-list-{run}-{part}-{kind}-{text}"

    def chosen() -> None:
        if picked := st.session_state[key]["selection"]["rows"]:
            go(capture, run, rows[picked[0]])

    columns = {"channels": _channels, "tokens": _tokens, "single values": _values}[kind](capture, part, rows)
    if is_compact(width):
        columns = {name: columns[name] for name in SHORT[kind] if name in columns}
    _table(columns, key, chosen)
    return kind


def _table(columns: dict[str, tuple[list, Any]], key: str, chosen: Any) -> None:
    import pandas as pd

    st.dataframe(
        pd.DataFrame({name: values for name, (values, _) in columns.items()}),
        column_config={name: config for name, (_, config) in columns.items() if config is not None},
        on_select=chosen,
        **{"hide_index": True, "width": "stretch", "height": _HEIGHT, "row_height": 35},
        **{"selection_mode": "single-row", "key": key},
    )


def _number(format: str, help: str | None = None) -> Any:
    return st.column_config.NumberColumn(format=format, help=help)


def _where(rows: tuple[Row, ...], *names: str) -> dict[str, tuple[list, Any]]:
    titles = {"layer": "layer", "head": "KV head", "channel": "channel"}
    return {titles[name]: ([row[name] for row in rows], None) for name in names}


def _names(capture: Capture, rows: tuple[Row, ...]) -> list[str]:
    return [f"{row['token']}: {shorten(capture.token_texts[row['token']], 24)}" for row in rows]


def _channels(capture: Capture, part: str, rows: tuple[Row, ...]) -> dict[str, tuple[list, Any]]:
    columns = _where(rows, "layer", "head", "channel") | {
        "peak |x|": ([row["peak"] for row in rows], _number("%.4g")),
        "× median": (
            [row["ratio"] for row in rows],
            _number("%.0f×", "peak over the median |x| of the layer"),
        ),
        "high at": (
            [None if row["share"] is None else 100 * row["share"] for row in rows],
            _number("%.0f %%", f"share of tokens at which it is above {RATIO_LIMIT / 2:.0f} medians"),
        ),
    }
    if part == "key":
        partner = f"{glossary.means('RoPE partner')} Here: {_pairing(capture, rows)}"
        columns["RoPE partner"] = ([row["partner"] for row in rows], _number("%d", partner))
    if any(row["bias"] is not None for row in rows):
        help = "k_proj's bias against the peak; RoPE keeps the length of a pair, so pairs are compared"
        columns["k_proj bias"] = (
            [row["bias"] for row in rows],
            _number("%.4g", glossary.means("k_proj bias")),
        )
        columns["bias alone reaches"] = (
            [None if row["reaches"] is None else 100 * row["reaches"] for row in rows],
            _number("%.0f %%", help),
        )
    return columns | {"peaks at token": (_names(capture, rows), None)}


def _pairing(capture: Capture, rows: tuple[Row, ...]) -> str:
    pairing = rope_pairing(capture, rows[0]["layer"])
    if pairing is None:
        return "not known: no usual pairing turns the recorded keys into each other"
    if pairing.measured:
        return "measured: keys before and after RoPE were recorded, and the pairs keep their length"
    return "half a head away, as in Llama, Qwen and Gemma; assumed, as no keys before RoPE were recorded"


def _tokens(capture: Capture, part: str, rows: tuple[Row, ...]) -> dict[str, tuple[list, Any]]:
    usual = [None if row["usual"] is None else 100 * row["usual"] for row in rows]
    return {
        "token": (_names(capture, rows), None),
        **_where(rows, "layer", "head"),
        "is": ([row["why"] for row in rows], None),
        "its median": (usual, _number("%.0f %%", "of its head's median |x|; attention sinks are quiet")),
        "peak |x|": ([row["peak"] for row in rows], _number("%.4g", "outside the outlier channels")),
        "× median": ([row["ratio"] for row in rows], _number("%.1f×", "peak over the layer's median |x|")),
        **_where(rows, "channel"),
    }


def _values(capture: Capture, part: str, rows: tuple[Row, ...]) -> dict[str, tuple[list, Any]]:
    return {
        **_where(rows, "layer", "head", "channel"),
        "token": (_names(capture, rows), None),
        "value": ([row["value"] for row in rows], _number("%.4g")),
        "× its surroundings": (
            [row["ratio"] for row in rows],
            _number("%.0f×", "over the largest of three medians: of its channel, its token and its layer"),
        ),
    }
