"""What the schemes of a race do to the next word: measured on request, kept for the session."""

from __future__ import annotations

import streamlit as st

from mxviz._pictures_race_table import Effects, all_effects, name_of
from mxviz._pictures_race_table import rows as race_rows
from mxviz.capture import Capture
from mxviz.views import jobs, measuring
from mxviz.views.sensitivity import model_here

DEFAULT = (
    *("mxfp4", "k=mxfp4:axis=token;v=mxfp4", "nvfp4", "k=aint4:axis=token;v=aint4"),
    *("fp4@tensor", "int4@tensor", "int4@token", "mxfp8_e4m3", "int8@tensor"),
)
"""Recipes that are offered first: 4 bits with blocks both ways and with one scale, and 8 bits."""


def effects(run: str) -> Effects:
    """Return what was measured of a run in this session, by canonical recipe."""
    measuring.collect()
    return measuring.kept(("race", run)) or {}


def section(capture: Capture, run: str, found: Effects) -> None:
    """Say what was measured, and offer to measure more.

    Args:
        capture: the run; its token ids are read again by its model.
        run: its name, under which results are kept for this session.
        found: what was measured in this session.
    """
    if st.session_state.get("measuring") is not None:  # also one that is over and waits to be collected
        _live()
        return
    if error := st.session_state.get("measuring-error"):
        st.error(error.replace("$", r"\$"), icon=":material/info:")
    known = all_effects(capture, found)
    model = model_here(capture)
    if model is None:
        name = capture.model.replace("`", "")
        st.caption(
            f"What {len(known)} recipes do to the next word was measured with this run. `{name}` is not on "
            "this machine, so no others can be measured here."
        )
        return
    rows = {str(row["scheme"]): None for row in race_rows(capture)}
    offered = [name for name in {**dict.fromkeys(DEFAULT), **rows} if name not in known]
    wanted = [name for name in DEFAULT if name in offered]
    with st.expander(f"What it does to the next word: {len(known)} recipes are measured"):
        recipes = st.multiselect(
            "Measure",
            offered,
            wanted,
            key=f"race-recipes-{run}",
            format_func=name_of,
            accept_new_options=True,
            help="Any recipe can be typed in, such as mxfp4;sink=4.",
        )
        st.caption(
            f"The model reads these {len(capture.token_ids):,} tokens again, once for each recipe, every "
            "position attending to quantized keys and values; KL is against the exact model."
        )
    if recipes:
        st.button(
            f"Measure what it does to the words (about {measuring.about(_seconds(capture, len(recipes)))})",
            key="race-measure",
            on_click=_start,
            args=(capture, run, model, tuple(recipes)),
        )


def _seconds(capture: Capture, recipes: int) -> float:
    """Return about how long it takes, from the three passes of the run's own measurement."""
    return (recipes * 1.25 + 1) * max(0.3, capture.timings.get("measure_s", 4.0) / 3)


def _start(capture: Capture, run: str, model: str, recipes: tuple[str, ...]) -> None:
    st.session_state["measuring-error"] = None
    before = dict(effects(run))

    def work(model, said, should_stop):
        from mxviz.metrics import effect_stats

        with jobs.IMPORTS:
            from mxviz._engine_race import measure_race

        loaded = jobs.loaded(model)
        found = measure_race(loaded, capture.token_ids, recipes, said=said, should_stop=should_stop)
        new = {name: effect_stats(tables["kl"], tables["top1"]) for name, tables in found.items()}
        return before | new  # what was done before a stop is kept

    measuring.start(("race", run), model, work)


@st.fragment(run_every=0.5)
def _live() -> None:
    """Show how far the measurement is; leave the fragment when it is over."""
    job = measuring.current()
    if job is None:
        st.rerun(scope="app")
    bar, stop = st.columns([5, 1], vertical_alignment="center")
    bar.progress(min(1.0, job.done / job.total) if job.total else 0.0, job.words())
    stop.button("Stop", key="race-stop", on_click=job.stop.set, width="stretch")
