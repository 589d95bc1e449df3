"""The words of the field in plain English, one table of them: shown on every page, and behind every `?`."""

from __future__ import annotations

from html import escape

import streamlit as st

TERMS: dict[str, str] = {
    "KV cache": "What a language model keeps of every token it has read: in each layer a key and a value for "
    "each KV head, so that nothing is computed twice.",
    "token": "The piece of text a model reads and writes: a word, a part of one, or a mark.",
    "held": "Tokens whose keys and values are in the cache. The newest token is not among them: it was "
    "written, and is stored only when the model reads it to go on. So a text of 155 tokens holds 154.",
    "channel": "One of the numbers that make up a key or a value, at the same place for every token: of 64 "
    "numbers there are channels 0 to 63.",
    "KV head": "One of the sets of keys and values of a layer. Several query heads share one.",
    "query head": "One of the readers of a layer: it asks with a query, compares it with the keys of its KV "
    "head, and takes from their values.",
    "micro-scaled": "Stored in few bits with a scale of its own for every small block of 16 or 32 numbers.",
    "one scale": "Stored in the same few bits with a single scale for everything: one ruler for all, the "
    "baseline that micro-scaling is held against.",
    "scale": "The factor a block's codes are multiplied with: the length of its ruler. The largest number of "
    "the block sets it.",
    "E8M0": "A scale in one byte that is a power of two: eight bits of exponent, no fraction. The byte 127 "
    "stands for 1, 128 for 2.",
    "E2M1, E4M3": "How a small float spends its bits after the sign: E for exponent, M for fraction. FP4 is "
    "E2M1 and knows 0, 0.5, 1, 1.5, 2, 3, 4, 6; E4M3 is an FP8.",
    "MXFP4, NVFP4": "4-bit floats with a scale per block: MXFP4 a power of two (E8M0) per 32, NVFP4 an E4M3 "
    "number per 16 and one float32 for the tensor.",
    "bits per element": "What one number takes, its share of the scale included. Uncompressed it is 16.",
    "flushed": "A number that was not zero and is stored as zero, because the ruler's smallest step is too "
    "long for it. Told as a share of all numbers that were not zero.",
    "clipped": "A number beyond the end of the ruler: it is stored as the largest that the ruler has.",
    "outlier": "A number, channel or token far above the rest; here a channel at ten times the median or "
    "more. It sets the scale of all that share a block with it.",
    "SQNR": "Signal over the error of storing it, in dB, from squares: 10 · log₁₀(Σx² / Σ(x − x̂)²). One huge "
    "number can make it look good while all the small ones are lost, so read it beside the flushed share.",
    "KL": "How far the forecast of the next token moved, in nats: 0 is the same forecast, and 1 is a lot. It "
    "compares all the probabilities of the exact model with those of the quantized one.",
    "top-1": "Whether the most probable next token stayed the same: the share of tokens with the same first "
    "choice.",
    "teacher-forced": "Every forecast is made over the exact model's own text, not over what the quantized "
    "model would have written, so that one early slip does not spoil what follows.",
    "perplexity": "How surprised the model is by the text, as if it had to choose among so many equally "
    "likely tokens; smaller is less surprised.",
    "RoPE": "How a model marks where a token stands: it turns pairs of channels of each key, further the "
    "later the token is.",
    "RoPE partner": "The other channel of such a pair, half a head away: turning moves an outlier back and "
    "forth between the two, so both are loud.",
    "k_proj bias": "A constant that some models, Qwen among them, add to every key. A large one makes a "
    "channel loud at every token.",
    "attention sink": "A token, often the first, that many queries look at although it says little.",
    "Pareto front": "The choices that nothing beats: whatever costs no more loses more.",
    "axis": "Which way a block runs: along channels (numbers of one token) or along tokens (one channel's "
    "numbers at 32 tokens in a row).",
    "sink, residual, skip": "What a recipe leaves exact: the first tokens, the newest tokens, whole layers.",
    "rotation": "Keys are turned by a Hadamard matrix before they are stored, so that an outlier is spread "
    "over all channels.",
    "capture": "The record of one run: its text, its keys and values, and what was measured, in one file.",
    "exact": "The uncompressed cache: what the others are compared with.",
}
"""Word to what it means: one or two sentences of plain text, no markup."""

_STORED = ("KV cache", "channel", "KV head", "micro-scaled", "one scale", "scale", "flushed", "outlier")

PAGES: dict[str, tuple[str, ...]] = {
    "microscope": (
        *(*_STORED, "clipped", "SQNR", "E8M0", "E2M1, E4M3", "MXFP4, NVFP4", "axis", "RoPE", "rotation"),
        *("sink, residual, skip", "bits per element", "held"),
    ),
    "outliers": (
        *("outlier", "channel", "KV head", "token", "RoPE", "RoPE partner", "k_proj bias"),
        *("attention sink", "flushed", "sink, residual, skip", "bits per element", "held"),
    ),
    "effect": (
        *("exact", "micro-scaled", "one scale", "KL", "top-1", "teacher-forced", "perplexity", "query head"),
        *("KV head", "token", "held", "outlier", "sink, residual, skip", "bits per element"),
    ),
    "race": (
        *("bits per element", "KL", "flushed", "SQNR", "top-1", "clipped", "teacher-forced", "Pareto front"),
        *("MXFP4, NVFP4", "E8M0", "E2M1, E4M3", "axis", "one scale", "held"),
    ),
    "run": (
        *("KV cache", "token", "held", "exact", "micro-scaled", "one scale", "bits per element", "SQNR"),
        *("flushed", "KL", "top-1", "teacher-forced", "MXFP4, NVFP4", "axis", "sink, residual, skip"),
    ),
    "lesson": (*_STORED, "token", "E8M0", "E2M1, E4M3", "MXFP4, NVFP4", "axis", "KL", "top-1"),
    "planner": ("KV cache", "token", "KV head", "bits per element", "micro-scaled", "one scale", "scale"),
    "studio": (*_STORED, "E8M0", "SQNR", "KL", "capture", "axis"),
}
"""The words that each page uses, in the order in which a reader meets them."""


def means(*words: str) -> str:
    """Return what words mean, for the `help` of a widget or a column.

    Raises:
        KeyError: for a word that is not in `TERMS`.
    """
    if len(words) == 1:
        return TERMS[words[0]]
    return "\n\n".join(f"**{word}**: {TERMS[word]}" for word in words)


def show(page: str) -> None:
    """Draw the words of a page behind a button; nothing for a page that has none."""
    if words := PAGES.get(page):
        with st.popover("Words explained", icon=":material/dictionary:", key="glossary"):
            st.html(f'<dl class="mx-words">{"".join(_entry(word) for word in words)}</dl>')


def _entry(word: str) -> str:
    return f"<dt>{escape(word)}</dt><dd>{escape(TERMS[word])}</dd>"
