"""Ask: the prompt, the model, the recipe, Generate and Stop."""

from __future__ import annotations

import time

import streamlit as st

from mxviz._engine_settings import Progress, Settings  # not from mxviz.engine, which takes seconds to import
from mxviz._models_catalogue import CATALOGUE, is_here
from mxviz.capture import Capture
from mxviz.formats import SCHEMES
from mxviz.views import gallery, jobs, lanes, limits, talk

PRESETS = {
    "A story": "Tell a story about a ladybug who wants to measure a skyscraper.",
    "Counting": "Count from 1 to 30, separated by commas.",
    "Arithmetic": "What is 12 times 12? Show the steps.",
    "Code": "Write a Python function that returns the largest absolute value of a list.",
    "The sky": "Why is the sky blue?",
}
RECIPES = {
    "k=mxfp4:axis=token;v=mxfp4": "4-bit floats, a scale per 32 tokens (keys) or channels (values)",
    "mxfp4": "4-bit floats, a scale per 32 channels",
    "nvfp4": "4-bit floats, a finer scale per 16",
    "mxfp8_e4m3": "8-bit floats, a scale per 32 channels",
    "mxfp6_e2m3": "6-bit floats, a scale per 32 channels",
    "mxint8": "8-bit integers, a scale per 32 channels",
    "mxint4": "4-bit integers, a scale per 32 (not in OCP MX)",
    "kivi4": "KIVI: 4-bit with zero points, newest 128 exact",
    "none": "uncompressed",
}


def running() -> bool:
    """Whether this session's run is under way."""
    job = st.session_state.get("job")
    return job is not None and not job.done


def panel() -> None:
    """Draw the controls, or the run that is under way."""
    if running():
        _live()
        return
    _settle()
    st.pills("Try one of these", list(PRESETS), key="preset", on_change=_take_preset)
    st.session_state.setdefault("prompt", next(iter(PRESETS.values())))
    st.text_area("Prompt", key="prompt", height=80, persist_state="session")
    model, button = st.columns([3, 1], vertical_alignment="bottom")
    public = limits.limits().public
    with model:
        name = st.selectbox(
            "Model" if public else "Model (a name here, a hub id, a folder or a .gguf file)",
            limits.offered(),
            key="model",
            format_func=_named,
            accept_new_options=not public,
            persist_state="session",
        )
    told = st.container()  # above the fold, so that it is seen when the fold is open
    settings = _more()
    with button:
        st.button("Generate", type="primary", width="stretch", on_click=_start, args=(name, settings))
    if error := st.session_state.get("error"):
        told.error(error.replace("$", r"\$"), icon=":material/info:")


def follow(capture: Capture | None) -> None:
    """Offer the prompt and the model of the run whose answers stand below, unless another was typed.

    A model that is not on this machine is not chosen for anybody: it would be fetched.
    """
    if capture is None:
        return
    state, first = st.session_state, capture.turns[0].prompt if capture.turns else capture.prompt
    here = [name for name in gallery.catalogue_names(capture.model) if is_here(name)]
    offered = {"prompt": first, "model": here[0] if here else None}
    for name, own in offered.items():
        if own is not None and state.get(name) in (None, state.get(f"{name}-of-run")):
            state[name] = own
        state[f"{name}-of-run"] = state.get(name) if own is None else own


def other_model(capture: Capture) -> str | None:
    """Return the title of the model that would be asked, where it is another one than that of a run."""
    name = st.session_state.get("model") or next(iter(CATALOGUE))
    if name in (capture.model, *gallery.catalogue_names(capture.model)):
        return None
    return CATALOGUE[name].title if name in CATALOGUE else name


def _settle() -> None:
    """Bring what an address asked for within the limits that hold here."""
    state, most = st.session_state, limits.limits()
    if most.public and state.get("model") not in limits.offered():
        state.pop("model", None)
    if isinstance(state.get("length"), int) and state["length"] > most.new_tokens:
        state["length"] = most.new_tokens


