"""Layer by layer: which keys and values hurt, what to exempt, and recipes side by side; on request."""

from __future__ import annotations

import numpy as np
import streamlit as st

from mxviz._engine_layers import Sensitivity, recorded, recorded_rows
from mxviz._models_catalogue import is_here
from mxviz._pictures_sensitivity import (
    COMPARED,
    both_sentence,
    findings,
    layer_map_picture,
    parts_sentence,
    recipes_picture,
    suggestion_picture,
)
from mxviz.capture import Capture
from mxviz.figures import Figure, alt_text
from mxviz.figures._nats import plain
from mxviz.page import literal
from mxviz.views import gallery, jobs, measuring, permalink, place, style
from mxviz.views.limits import limits

MOST_TOKENS = 256  # of the text that is measured; as in the engine, which is loaded on request only
_LANES = {"single": "one scale", "micro": "micro-scaled"}
_PASSES = {"layers": "Measure layer by layer", "recipes": "Measure nine recipes"}


@permalink.fragment
def section(capture: Capture, run: str, width: int) -> None:
    """Show what was measured of this run, or offer to measure it.

    Args:
        capture: the run; its token ids are read again by its model.
        run: its name, under which results are kept for this session.
        width: CSS pixels to lay figures out for.
    """
    measuring.collect()
    maps = {lane: _map(capture, run, lane) for lane in _LANES}
    both = all(found is not None for found in maps.values())
    said = literal(both_sentence(**maps)) if both else "Where does it hurt, and what to exempt?"
    st.html(
        f'<div class="mx-section"><h2>{said}</h2><p>The model reads this text again, each time with one '
        "layer's keys or values stored in few bits and the rest exact. What that suggests is measured as "
        f"well.{_here(capture, run, maps) if both else ''}</p></div>"
    )
    if measuring.pending():
        _live()
        return
    if error := st.session_state.get("measuring-error"):
        st.error(error.replace("$", r"\$"), icon=":material/info:")
    lane = st.segmented_control(
        "Stored", list(_LANES), default="single", format_func=_LANES.get, required=True, key="layers-lane"
    )
    model = model_here(capture)
    if maps[lane] is None:
        _missing(capture, run, lane, model)
    _show(capture, run, maps[lane], width)
    if maps[lane] is not None and model is not None:
        with st.expander("Measure again on this machine"):
            _offer(capture, run, lane, model)


def _here(capture: Capture, run: str, maps: dict[str, Sensitivity]) -> str:
    """Say what the layer costs that one looks at on the other pages: at first that of the loudest channel."""
    spot = place.get(capture, run)
    costs = {lane: float(found.kl[spot.part][spot.layer]) for lane, found in maps.items()}
    if not np.isfinite(list(costs.values())).all():
        return ""
    return (
        f" Layer {spot.layer}, where you look now: its {spot.part}s alone cost {plain(costs['single'], 2)} "
        f"nats with one scale, {plain(costs['micro'], 2)} micro-scaled."
    )


def _map(capture: Capture, run: str, lane: str) -> Sensitivity | None:
    """Return the map of a lane: measured in this session, or recorded with the run."""
    found = measuring.kept((f"layers-{lane}", run))
    return found or recorded(capture, capture.recipe if lane == "micro" else capture.baseline)


def _missing(capture: Capture, run: str, lane: str, model: str | None) -> None:
    """Offer to measure what was not recorded; where the model is not here, say what to do instead."""
    if model is not None:
        _offer(capture, run, lane, model)
        return
    if not capture.lanes:
        st.info("These numbers are a tensor of their own, so there is no model to measure.")
        return
    name = capture.model.replace("`", "")
    st.info(
        f"No map of the layers was recorded with this run, and `{name}` is not on this machine to measure "
        "one. Look at a recorded run that has its map; or ask the model something on the page Run, which "
        "fetches it, and come back."
    )
    with_map = [n for n in gallery.recorded_names() if n != run and _map(gallery.recorded(n), n, lane)]
    row = st.container(horizontal=True)
    for other in with_map:
        row.button(gallery.label(other), key=f"layers-see-{other}", on_click=_look_at, args=(other,))


