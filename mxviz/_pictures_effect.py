"""Did it matter? From a capture's effect tables, queries and sensitivity to sentences and figures.

KL at position i is about the forecast of token i + 1. Here it stands on the token that was forecast: the
words that a quantized model would have put differently are the ones in colour.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from mxviz.capture import Capture
from mxviz.figures import Figure
from mxviz.figures._nats import plain
from mxviz.figures.effect import divergence
from mxviz.metrics import effect_stats

NAMES = {"micro": "micro-scaling", "single": "one scale"}
_LITTLE = 0.02  # nats: where both lanes stay below, the sentence says so; INT8 and FP8 do


class EffectView(NamedTuple):
    """What quantization did to the forecast of each token; arrays are `[tokens]`, NaN where not known.

    Args:
        tokens: token texts, literal.
        kl: `micro` and `single` to KL(exact‖quantized) of the forecast of this token, nats.
        changed: the same to whether the most probable token became another one.
        chance: `exact`, `micro` and `single` to the probability that this very token had, 0 to 1.
        first: the exact model's most probable token: its text, or `token 123` where this text lacks it.
        first_chance: its probability.
        stats: lane to `kl_mean`, `kl_p99` (nats), `top1_agreement` (share) and `perplexity`, of the whole
            text and with the forecast behind its end; None where not measured.
    """

    tokens: list[str]
    kl: dict[str, np.ndarray]
    changed: dict[str, np.ndarray]
    chance: dict[str, np.ndarray]
    first: list[str]
    first_chance: np.ndarray
    stats: dict[str, dict[str, float | None]]


def has_effect(capture: Capture) -> bool:
    """Return whether the effect of both lanes was measured; a run that was stopped has none."""
    return {"micro", "single"} <= capture.effect.keys()


@lru_cache(maxsize=8)
def effect_view(capture: Capture) -> EffectView:
    """Return the tables of a capture, moved to the token that is forecast.

    Raises:
        ValueError: where no effect was measured.
    """
    if not has_effect(capture):
        raise ValueError("the effect of this run was not measured; run it to the end, with effect on")
    count, lanes = len(capture.token_texts), ("micro", "single")
    tables = capture.effect
    kl = {lane: _moved(tables[lane]["kl"].numpy(), count, np.nan) for lane in lanes}
    same = {lane: _moved(tables[lane]["top1"].numpy(), count, True) for lane in lanes}
    nll = {lane: found["nll"].numpy() for lane, found in tables.items() if "nll" in found}
    first, first_chance = _first_choices(capture, count)
    return EffectView(
        tokens=list(capture.token_texts),
        kl=kl,
        changed={lane: ~x for lane, x in same.items()},
        chance={lane: np.exp(-_moved(x, count, np.nan)) for lane, x in nll.items()},
        first=first,
        first_chance=first_chance,
        stats={
            lane: (effect_stats(found["kl"], found["top1"]) if lane in lanes else {})
            | {"perplexity": float(np.exp(nll[lane].astype(np.float64).mean())) if lane in nll else None}
            for lane, found in tables.items()
        },
    )


def _moved(row: np.ndarray, count: int, fill: float | bool) -> np.ndarray:
    """Move a row of positions one to the right, onto the tokens that are forecast; the first has nothing."""
    moved = np.full(count, fill, dtype=bool if isinstance(fill, bool) else np.float64)
    known = row[: count - 1]
    moved[1 : 1 + len(known)] = known
    return moved


def _first_choices(capture: Capture, count: int) -> tuple[list[str], np.ndarray]:
    if capture.top_ids is None or capture.top_logprobs is None:
        return [""] * count, np.full(count, np.nan)
    texts = dict(zip(capture.token_ids, capture.token_texts, strict=True))
    ids = [int(i) for i in capture.top_ids[: count - 1, 0]]
    named = [repr(texts[i]) if i in texts else f"token {i}" for i in ids]
    chance = np.exp(_moved(capture.top_logprobs[:, 0].double().numpy(), count, np.nan))
    return ([""] + named + [""] * count)[:count], chance


def effect_sentence(view: EffectView) -> str:
    """Say in one sentence what changed, the lane that changed more first."""
    kl = {lane: view.stats[lane]["kl_mean"] or 0.0 for lane in NAMES}
    more, less = sorted(NAMES, key=kl.get, reverse=True)
    if kl[more] < _LITTLE:
        said = f"{plain(kl[more], 2)} nats, {NAMES[less]} {plain(kl[less], 2)}"
        return f"Neither moves the forecasts much: {NAMES[more]} by a mean KL of {said}"
    flips = {lane: 1 - (view.stats[lane]["top1_agreement"] or 0.0) for lane in NAMES}
    more, less = sorted(NAMES, key=flips.get, reverse=True)
    return (
        f"{NAMES[more].capitalize()} changes the model's first choice for {share(flips[more])} of the "
        f"tokens, {NAMES[less]} for {share(flips[less])}"
    )


def lane_numbers(view: EffectView, lane: str) -> str:
    """Return a lane's numbers in words, each with what the exact model would have."""
    stats, exact = view.stats[lane], view.stats.get("exact", {}).get("perplexity")
    said = []
    if stats["kl_mean"] is not None:
        said += [f"mean KL {plain(stats['kl_mean'], 2)} nats (exact 0)", f"p99 {plain(stats['kl_p99'], 2)}"]
    if stats["top1_agreement"] is not None:
        said.append(f"same first choice {share(stats['top1_agreement'])} (exact 100 %)")
    if stats["perplexity"] is not None and exact is not None:
        said.append(f"perplexity {plain(stats['perplexity'])} (exact {plain(exact)})")
    return " · ".join(said) or "not measured"


