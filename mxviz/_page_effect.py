"""Coloured token text: each token on a background that tells how far its forecast was moved.

Everything a model wrote goes through `literal`. Colour is never alone: another first choice is underlined,
and each token's numbers stand in its title.
"""

from __future__ import annotations

import html

import numpy as np

from mxviz._pictures_effect import EffectView, lane_numbers, share
from mxviz.figures._nats import CEILING, PALEST, SHADES, plain, shade_of, shades
from mxviz.figures.theme import Theme
from mxviz.page import TITLES, literal

MOST_TOKENS = 600
"""Tokens of a text that are shown at once."""

_CSS = """
.mx-kl { display: grid; gap: 1.3rem; margin-top: 0.6rem; }
.mx-kl section { border-left: 4px solid var(--lane); padding-left: 1rem; min-width: 0; }
.mx-kl h3 { color: var(--lane); font-size: 1.1rem; margin: 0; padding: 0; }
.mx-kl h3 span { color: var(--muted); font-weight: 400; font-size: 0.9rem; overflow-wrap: anywhere; }
.mx-kl-said { color: var(--ink); font-size: 0.95rem; margin: 0.15rem 0 0.5rem; }
.mx-kl-text { font-size: 1.08rem; line-height: 2.05; margin: 0; }
.mx-kl-text { white-space: pre-wrap; overflow-wrap: anywhere; }
.mx-kl-text span { unicode-bidi: isolate; padding: 0.16em 0; border-radius: 0.12em; }
.mx-kl-text .mx-flip { box-shadow: 0 2px 0 var(--paper), 0 5px 0 var(--ink); border-radius: 0; }
.mx-kl-legend { color: var(--muted); font-size: 0.88rem; margin: 0.9rem 0 0.2rem; max-width: 40rem; }
.mx-kl-legend div { display: flex; justify-content: space-between; }
.mx-kl-legend i { flex: 1; height: 0.8rem; }
.mx-kl-legend .mx-kl-bar { border: 1px solid var(--grid); }
.mx-kl-legend p { margin: 0.3rem 0 0; }
.mx-kl-legend u { color: var(--ink); text-decoration: none; border-bottom: 3px solid var(--ink); }
"""


def kl_stylesheet(theme: Theme) -> str:
    """Return the CSS of coloured text: layout, and a background with its ink for each step of KL."""
    rows = (
        f".mx-k{i} {{ background: {shade.paper}; color: {shade.ink}; }}"
        for i, shade in enumerate(shades(theme))
    )
    return _CSS + "\n".join(rows)


def window_around(count: int, token: int, most: int = MOST_TOKENS) -> tuple[int, int]:
    """Return the first and last token to show of so many: all, or `most` of them around one."""
    first = max(0, min(token - most // 2, count - most))
    return first, min(count, first + most) - 1


def text_html(view: EffectView, schemes: dict[str, str], window: tuple[int, int]) -> str:
    """Return the text once for each lane, coloured by KL.

    Args:
        view: the tables.
        schemes: the lanes to show, in order, each with how its cache is stored.
        window: first and last token to show.
    """
    blocks = "".join(
        f'<section class="mx-{lane}"><h3>{TITLES[lane]} <span>{literal(scheme)}</span></h3>'
        f'<p class="mx-kl-said">{html.escape(lane_numbers(view, lane))}</p>'
        f'<p class="mx-kl-text">{_tokens(view, lane, window)}</p></section>'
        for lane, scheme in schemes.items()
    )
    return f'<div class="mx-kl">{blocks}</div>'


def legend_html() -> str:
    """Return the colour scale with its nats, and what an underline means."""
    bar = "".join(f'<i class="mx-k{i}"></i>' for i in range(SHADES))
    ticks = np.geomspace(PALEST, CEILING, 4)
    said = [plain(tick) for tick in ticks]
    said = [f"≤ {said[0]}", *said[1:-1], f"≥ {said[-1]} nats"]
    return (
        f'<div class="mx-kl-legend"><div class="mx-kl-bar" aria-hidden="true">{bar}</div>'
        f"<div>{''.join(f'<span>{text}</span>' for text in said)}</div>"
        "<p>Colour: KL(exact‖quantized) of the forecast of this token, logarithmic, the same for both. "
        "<u>Underlined</u>: the model's first choice here became another token. "
        "Point at a token for its numbers.</p></div>"
    )


def _tokens(view: EffectView, lane: str, window: tuple[int, int]) -> str:
    return "".join(_token(view, lane, i) for i in range(window[0], window[1] + 1))


def _token(view: EffectView, lane: str, i: int) -> str:
    shade = shade_of(view.kl[lane][i])
    names = [] if shade is None else [f"mx-k{shade}"]
    names += ["mx-flip"] if view.changed[lane][i] else []
    text = literal(view.tokens[i]).replace("\n", "↵\n")
    return f'<span class="{" ".join(names)}" title="{literal(_numbers(view, lane, i))}">{text}</span>'


def _numbers(view: EffectView, lane: str, i: int) -> str:
    """Return what the pointer reads at a token."""
    lines = [f"token {i}"]
    if np.isfinite(view.kl[lane][i]):
        choice = "another first choice" if view.changed[lane][i] else "same first choice"
        lines.append(f"KL {plain(float(view.kl[lane][i]))} nats · {choice}")
    else:
        lines.append("nothing forecasts the first token" if i == 0 else "no KL: not a finite number")
    chances = {n: view.chance[n][i] for n in ("exact", lane) if n in view.chance}
    if chances and all(map(np.isfinite, chances.values())):
        said = (f"{TITLES[n].lower()} {share(float(x))}" for n, x in chances.items())
        lines.append("chance of this token: " + ", ".join(said))
    if view.first[i]:
        lines.append(f"exact first choice: {view.first[i]} {share(float(view.first_chance[i]))}")
    return "\n".join(lines)
