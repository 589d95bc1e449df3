"""The runs that can be looked at: those recorded with mxviz, this session's own, and opened files."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

import streamlit as st

from mxviz._models_catalogue import CATALOGUE
from mxviz._paths import ASSETS
from mxviz.capture import Capture
from mxviz.page import literal
from mxviz.views import open as files


class Recorded(NamedTuple):
    """A run that ships in assets/gallery: what to call it, and its licence."""

    label: str
    licence: str


RUNS = {
    "qwen-code": Recorded("Qwen, one wild channel", "Apache-2.0"),
    "qwen-long": Recorded("Qwen, a long text", "Apache-2.0; text CC0"),
    "smollm2-chat": Recorded("SmolLM2, a chat", "Apache-2.0"),
    "smollm2-long": Recorded("SmolLM2, a long text", "Apache-2.0; text CC0"),
    "planted": Recorded("A planted channel", "made numbers, CC0"),
}
"""Recorded runs by the name of their file; the page opens on the first."""

CHAT = "smollm2-chat"
"""The recorded run whose prompt and recipe the page offers first."""

MOST = 4
"""Own runs and opened files that a session keeps; the oldest makes room."""


class Own(NamedTuple):
    """A run of this session, or a file that was opened."""

    label: str
    capture: Capture


def chosen() -> tuple[str, Capture | None]:
    """Draw the choice of what is looked at, and what it is; return its name and the capture."""
    names = _names()
    if not names:
        return "", None
    _settle(names)
    name = st.session_state["run-choice"] = st.session_state.setdefault("run", names[0])
    st.segmented_control(
        "Looking at",
        names,
        key="run-choice",
        format_func=label,
        required=True,
        on_change=lambda: st.session_state.update(run=st.session_state["run-choice"]),
    )
    capture = _capture(name)
    st.html(f'<p class="mx-key"><span>{literal(described(name, capture))}</span></p>')
    opened = files.fold(name, capture)
    if opened is not None:
        keep(*opened)
        st.rerun()
    return name, capture


def looked_at() -> tuple[str, Capture | None]:
    """Return what is looked at, without drawing the choice."""
    names = _names()
    if not names:
        return "", None
    _settle(names)
    name = st.session_state.get("run") or names[0]
    return name, _capture(name)


def keep(label: str, capture: Capture, name: str | None = None) -> str:
    """Keep a run of this session, or a newer state of it, and look at it from now on; return its name."""
    own = _own()
    if name not in own:
        number = st.session_state["runs"] = st.session_state.get("runs", 0) + 1
        name = f"own-{number}"
    own[name] = Own(label, capture)
    while len(own) > MOST:
        del own[next(iter(own))]
    st.session_state["look-at"] = name
    return name


def recorded_names() -> list[str]:
    """Return the names of the recorded runs that are here."""
    return [name for name in _names() if name in RUNS]


def recorded(name: str) -> Capture | None:
    """Return a recorded run, None where its file is not here."""
    return _load(name) if name in _names() and name in RUNS else None


def label(name: str) -> str:
    """Return what a run is called on the page."""
    return RUNS[name].label if name in RUNS else _own()[name].label if name in _own() else name


def described(name: str, capture: Capture) -> str:
    """Return what a run is in one line: model, tokens, layers, dtype, recipe, licence."""
    layers = layers_said(capture.layers, capture.shape.get("layers", len(capture.layers)))
    dtype = str(capture.part("key", capture.layers[0]).dtype).removeprefix("torch.")
    parts = [
        capture.model,
        tokens_said(capture),
        f"{layers} in {dtype}",
        f"{capture.recipe} against {capture.baseline}",
        *([f"recorded with mxviz, {RUNS[name].licence}"] if name in RUNS else []),
        *(note for note in capture.notes if not capture.lanes),
    ]
    return " · ".join(parts)


def catalogue_names(model: str) -> list[str]:
    """Return the names under which the catalogue knows the model of a run, however its title is spelled."""
    short = _plain(model)
    return [name for name, entry in CATALOGUE.items() if short in (_plain(name), _plain(entry.title))]


def _plain(name: str) -> str:
    return "".join(c for c in name.rsplit("/", 1)[-1].casefold() if c.isalnum())


def tokens_said(capture: Capture) -> str:
    """Return how many tokens the cache holds, and why the text may have one more."""
    held, read = capture.tokens_held, len(capture.token_ids)
    return f"{held:,} tokens" if held == read or not capture.lanes else f"{held:,} of {read:,} tokens stored"


def layers_said(layers: Iterable[int], count: int) -> str:
    """Return which of a model's layers were recorded: all, every third, or how many."""
    layers = tuple(layers)
    if len(layers) == count:
        return "its one layer" if count == 1 else f"all {count} layers"
    steps = {b - a for a, b in zip(layers[:-1], layers[1:], strict=True)}
    if len(steps) == 1 and (step := steps.pop()) in _NTH and len(layers) > 2:
        return f"every {_NTH[step]} layer ({layers[0]}, {layers[1]}, … {layers[-1]}) of {count}"
    return f"{len(layers)} of {count} layers"


_NTH = {2: "second", 3: "third", 4: "fourth"}


def _own() -> dict[str, Own]:
    return st.session_state.setdefault("shelf", {})


def _names() -> list[str]:
    return [n for n in RUNS if (ASSETS / "gallery" / f"{n}.safetensors").is_file()] + list(_own())


def _settle(names: list[str]) -> None:
    """Look at what was asked for since the choice was drawn last; at something that is still here."""
    wanted = st.session_state.pop("look-at", None)
    if wanted in names:
        st.session_state["run"] = wanted
    elif st.session_state.get("run", names[0]) not in names:
        del st.session_state["run"]


def _capture(name: str) -> Capture:
    return _own()[name].capture if name in _own() else _load(name)


@lru_cache(maxsize=len(RUNS))
def _load(name: str) -> Capture:
    return Capture.load(ASSETS / "gallery" / f"{name}.safetensors")
