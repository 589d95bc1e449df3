"""The race as a table that can be sorted, and a few of its schemes layer by layer."""

from __future__ import annotations

import streamlit as st

from mxviz import _pictures_race as pictures
from mxviz._pictures_race_table import Effects, about_bits, name_of, rows, table
from mxviz.capture import Capture
from mxviz.figures import Figure, alt_text
from mxviz.views import style

LINES = ("mxfp4", "mxfp4:axis=token", "nvfp4", "fp4@tensor", "int4@tensor")
"""Schemes that are drawn layer by layer at first."""


def show(capture: Capture, effects: Effects) -> None:
    """List every scheme and every measured recipe; a click on a column's name sorts by it."""
    import pandas as pd

    def number(form: str, help: str | None = None):
        return st.column_config.NumberColumn(format=form, help=help)

    found = pd.DataFrame(table(capture, effects)).sort_values("bits", kind="stable")
    formats = {"bits": number("%.4g", "per element, scales included"), "KL": number("%.4f", "nats, mean")}
    formats |= {name: number("%.1f dB") for name in found if name.startswith("SQNR")}
    shares = ("flushed", "clipped", "same")
    formats |= {name: number("%.1f %%") for name in found if name.startswith(shares)}
    st.dataframe(found, hide_index=True, width="stretch", column_config=formats, key="race-table")
    st.caption(about_bits(capture))


def lines(capture: Capture, run: str, part: str, look: dict) -> None:
    """Draw a few schemes layer by layer; `look` is the figure's theme and width."""
    st.html('<div class="mx-section"><h2>Layer by layer</h2></div>')
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
    chart(pictures.layers_picture(capture, schemes, part, **look), "race-layers")
    with st.expander("Layer by layer: what am I seeing?"):
        st.write(pictures.ABOUT["race_layers"])


def chart(figure: Figure, name: str) -> None:
    """Show a figure in its own theme, with its words for those who cannot see it."""
    st.plotly_chart(
        figure, theme=None, width="stretch", key=f"figure-{name}", alt=alt_text(figure), config=style.CHART
    )
