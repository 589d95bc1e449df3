"""Text to token ids and back: chat templates, left padding, and the literal text of each token."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

if TYPE_CHECKING:
    from mxviz.models import Loaded

BROKEN = "\ufffd"
PENDING = "⋯"
"""Shown on a token with the first bytes of a character; the token that completes it shows the character."""


class Encoded(NamedTuple):
    """A prompt as token ids, and what a reader should know about how it became them."""

    ids: tuple[int, ...]
    notes: tuple[str, ...] = ()


class Batch(NamedTuple):
    """Prompts of different lengths side by side, padded on the left.

    Args:
        input_ids: int64 `[batch, tokens]`.
        attention_mask: int64 `[batch, tokens]`, 0 on padding.
        position_ids: int64 `[batch, tokens]`, counted from each prompt's first real token.
    """

    input_ids: Tensor
    attention_mask: Tensor
    position_ids: Tensor


def encode(loaded: Loaded, prompt: str, raw: bool = False) -> Encoded:
    """Turn a prompt into token ids, through the model's chat template where it has one.

    Args:
        loaded: the model whose tokenizer and context length count.
        prompt: the user's text.
        raw: leave the chat template out.

    Raises:
        ValueError: for an empty prompt, one that is not valid Unicode, or one longer than the context.
    """
    if not prompt.strip():
        raise ValueError("the prompt is empty; write something for the model to read")
    try:
        prompt.encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError(
            "the prompt holds half a character (a lone surrogate); remove or retype it"
        ) from None
    text, notes = (prompt, ()) if raw else _templated(loaded.tokenizer, prompt)
    # a template writes its special tokens itself
    ids = loaded.tokenizer(text, add_special_tokens=text is prompt).input_ids
    limit = loaded.context_length
    if not ids:
        raise ValueError("the prompt became no tokens at all; write something else")
    if limit is not None and len(ids) > limit:
        raise ValueError(
            f"the prompt has {len(ids):,} tokens and the model's context is {limit:,}; shorten the prompt"
        )
    return Encoded(tuple(ids), notes)


def encode_batch(loaded: Loaded, prompts: Sequence[str], raw: bool = False) -> Batch:
    """Turn prompts into one left-padded batch; the tokenizer needs no pad token and is not changed."""
    rows = [encode(loaded, prompt, raw).ids for prompt in prompts]
    if not rows:
        raise ValueError("no prompts were given; give at least one")
    tokenizer = loaded.tokenizer
    pad = next((i for i in (tokenizer.pad_token_id, tokenizer.eos_token_id) if i is not None), 0)
    width = max(map(len, rows))
    ids = torch.tensor([[pad] * (width - len(row)) + list(row) for row in rows], device=loaded.device)
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows], device=loaded.device)
    return Batch(ids, mask, (mask.cumsum(-1) - 1).clamp_min(0))


def token_texts(tokenizer: Any, ids: Iterable[int]) -> tuple[str, ...]:
    """Return the literal text of each token: spaces kept, special tokens as themselves.

    A character that is spread over several tokens stands on the last of them, the earlier ones show `⋯`.
    """
    stream = TextStream(tokenizer, special=True)
    return tuple(stream.push(token) or _name(tokenizer, token) for token in ids)


class TextStream:
    """Text that grows token by token and never shows half a character.

    Args:
        tokenizer: what decodes.
        special: keep special tokens as text.
    """

    def __init__(self, tokenizer: Any, special: bool = False) -> None:
        self._decode = lambda ids: tokenizer.decode(
            ids, skip_special_tokens=not special, clean_up_tokenization_spaces=False
        )
        self._ids: list[int] = []
        self._context = 0  # decoding starts here: a tokenizer may treat the first token of a text differently
        self._read = 0  # tokens before this are in the text
        self._ahead = 0  # characters of the open token that are already in the text
        self.text = ""

    def push(self, token: int) -> str:
        """Add a token; return its piece of text, with `⋯` for a character that is not complete yet."""
        self._ids.append(token)
        before = self._decode(self._ids[self._context : self._read]) if self._read else ""
        fresh = self._decode(self._ids[self._context :])[len(before) :]
        whole = fresh.rstrip(BROKEN)
        piece, self._ahead = whole[self._ahead :], max(len(whole), self._ahead)
        self.text += piece
        if whole != fresh:
            return piece + PENDING
        self._context, self._read, self._ahead = self._read, len(self._ids), 0
        return piece


def _templated(tokenizer: Any, prompt: str) -> tuple[str, tuple[str, ...]]:
    if getattr(tokenizer, "chat_template", None) is None:
        return prompt, ("the model has no chat template, so the prompt went in as plain text",)
    try:
        return tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt}], tokenize=False, add_generation_prompt=True
        ), ()
    except Exception as error:  # a template is a program of its author's and may raise anything
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        return prompt, (f"the chat template failed ({reason}), so the prompt went in as plain text",)


def _name(tokenizer: Any, token: int) -> str:
    """Return a visible name for a token that decodes to nothing."""
    name = tokenizer.convert_ids_to_tokens(token)
    return str(name).replace("▁", " ") if name else f"[{token}]"
