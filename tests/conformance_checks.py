"""What MXCache has to do in every family: each check yields a line for each thing that it found right.

A check asserts values. Where something cannot work it lets the refusal through: `cell` makes it the line that
goes into the table of the README, so a refusal that was not there before fails the test of that table.
"""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import NamedTuple

import torch
from transformers import CompileConfig, DynamicCache

from mxviz.cache import MXCache
from tests.conformance_bytes import expected_bytes, quantizes, unit_of, worst_sqnr
from tests.conformance_models import FAMILIES, VOCABULARY, model

RECIPES = {  # what is packed of K and of V, in dB over what came in: the lowest and the highest seen, widened
    "mxfp4": (15, 22),
    "nvfp4": (17, 24),
    "k=mxfp4:axis=token;v=mxfp4": (15, 22),
    "kivi2": (4, 14),
    "mxfp4;sink=4;residual=32;rotate=1": (15, 22),
}
LONG = 190  # tokens of a prompt that fills blocks along tokens beyond kivi2's residual of 128
HALVES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Cell(NamedTuple):
    """What a check found: how many things were right, a line to know of, and whether that is a refusal."""

    found: int
    line: str | None = None
    refused: bool = False


@cache
def cell(family: str, feature: str) -> Cell:
    """Run a check on a family. What the library or transformers refuses in one line is a result; all else
    that goes wrong is raised."""
    found = 0
    with _quiet():
        try:
            for _ in CHECKS[feature](family):
                found += 1
        except Noted as note:
            return Cell(found, f"{note}")
        except (ValueError, Unsupported) as refusal:
            return Cell(found, f"{refusal}".split(". ")[0].strip(), refused=True)
    return Cell(found)


class Noted(Exception):
    """All is right, and there is something to know about it."""


class Unsupported(Exception):
    """transformers says in a line of its log that it does something else than it was asked for."""


@contextmanager
def _quiet() -> Iterator[None]:
    """`past_key_values` is on its way out in favour of `cache`, which older releases do not take."""
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        yield


def prompt(tokens: int, *, batch: int = 1, seed: int = 0) -> torch.Tensor:
    """Random token ids `[batch, tokens]`, never the padding id 0."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(2, VOCABULARY, (batch, tokens), generator=generator)


def generate(of, ids: torch.Tensor, held, new: int = 12, **more):
    """Greedy ids, or what else is asked for, and logits `[new, batch, vocabulary]`."""
    settings = {"do_sample": False, "return_dict_in_generate": True, "output_logits": True} | more
    made = of.generate(ids, past_key_values=held, max_new_tokens=new, min_new_tokens=new, **settings)
    logits = torch.stack(made.logits)
    assert logits.isfinite().all()
    return made.sequences, logits


def _same_as_stock(family: str, ids: torch.Tensor, dtype: torch.dtype = torch.float32, **more) -> None:
    """Recipe none and transformers' own cache give the same text and the same logits, bit for bit."""
    of = model(family, dtype)
    ours, theirs = MXCache(of.config, "none"), DynamicCache(config=of.config)
    got, want = generate(of, ids, ours, **more), generate(of, ids, theirs, **more)
    assert torch.equal(got[0], want[0]) and torch.equal(got[1], want[1])
    assert ours.get_seq_length() == theirs.get_seq_length()


def _bytes_fit(family: str, held: MXCache, batch: int = 1, itemsize: int = 4) -> None:
    seen = held.get_seq_length()
    ours = held.nbytes - held._foreign_bytes
    assert ours == expected_bytes(FAMILIES[family], held.recipe, seen, batch, itemsize)


def stock(family: str) -> Iterator[str]:
    """Recipe none: logits and text equal those of transformers' own cache, bit for bit."""
    for batch in (1, 3):
        _same_as_stock(family, prompt(60, batch=batch), new=16)
        yield f"batch {batch}"