def _named(model: str) -> str:
    """A model's name, and whether it is here."""
    if model not in CATALOGUE:
        return model
    if CATALOGUE[model].source == "wheel":
        return f"{model} · built in" if is_here(model) else f"{model} · not installed"
    return f"{model} · here" if is_here(model) else f"{model} · downloaded when you press Generate"


def _more() -> dict:
    with st.expander("Recipe, baseline, length and sampling"):
        left, right = st.columns(2)
        recipe = left.selectbox(
            "Recipe: how the micro-scaled cache is stored",
            list(RECIPES),
            key="recipe",
            format_func=lambda r: f"{r} · {RECIPES[r]}" if r in RECIPES else r,
            accept_new_options=True,
            persist_state="session",
        )
        baseline = right.selectbox(
            "Baseline: what it is compared with",
            ["twin", *(name for name in SCHEMES if "@" in name)],
            key="baseline",
            format_func=lambda b: "twin · the same numbers, one scale for the tensor" if b == "twin" else b,
            accept_new_options=True,
            persist_state="session",
        )
        length = left.number_input(
            "New tokens", 1, limits.limits().new_tokens, 48, key="length", persist_state="session"
        )
        seed = right.number_input("Seed", 0, 2**31 - 1, 0, key="seed", persist_state="session")
        temperature = left.number_input(
            "Temperature (0 is greedy)", 0.0, 5.0, 0.0, 0.1, key="temperature", persist_state="session"
        )
        top_p = right.number_input("Top-p", 0.01, 1.0, 1.0, 0.01, key="top_p", persist_state="session")
        raw = st.checkbox("Leave the chat template out", key="raw", persist_state="session")
    return {
        "recipe": recipe,
        "baseline": baseline,
        "max_new_tokens": int(length),
        "seed": int(seed),
        "temperature": float(temperature),
        "top_p": float(top_p),
        "raw": raw,
    }


def _take_preset() -> None:
    if preset := st.session_state.get("preset"):
        st.session_state["prompt"] = PRESETS[preset]


def _start(model: str | None, settings: dict) -> None:
    st.session_state["error"] = None
    try:
        checked = Settings(prompt=st.session_state["prompt"], **settings)
    except ValueError as error:
        st.session_state["error"] = " ".join(str(error).split())
        return
    talk.end()
    st.session_state["job"] = jobs.start(model or "", checked)


@st.fragment(run_every=0.4)
def _live() -> None:
    """Show the run as it grows; leave the fragment when it is done."""
    job = st.session_state["job"]
    if job.done:
        st.rerun(scope="app")
    bar, stop = st.columns([5, 1], vertical_alignment="center")
    bar.progress(*said(job.progress, job.note or f"loading {job.model}", time.monotonic() - job.started))
    stop.button("Stop", key="stop", on_click=job.stop.set, width="stretch")
    if job.progress is not None:
        lanes.show_live(job.progress, job.settings)


def said(progress: Progress | None, waiting: str, seconds: float) -> tuple[float, str]:
    """Return how far a run is, 0 to 1, and in words.

    Args:
        progress: what it has done, None while it waits for the model.
        waiting: what it waits for then.
        seconds: since it was started.
    """
    share, words = 0.0, waiting
    if progress is not None:
        share = progress.step / progress.total if progress.total else 0.0
        words = _STAGES[progress.stage].format(min(progress.step + 1, progress.total), progress.total)
        if progress.stage == "decode":
            words = f"writing, token {progress.step:,} of {progress.total:,}"
    return min(1.0, share), f"{words.replace('$', chr(92) + '$')} · {seconds:.0f} s"


_STAGES = {
    "waiting": "waiting for another run that uses the model",
    "prefill": "reading the prompt",
    "decode": "writing",
    "measure": "measuring the effect over the whole text, pass {} of {}",
    "done": "done",
}


def collect() -> None:
    """Take over what a finished run left; nothing where none has finished."""
    job = st.session_state.get("job")
    if job is None or not job.done:
        return
    if job.capture is not None:
        talk.take(job)
    st.session_state["error"] = job.error
    st.session_state["job"] = None
