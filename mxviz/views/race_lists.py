"""The race as a table that can be sorted, and a few of its schemes layer by layer."""

from __future__ import annotations

import streamlit as st

from mxviz import _pictures_race as pictures
from mxviz._pictures_race_table import Effects, about_bits, name_of, rows, table
from mxviz._pictures_race_words import hidden_by_squares
from mxviz.capture import Capture
from mxviz.figures import Figure, alt_text
from mxviz.figures.theme import is_compact
from mxviz.views import glossary, style

LINES = ("mxfp4", "mxfp4:axis=token", "nvfp4", "fp4@tensor", "int4@tensor")
"""Schemes that are drawn layer by layer at first."""


SHORT = ("name", "bits", "KL", "flushed keys")
"""Columns that a phone shows."""

LONG = (
    *("name", "bits", "KL", "same top token", "flushed keys", "SQNR keys", "clipped keys"),
    *("flushed values", "SQNR values", "clipped values", "axis", "scheme"),
)
"""Columns in order: what matters first, so that it is in sight where not all of them fit."""


def show(capture: Capture, effects: Effects, width: int) -> None:
    """List every scheme and every measured recipe; a click on a column's name sorts by it.

    Args:
        capture: the run.
        effects: what was measured in this session.
        width: CSS pixels of the page; a phone gets the columns of `SHORT`.
    """
    import pandas as pd

    def number(form: str, word: str):
        return st.column_config.NumberColumn(format=form, help=glossary.means(word))

    found = pd.DataFrame(table(capture, effects)).sort_values("bits", kind="stable")
    formats = {"bits": number("%.4g", "bits per element"), "KL": number("%.4f", "KL")}
    forms = {"SQNR": "%.1f dB", "flushed": "%.1f %%", "clipped": "%.1f %%", "same top token": "%.1f %%"}
    for start, form in forms.items():
        word = "top-1" if start.startswith("same") else start
        formats |= {name: number(form, word) for name in found if name.startswith(start)}
    compact = is_compact(width)
    st.dataframe(
        found,
        **{"hide_index": True, "width": "stretch", "column_config": formats, "key": "race-table"},
        column_order=SHORT if compact else LONG,
    )
    more = "A wider window shows SQNR, clipped and values too. " if compact else ""
    st.caption(f"A click on a column's name sorts by it. {more}{about_bits(capture)}")


def lines(capture: Capture, run: str, part: str, measure: str, look: dict) -> None:
    """Draw a few schemes layer by layer.

    Args:
        capture: the run.
        run: its name, for what is remembered of it.
        part: `key` or `value`.
        measure: what the race is run by; what is flushed stands for KL, which is of all layers together.
        look: the figure's theme and width.
    """
    st.html(
        '<div class="mx-section"><h2>Layer by layer</h2><p>What the numbers of each layer lose. What that '
        "does to the next word, one layer at a time, is on the page Effect.</p></div>"
    )
    names = [str(row["scheme"]) for row in rows(capture)]
    schemes = st.multiselect(
        "Schemes",
        names,
        LINES,
        key=f"race-lines-{run}",
        max_selections=8,
        format_func=name_of,
        persist_state="session",
    )
    if not schemes:
        st.info("Choose a scheme to see it layer by layer.")
        return
    measure = "sqnr" if measure == "sqnr" else "flushed"
    chart(pictures.layers_picture(capture, schemes, part, measure, **look), "race-layers")
    if measure == "sqnr" and (hidden := hidden_by_squares(capture, schemes, part)):
        st.warning(hidden, icon=":material/warning:")
    with st.expander("Layer by layer: what am I seeing?"):
        st.write(pictures.ABOUT["race_layers"])


def chart(figure: Figure, name: str) -> None:
    """Show a figure in its own theme, with its words for those who cannot see it."""
    st.plotly_chart(
        figure, theme=None, width="stretch", key=f"figure-{name}", alt=alt_text(figure), config=style.CHART
    )
