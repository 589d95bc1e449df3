"""The race: every scheme on one run, bits against what is lost, and what it does to the next word."""

from __future__ import annotations

import streamlit as st

from mxviz import _pictures_race as pictures
from mxviz import ops
from mxviz._pictures_race_table import Effects, rows
from mxviz.capture import PARTS, Capture
from mxviz.figures.theme import is_compact
from mxviz.views import gallery, glossary, permalink, race_effect, race_lists, style, viewport

_MEASURES = {"kl": "KL of the next word", "flushed": "flushed to zero", "sqnr": "SQNR"}


def page() -> None:
    """Draw the page."""
    st.html(
        '<header class="mx-head"><h1>Which ruler is worth its bits?</h1>'
        "<p>Every scheme mxviz knows stores the same keys and values: along channels and along tokens, with "
        "a scale per block and with one scale for many. None wins everywhere: see what each costs, what it "
        "loses, and what that did to the next word.</p></header>"
    )
    width = viewport.width()
    run, capture = gallery.chosen()
    if capture is None:
        st.info("No recorded run is here. Fill a cache on the first page; the race runs on it.")
        return
    slow = "; until the kernels are compiled this takes half a minute" if ops.pick() == "reference" else ""
    with st.spinner(f"every scheme stores these keys and values{slow} …"):
        rows(capture)
    effects = race_effect.effects(run)
    explore(capture, run, effects, width)


@permalink.fragment
def explore(capture: Capture, run: str, effects: Effects, width: int) -> None:
    """Draw all schemes by one measure, list them, and draw a few layer by layer.

    Args:
        capture: the run.
        run: its name, for what is remembered of it.
        effects: what was measured in this session, by canonical recipe.
        width: CSS pixels to lay the figure out for.
    """
    row = st.container(horizontal=not is_compact(width), gap="large")
    measure = row.segmented_control(
        "What is lost",
        list(_MEASURES),
        default="kl",
        required=True,
        key="race-by",
        persist_state="session",
        format_func=_MEASURES.get,
        help=glossary.means("KL", "flushed", "SQNR"),
    )
    part = row.segmented_control(
        "Part",
        PARTS if capture.values else PARTS[:1],
        default="key",
        required=True,
        key=f"race-part-{bool(capture.values)}",
        persist_state="session",
        format_func=lambda name: f"{name}s",
        help="Of SQNR, of the flushed share and of the lines below. KL is of keys and values together.",
    )
    look = {"theme": style.theme().name, "width": width}
    if measure == "kl" and not pictures.effect_entries(capture, effects):
        st.info("KL was not measured in this run: what is flushed to zero stands in its place.")
        measure = "flushed"
    race_lists.chart(pictures.race_picture(capture, measure, part, effects=effects, **look), "race")
    if measure == "sqnr":
        st.caption(f"SQNR: {glossary.means('SQNR')}")
    with st.expander("The race: what am I seeing?"):
        st.write(pictures.ABOUT["race"])
    race_effect.section(capture, run, effects)
    race_lists.show(capture, effects, width)
    race_lists.lines(capture, run, part, measure, look)
