"""The planner: what a cache takes at any length, and how long a context fits on a card."""

from __future__ import annotations

import streamlit as st

from mxviz import _pictures_planner as pictures
from mxviz._pictures_planner_sum import formula
from mxviz.figures import alt_text
from mxviz.page import literal
from mxviz.views import planner_choice, style, viewport

_BIG = "font-size:clamp(1.3rem,2.7vw,2rem);line-height:1.3;font-weight:600;margin:0.6rem 0 0.2rem"


def page() -> None:
    """Draw the page."""
    st.html(
        '<header class="mx-head"><h1>How long a context fits?</h1>'
        "<p>The weights of a model stay as they are; its KV cache grows with every token of every sequence "
        "until the card is full. Choose a model, a length and a card, and see what fewer bits in the cache "
        "buy.</p></header>"
    )
    plan_with(viewport.width())


@st.fragment
def plan_with(width: int) -> None:
    """Ask for a model, a recipe, a context and a card; answer in a sentence, a figure and a sum.

    Args:
        width: CSS pixels to lay the figure out for.
    """
    try:
        chosen = planner_choice.choose()
        pieces = pictures.answer(chosen.plan)
    except ValueError as error:
        st.info(_line(error), icon=":material/info:")
        return
    st.html(f'<p style="{_BIG}">{"".join(_coloured(text, lane) for text, lane in pieces)}</p>')
    st.html(f'<p class="mx-key"><span>{literal(" ".join(_beside(chosen)))}</span></p>')
    figure = pictures.planner_picture(chosen.plan, theme=style.theme().name, width=width)
    st.plotly_chart(
        figure, theme=None, width="stretch", key="figure-planner", alt=alt_text(figure), config=style.CHART
    )
    with st.expander("What am I seeing?"):
        st.write(pictures.ABOUT)
    _sum(chosen)


def _coloured(text: str, lane: str) -> str:
    if not lane:
        return literal(text)
    return f'<span class="mx-{lane}" style="color:var(--lane)">{literal(text)}</span>'


def _beside(chosen: planner_choice.Chosen) -> list[str]:
    """What belongs to the answer in small print: the weights' source, and the model's own limit."""
    plan = chosen.plan
    said = [chosen.weights_from] if chosen.weights_from else []
    if plan.weights is None:
        said.append("How large the weights are is not known here: say it under More.")
    fits = max((lane.fits or 0 for lane in pictures.lanes(plan)), default=0)
    if plan.context and max(plan.tokens, fits) > plan.context:
        said.append(
            f"{plan.title} was made for {plan.context:,} tokens: beyond that, memory is not what limits it."
        )
    return said


def _sum(chosen: planner_choice.Chosen) -> None:
    """Write the sum with its numbers, and where they come from."""
    lines = "".join(f"<p>{literal(line)}</p>" for line in [*formula(chosen.plan), *chosen.notes])
    st.html(f'<div class="mx-section"><h2>The sum, to the byte</h2>{lines}</div>')
    st.caption(planner_choice.PROVENANCE)


def _line(error: ValueError) -> str:
    return " ".join(str(error).split()).replace("$", r"\$")
