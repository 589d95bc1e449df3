"""The studio's controls: what a figure is told, and how it lies on its sheet."""

from __future__ import annotations

from functools import partial
from typing import Any

import streamlit as st

from mxviz._export_sheet import ABOUT_SIZES, GROUNDS, SCALES, SIZES, Sheet
from mxviz._pictures_registry import SCHEMES, Drawn, Place, entry, lacking
from mxviz.attention import query_layers
from mxviz.capture import PARTS, Capture
from mxviz.figures.overview import MEASURES
from mxviz.race import race_schemes
from mxviz.views import place as places
from mxviz.views.overview import follow, open_head

_MOST = {"token": "tokens", "channel": "channels"}
_GROUNDS = {
    "light": "light",
    "dark": "dark",
    "transparent": "clear",
    "transparent-dark": "clear on dark",
}
_RACE = {"sqnr": "SQNR", "flushed": "flushed to zero", "kl": "KL of the next word"}


def told(capture: Capture, run: str, name: str) -> Place:
    """Draw what a figure can be told, in a fold, and return it; layer, head and the like are those that all
    pages share, recipe and baseline those of the microscope's switches."""
    drawn = entry(name)
    if not drawn.options:
        return {}
    with st.expander("What is drawn: layer, head, token, and the like"):
        found = _look(capture, run, drawn)
        if "queries" in drawn.needs:
            return found | _query(capture, run, drawn)
        columns = iter(st.columns(max(2, len(drawn.takes)), vertical_alignment="bottom"))
        for option in drawn.takes:
            with next(columns):
                found |= _asked(capture, run, name, option)
    return found


def _look(capture: Capture, run: str, drawn: Drawn) -> Place:
    """Say through what the figure looks, and return it."""
    if not drawn.looks:
        return {}
    recipe, baseline = looked_through(capture, run)
    st.caption(f"Through `{recipe}`, against `{baseline}`: the switches on the first page change them.")
    return {"recipe": recipe, "baseline": baseline}


def looked_through(capture: Capture, run: str) -> tuple[str, str]:
    """Return recipe and baseline that the microscope's switches are set to, else the run's own."""
    choice = st.session_state.get("looks", {}).get(run)
    return (capture.recipe, capture.baseline) if choice is None else (choice.recipe, choice.baseline)


def _asked(capture: Capture, run: str, name: str, option: str) -> Place:
    seen = places.get(capture, run)
    x = capture.part(seen.part, seen.layer)
    if option in ("layer", "head"):
        reach = capture.layers if option == "layer" else range(x.shape[0])
        if len(reach) > 1:
            label = "Layer" if option == "layer" else "KV head"
            follow(st.select_slider, label, capture, run, option, open_head, options=reach)
    elif option == "part":
        parts = PARTS if capture.values else PARTS[:1]
        words = {"format_func": lambda part: f"{part}s", "required": True}
        follow(st.segmented_control, "Part", capture, run, "part", open_head, options=parts, **words)
    elif option in _MOST:
        if name == "channels" and option == "token":
            return {}  # a token beside the channel would ask for the one value where they meet
        last = x.shape[1 if option == "token" else 2] - 1
        draw = partial(st.number_input, min_value=0, max_value=last)
        follow(draw, option.capitalize(), capture, run, option, places.put)
    elif option == "measure":
        known = [m for m in entry(name).measures if lacking(capture, name, m) is None]
        said = {m: MEASURES[m].title for m in MEASURES} | _RACE
        return {"measure": st.selectbox("Shows", known, key=f"studio-measure-{name}", format_func=said.get)}
    else:
        names = [str(scheme) for scheme in race_schemes()]
        chosen = st.multiselect("Schemes", names, SCHEMES, key="studio-schemes", max_selections=8)
        return {"schemes": tuple(chosen) or None}
    return {option: getattr(places.get(capture, run), option)}


def _query(capture: Capture, run: str, drawn: Drawn) -> Place:
    from mxviz._pictures_attention import default_query

    layers, seen = query_layers(capture), places.get(capture, run).layer
    own = default_query(capture, seen if seen in layers else None)
    at, head, position = st.columns([1.6, 1, 2.4], vertical_alignment="bottom")
    layer = at.segmented_control("Layer", layers, default=own[0], required=True, key=f"studio-layer-{run}")
    if "query_head" not in drawn.takes:
        return {"layer": layer}
    worst = default_query(capture, layer)[1]
    heads = range(capture.queries[layer].shape[0])
    return {
        "layer": layer,
        "query_head": head.selectbox("Query head", heads, worst, key=f"studio-query-{run}-{layer}"),
        "position": position.slider(
            "Asked by token", 0, capture.tokens_held - 1, own[2], key=f"studio-position-{run}"
        ),
    }


def sheet() -> Sheet:
    """Draw size and ground in sight, and title, caption, fonts and provenance in a fold; return the sheet."""
    left, right = st.columns([1, 1.6], vertical_alignment="bottom")
    kept: dict[str, Any] = {"persist_state": "session"}
    size = left.selectbox("Size", list(SIZES), format_func=ABOUT_SIZES.get, key="studio-size", **kept)
    ground = right.segmented_control(
        *("Background", list(GROUNDS)), format_func=_GROUNDS.get, default="light", required=True,
        key="studio-ground", **kept,
    )  # fmt: skip
    with st.expander("Title, caption, fonts, provenance"):
        title = st.text_input(
            "Title", placeholder="the figure's own sentence, from its numbers", key="studio-title", **kept
        )
        caption = st.text_input("Caption", key="studio-caption", **kept)
        fonts, line = st.columns(2, vertical_alignment="bottom")
        scale = fonts.slider("Font scale", SCALES[0], 2.0, 1.0, 0.05, key="studio-fonts", **kept)
        shown = line.toggle(
            "A last line says where it came from",
            key="studio-provenance",
            help="Model, revision, prompt hash, layer, head, scheme, rule and version; the file's metadata "
            "holds them always.",
            **kept,
        )
    return Sheet(ground, size, title.strip() or None, caption.strip(), scale, shown)