def recipes(family: str) -> Iterator[str]:
    """Each recipe: finite, as many bytes as the formula says, the error of what is packed within its band."""
    of = model(family)
    exact = generate(of, prompt(LONG), DynamicCache(config=of.config))[1]
    for recipe, (low, high) in RECIPES.items():
        held = MXCache(of.config, recipe, record=True)
        logits = generate(of, prompt(LONG), held)[1]
        assert torch.equal(logits[0], exact[0]) and not torch.equal(logits[1:], exact[1:])
        yield f"{recipe}: finite, the first token exact"
        _bytes_fit(family, held)
        yield f"{recipe}: bytes"
        worst, best = worst_sqnr(held)
        assert low <= worst <= best <= high, f"{recipe}: {worst:.1f} to {best:.1f} dB"
        yield f"{recipe}: error"


def sampled(family: str) -> Iterator[str]:
    """The same draw gives the same text, with recipe none that of transformers' own cache."""
    of, texts = model(family), []
    sampling = {"do_sample": True, "temperature": 0.8, "top_p": 0.9}
    for held in (MXCache(of.config, "none"), DynamicCache(config=of.config)):
        torch.manual_seed(7)
        texts.append(generate(of, prompt(40, batch=2), held, **sampling)[0])
    assert torch.equal(*texts)
    yield "none"
    for recipe in ("mxfp4", "nvfp4"):
        texts = []
        for _ in range(2):
            torch.manual_seed(7)
            texts.append(generate(of, prompt(40, batch=2), MXCache(of.config, recipe), **sampling)[0])
        assert torch.equal(*texts)
        yield recipe


def left_padding(family: str) -> Iterator[str]:
    """A short and a long prompt in one batch: each gives what it gives alone, and padding is in no scale."""
    of, long, short = model(family), prompt(60, seed=1), prompt(23, seed=2)
    ids = torch.cat((torch.cat((torch.zeros_like(long[:, 23:]), short), 1), long))
    mask = (ids != 0).long()
    _same_as_stock(family, ids, attention_mask=mask)
    yield "none: as transformers' own cache"
    for recipe in ("none", "mxfp4", "nvfp4", "k=mxfp4:axis=token;v=mxfp4"):
        held = MXCache(of.config, recipe, record=True)
        held.set_padding(mask)
        logits = generate(of, ids, held, attention_mask=mask)[1]
        alone = generate(of, short, MXCache(of.config, recipe))[1]
        allowed = {"none": 1e-4, "mxfp4": 0.02, "nvfp4": 0.02}.get(recipe, 0.5)
        # the same bytes but for a rounding here and there; along tokens blocks begin somewhere else
        off = (logits[:, :1] - alone)[0].norm() / alone[0].norm()
        assert off < 1e-4, f"{recipe}: the first token is off by {off:.1e}"
        off = (logits[1, 0] - alone[1, 0]).norm() / alone[1, 0].norm()
        assert off < allowed, f"{recipe}: the second token is off by {off:.1e}"
        yield recipe


def beams(family: str) -> Iterator[str]:
    """Beam search: with recipe none the beams of transformers' own cache, packed bytes reordered else."""
    of, ids = model(family), prompt(40, batch=2)
    ours, theirs = MXCache(of.config, "none"), DynamicCache(config=of.config)
    got, want = (generate(of, ids, held, num_beams=3)[0] for held in (ours, theirs))
    assert torch.equal(got, want)
    yield "none"
    for recipe in ("mxfp4", "k=mxfp4:axis=token;v=mxfp4"):
        held = MXCache(of.config, recipe)
        assert generate(of, ids, held, num_beams=3)[0].shape == (2, 52)
        _bytes_fit(family, held, batch=6)
        yield recipe


def _step(of, ids: torch.Tensor, held) -> torch.Tensor:
    return of(ids, past_key_values=held).logits


