"""Ask on: the next turn of a run, on the caches it left, and what each turn held and cost."""

from __future__ import annotations

from dataclasses import replace

import streamlit as st
from streamlit.runtime.scriptrunner import get_script_run_ctx

from mxviz.capture import LANES, Capture
from mxviz.views import gallery, jobs, lanes
from mxviz.views.keeper import KEEPER
from mxviz.views.limits import limits


def take(job: jobs.Job) -> None:
    """Look at what a finished job recorded, and keep its conversation: one a session."""
    talk = st.session_state.get("talk") or {}
    goes_on = talk.get("conversation") is job.conversation
    number = talk["number"] if goes_on else st.session_state.get("asked", 0) + 1
    st.session_state["asked"] = number
    KEEPER.keep(job.conversation, get_script_run_ctx().session_id, job.model)
    name = gallery.keep(f"Your run {number}", job.capture, talk["name"] if goes_on else None)
    st.session_state["talk"] = {
        "name": name,
        "number": number,
        "model": job.model,
        "conversation": job.conversation,
    }


def end() -> None:
    """Free the caches of the conversation, if there is one."""
    talk = st.session_state.pop("talk", None)
    if talk is not None and talk["conversation"] is not None:
        talk["conversation"].close()


def panel(name: str, capture: Capture) -> None:
    """Draw the turns of a run and, where its caches are still held, the place to ask on."""
    if len(capture.turns) > 1:
        _table(capture)
        with st.expander(f"Earlier turns ({len(capture.turns) - 1})"):
            for turn in capture.turns[:-1]:
                lanes.show_turn(turn, capture)
    talk = st.session_state.get("talk")
    if talk is None or talk["name"] != name:
        return
    if talk["conversation"] is None or not talk["conversation"].is_open:
        st.caption("The caches of this run were freed: press Generate to start anew.")
        return
    with st.container():  # in a container it stands here and not at the foot of the window
        words, most = "Ask on: each lane goes on from its own answer", limits().prompt_characters
        prompt = st.chat_input(words, key="ask-on", max_chars=most)
    if prompt and prompt.strip():
        conversation = talk["conversation"]
        st.session_state["error"] = None
        settings = replace(conversation.settings, prompt=prompt)
        st.session_state["job"] = jobs.start(talk["model"], settings, conversation)
        st.rerun()


def _table(capture: Capture) -> None:
    """What each turn left in the caches, and where it parted from the exact text."""
    turns = capture.turns
    table = {
        "turn": list(range(1, len(turns) + 1)),
        "tokens held": [turn.tokens_held.get("exact") for turn in turns],
    }
    for lane, words in _WORDS.items():
        table[f"{words}, KiB"] = [round(turn.stored_bytes.get(lane, 0) / 1024) for turn in turns]
    for lane in LANES[1:]:
        table[f"{_WORDS[lane]} differs"] = [_parted(turn.first_divergence(lane)) for turn in turns]
    table["asked"] = [
        turn.prompt for turn in turns
    ]  # last: on a phone the numbers are what should be in sight
    st.dataframe(table, hide_index=True, width="stretch", key="turns")
    st.caption(
        "A turn's tokens stay in the caches for the next. From the second turn on each lane has read its own "
        "earlier answers, so its text parts from the exact one for that reason too. Uncompressed is counted "
        "in bfloat16."
    )


_WORDS = {"exact": "uncompressed", "micro": "micro-scaled", "single": "one scale"}


def _parted(index: int | None) -> str:
    return "nowhere" if index is None else f"from token {index + 1}"
