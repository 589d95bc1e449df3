"""The recorded runs that ship with mxviz, so that a first look needs no model."""

from __future__ import annotations

from functools import lru_cache

import streamlit as st

from mxviz._paths import ASSETS
from mxviz.capture import Capture

RUNS = {
    "qwen-code": "Qwen2.5-Coder, one wild channel",
    "smollm2-sky": "SmolLM2, a chat",
}
"""Recorded runs: file in assets/gallery, and what to call it."""

OWN = "your run"


@lru_cache(maxsize=len(RUNS))
def _load(name: str) -> Capture:
    return Capture.load(ASSETS / "gallery" / f"{name}.safetensors")


def chosen() -> tuple[str, Capture | None]:
    """Draw the choice among recorded runs and this session's own; return its name and the capture."""
    own = st.session_state.get("capture")
    names = [name for name in RUNS if (ASSETS / "gallery" / f"{name}.safetensors").is_file()]
    names += [OWN] if own is not None else []
    if not names:
        return "", None
    name = st.segmented_control(
        "Looking at",
        names,
        key="run",
        format_func=lambda n: RUNS.get(n, "Your run"),
        required=True,
        default=names[-1] if own is not None else names[0],
        persist_state="session",
    )
    if name == OWN:
        return f"{OWN} {st.session_state['runs']}", own
    return name, _load(name)