def crop(family: str) -> Iterator[str]:
    """Tokens taken back leave what was there: with recipe none as transformers' own cache does it."""
    of, ids = model(family), prompt(40)
    ours, theirs = MXCache(of.config, "none"), DynamicCache(config=of.config)
    logits = []
    for held in (ours, theirs):
        _step(of, ids, held)
        _step(of, prompt(5, seed=1), held)
        held.crop(-5)
        logits.append(_step(of, prompt(3, seed=2), held))
    assert torch.equal(*logits)
    yield "none"
    for recipe in RECIPES:
        held, plain = MXCache(of.config, recipe), MXCache(of.config, recipe)
        for c in (held, plain):
            _step(of, ids, c)
        held.activate_past_recording()
        _step(of, prompt(5, seed=1), held)
        held.crop(-5)
        for a, b in zip(held.layers, plain.layers, strict=True):
            assert torch.equal(a.keys, b.keys) and torch.equal(a.values, b.values)
        yield recipe


def assisted(family: str) -> Iterator[str]:
    """Assisted decoding: with recipe none the text of plain decoding, and rejected tokens leave no byte."""
    of, ids = model(family), prompt(40)
    helper = {"assistant_model": model(family, seed=3)}
    want = of.generate(ids, max_new_tokens=10, min_new_tokens=10, do_sample=False)
    got = generate(of, ids, MXCache(of.config, "none"), 10, **helper)[0]
    assert torch.equal(got, want)
    yield "none"
    for recipe in ("mxfp4", "k=mxfp4:axis=token;v=mxfp4"):
        held = MXCache(of.config, recipe)
        assert generate(of, ids, held, 10, **helper)[0].shape == (1, 50)
        _bytes_fit(family, held)
        yield recipe


def continued(family: str) -> Iterator[str]:
    """Three turns on one cache: with recipe none the logits of transformers' own cache."""
    of = model(family)
    for recipe in ("none", "mxfp4", "k=mxfp4:axis=token;v=mxfp4"):
        ours, theirs, held = MXCache(of.config, recipe), DynamicCache(config=of.config), prompt(0)
        for turn in range(3):
            held = torch.cat((held, prompt(30, seed=turn)), dim=1)
            text, logits = generate(of, held, ours, 6)
            if recipe == "none":
                assert torch.equal(logits, generate(of, held, theirs, 6)[1])
            held = text
        assert ours.get_seq_length() == 107
        _bytes_fit(family, ours)
        yield recipe


def deep_copy(family: str) -> Iterator[str]:
    """A copy goes its own way, and the original gives what it would have given."""
    of = model(family)
    for recipe in ("none", *RECIPES):
        held, untouched = MXCache(of.config, recipe), MXCache(of.config, recipe)
        for c in (held, untouched):
            _step(of, prompt(70), c)
        other = copy.deepcopy(held)
        for seed in (1, 2):
            _step(of, prompt(3, seed=seed), other)
        assert torch.equal(_step(of, prompt(1, seed=3), held), _step(of, prompt(1, seed=3), untouched))
        assert (other.get_seq_length(), held.get_seq_length()) == (76, 71)
        yield recipe


def reset(family: str) -> Iterator[str]:
    """After a reset a cache is as new: no byte held, and the same logits as the first time."""
    of = model(family)
    for recipe in ("none", *RECIPES):
        held = MXCache(of.config, recipe)
        first = generate(of, prompt(70), held, 4)[1]
        held.reset()
        assert held.get_seq_length() == held.tokens_held == held.nbytes - held._foreign_bytes == 0
        assert torch.equal(generate(of, prompt(70), held, 4)[1], first)
        yield recipe


def compiled(family: str) -> Iterator[str]:
    """generate with a compile_config: transformers compiles for static caches only, so not for this one."""
    of, settings = model(family), {"compile_config": CompileConfig()}
    for recipe in ("none", "mxfp4"):
        want = generate(of, prompt(40), MXCache(of.config, recipe), 4)[1]
        held = MXCache(of.config, recipe)
        assert torch.equal(generate(of, prompt(40), held, 4, **settings)[1], want)
        assert not held.is_compileable
        yield recipe
    raise Noted(
        "generate takes a compile_config and does not compile: transformers does so for static caches"
    )


