"""The check at the end of the lesson: five questions, answers explained, a score, and the sources."""

from __future__ import annotations

import streamlit as st

from mxviz._pictures_lesson_words import facts
from mxviz.capture import Capture
from mxviz.page import literal
from mxviz.views import lesson_text

_CHECKED = "lesson-checked"


def show(name: str, wild: Capture, mild: Capture, size: dict) -> None:
    """Draw the questions and, once they are checked, the score and every answer.

    Args:
        name: of the text in assets/lesson; the rest is that of `mxviz.views.lesson_steps.show`.
    """
    words, checked = facts(name, wild, mild).words, st.session_state.setdefault(_CHECKED, False)
    title, questions = lesson_text.questions(name)
    st.html(f"<h1>{literal(title)}</h1>")
    given = [_question(i, question, words, checked) for i, question in enumerate(questions)]
    right = sum(answer == question.right for answer, question in zip(given, questions, strict=True))
    if checked:
        st.html(f'<p class="mx-verdict">{right} of {len(questions)} right</p>')
        st.button("Try again", key="lesson-again", on_click=_set, args=(False,))
    else:
        st.button(
            "Check my answers", key="lesson-check", type="primary", disabled=None in given,
            on_click=_set, args=(True,),
        )  # fmt: skip
    with st.expander("Sources"):
        st.markdown(lesson_text.plain("sources"))


def _set(checked: bool) -> None:
    st.session_state[_CHECKED] = checked


def _question(i: int, question: lesson_text.Question, words: dict[str, str], checked: bool) -> int | None:
    """Draw a question, and what is said of it once it is checked; return the answer given."""
    options = [lesson_text.fill(option, words) for option in question.options]
    answer = st.radio(
        f"**{i + 1}.** {lesson_text.fill(question.ask, words)}",
        range(len(options)),
        index=None,
        format_func=lambda chosen: options[chosen],
        key=f"lesson-check-{i + 1}",
        persist_state="session",
        disabled=checked,
    )
    if checked:
        mark = "✓ Right." if answer == question.right else f"✗ It is: {options[question.right]}."
        st.markdown(f"**{mark}** {lesson_text.fill(question.told, words)}")
    return answer
