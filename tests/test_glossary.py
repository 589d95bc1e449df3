"""The words of the field: one table, plain text, and every page's list is made of it."""

from __future__ import annotations

import pytest
from streamlit.testing.v1 import AppTest

from mxviz.views import glossary, pages


def test_every_page_has_words_and_every_word_a_page() -> None:
    assert set(glossary.PAGES) == set(pages.PAGES)
    assert {word for words in glossary.PAGES.values() for word in words} == set(glossary.TERMS)
    for words in glossary.PAGES.values():
        assert len(set(words)) == len(words)


@pytest.mark.parametrize(
    ("page", "needed"),
    [
        ("race", {"SQNR", "flushed", "KL", "top-1", "E8M0", "Pareto front", "teacher-forced"}),
        ("outliers", {"outlier", "RoPE partner", "k_proj bias", "attention sink"}),
        ("effect", {"KL", "top-1", "teacher-forced", "perplexity", "query head"}),
        ("microscope", {"SQNR", "flushed", "clipped", "E8M0", "rotation"}),
    ],
)
def test_what_a_page_says_is_explained_there(page: str, needed: set[str]) -> None:
    assert needed <= set(glossary.PAGES[page])


def test_words_are_plain_sentences() -> None:
    for word, means in glossary.TERMS.items():
        assert not means[0].islower() and means.endswith(".") and len(means) < 260, word
        assert not set("<>*`$#") & set(word + means), word
    assert glossary.means("KL", "top-1") == (
        f"**KL**: {glossary.TERMS['KL']}\n\n**top-1**: {glossary.TERMS['top-1']}"
    )
    with pytest.raises(KeyError):
        glossary.means("no word")


def test_the_button_shows_the_words_of_its_page() -> None:
    at = AppTest.from_string("from mxviz.views import glossary\nglossary.show('planner')").run()
    shown = "".join(element.proto.body for element in at.get("html"))
    assert not at.exception and shown.count("<dt>") == len(glossary.PAGES["planner"])
    assert f"<dd>{glossary.TERMS['KV cache']}</dd>" in shown