def share(value: float) -> str:
    """Return a share of 0 to 1 in per cent; a tenth is told below ten."""
    text = f"{100 * value:.1f}" if 0 < value < 0.1 else f"{100 * value:.0f}"
    return f"{text.removesuffix('.0')}\N{NO-BREAK SPACE}%"


def worst_token(view: EffectView, lane: str = "single") -> int:
    """Return the token whose forecast differs most; the first where nothing was measured."""
    return int(np.nan_to_num(view.kl[lane], nan=-1.0).argmax())


def divergence_picture(
    capture: Capture,
    *,
    theme: str = "light",
    width: int = 1280,
    height: int | None = None,
    window: tuple[int, int] | None = None,
) -> Figure:
    """Draw KL at every token of a run.

    Raises:
        ValueError: where no effect was measured, or for an unknown theme.
    """
    view = effect_view(capture)
    lost = sum(int((~np.isfinite(kl[1:])).sum()) for kl in view.kl.values())
    missing = f"; {lost} forecasts have no KL" if lost else ""
    return divergence(
        view.kl["micro"],
        view.kl["single"],
        view.tokens,
        changed_micro=view.changed["micro"],
        changed_single=view.changed["single"],
        names=tuple(
            f"{title}, {recipe} — {_heading(view, lane)}"
            for title, recipe, lane in (
                ("Micro-scaled", capture.recipe, "micro"),
                ("One scale", capture.baseline, "single"),
            )
        ),
        title=_divergence_sentence(view),
        subtitle=f"{capture.model} · KL(exact‖quantized) of the forecast of each token, over the exact text"
        + missing,
        theme=theme,
        width=width,
        height=height,
        window=window,
    )


def _divergence_sentence(view: EffectView) -> str:
    kl = {lane: view.stats[lane]["kl_mean"] or 0.0 for lane in NAMES}
    more, less = sorted(NAMES, key=kl.get, reverse=True)
    return (
        f"{NAMES[more].capitalize()} moves the forecasts by {plain(kl[more], 2)} nats on average, "
        f"{NAMES[less]} by {plain(kl[less], 2)}"
    )


def _heading(view: EffectView, lane: str) -> str:
    stats, exact = view.stats[lane], view.stats.get("exact", {}).get("perplexity")
    said = f"same first choice for {share(stats['top1_agreement'] or 0.0)} of the tokens"
    if stats["perplexity"] is None or exact is None:
        return said
    return f"{said}, perplexity {plain(stats['perplexity'])} (exact {plain(exact)})"
