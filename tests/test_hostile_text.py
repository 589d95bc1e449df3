"""Hostile text: recipes, addresses, tokens and what a model writes are shown or refused, never obeyed."""

from __future__ import annotations

import time
import warnings
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mxviz.capture import LANES
from mxviz.figures import labels
from mxviz.formats import SCHEMES, Recipe
from mxviz.models import TextStream
from mxviz.page import lanes_html, literal, prompt_html
from mxviz.views import gallery, permalink
from mxviz.views import open as files
from mxviz.views.permalink_table import FIELDS, KNOWN
from tests.hostile import EXTREMES, TRIED, WORDS, bounded, refused_calmly, rounds, told_how_many

LONG = "x" * 1_000_000
texts = st.one_of(
    st.text(max_size=60),
    st.lists(st.sampled_from(WORDS) | st.text(max_size=4), max_size=5).map("".join),
    st.text(st.characters(categories=("Cc", "Cf", "Cs", "Co", "Cn", "Mn", "Zl", "Zp")), max_size=20),
)


@pytest.fixture(scope="module", autouse=True)
def counted(request):
    """Say how many inputs each reader was given."""
    with told_how_many(request.config):
        yield


# Recipes and addresses

pieces = st.one_of(
    st.sampled_from([*SCHEMES, *"kv", "sink", "residual", "skip", "rotate", "axis", "scale", "block"]),
    st.sampled_from([*";:,=@ \n٣", "token", "channel", "floor", "kivi4", "0x10", "1e3", "1_0", "-1"]),
    st.sampled_from([str(n) for n in EXTREMES] + ["9" * 5000]),
    texts,
)  # fmt: skip


@rounds(300)
@given(st.lists(pieces, max_size=8).map("".join) | texts)
def test_recipes(text):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = refused_calmly("recipe", lambda: Recipe.parse(text))
        if found is not None:
            assert Recipe.parse(str(found)) == found and len(str(found)) < 10_000


NUMBERS = ["qwen-code", "0", "1", "-1", "nan", "inf", "0-999999999", "1e308", "0.5"]
addresses = st.dictionaries(
    st.sampled_from(sorted(KNOWN)) | texts,
    st.lists(texts | pieces | st.sampled_from(NUMBERS), min_size=1, max_size=3),
    max_size=6,
)  # fmt: skip


@rounds(100)
@given(st.sampled_from(list(FIELDS)), addresses)
def test_addresses(page, said):
    """Names that mean nothing are returned, and what was put is what its field may hold."""
    view = permalink._view(page)
    for one in FIELDS[page]:
        one.reset(view)
    wrong = refused_calmly("address", lambda: permalink.read(page, said))
    assert wrong is not None, "an address is never an error"
    assert set(said) - KNOWN <= set(wrong) | {name for name in said if name.startswith("plan-")}
    refused_calmly("address", lambda: permalink.address(page))
    if (line := permalink._said(wrong)) is not None:
        assert "\n" not in line and not any(word in line for word in WORDS)


# Labels and pages


class Tags(HTMLParser):
    """The tags and attributes of a text."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=False)
        self.found: list[tuple] = []

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, tuple(attrs)))

    def handle_comment(self, data):
        self.found.append(("comment", data))

    def handle_decl(self, decl):
        self.found.append(("declaration", decl))


def tags(html: str) -> list[tuple]:
    parser = Tags()
    parser.feed(html)
    return parser.found


@rounds(300)
@given(texts)
def test_labels(text):
    TRIED["label"] += 1
    for shown in (labels.escape(text), labels.label(text), labels.hover_label(text)):
        assert not set(shown) & set("<>$%") and not any("\ud800" <= c <= "\udfff" for c in shown)
        assert not any(c < " " and c not in "\n\t" for c in shown)
        shown.encode("utf-8")
    seen = labels.visible(text)
    assert (
        seen
        and not any(c in seen for c in "\n\r\t\u202e\u200b\x00")
        and len(labels.label(text, 16)) <= 16 * 6
    )
    labels.token_ticks([text] * 5, 400, 12)
    labels.balance(text, 200, 12)
    name = files.plain(text)
    assert not set(name) & set("<>$*_`[]:\n") and 0 < len(name) <= 160


NO_SURROGATES = texts.filter(lambda t: not any("\ud800" <= c <= "\udfff" for c in t))
PLAIN = lanes_html(dict.fromkeys(LANES, "x"), dict.fromkeys(LANES, "mxfp4"))


@rounds(200)
@given(NO_SURROGATES, NO_SURROGATES)
def test_pages_show_text_and_no_markup_of_its_own(one, other):
    TRIED["page"] += 1
    page = lanes_html({"exact": one, "micro": other, "single": one}, dict.fromkeys(LANES, other))
    assert [t for t in tags(page) if t[0] != "mark"] == tags(PLAIN)
    assert tags(prompt_html(one)) == tags(prompt_html("x")) and tags(literal(one)) == []
    assert "\x00" not in page and "\x1b" not in page
    page.encode("utf-8")


def test_a_megabyte_without_a_space_takes_no_time():
    started = time.monotonic()
    with bounded():
        for text in (LONG, "<" * 1_000_000, "\u202e" * 1_000_000):
            assert len(labels.label(text)) < 100 and len(labels.hover_label(text)) < 1000
            assert len(prompt_html(text)) < 4000 and len(files.plain(text)) <= 160
            labels.token_ticks([text] * 200, 900, 12)
            lanes_html(dict.fromkeys(LANES, text), dict.fromkeys(LANES, "mxfp4"))
            with pytest.raises(ValueError) as refused:
                Recipe.parse(text)
            assert len(str(refused.value)) < 800
    assert time.monotonic() - started < 30  # about 2 s where nothing else runs


def test_an_address_of_a_megabyte_is_refused():
    for page, fields in FIELDS.items():
        said = {one.name: [LONG] for one in fields if one.name != "run"}
        assert set(permalink.read(page, said)) == set(said), page


# Tokens that are no text


class Bytes:
    """A tokenizer whose tokens are bytes, as byte-level ones have them."""

    def decode(self, ids, **_):
        return bytes(ids).decode("utf-8", errors="replace")

    def convert_ids_to_tokens(self, token):
        return f"<0x{token:02X}>"


PARTS = [b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", "é👩\u200d👧".encode(), b"a"]
broken = st.one_of(
    st.binary(max_size=40),
    st.text(max_size=12).map(lambda t: t.encode("utf-8", "surrogatepass")),
    st.lists(st.sampled_from(PARTS)).map(b"".join),
)


@rounds(300)
@given(broken)
def test_bytes_that_are_no_utf8(data):
    TRIED["token bytes"] += 1
    stream = TextStream(Bytes())
    pieces = [stream.push(byte) for byte in data]
    for piece in pieces:
        piece.encode("utf-8")
    whole = data.decode("utf-8", errors="replace")
    assert whole.startswith(stream.text) and not stream.text.endswith("\ufffd")
    valid = whole.rstrip("\ufffd")
    if "\ufffd" not in valid:
        assert stream.text == valid  # all that is text has been shown


def test_a_recorded_run_is_looked_at():
    """The addresses above are read beside a real capture."""
    assert gallery.looked_at()[1] is not None
