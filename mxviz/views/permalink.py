"""The address bar always rebuilds the view: it is read when a page is opened, and written as one goes.

At opening, and on the browser's Back and Forward, the address is the truth; otherwise the session is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any
from urllib.parse import urlencode

import streamlit as st
from streamlit.runtime.scriptrunner import get_script_run_ctx

from mxviz._models_catalogue import CATALOGUE
from mxviz.capture import LANES, Capture
from mxviz.figures.theme import THEMES
from mxviz.views import gallery, style
from mxviz.views.permalink_fields import View
from mxviz.views.permalink_table import BOUND, FIELDS, KNOWN, OTHERS

Said = dict[str, list[str]]
"""Names of an address, and their texts."""

MOST_NAMES = 64
"""Names of an address that are looked at."""


def opened(page: str) -> None:
    """Take over what the address says of a page that is about to be drawn; say calmly what it cannot give."""
    state, context = st.session_state, get_script_run_ctx()
    before = state.get("page-open")
    state["page-open"] = page
    if before is None or context.is_history_navigation:
        said = {name: st.query_params.get_all(name) for name in list(st.query_params)[:MOST_NAMES]}
        state["link-wrong"] = _said(read(page, said) if before is None else put(page, said))
        if before is None:
            asked = said.get("theme", [])
            state["link-theme"] = asked[0] if len(asked) == 1 and asked[0] in THEMES else None
    elif before != page:
        state["link-wrong"] = None
        write(seen=False)
    if state.get("link-wrong"):
        st.info(state["link-wrong"], icon=":material/info:")


def read(page: str, said: Said) -> list[str]:
    """Put what an address says of a page into the session; return the names that were not understood.

    Args:
        page: a name of `mxviz.views.permalink_table.FIELDS`.
        said: names and their texts; nothing of it is trusted.
    """
    wrong = [name for name in said if name not in KNOWN and not name.startswith(BOUND)]
    wrong += [name for name, usual in OTHERS.items() if not set(said.get(name, usual)) <= set(usual)]
    asked = [field for field in FIELDS[page] if field.name in said]
    for field in asked:
        texts = said[field.name]
        try:
            view = _view(page)
            if field.of_run and view.capture is None:
                raise ValueError("no run is here")
            if len(texts) > 1 and not field.many:
                raise ValueError(f"{len(texts)} values")
            field.put(view, texts)
        except (ValueError, OverflowError):
            wrong.append(field.name)
    return wrong


def put(page: str, said: Said) -> list[str]:
    """Look at what an address says and at nothing else; as `read`, after what was looked at before."""
    _clear(page)
    return read(page, said)


def write(*, seen: bool = True) -> None:
    """Make the address say what is looked at; nothing where the page is not one of the app's.

    Args:
        seen: whether the page has been drawn; before that only what other pages left is taken away.
    """
    page = st.session_state.get("page-open")
    if page is None:
        return
    held = {name: st.query_params.get_all(name) for name in st.query_params}
    bound = {name: texts for name, texts in held.items() if name.startswith(BOUND)}
    own = {name: texts for name, texts in held.items() if name not in bound}
    wanted = address(page) if seen else {k: v for k, v in own.items() if k in _names(page)}
    if wanted == own:
        return
    if not bound:
        st.query_params.from_dict(wanted)
        return
    for name in own.keys() - wanted.keys():
        del st.query_params[name]
    if changed := {name: texts for name, texts in wanted.items() if own.get(name) != texts}:
        st.query_params.update(changed)


def address(page: str) -> Said:
    """Return what the address of a page says for what is looked at now."""
    view = _view(page)
    linkable = view.run in gallery.RUNS
    found: Said = {"theme": [st.session_state.get("link-theme") or style.own_theme()]}
    found |= {name: texts for name in ("present",) if (texts := st.query_params.get_all(name))}
    for field in FIELDS[page]:
        if (
            (linkable or not field.of_run)
            and (field.name != "run" or linkable)
            and (texts := field.get(view))
        ):
            found[field.name] = texts
    return found


def link(page: str, said: Mapping[str, Any]) -> str:
    """Return an address below the app's own: the page's path and what is said of it."""
    return f"{page}?{urlencode(said, doseq=True)}"


def settings_link(capture: Capture) -> str | None:
    """Return the link to the Run page with the settings of a run; None for a tensor, which has none."""
    if not set(LANES) <= capture.lanes.keys():
        return None
    named = {entry.title: name for name, entry in CATALOGUE.items()}
    first = capture.turns[0].prompt if capture.turns else capture.prompt
    said = {"model": named.get(capture.model, capture.model), "prompt": first}
    said |= {"store": capture.recipe, "against": capture.baseline}
    asked = {"new": "max_new_tokens", "seed": "seed", "temperature": "temperature", "top_p": "top_p"}
    said |= {name: capture.sampling[key] for name, key in asked.items() if key in capture.sampling}
    return link("run", said | ({"raw": "1"} if capture.sampling.get("raw") else {}))


def redrawn() -> None:
    """Make the address right again after a fragment was redrawn alone; the whole page sees to it itself."""
    context = get_script_run_ctx()
    if context is not None and context.fragment_ids_this_run:
        st.session_state["link-wrong"] = None
        write()


def fragment(function: Callable | None = None, **options: Any) -> Callable:
    """`st.fragment` for the fragments of a page: when one is redrawn, the address is right again."""
    if function is None:
        return lambda wrapped: fragment(wrapped, **options)

    @st.fragment(**options)
    @wraps(function)
    def drawn(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        redrawn()
        return result

    return drawn


def _view(page: str) -> View:
    needs = any(field.of_run or field.name == "run" for field in FIELDS[page])
    run, capture = gallery.looked_at() if needs else ("", None)
    return View(run, capture, st.session_state)


def _names(page: str) -> set[str]:
    return {field.name for field in FIELDS[page]} | OTHERS.keys()


def _clear(page: str) -> None:
    """Go back to the defaults, before an address says what differs from them."""
    view = _view(page)
    own = view.run not in gallery.RUNS  # no address can say so, so it stays
    for field in FIELDS[page]:
        if not own or not (field.of_run or field.name == "run"):
            field.reset(view)


def _said(wrong: list[str]) -> str | None:
    """Say which names were not understood; names that are not ours are not repeated."""
    ours = [f"`{name}`" for name in wrong if name in KNOWN]
    others = ["a name that no page has"] if len(ours) < len(wrong) else []
    if not wrong:
        return None
    return (
        f"A part of this link means nothing here: {', '.join([*ours, *others])}. "
        "What is usual stands in its place."
    )
