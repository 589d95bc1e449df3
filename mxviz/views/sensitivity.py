"""Layer by layer: which keys and values hurt, what to exempt, and recipes side by side; on request."""

from __future__ import annotations

import streamlit as st

from mxviz._models_catalogue import CATALOGUE, is_here
from mxviz._pictures_sensitivity import (
    COMPARED,
    findings,
    layer_map_picture,
    parts_sentence,
    recipes_picture,
    suggestion_picture,
)
from mxviz.capture import Capture
from mxviz.figures import Figure, alt_text
from mxviz.views import jobs, measuring, style

MOST_TOKENS = 256  # of the text that is measured; as in the engine, which is loaded on request only
_PASSES = {"layers": "Measure layer by layer", "recipes": "Measure nine recipes"}


@st.fragment
def section(capture: Capture, run: str, width: int) -> None:
    """Show what was measured of this run, or offer to measure it.

    Args:
        capture: the run; its token ids are read again by its model.
        run: its name, under which results are kept for this session.
        width: CSS pixels to lay figures out for.
    """
    measuring.collect()
    st.html(
        '<div class="mx-section"><h2>Where does it hurt, and what to exempt?</h2><p>The model reads this '
        f"text again, its first {MOST_TOKENS} tokens at most, each time with one layer's keys or values "
        "quantized and the rest exact. What that suggests is measured as well.</p></div>"
    )
    if measuring.pending():
        _live()
        return
    if error := st.session_state.get("measuring-error"):
        st.error(error.replace("$", r"\$"), icon=":material/info:")
    model = model_here(capture)
    if model is not None:
        _offer(capture, run, model)
    elif capture.lanes:
        name = capture.model.replace("`", "")
        st.info(
            f"`{name}` is not on this machine, so nothing can be measured here. SmolLM2 is built in: choose "
            "its run, or ask it something yourself."
        )
    else:
        st.info("These numbers are a tensor of their own, so there is no model to measure.")
    _show(capture, run, width)


def model_here(capture: Capture) -> str | None:
    """Return the name under which the model of a run loads here, None where it would be a download."""
    short = _plain(capture.model)
    named = [n for n, entry in CATALOGUE.items() if short in (_plain(n), _plain(entry.title))]
    if named or not capture.lanes:  # a tensor of its own belongs to no model
        return next((name for name in named if is_here(name)), None)
    with jobs.IMPORTS:
        from mxviz.models import is_ready

    return capture.model if is_ready(capture.model) else None


def _plain(name: str) -> str:
    return "".join(c for c in name.rsplit("/", 1)[-1].casefold() if c.isalnum())


def _offer(capture: Capture, run: str, model: str) -> None:
    layers = int(capture.shape.get("layers") or len(capture.layers))
    counts = {"layers": 2 * layers + 5, "recipes": len(COMPARED) + 1}
    for column, (name, words) in zip(st.columns(len(_PASSES)), _PASSES.items(), strict=True):
        column.button(
            f"{words} (about {measuring.about(counts[name] * _seconds(capture))})",
            key=f"measure-{name}",
            width="stretch",
            on_click=_start,
            args=(name, capture, run, model),
        )


def _seconds(capture: Capture) -> float:
    """Return about how long a pass takes, from the three of the run's own measurement."""
    share = min(1.0, MOST_TOKENS / max(1, len(capture.token_ids)))
    return max(0.3, capture.timings.get("measure_s", 4.0) / 3 * share * 1.3)


def _start(name: str, capture: Capture, run: str, model: str) -> None:
    st.session_state["measuring-error"] = None

    def work(model, said, should_stop):
        with jobs.IMPORTS:
            from mxviz import _engine_sensitivity as engine

        loaded, options = jobs.loaded(model), {"said": said, "should_stop": should_stop}
        if name == "layers":
            return engine.sensitivity(loaded, capture.token_ids, capture.recipe, **options)
        return engine.compare_recipes(loaded, capture.token_ids, COMPARED, **options)

    measuring.start((name, run), model, work)


@st.fragment(run_every=0.5)
def _live() -> None:
    """Show how far the measurement is; leave the fragment when it is over."""
    job = measuring.current()
    if job is None:
        st.rerun(scope="app")
    bar, stop = st.columns([5, 1], vertical_alignment="center")
    bar.progress(min(1.0, job.done / job.total) if job.total else 0.0, job.words())
    stop.button("Stop", key="measuring-stop", on_click=job.stop.set, width="stretch")


def _show(capture: Capture, run: str, width: int) -> None:
    size, model = {"theme": style.theme().name, "width": width}, capture.model
    if (found := measuring.kept(("layers", run))) is not None:
        _chart(layer_map_picture(found, model, **size), "layers")
        _chart(suggestion_picture(found, model, **size), "suggestions")
        st.caption(parts_sentence(found))
    if (rows := measuring.kept(("recipes", run))) is not None:
        tokens = min(MOST_TOKENS, len(capture.token_ids))
        _chart(recipes_picture(rows, model, tokens, **size), "recipes")
        st.markdown("\n".join(f"- {line}" for line in findings(rows)))


def _chart(figure: Figure, name: str) -> None:
    st.plotly_chart(
        figure, theme=None, width="stretch", key=f"figure-{name}", alt=alt_text(figure), config=style.CHART
    )
