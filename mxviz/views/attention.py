"""Attention: where one query looks under three kinds of keys, and what its head hands on."""

from __future__ import annotations

import streamlit as st

from mxviz._pictures_attention import attention_picture, default_query, head_errors_picture, opening_words
from mxviz.attention import query_layers
from mxviz.capture import Capture
from mxviz.figures import Figure, alt_text
from mxviz.figures.labels import visible
from mxviz.views import glossary, permalink, place, style

ABOUT = (
    "Every bar is the share of its attention that one query of one head gives to one token, three times: "
    "over the keys as they are, over micro-scaled ones, over those with one scale. Below is what changed. "
    "The query is the exact model's own, so this is the damage of one layer's cache alone; the share that "
    "went elsewhere is the total variation distance, half the sum of all differences. The output error "
    "counts the quantized values too."
)


@permalink.fragment
def section(capture: Capture, run: str, width: int) -> None:
    """Choose a layer, a query head and a query; draw its attention, and the output error of all heads.

    Args:
        capture: the run.
        run: its name, so that every run remembers where one looked.
        width: CSS pixels to lay figures out for.
    """
    if not query_layers(capture):
        st.info(
            "No queries were recorded in this run, so attention cannot be drawn. Runs of models record some."
        )
        return
    layer, head, position = _query(capture, run)
    recipe, baseline = _looked_through(capture, run)
    options = {"recipe": recipe, "baseline": baseline, "theme": style.theme().name, "width": width}
    _chart(
        attention_picture(capture, layer=layer, query_head=head, position=position, **options), "attention"
    )
    with st.expander("Attention: what am I seeing?"):
        st.write(ABOUT)
    _chart(head_errors_picture(capture, layer=layer, **options), "head-errors")
    held = ", ".join(map(str, query_layers(capture)))
    st.caption(f"{opening_words(capture, layer)} Queries were recorded for layers {held}.")


def _query(capture: Capture, run: str) -> tuple[int, int, int]:
    layers = query_layers(capture)
    at, head, position = st.columns([1.5, 1, 2.5], vertical_alignment="top")
    looked = place.get(capture, run).layer
    own = default_query(capture, looked if looked in layers else None)
    layer = at.segmented_control("Layer", layers, default=own[0], required=True, key=f"attention-layer-{run}")
    first = default_query(capture, layer)[1]
    heads = capture.queries[layer].shape[0]
    shared = heads // capture.part("key", layer).shape[0]
    query_head = head.selectbox(
        "Query head",
        range(heads),
        first,
        key=f"attention-head-{run}-{layer}",
        format_func=lambda i: f"{i} (KV head {i // shared})",
        help=glossary.means("query head", "KV head"),
    )
    token = position.select_slider(
        "Asked by token",
        range(capture.tokens_held),
        capture.tokens_held - 1,
        format_func=lambda i: f"{i} {visible(capture.token_texts[i])[:24]}",
        key=f"attention-position-{run}",
    )
    return layer, query_head, token


def _looked_through(capture: Capture, run: str) -> tuple[str, str]:
    """Return the recipe and baseline that the other pages' switches are set to, else the run's own."""
    choice = st.session_state.get("looks", {}).get(run)
    if choice is None:
        return capture.recipe, capture.baseline
    return choice.recipe, choice.baseline


def _chart(figure: Figure, name: str) -> None:
    st.plotly_chart(
        figure, theme=None, width="stretch", key=f"figure-{name}", alt=alt_text(figure), config=style.CHART
    )
