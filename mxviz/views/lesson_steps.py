"""One step of the lesson: a title, a picture, a guess; and behind the guess the answer and why."""

from __future__ import annotations

from collections.abc import Callable

import streamlit as st

from mxviz import _lesson_saboteur as saboteur
from mxviz import _pictures_lesson as pictures
from mxviz import lesson
from mxviz._pictures_lesson_words import MODEL, PREDICTED, Facts, facts, literal_markdown
from mxviz.capture import Capture
from mxviz.figures import Figure, alt_text
from mxviz.page import capture_lanes_html, literal, prompt_html
from mxviz.views import lesson_cook, lesson_text

LENGTHS = (4_000, 16_000, 64_000, 128_000, 256_000, 1_000_000)
"""Tokens that the bowl can be filled with."""

_PARTS = ("intro", "reveal", "why", "source")

NEAR = 2
"""A guessed number that is no further off counts as right."""

STAGE_HEIGHT = 400
"""CSS pixels of a figure on a slide, before the slide is enlarged: the lower it is, the larger its type."""

_CONFIG = {"displaylogo": False, "displayModeBar": False}


def show(name: str, wild: Capture, mild: Capture, size: dict) -> None:
    """Draw a step.

    Args:
        name: of its text in assets/lesson.
        wild: the run with an outlier channel; mild: the other one.
        size: theme and width of its figure.
    """
    text, known = lesson_text.read(name), facts(name, wild, mild)
    told = {part: lesson_text.fill(getattr(text, part), known.words) for part in _PARTS}
    revealed = st.session_state.setdefault(f"lesson-revealed-{name}", False)
    st.html(f"<h1>{literal(text.title)}</h1>")
    st.markdown(told["intro"])
    _PICTURES[name](wild, mild, revealed, size)
    st.markdown(f"**Your guess.** {lesson_text.fill(text.question.ask, known.words)}")
    options = _options(text.question, known)
    guess = _guess(name, options, revealed)
    right = text.question.right if known.right is None else known.right
    if not revealed:
        st.button(
            "Reveal", key=f"lesson-reveal-{name}", type="primary", disabled=guess is None,
            on_click=_set, args=(name, True),
        )  # fmt: skip
        return
    st.html(f'<p class="mx-verdict">{literal(verdict(guess, right, not options))}</p>')
    st.markdown(told["reveal"])
    st.markdown(f"### Why\n{told['why']}")
    st.caption(f"Source: {told['source']}")
    st.button(
        "Hide the answer again", key=f"lesson-hide-{name}", type="tertiary", on_click=_set, args=(name, False)
    )


def show_on_stage(name: str, wild: Capture, mild: Capture, size: dict) -> None:
    """Draw a step as a slide: the picture, and the question or its answer."""
    text, known = lesson_text.read(name), facts(name, wild, mild)
    revealed = st.session_state.setdefault(f"lesson-revealed-{name}", False)
    if not revealed:
        st.html(f"<h1>{literal(text.title)}</h1>")
    try:
        _PICTURES[name](wild, mild, revealed, size | {"height": STAGE_HEIGHT})
    except ValueError:  # this one needs more, and will be enlarged less
        _PICTURES[name](wild, mild, revealed, size)
    if revealed:
        st.markdown(lesson_text.fill(text.reveal, known.words))
        return
    st.markdown(f"**{lesson_text.fill(text.question.ask, known.words)}**")
    st.markdown(" · ".join(_options(text.question, known)))


def _set(name: str, revealed: bool) -> None:
    st.session_state[f"lesson-revealed-{name}"] = revealed


def _options(question: lesson_text.Question, known: Facts) -> list[str]:
    """Return the answers to choose from, as Markdown; none where a number of values is to be guessed."""
    if known.options:
        return [literal_markdown(option) for option in known.options]
    return [lesson_text.fill(option, known.words) for option in question.options]


