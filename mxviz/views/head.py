"""One KV head in four maps over the same tokens; click a block, or choose it with the keyboard."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import streamlit as st

from mxviz import _pictures_head as pictures
from mxviz._pictures_rulers import see_block
from mxviz.capture import Capture
from mxviz.figures import alt_text
from mxviz.figures.labels import visible
from mxviz.outliers import layer_channel_outliers
from mxviz.page import literal
from mxviz.views import place, style
from mxviz.views.overview import point
from mxviz.views.switches import Look

MOST_TOKENS = 512
"""Tokens in sight at first; more of them would be narrower than two pixels."""

_head = lru_cache(maxsize=8)(pictures.head)
_cuts = lru_cache(maxsize=16)(pictures.cuts)


@place.figure("head")
def show(look: Look, run: str, width: int) -> None:
    """Draw the head that is open: its four maps, and the choice of the tokens in sight."""
    seen = place.get(look.capture, run)
    st.html(
        f'<div class="mx-section"><h2>One head</h2><p>Layer {seen.layer}, KV head {seen.head}, '
        f"{seen.part}s. Click a block in the map of scales to open it; drag in any map to zoom all four."
        "</p></div>"
    )
    where = (look.capture, seen.layer, seen.head, seen.part)
    block = see_block(*where, seen.token, seen.channel, look.recipe, look.baseline)
    figure = _head(
        *where,
        token=int(block.tokens[0]),  # one picture for every value of a block
        channel=int(block.channels[0]),
        targets=True,
        window=_window(look.capture, run, seen.token),
        **_through(look, width),
    )
    st.plotly_chart(
        figure,
        theme=None,
        width="stretch",
        key="figure-head",
        alt=alt_text(figure),
        config=style.CHART,
        on_select=lambda: _clicked(look, run),
        selection_mode="points",
    )
    if look.frozen:
        st.caption("Here the one scale knows every token: kinder than one that the prompt froze.")


@place.figure("layer")
def show_layer(look: Look, run: str, width: int) -> None:
    """Draw which way to cut the open head's layer, and list the head's outlier channels."""
    seen = place.get(look.capture, run)
    cuts = _cuts(look.capture, seen.layer, seen.part, **_through(look, width))
    st.plotly_chart(
        cuts, theme=None, width="stretch", key="figure-cuts", alt=alt_text(cuts),
        config={"displayModeBar": False},
    )  # fmt: skip
    with st.expander("Outlier channels of this head"):
        _list_outliers(look.capture, seen)


def _through(look: Look, width: int) -> dict[str, Any]:
    return {"recipe": look.recipe, "baseline": look.baseline, "theme": style.theme().name, "width": width}


def _window(capture: Capture, run: str, token: int) -> tuple[int, int] | None:
    """Draw the choice of the tokens in sight; it follows the value that is looked at."""
    last = capture.tokens_held - 1
    if last < 1:
        return None
    windows, key = st.session_state.setdefault("windows", {}), f"window-{run}"
    first, end = windows.get(run, (0, min(last, MOST_TOKENS - 1)))
    first, end = min(first, last), min(end, last)
    if not first <= token <= end:
        reach = end - first
        first = max(0, min(token - reach // 2, last - reach))
        end = first + reach
    windows[run] = st.session_state[key] = (first, end)
    st.slider(
        "Tokens shown",
        0,
        last,
        key=key,
        on_change=lambda: (windows.update({run: st.session_state[key]}), place.redraw("head")),
    )
    return (first, end) if end > first else None


def _clicked(look: Look, run: str) -> None:
    """Open the block that was clicked, at its largest value."""
    cell = point("figure-head")
    if not cell:
        return
    seen = place.get(look.capture, run)
    where = (look.capture, seen.layer, seen.head, seen.part)
    block = see_block(*where, int(cell[0]), int(cell[1]), look.recipe, look.baseline)
    at = int(abs(block.x).argmax())
    place.put(look.capture, run, token=int(block.tokens[at]), channel=int(block.channels[at]))
    place.redraw("head", "block")


def _list_outliers(capture: Capture, seen: place.Place) -> None:
    """List the outlier channels of the head, with the token at which each peaks."""
    x = capture.part(seen.part, seen.layer)
    rows = [row for row in layer_channel_outliers(x, seen.part, seen.layer) if row.head == seen.head]
    if not rows:
        st.caption("None: no channel peaks at ten times the layer's median and stays high.")
        return
    lines = []
    for row in sorted(rows, key=lambda row: -row.amax):
        peak = int(x[row.head, :, row.channel].float().abs().nan_to_num(0.0, 0.0, 0.0).argmax())
        text = visible(capture.token_texts[peak])
        partner = "" if row.partner is None else f"; RoPE turns it with channel {row.partner}"
        lines.append(
            f"<li><b>channel {row.channel}</b> peaks at {row.amax:.4g}, {row.ratio_to_median:.0f} times the "
            f"median, at token {peak} ({literal(text)}), and is high at {row.share_of_tokens:.0%} of the "
            f"tokens{partner}</li>"
        )
    st.html(f"<ul>{''.join(lines)}</ul>")
