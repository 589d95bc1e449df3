"""The lesson's texts, read from assets/lesson: a title, what to look at, a question, the answer and why."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from mxviz._paths import ASSETS
from mxviz._pictures_lesson_words import literal_markdown


class Question(NamedTuple):
    """A question, its answers, which one is right (None where a run tells), and what is said afterwards."""

    ask: str
    options: tuple[str, ...]
    right: int | None
    told: str = ""


class Text(NamedTuple):
    """A step's text as written, with {names} where numbers go; Markdown."""

    title: str
    intro: str
    question: Question
    reveal: str
    why: str
    source: str


@lru_cache(maxsize=16)
def read(name: str) -> Text:
    """Read a step's text.

    Raises:
        ValueError: for a file that is not there or lacks a part.
    """
    title, intro, parts = _parts(name)
    missing = {"Predict", "Reveal", "Why", "Source"} - parts.keys()
    if missing:
        raise ValueError(f"assets/lesson/{name}.md has no part {sorted(missing)[0]!r}")
    rest = (parts[part] for part in ("Reveal", "Why", "Source"))
    return Text(title, intro, _question(parts["Predict"]), *rest)


@lru_cache(maxsize=2)
def questions(name: str) -> tuple[str, tuple[Question, ...]]:
    """Return the title and the questions of the check at the end."""
    title, _, parts = _parts(name)
    return title, tuple(map(_question, parts.values()))


@lru_cache(maxsize=4)
def plain(name: str) -> str:
    """Return a text that is shown as it is."""
    return (ASSETS / "lesson" / f"{name}.md").read_text(encoding="utf-8")


def fill(text: str, words: Mapping[str, str]) -> str:
    """Put words where the text has {names}; nothing in them is markup."""
    return text.format_map({name: literal_markdown(word) for name, word in words.items()})


def _parts(name: str) -> tuple[str, str, dict[str, str]]:
    """Return a file's title, what stands below it, and its parts by name."""
    try:
        whole = plain(name)
    except OSError:
        raise ValueError(f"no text {name!r} in {ASSETS / 'lesson'}") from None
    head, *parts = re.split(r"^## ", whole, flags=re.MULTILINE)
    title, _, intro = head.strip().partition("\n")
    named = (part.partition("\n") for part in parts)
    return title.removeprefix("# "), intro.strip(), {key.strip(): text.strip() for key, _, text in named}


def _question(part: str) -> Question:
    """Read a question: lines of `- answer`, the right one `- [x] answer`, and `> told` afterwards."""
    lines = part.splitlines()
    answers = [line.removeprefix("- ") for line in lines if line.startswith("- ")]
    told = " ".join(line.removeprefix("> ") for line in lines if line.startswith(">"))
    ask = "\n".join(line for line in lines if line and not line.startswith(("- ", ">")))
    right = next((i for i, answer in enumerate(answers) if answer.startswith("[x] ")), None)
    return Question(ask, tuple(answer.removeprefix("[x] ") for answer in answers), right, told)