def _look_at(run: str) -> None:
    st.session_state["look-at"] = run


def model_here(capture: Capture) -> str | None:
    """Return the name under which the model of a run loads here, None where it would be a download."""
    named = gallery.catalogue_names(capture.model)
    if named or not capture.lanes:  # a tensor of its own belongs to no model
        return next((name for name in named if is_here(name)), None)
    if limits().public:  # a file may name a folder of this machine
        return None
    with jobs.IMPORTS:
        from mxviz.models import is_ready

    return capture.model if is_ready(capture.model) else None


def _offer(capture: Capture, run: str, lane: str, model: str) -> None:
    layers = int(capture.shape.get("layers") or len(capture.layers))
    counts = {"layers": 2 * layers + 5, "recipes": len(COMPARED) + 1}
    for column, (name, words) in zip(st.columns(len(_PASSES)), _PASSES.items(), strict=True):
        column.button(
            f"{words} (about {measuring.about(counts[name] * _seconds(capture))})",
            key=f"measure-{name}",
            width="stretch",
            on_click=_start,
            args=(name, capture, run, lane, model),
        )
    st.caption(f"Over the first {MOST_TOKENS} tokens of this text at most.")


def _seconds(capture: Capture) -> float:
    """Return about how long a pass takes, from the three of the run's own measurement."""
    share = min(1.0, MOST_TOKENS / max(1, len(capture.token_ids)))
    return max(0.3, capture.timings.get("measure_s", 4.0) / 3 * share * 1.3)


def _start(name: str, capture: Capture, run: str, lane: str, model: str) -> None:
    st.session_state["measuring-error"] = None
    recipe = capture.recipe if lane == "micro" else capture.baseline

    def work(model, said, should_stop):
        with jobs.IMPORTS:
            from mxviz import _engine_sensitivity as engine

        loaded, options = jobs.loaded(model), {"said": said, "should_stop": should_stop}
        if name == "layers":
            return engine.sensitivity(loaded, capture.token_ids, recipe, **options)
        return engine.compare_recipes(loaded, capture.token_ids, COMPARED, **options)

    measuring.start((f"layers-{lane}" if name == "layers" else name, run), model, work)


@st.fragment(run_every=0.5)
def _live() -> None:
    """Show how far the measurement is; leave the fragment when it is over."""
    job = measuring.current()
    if job is None:
        st.rerun(scope="app")
    bar, stop = st.columns([5, 1], vertical_alignment="center")
    bar.progress(min(1.0, job.done / job.total) if job.total else 0.0, job.words())
    stop.button("Stop", key="measuring-stop", on_click=job.stop.set, width="stretch")


def _show(capture: Capture, run: str, found: Sensitivity | None, width: int) -> None:
    size, model = {"theme": style.theme().name, "width": width}, capture.model
    if found is not None:
        _chart(layer_map_picture(found, model, **size), "layers")
        _chart(suggestion_picture(found, model, **size), "suggestions")
        st.caption(parts_sentence(found))
    rows, tokens = measuring.kept(("recipes", run)), min(MOST_TOKENS, len(capture.token_ids))
    if rows is None:
        rows, tokens = recorded_rows(capture, COMPARED), len(capture.token_ids)
        rows = rows if len(rows) > len(_LANES) else []  # the run's own two are on the page already
    if rows:
        _chart(recipes_picture(rows, model, tokens, **size), "recipes")
        st.markdown("\n".join(f"- {line}" for line in findings(rows)))


def _chart(figure: Figure, name: str) -> None:
    st.plotly_chart(
        figure, theme=None, width="stretch", key=f"figure-{name}", alt=alt_text(figure), config=style.CHART
    )