def _guess(name: str, options: list[str], revealed: bool) -> int | None:
    """Draw the choice or the slider; return the index of the answer, or the number."""
    common = {"key": f"lesson-guess-{name}", "persist_state": "session", "disabled": revealed}
    if not options:
        return st.slider("How many become zero?", 0, saboteur.BLOCK, saboteur.BLOCK // 2, **common)
    return st.radio(
        "Choose one", range(len(options)), index=None, format_func=lambda i: options[i],
        label_visibility="collapsed", **common,
    )  # fmt: skip


def verdict(guess: int | None, right: int, counted: bool) -> str:
    """Say how a guess went.

    Args:
        guess: index of an answer, or a number; None where nothing was guessed.
        right: the same of the right answer.
        counted: whether these are numbers of values.
    """
    if guess is None:
        return "No guess this time."
    if not counted:
        return "✓ You guessed right." if guess == right else "✗ You guessed something else."
    off = abs(guess - right)
    near = "exactly right" if not off else "close" if off <= NEAR else f"{off} off"
    return f"{'✓' if off <= NEAR else '✗'} You guessed {guess}, it is {right}: {near}."


def _chart(figure: Figure, name: str) -> None:
    st.plotly_chart(
        figure, theme=None, width="stretch", key=f"figure-lesson-{name}", alt=alt_text(figure), config=_CONFIG
    )


# --- one function a picture: before the guess, and after it with what can be moved -----------------


def _taste(wild: Capture, mild: Capture, revealed: bool, size: dict) -> None:
    _chart(pictures.look_back_picture(wild, hidden=not revealed, **size), "taste")


def _cook(wild: Capture, mild: Capture, revealed: bool, size: dict) -> None:
    _chart(pictures.passes_picture(hidden=not revealed, **size), "cook")
    if revealed:
        lesson_cook.section(size)


def _bowl(wild: Capture, mild: Capture, revealed: bool, size: dict) -> None:
    place, model, tokens = st.container(), MODEL, LENGTHS[0]
    if revealed:
        left, right = st.columns(2)
        model = left.selectbox("Model", list(lesson.MODELS), 2, key="lesson-model", persist_state="session")
        tokens = right.select_slider(
            "Tokens held", LENGTHS, 128_000, key="lesson-tokens", format_func="{:,}".format,
            persist_state="session",
        )  # fmt: skip
    with place:
        _chart(pictures.memory_picture(model, tokens, **size), "bowl")


def _squash(wild: Capture, mild: Capture, revealed: bool, size: dict) -> None:
    _chart(pictures.ticks_picture(hidden=not revealed, **size), "squash")


def _saboteur(wild: Capture, mild: Capture, revealed: bool, size: dict) -> None:
    place, times = st.container(), saboteur.TIMES[0]
    if revealed:
        times = st.select_slider(
            "One neighbour is multiplied by", saboteur.TIMES, saboteur.TIMES[-1], key="lesson-times",
            format_func="× {}".format, persist_state="session",
        )  # fmt: skip
    with place:
        _chart(pictures.sabotage_picture(wild, times, **size), "saboteur")


def _rulers(wild: Capture, mild: Capture, revealed: bool, size: dict) -> None:
    place, rulers = st.container(), saboteur.RULERS[0]
    if revealed:
        rulers = st.select_slider(
            "Rulers for the block", saboteur.RULERS, PREDICTED, key="lesson-rulers", persist_state="session"
        )
    with place:
        _chart(pictures.personal_picture(wild, rulers, **size), "rulers")


def _cut(wild: Capture, mild: Capture, revealed: bool, size: dict) -> None:
    _chart(pictures.cut_picture(wild, hidden=not revealed, **size), "cut")


def _matter(wild: Capture, mild: Capture, revealed: bool, size: dict) -> None:
    if revealed:
        _chart(pictures.effect_picture(wild, **size), "matter")
    with st.expander("The three texts", expanded=not revealed):
        st.html(prompt_html(wild.prompt) + capture_lanes_html(wild))


_PICTURES: dict[str, Callable[[Capture, Capture, bool, dict], None]] = {
    **{"1-taste": _taste, "2-cook": _cook, "3-bowl": _bowl, "4-squash": _squash},
    **{"5-saboteur": _saboteur, "6-rulers": _rulers, "7-cut": _cut, "8-matter": _matter},
}
