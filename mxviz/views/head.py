"""One KV head: its scales, its outliers, and what both rulers lost of it."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from mxviz.capture import Capture
from mxviz.figures import FIGURES, alt_text
from mxviz.figures.labels import visible
from mxviz.outliers import channel_outliers
from mxviz.page import ORDER
from mxviz.pictures import default_place, picture, see
from mxviz.views import style


@st.fragment
def explore(capture: Capture, run: str, width: int) -> None:
    """Choose a layer, a head and a part; draw the three figures of it.

    Args:
        capture: what is looked into.
        run: a name of its own for it, so that every run remembers where one looked.
        width: CSS pixels to lay the figures out for.
    """
    st.html('<div class="mx-section"><h2>Into the cache</h2></div>')
    part, layer, head = _place(capture, run)
    for name in ORDER:
        family = FIGURES[name]
        place = {"layer": layer, "head": head, "part": part}
        figure = picture(capture, name, **place, theme=style.theme().name, width=width)
        st.plotly_chart(
            figure, theme=None, width="stretch", key=f"figure-{name}", alt=alt_text(figure), config=_CONFIG
        )
        with st.expander(f"{family.title}: what am I seeing?"):
            st.write(family.about)
        if name == "outliers":
            _list_outliers(capture, part, layer, head)


_CONFIG = {"displaylogo": False, "modeBarButtonsToRemove": ["lasso2d", "select2d", "autoScale2d"]}


def _place(capture: Capture, run: str) -> tuple[str, int, int]:
    heads = capture.part("key", capture.layers[0]).shape[0]
    left, middle, right = st.columns([1.2, 3, 1.6], vertical_alignment="bottom")
    with left:
        part = st.segmented_control(
            "Part", ("key", "value"), format_func=lambda p: f"{p}s", default="key", required=True, key="part"
        )
    worst_layer, worst_head = default_place(capture, part)
    with middle:
        layer = st.select_slider("Layer", capture.layers, worst_layer, key=f"layer-{run}-{part}")
    with right:
        head = st.segmented_control(
            "KV head", range(heads), default=worst_head, required=True, key=f"head-{run}-{part}"
        )
    return part, layer, head


def _list_outliers(capture: Capture, part: str, layer: int, head: int) -> None:
    """List the outlier channels of the head, with the token at which each peaks."""
    rows = [row for row in channel_outliers(capture, part) if (row.layer, row.head) == (layer, head)]
    if not rows:
        st.caption(
            "No outlier channel in this head: none peaks at ten times the layer's median and stays high."
        )
        return
    view, _, _ = see(capture, layer, head, part)
    peaks = [int(abs(view.x[:, row.channel]).argmax()) for row in rows]
    table = pd.DataFrame(
        {
            "channel": [row.channel for row in rows],
            "peak |x|": [row.amax for row in rows],
            "× median": [row.ratio_to_median for row in rows],
            "peaks at token": [f"{i}: {visible(view.tokens[i])}" for i in peaks],
            "high at": [100 * row.share_of_tokens for row in rows],
        }
    )
    if part == "key":
        table["RoPE partner"] = [row.partner for row in rows]
    formats = {
        "peak |x|": st.column_config.NumberColumn(format="%.1f"),
        "× median": st.column_config.NumberColumn(format="%.0f×"),
        "high at": st.column_config.NumberColumn("high at (share of tokens)", format="%.0f %%"),
    }
    st.dataframe(table, hide_index=True, column_config=formats, width="stretch")
