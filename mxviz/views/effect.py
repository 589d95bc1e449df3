"""Did it matter? What a quantized cache did to every forecast, to attention, and layer by layer."""

from __future__ import annotations

import streamlit as st

from mxviz._page_effect import MOST_TOKENS, kl_stylesheet, legend_html, text_html, window_around
from mxviz._pictures_effect import divergence_picture, effect_sentence, effect_view, has_effect, worst_token
from mxviz.capture import Capture
from mxviz.figures import alt_text
from mxviz.page import capture_lanes_html, literal, prompt_html
from mxviz.views import attention, gallery, permalink, sensitivity, style, viewport


def page() -> None:
    """Draw the page."""
    st.html(
        '<header class="mx-head"><h1>Did it matter?</h1>'
        "<p>A wrong number in a cache is no harm in itself. What counts is whether attention looks elsewhere "
        "and whether the next word becomes another one: that is measured here, beside the error.</p></header>"
    )
    width = viewport.width()
    run, capture = gallery.chosen()
    if capture is None:
        st.info("No recorded run is here. Fill a cache on the first page; what it did appears here.")
        return
    view = st.segmented_control(
        "See", list(_SECTIONS), default=next(iter(_SECTIONS)), required=True, key="effect-see"
    )
    _SECTIONS[view](capture, run, width)


@permalink.fragment
def words(capture: Capture, run: str, width: int) -> None:
    """Show the text coloured by KL, KL at every token, and the three texts.

    Args:
        capture: the run.
        run: its name, for what is remembered of it.
        width: CSS pixels to lay figures out for.
    """
    if not has_effect(capture):
        st.info("No effect was measured here: the run was stopped, or this is a tensor and not a run.")
        return
    view = effect_view(capture)
    st.html(f"<style>{kl_stylesheet(style.theme())}</style>")
    st.html(f'<div class="mx-section"><h2>{literal(effect_sentence(view))}</h2></div>')
    lanes = st.segmented_control(
        "Cache", list(_LANES), default="both", format_func=_LANES.get, required=True, key="effect-lane"
    )
    schemes = {"micro": capture.recipe, "single": capture.baseline}
    window = _window(view, run)
    st.html(
        text_html(view, {n: s for n, s in schemes.items() if lanes in (n, "both")}, window) + legend_html()
    )
    figure = divergence_picture(capture, theme=style.theme().name, width=width, window=window)
    st.plotly_chart(
        figure, theme=None, width="stretch", key="figure-divergence", alt=alt_text(figure), config=style.CHART
    )
    with st.expander("KL at every token: what am I seeing?"):
        st.write(ABOUT)
    st.html('<div class="mx-section"><h2>Three texts, and where they part</h2></div>')
    st.html(prompt_html(capture.prompt) + capture_lanes_html(capture))
    st.caption("One different token says little: greedy texts part at the first near-tie.")


ABOUT = (
    "Each stem is how far the quantized model's forecast of one token lies from the exact model's, in nats "
    "on a logarithmic axis: 0 is the exact model. A filled diamond marks a token for which another first "
    "choice came out on top. All is measured over the exact text, every position attending to quantized keys "
    "and values, so that one early slip does not spoil what follows."
)
_LANES = {"micro": "micro-scaled", "single": "one scale", "both": "both"}


def _window(view, run: str) -> tuple[int, int]:
    """Return the tokens in sight; of a long text, those around the worst token or a chosen one."""
    count = len(view.tokens)
    if count <= MOST_TOKENS:
        return 0, count - 1
    worst = worst_token(view)
    token = st.number_input("Around token", 0, count - 1, worst, key=f"effect-token-{run}")
    window = window_around(count, int(token))
    st.caption(
        f"Tokens {window[0]:,} to {window[1]:,} of {count:,} are shown; the forecast of token {worst:,} "
        "was moved furthest."
    )
    return window


_SECTIONS = {"Words": words, "Attention": attention.section, "Layer by layer": sensitivity.section}
