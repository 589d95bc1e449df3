"""A tiny byte-level tokenizer, built on the spot, and a tiny model loaded with it."""

from __future__ import annotations

import tiny
import torch
from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from transformers import PreTrainedTokenizerFast

from mxviz.models import Loaded

END = "<|end|>"
WORDS = ("he", "hel", "Ġh", "ab")  # each is made from the one token before it or two letters
VOCABULARY = 256 + len(WORDS) + 2
TEMPLATE = "{% for m in messages %}<|user|>{{ m['content'] }}{% endfor %}{{ '<|end|>' }}"


def tokenizer(template: str | None = None) -> PreTrainedTokenizerFast:
    """One token a byte and a few words; an end token, no pad token."""
    pieces = sorted(ByteLevel.alphabet()) + list(WORDS)
    merges = [("h", "e"), ("he", "l"), ("Ġ", "h"), ("a", "b")]
    backend = Tokenizer(BPE(vocab={piece: i for i, piece in enumerate(pieces)}, merges=merges))
    backend.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = ByteLevelDecoder()
    backend.add_special_tokens([AddedToken("<|user|>"), AddedToken(END)])
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=END, chat_template=template)


def loaded(kind: str = "llama", template: str | None = None, **changes) -> Loaded:
    """A tiny random model and the tokenizer, as `mxviz.models.load` would return them."""
    model = tiny.MODELS[kind](**{"vocab_size": VOCABULARY, **changes})
    return Loaded(model, tokenizer(template), kind, None, "cpu", torch.float32, 4096)
