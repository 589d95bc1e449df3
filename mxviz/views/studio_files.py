"""The studio's files: made when asked for, and then offered for download."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Mapping
from typing import Any, NamedTuple

import streamlit as st

from mxviz._export_tables import table
from mxviz.capture import Capture
from mxviz.export import CHROME, KINDS, REMEDY, TABLES, ExportError, File, find_browser, made
from mxviz.pictures import Sheet
from mxviz.views import place as places
from mxviz.views.studio_controls import looked_through

_MIME = {
    **{"svg": "image/svg+xml", "png": "image/png", "pdf": "application/pdf", "html": "text/html"},
    **{"csv": "text/csv", "npz": "application/octet-stream", "zip": "application/zip"},
}
_CHROME = threading.Lock()
"""One Chrome at a time: it takes a core and some 200 MB, and pages of many visitors share the machine."""


class Made(NamedTuple):
    """A file that was made: for which choices, its name, and its bytes."""

    what: Hashable
    name: str
    data: bytes


def offer(capture: Capture, run: str, name: str, place: Mapping[str, Any], sheet: Sheet, file: File) -> None:
    """Draw the choice of the file's kind and the buttons that make it; offer what was made last.

    Args:
        capture: the run; run its name.
        name: the figure; place what it is told.
        sheet: what it lies on.
        file: what is shown.
    """
    browser = find_browser()
    kinds = [kind for kind in KINDS if browser or kind not in CHROME]
    kind, one, every = _controls(kinds)
    if not browser:
        st.caption(f"Here {REMEDY}.")
    mine = (run, id(capture), name, tuple(place.items()), sheet, kind)
    if one:
        with st.spinner(f"making the .{kind} …"):
            _make(mine, f"mxviz-{run}-{name}.{kind}", lambda: _one(capture, name, place, file, kind))
    picture = kind if kind not in TABLES else "png" if browser else "html"
    everywhere = _everywhere(capture, run)
    all_mine = (run, id(capture), tuple(everywhere.items()), sheet._replace(title=None, caption=""), picture)
    if every:
        line = st.empty()
        with st.spinner("making all figures of this run …"):
            _make(
                all_mine,
                f"mxviz-{run}-figures.zip",
                lambda: _all(capture, picture, sheet, everywhere, line.caption),
            )
        line.empty()
    last: Made | None = st.session_state.get("studio-made")
    if last is not None and last.what in (mine, all_mine):
        st.download_button(
            f"Save {last.name} ({_size(len(last.data))})".replace("$", r"\$"),
            last.data,
            last.name,
            _MIME[last.name.rsplit(".", 1)[1]],
            icon=":material/download:",
            on_click="ignore",
            key="studio-save",
        )


def _controls(kinds: list[str]) -> tuple[str, bool, bool]:
    left, right = st.columns([2.2, 1], vertical_alignment="bottom")
    kind = left.segmented_control(
        "File",
        kinds,
        default="png" if "png" in kinds else kinds[0],
        format_func=str.upper,
        required=True,
        key=f"studio-kind-{len(kinds)}",
        persist_state="session",
    )
    one = right.button("Make this file", type="primary", width="stretch", key="studio-one")
    with st.expander("All figures of this run at once"):
        st.caption(
            "One .zip: every figure of this run where you look now, at this size and on this background, a "
            ".csv of the numbers behind each, and an index that says what each shows and where it came from."
        )
        every = st.button("Make the zip", key="studio-all")
    return kind, one, every


def _everywhere(capture: Capture, run: str) -> dict[str, Any]:
    """Return the place all figures are drawn at: where one looks, through what one looks."""
    seen, (recipe, baseline) = places.get(capture, run), looked_through(capture, run)
    place = {"layer": seen.layer, "head": seen.head, "part": seen.part}
    return place | {"recipe": recipe, "baseline": baseline}


def _make(what: Hashable, name: str, make: Callable[[], bytes]) -> None:
    """Make a file and keep it in place of the last one; where that fails, one line says why."""
    try:
        st.session_state["studio-made"] = Made(what, name, make())
    except (ExportError, ValueError) as error:
        st.session_state["studio-made"] = None
        st.error(" ".join(str(error).split()).replace("$", r"\$"), icon=":material/info:")


def _one(capture: Capture, name: str, place: Mapping[str, Any], file: File, kind: str) -> bytes:
    if kind in TABLES:
        return made([file._replace(table=table(capture, name, dict(place)))], kind)[0]
    if kind not in CHROME:
        return made([file], kind)[0]
    with _CHROME:
        return made([file], kind)[0]


def _all(
    capture: Capture, kind: str, sheet: Sheet, place: Mapping[str, Any], say: Callable[[str], Any]
) -> bytes:
    from mxviz._export_bundle import bundle

    with _CHROME:
        return bundle(capture, kind, sheet, place, say)


def _size(count: int) -> str:
    return f"{count / 1e6:.1f} MB" if count >= 1e6 else f"{count / 1e3:.0f} kB"
