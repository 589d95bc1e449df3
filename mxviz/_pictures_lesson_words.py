"""What the lesson's texts say in numbers: each step's figures in words, computed from runs and formulas."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from mxviz import _lesson_saboteur as saboteur
from mxviz import lesson
from mxviz._pictures_effect import share
from mxviz.capture import Capture
from mxviz.figures._nats import plain
from mxviz.figures._traces import number
from mxviz.figures.error import percent
from mxviz.figures.labels import shorten
from mxviz.formats import ELEMENTS, SCHEMES
from mxviz.outliers import finite_amax, median_magnitude

TOKENS = 64
"""Steps that are counted in the step on work."""
MODEL, CARD = "Qwen3 8B", "RTX 4090"
"""What the step on memory asks about."""
PREDICTED = 8
"""Rulers that the step on personal rulers asks about."""


class Facts(NamedTuple):
    """What a step's text is filled with, its answers where they come from a run, and which one is right.

    Args:
        words: name to text, plain; the text's author writes {name}.
        right: index of the right answer, or the number that was asked for; None where the text marks it.
        options: the answers, where the text has none.
    """

    words: dict[str, str]
    right: int | None = None
    options: tuple[str, ...] = ()


def facts(name: str, wild: Capture, mild: Capture) -> Facts:
    """Return the facts of a step.

    Args:
        name: a name of `FACTS`.
        wild: a run with an outlier channel, and with queries (the recorded Qwen chat).
        mild: a milder one (the recorded SmolLM2 chat).

    Raises:
        ValueError: for an unknown step, or a run that lacks what the step looks at.
    """
    if name not in FACTS:
        raise ValueError(f"no step {name!r}; expected one of: {', '.join(FACTS)}")
    return FACTS[name](wild, mild)


def about(count: float) -> str:
    """Return a number in three digits: 175,000."""
    digits = max(0, len(str(int(count))) - 3)
    return f"{round(count / 10**digits) * 10**digits:,}"


def token_words(tokens: list[str], place: int) -> str:
    """Return a token in words: its text, spaces as ·."""
    return f"“{shorten(tokens[place], 24)}”"


def _taste(wild: Capture, mild: Capture) -> Facts:
    seen = lesson.look_back(wild)
    places = {
        seen.target: "what followed the word in the prompt",
        0: "the very first token of all",
        seen.position - 1: "the token just before",
        seen.position: "itself",
    }
    places.setdefault(seen.top, "another one")
    options = [f"token {i}, {token_words(seen.tokens, i)}: {why}" for i, why in places.items()]
    words = {
        "asking": token_words(seen.tokens, seen.position),
        "position": str(seen.position),
        "layer": str(seen.layer),
        "head": str(seen.query_head),
        "top": token_words(seen.tokens, seen.top),
        "top_place": str(seen.top),
        "top_share": percent(float(seen.weights[seen.top])),
        "others": str(len(seen.weights) - 1),
    }
    return Facts(words, list(places).index(seen.top), tuple(options))


def _cook(wild: Capture, mild: Capture) -> Facts:
    with_cache, without = lesson.passes(TOKENS)
    words = {
        "n": f"{with_cache:,}",
        "n_plus": f"{TOKENS + 1:,}",
        "ten_n": f"{10 * TOKENS:,}",
        "without": f"{without:,}",
        "power": f"{2**TOKENS:,}",
        "times": f"{without / with_cache:.4g}",
    }
    return Facts(words)


def _bowl(wild: Capture, mild: Capture) -> Facts:
    shape, gib = lesson.MODELS[MODEL], lesson.CARDS[CARD]
    bits = {name: lesson.bits_stored(name) for name in lesson.STORED}
    each, small = (lesson.bytes_per_token(shape, bits[name]) for name in ("bfloat16", "MXFP4"))
    fit = lesson.tokens_that_fit(gib, each)
    words = {
        **{name: str(value) for name, value in shape._asdict().items()},
        **{"model": MODEL, "gib": str(gib), "per_token": f"{each:,.0f}", "fit": f"{fit:,}"},
        **{"hundredth": about(fit / 100), "tenth": about(fit / 10), "about": about(fit)},
        **{"tenfold": about(10 * fit), "per_token_4": f"{small:,.0f}"},
        "fit_4": f"{lesson.tokens_that_fit(gib, small):,}",
        **{f"bits_{n}": f"{bits[f'MXFP{n}']:.4g}" for n in (8, 6, 4)},
    }
    return Facts(words)


def _squash(wild: Capture, mild: Capture) -> Facts:
    count = {name: len(ELEMENTS[name].ticks) for name in ("int8", "int4", "fp6_e2m3", "fp4")}
    gaps = np.diff(lesson.ruler("fp4"))
    words = {
        **{"int8": str(count["int8"]), "int4": str(count["int4"]), "half": str(count["int8"] // 2)},
        **{"fp6": str(count["fp6_e2m3"]), "fp4": str(count["fp4"])},
        **{"fp4_near": share(float(gaps.min())), "fp4_far": share(float(gaps.max()))},
    }
    return Facts(words)


def _saboteur(wild: Capture, mild: Capture) -> Facts:
    tame, worst = (saboteur.sabotage(wild, times) for times in (saboteur.TIMES[0], saboteur.TIMES[-1]))
    zeros = int(worst.one.flushed.sum())
    words = {
        **{name: str(saboteur.ROOM[name]) for name in ("layer", "head", "channel")},
        **{"count": str(saboteur.BLOCK), "room": str(2 * saboteur.BLOCK), "most": str(worst.times)},
        **{"zeros_one_1": str(int(tame.one.flushed.sum())), "zeros_one": str(zeros)},
        "zeros_own": str(int(worst.own.flushed.sum())),
        **{"step_one": number(worst.one.step), "step_one_1": number(tame.one.step)},
        "outlier": number(float(worst.room[worst.at]), 4),
    }
    return Facts(words, zeros)


def _rulers(wild: Capture, mild: Capture) -> Facts:
    rows = {n: saboteur.personal_rulers(wild, n) for n in saboteur.RULERS}
    zeros = {n: int(row.flushed.sum()) for n, row in rows.items()}
    asked = rows[PREDICTED]
    table = "; ".join(
        f"{n} ruler{'s' * (n > 1)}: {zeros[n]} become zero at {row.bits:.4g} bits" for n, row in rows.items()
    )
    words = {
        **{"count": str(saboteur.BLOCK), "times": str(saboteur.PLANTED), "zeros_1": str(zeros[1])},
        **{"rulers": str(PREDICTED), "size": str(asked.size), "zeros": str(zeros[PREDICTED])},
        "table": f"In all: {table}.",
        "size_1": str(rows[1].size),
        "share_1": f"{SCHEMES['mxint4'].scale.bits / rows[1].size:.4g}",
    }
    return Facts(words, zeros[PREDICTED])


def _cut(wild: Capture, mild: Capture) -> Facts:
    keys = wild.part("key", lesson.CUT["layer"])
    head, channel = _loudest(wild)
    shares = lesson.three_cuts(wild)
    words = {
        **{"layer": str(lesson.CUT["layer"]), "head": str(head), "channel": str(channel)},
        **{"amax": number(finite_amax(keys), 4), "median": number(median_magnitude(keys), 2)},
        **{"one": percent(shares["one"]), "across": percent(shares["channel"])},
        "along": percent(shares["token"]),
    }
    return Facts(words)


def _loudest(wild: Capture) -> tuple[int, int]:
    """Return KV head and channel of the largest key of the layer that is cut."""
    size = wild.part("key", lesson.CUT["layer"]).float().abs().numpy()
    head, _, channel = np.unravel_index(int(size.argmax()), size.shape)
    return int(head), int(channel)


BUCKETS = (0.5, 0.7, 0.85)
"""Where the answers to how often the first choice stays part."""
_TOLD = {
    "fp8": "fp8_e4m3@tensor",
    "mxfp8": "mxfp8_e4m3",
    "int4": "int4@tensor",
    "mx": "k=mxfp4:axis=token;v=mxfp4",
}


def _matter(wild: Capture, mild: Capture) -> Facts:
    rows, milder = ({row.recipe: row for row in lesson.effects(run)} for run in (wild, mild))
    missing = [text for text in _TOLD.values() if text not in rows or text not in milder]
    if missing:
        raise ValueError(f"the effect of {missing[0]} was not measured; record the run with it")
    words = {f"top_{name}": share(rows[text].top1) for name, text in _TOLD.items()}
    words |= {f"kl_{name}": plain(rows[text].kl, 2) for name, text in _TOLD.items()}
    words |= {f"smol_{name}": share(milder[_TOLD[name]].top1) for name in ("int4", "mx")}
    words["positions"] = f"{len(wild.effect['micro']['kl']):,}"
    return Facts(words, int(np.searchsorted(BUCKETS, rows[_TOLD["fp8"]].top1, side="right")))


def _check(wild: Capture, mild: Capture) -> Facts:
    told, mxfp4 = _matter(wild, mild).words, SCHEMES["mxfp4"]
    words = {f"passes_{n}": f"{lesson.passes(n)[1]:,}" for n in (1000, 2000)}
    words |= {"int4": str(len(ELEMENTS["int4"].ticks)), "share": f"{mxfp4.scale.bits / mxfp4.block:.4g}"}
    words |= {"bits_4": f"{mxfp4.bits_per_element():.4g}", "top_fp8": told["top_fp8"]}
    return Facts(words | {"top_int4": told["top_int4"]})


FACTS: dict[str, Callable[[Capture, Capture], Facts]] = {
    **{"1-taste": _taste, "2-cook": _cook, "3-bowl": _bowl, "4-squash": _squash, "5-saboteur": _saboteur},
    **{"6-rulers": _rulers, "7-cut": _cut, "8-matter": _matter, "9-check": _check},
}
"""Step to what its text is filled with; a step has the name of its text in assets/lesson."""


def literal_markdown(text: str) -> str:
    """Return a plain text with nothing in it that Markdown would read as markup."""
    return re.sub(r"([\\`*_{}\[\]()#+!$:~<>|^-])", r"\\\1", text)