def _half(dtype: torch.dtype) -> Callable[[str], Iterator[str]]:
    def check(family: str) -> Iterator[str]:
        """As in float32: recipe none equals transformers' own cache, recipes fit the formula."""
        _same_as_stock(family, prompt(60, batch=2), dtype)
        yield "none"
        of = model(family, dtype)
        for recipe in RECIPES:
            held = MXCache(of.config, recipe)
            generate(of, prompt(LONG), held, 4)
            _bytes_fit(family, held, itemsize=2)
            yield recipe

    return check


@contextmanager
def _log_of(name: str) -> Iterator[list[str]]:
    """What a logger says meanwhile."""
    said, logger, handler = [], logging.getLogger(name), logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.WARNING)
    try:
        yield said
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)


@contextmanager
def _attending(of, how: str) -> Iterator[None]:
    """Set an attention implementation for a while; Unsupported where transformers keeps its own."""
    before = of.config._attn_implementation
    with _log_of("transformers.modeling_utils") as said:
        of.set_attn_implementation(how)
        if of.config._attn_implementation != how:
            raise Unsupported(" ".join(said))
    try:
        yield
    finally:
        of.set_attn_implementation(before)


def _attention(how: str) -> Callable[[str], Iterator[str]]:
    def check(family: str) -> Iterator[str]:
        """Recipe none equals transformers' own cache under this attention, and recipes give finite logits."""
        of = model(family)
        with _attending(of, how):
            _same_as_stock(family, prompt(60))
            yield "none"
            for recipe in RECIPES:
                generate(of, prompt(LONG), MXCache(of.config, recipe), 3)
                yield recipe

    return check


def packed(family: str) -> Iterator[str]:
    """The attention function "mxviz" gives what unpacking gives, and attends to the packed bytes."""
    of, steps = model(family), (prompt(LONG), *(prompt(1, seed=s) for s in range(1, 5)))
    for recipe in ("none", *RECIPES):
        held, plain = MXCache(of.config, recipe), MXCache(of.config, recipe)
        want = [_step(of, ids, plain) for ids in steps]
        with _attending(of, "mxviz"):
            got = [_step(of, ids, held) for ids in steps]
        for a, b in zip(got, want, strict=True):
            assert torch.allclose(a, b, atol=2e-3), f"{recipe}: off by {(a - b).abs().max():.1e}"
        assert held.attention == _attends(family, held), f"{recipe}: {held.attention}"
        yield recipe
    if FAMILIES[family].is_latent:
        raise Noted("the latent is read before anything attends: stored packed, unpacked at each step")


def _attends(family: str, held: MXCache) -> str | None:
    """A window may cut a block along tokens: such layers are unpacked, like the latent ones."""
    if held.recipe.is_none:
        return None
    along = any(unit_of(scheme) > 1 for scheme in (held.recipe.key, held.recipe.value))
    layers = [w for w in FAMILIES[family].windows if w != 0 and quantizes(held.recipe, w)]
    how = [not FAMILIES[family].is_latent and not (window and along) for window in layers]
    if len(set(how)) > 1:
        return f"packed in {how.count(True)} of {len(how)} layers"
    return "packed" if how[0] else "unpacked"


CHECKS: dict[str, Callable[[str], Iterator[str]]] = {
    "none = stock": stock,
    "recipes": recipes,
    "sampled": sampled,
    "left padding": left_padding,
    "beams": beams,
    "crop": crop,
    "assisted": assisted,
    "continued": continued,
    "deep copy": deep_copy,
    "reset": reset,
    "compiled": compiled,
    **{name: _half(dtype) for name, dtype in HALVES.items()},
    "sdpa": _attention("sdpa"),
    "eager": _attention("eager"),
    "mxviz": packed,
}
