"""The studio: any figure of a run, at the size and on the ground a talk or a paper wants, as a file."""

from __future__ import annotations

from functools import lru_cache

import streamlit as st

from mxviz._pictures_registry import available, place_of
from mxviz.capture import Capture
from mxviz.export import File
from mxviz.figures import FIGURES, alt_text
from mxviz.page import literal
from mxviz.pictures import Sheet, figure_file
from mxviz.views import gallery, permalink, studio_controls, studio_files


def page() -> None:
    """Draw the page."""
    st.html(
        '<header class="mx-head"><h1>Take it with you</h1>'
        "<p>Every figure of this app as a file: for a slide, a paper or a page, with its numbers, and with "
        "where it came from written into it.</p></header>"
    )
    run, capture = gallery.chosen()
    if capture is None:
        st.info("No recorded run is here. Fill a cache on the Run page; its figures appear here.")
        return
    explore(capture, run)


@permalink.fragment
def explore(capture: Capture, run: str) -> None:
    """Choose a figure and a sheet, show what the file will look like, and make it.

    Args:
        capture: the run.
        run: its name, for what is remembered of it.
    """
    name = st.selectbox(
        "Figure",
        available(capture),
        format_func=lambda name: FIGURES[name].title,
        key=f"studio-figure-{bool(capture.effect)}-{bool(capture.queries)}-{bool(capture.values)}",
        persist_state="session",
    )
    sheet = studio_controls.sheet()
    told = studio_controls.told(capture, run, name)
    try:
        place = place_of(capture, name, **told)
        file = _file(capture, name, tuple(place.items()), sheet)
    except ValueError as error:
        st.info(" ".join(str(error).split()).replace("$", r"\$"), icon=":material/info:")
        return
    _preview(file, sheet)
    with st.expander("What am I seeing?"):
        st.write(FIGURES[name].about)
        st.html(f'<p class="mx-key">{literal(alt_text(file.fig))}</p>')
    studio_files.offer(capture, run, name, place, sheet, file)


@lru_cache(maxsize=4)
def _file(capture: Capture, name: str, place: tuple, sheet: Sheet) -> File:
    return figure_file(capture, name, dict(place), sheet)


_GROUND = {
    "transparent": "repeating-conic-gradient(#e8ebea 0% 25%, #ffffff 0% 50%) 0 0 / 24px 24px",
    "transparent-dark": "repeating-conic-gradient(#1a2429 0% 25%, #10181c 0% 50%) 0 0 / 24px 24px",
}


def _preview(file: File, sheet: Sheet) -> None:
    """Show the sheet as the file will have it, scaled to the page's width; chequered where it is clear."""
    wide, high = file.fig.layout.width, file.fig.layout.height
    ratio = f"min({file.size.zoom:.6g}, tan(atan2(100cqw, {wide}px)))"  # a length by a length, as a number
    ground = f"background: {_GROUND[sheet.theme]};" if sheet.theme in _GROUND else ""
    # A chart is drawn as wide as it is measured, and it is measured scaled: so its box is larger by as much.
    box = f"width: calc({wide}px / {ratio}) !important; height: calc({high}px / {ratio});"
    st.html(
        "<style>.st-key-studio-frame { container-type: inline-size; overflow: hidden; "
        f"max-width: {file.size.zoom * wide + 2:.0f}px; border: 1px solid var(--grid); }}"
        f".st-key-studio-sheet {{ {box} max-width: none !important; flex: none; {ground}"
        f"transform: scale({ratio}); transform-origin: 0 0; "
        f"margin-bottom: calc({high}px * {ratio} - {high}px / {ratio}); }}</style>"
    )
    with st.container(key="studio-frame"), st.container(key="studio-sheet"):
        st.plotly_chart(
            file.fig,
            theme=None,
            width="stretch",
            height="stretch",
            key="figure-studio",
            alt=alt_text(file.fig),
            config={"displayModeBar": False},
        )
