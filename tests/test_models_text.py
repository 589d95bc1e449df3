"""Text to tokens and back: templates, padding, and literal token texts."""

from __future__ import annotations

import pytest
import tiny_text
import torch

from mxviz.models import TextStream, encode, encode_batch, token_texts


def test_a_chat_template_is_used_unless_raw() -> None:
    loaded = tiny_text.loaded(template=tiny_text.TEMPLATE)
    tokenizer = loaded.tokenizer
    ids, notes = encode(loaded, "hello")
    assert tokenizer.decode(ids) == "<|user|>hello<|end|>" and notes == ()
    assert tokenizer.decode(encode(loaded, "hello", raw=True).ids) == "hello"


def test_a_base_model_falls_back_to_plain_text_with_a_note() -> None:
    ids, notes = encode(tiny_text.loaded(), "hello")
    assert ids == encode(tiny_text.loaded(), "hello", raw=True).ids
    assert notes == ("the model has no chat template, so the prompt went in as plain text",)
    ids, notes = encode(tiny_text.loaded(template="{{ raise_exception('system first') }}"), "hello")
    assert "the chat template failed (system first)" in notes[0]


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ("", "the prompt is empty"),
        (" \n", "the prompt is empty"),
        ("a\ud83d", "half a character"),
        ("x" * 5000, "5,000 tokens and the model's context is 4,096"),
    ],
)
def test_prompts_that_do_not_fit(prompt: str, words: str) -> None:
    with pytest.raises(ValueError, match=words) as error:
        encode(tiny_text.loaded(), prompt)
    assert "\n" not in str(error.value)


def test_two_prompts_without_a_pad_token_give_each_ones_own_logits() -> None:
    loaded = tiny_text.loaded()
    prompts = ["A", "a prompt of twenty c"]
    batch = encode_batch(loaded, prompts)
    assert loaded.tokenizer.pad_token is None and loaded.tokenizer.padding_side == "right"
    assert batch.attention_mask.sum(-1).tolist() == [1, len(encode(loaded, prompts[1]).ids)]
    with torch.inference_mode():
        together = loaded.model(**batch._asdict()).logits[:, -1]
        for prompt, row in zip(prompts, together, strict=True):
            alone = loaded.model(torch.tensor([encode(loaded, prompt).ids])).logits[0, -1]
            torch.testing.assert_close(row, alone, rtol=0, atol=1e-4)


def test_no_prompts_at_all() -> None:
    with pytest.raises(ValueError, match="no prompts were given"):
        encode_batch(tiny_text.loaded(), [])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (" ho hel", (" h", "o", " ", "hel")),
        ("🙂", ("⋯", "⋯", "⋯", "🙂")),
        ("é!", ("⋯", "é", "!")),
        ("$x$", ("$", "x", "$")),
        ("<b>\n  ", ("<", "b", ">", "\n", " ", " ")),
        ("<|user|>ab<|end|>", ("<|user|>", "ab", "<|end|>")),
        ("a�b", ("a", "⋯", "⋯", "⋯", "�b")),
    ],
)
def test_token_texts_are_literal(text: str, expected: tuple[str, ...]) -> None:
    tokenizer = tiny_text.tokenizer()
    assert token_texts(tokenizer, tokenizer(text).input_ids) == expected


def test_a_token_the_tokenizer_does_not_know_still_has_a_name() -> None:
    assert token_texts(tiny_text.tokenizer(), [5000]) == ("[5000]",)


def test_a_growing_text_never_shows_half_a_character() -> None:
    tokenizer = tiny_text.tokenizer()
    text = "hé🙂 世界<|end|>"
    stream, shown = TextStream(tokenizer), []
    for token in tokenizer(text).input_ids:
        stream.push(token)
        shown.append(stream.text)
    assert not any("\ufffd" in so_far for so_far in shown)
    assert all(text.startswith(so_far) for so_far in shown)
    assert stream.text == "hé🙂 世界"  # the end token is no text
