"""One block between two rulers, down to the bits of one value."""

from __future__ import annotations

from functools import lru_cache, partial

import streamlit as st

from mxviz import _pictures_rulers as pictures
from mxviz.blocks import BlockView
from mxviz.capture import Capture
from mxviz.figures import alt_text
from mxviz.figures.labels import shorten
from mxviz.page import literal
from mxviz.views import place, style
from mxviz.views.overview import follow, point
from mxviz.views.switches import Look

ZOOMS = {True: "close up", False: "whole rulers"}

_rulers = lru_cache(maxsize=32)(pictures.rulers)


@place.figure("block")
def show(look: Look, run: str, width: int) -> None:
    """Draw the block that is open, the numbers of its rulers, and every value of it."""
    capture, seen = look.capture, place.get(look.capture, run)
    st.html(
        '<div class="mx-section"><h2>One block, two rulers</h2><p>Every mark is a number the ruler can '
        "hold. Click a value, or walk through the table with the arrow keys.</p></div>"
    )
    where = (capture, seen.layer, seen.head, seen.part, seen.token, seen.channel, look.recipe, look.baseline)
    view = pictures.see_block(*where)
    near = _controls(view, capture, run, seen)
    figure = _rulers(*where, near=near, theme=style.theme().name, width=width)
    st.plotly_chart(
        figure,
        theme=None,
        width="stretch",
        key="figure-rulers",
        alt=alt_text(figure),
        config=style.CHART,
        on_select=lambda: _clicked(view, capture, run),
        selection_mode="points",
    )
    st.html(_cards(view))
    _table(view, capture, run)
    st.caption(
        f"You are at layer {seen.layer}, KV head {seen.head}, {seen.part}s, token {seen.token}, "
        f"channel {seen.channel}; the other pages open there too."
    )


def _controls(view: BlockView, capture: Capture, run: str, seen: place.Place) -> bool:
    look_at = partial(_look_at, view)
    _, tokens, channels = capture.part(seen.part, seen.layer).shape
    left, middle, right = st.columns([1, 1, 1.4], vertical_alignment="bottom")
    with left:
        text = shorten(capture.token_texts[seen.token], 18).replace("$", r"\$")
        follow(
            st.number_input, "Token", capture, run, "token", look_at, min_value=0, max_value=tokens - 1,
            help=f"The text of token {seen.token}, spaces as ·: `{text.replace('`', '‵')}`",
        )  # fmt: skip
    with middle:
        follow(
            st.number_input, "Channel", capture, run, "channel", look_at,
            min_value=0, max_value=channels - 1,
        )  # fmt: skip
    with right:
        return st.segmented_control(
            "Zoom", list(ZOOMS), default=True, required=True, key="zoom", format_func=ZOOMS.get,
            on_change=lambda: place.redraw("block"),
        )  # fmt: skip


def _clicked(view: BlockView, capture: Capture, run: str) -> None:
    if value := point("figure-rulers"):
        _go(view, capture, run, int(value[0]))


def _go(view: BlockView, capture: Capture, run: str, at: int) -> None:
    _look_at(view, capture, run, token=int(view.tokens[at]), channel=int(view.channels[at]))


def _look_at(view: BlockView, capture: Capture, run: str, **where: int) -> None:
    """Look at another value; where it lies in another block, the head's frame follows."""
    place.put(capture, run, **where)
    seen = place.get(capture, run)
    here = seen.token in view.tokens and seen.channel in view.channels
    place.redraw("block", *([] if here else ["head"]))


def _cards(view: BlockView) -> str:
    """Return the numbers of both rulers as HTML, each with something to hold it against."""
    cards = "".join(
        f'<section class="mx-card"><h4>{literal(title)}</h4>'
        f'<p class="mx-micro" title="its own scale">{literal(own)}</p>'
        f'<p class="mx-single" title="one scale">{literal(one)}</p><p class="mx-ref">{literal(reference)}</p>'
        "</section>"
        for title, own, one, reference in pictures.cards(view)
    )
    return (
        f'<div class="mx-cards">{cards}</div><p class="mx-key"><span class="mx-micro">■ its own scale</span> '
        f'<span class="mx-single">■ one scale</span> <span>{literal(pictures.value_words(view))}</span></p>'
    )


def _table(view: BlockView, capture: Capture, run: str) -> None:
    """List every value of the block; the row that is walked to is the value that is looked at."""
    columns = pictures.table(view)
    formats = {name: st.column_config.NumberColumn(format="%.4g") for name in columns if "reads" in name}
    formats |= {name: st.column_config.NumberColumn(format="%.4g") for name in columns if "value" in name}
    formats |= {name: st.column_config.NumberColumn(format="%.1f %%") for name in columns if "error" in name}
    st.dataframe(
        columns,
        hide_index=True,
        column_config=formats,
        width="stretch",
        height=300,
        key="block-table",
        on_select=lambda: _walked(view, capture, run),
        selection_mode="single-cell",
    )


def _walked(view: BlockView, capture: Capture, run: str) -> None:
    cells = st.session_state["block-table"]["selection"]["cells"]
    if cells and 0 <= cells[0][0] < len(view.x):
        _go(view, capture, run, int(cells[0][0]))
