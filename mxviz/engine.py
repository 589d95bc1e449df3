"""The engine: three lanes that generate side by side from differently stored caches, and their measurement.

`exact` holds keys and values as they are, `micro` as the recipe says, `single` as the baseline says. Each
grows token by token and ends at its own end token; a run can be stopped between any two tokens.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from mxviz import _engine_lanes as under_way
from mxviz._engine_effect import Effect, measure
from mxviz._engine_lanes import LaneState
from mxviz._engine_probe import Probe
from mxviz._engine_record import build_capture, layers_to_record
from mxviz._engine_settings import Progress, Settings
from mxviz.cache import attending_packed
from mxviz.capture import Capture
from mxviz.models import Encoded, Loaded, encode

__all__ = ["Progress", "Settings", "measure", "run"]

QUERY_LAYERS = 4
"""Layers whose queries are recorded, spread over the model."""

OnProgress = Callable[[Progress], None]
ShouldStop = Callable[[], bool]


def run(
    loaded: Loaded,
    settings: Settings,
    *,
    on_progress: OnProgress | None = None,
    should_stop: ShouldStop | None = None,
) -> Capture:
    """Generate in three lanes, measure, and return the record.

    The same settings give the same capture, timings apart, for the same number of torch threads.

    Args:
        loaded: the model; one run at a time uses it, others wait.
        settings: what to run.
        on_progress: called after every step, in this thread.
        should_stop: asked before every step of every lane, and before every layer of a pass over the whole
            text; a stopped run still gives a capture, with a note and without what was not measured.

    Raises:
        ValueError: for a prompt, length, recipe or layer that does not fit the model, a backend that is not
            here, or a stop before there was anything to record.
    """
    tell = on_progress or (lambda progress: None)
    stop = should_stop or (lambda: False)
    prompt = encode(loaded, settings.prompt, settings.raw)
    _check_fits(loaded, settings, prompt)
    with _alone(loaded, tell, stop):
        return _run(loaded, settings, prompt, tell, stop)


def _check_fits(loaded: Loaded, settings: Settings, prompt: Encoded) -> None:
    limit = loaded.context_length
    if limit is not None and len(prompt.ids) + settings.max_new_tokens > limit:
        raise ValueError(
            f"{len(prompt.ids):,} prompt tokens and max_new_tokens {settings.max_new_tokens:,} do not fit "
            f"the model's context of {limit:,}; shorten the prompt or ask for fewer new tokens"
        )


@contextmanager
def _alone(loaded: Loaded, tell: OnProgress, stop: ShouldStop) -> Iterator[None]:
    """Hold the model's lock; a stop is heard while waiting for it."""
    if not loaded.lock.acquire(blocking=False):
        tell(Progress("waiting", 0, 1))
        while not loaded.lock.acquire(timeout=0.1):
            if stop():
                raise ValueError("stopped while another run used the model; nothing was recorded")
    try:
        yield
    finally:
        loaded.lock.release()


def _run(loaded: Loaded, settings: Settings, prompt: Encoded, tell: OnProgress, stop: ShouldStop) -> Capture:
    started = time.perf_counter()
    lanes = {
        name: LaneState(name, loaded, recipe, settings.backend) for name, recipe in settings.recipes().items()
    }
    layers_to_record(lanes["exact"].cache, settings.layers)
    with attending_packed(loaded.model, settings.backend):
        finished = _generate(lanes, settings, prompt.ids, tell, stop)
    generated = time.perf_counter()
    effect, probe = None, None
    if finished and settings.effect:
        effect, probe = _measure(loaded, settings, prompt.ids, lanes, tell, stop)
        finished = effect is not None
    notes = [*prompt.notes, *loaded.notes, *_not_quantized(lanes["micro"])]
    notes += [note for lane in lanes.values() for note in lane.notes]
    if not finished:
        new = len(lanes["exact"].ids)
        notes.append(f"stopped after {new} new token{'' if new == 1 else 's'}; the effect was not measured")
    capture = build_capture(
        loaded,
        settings,
        prompt.ids,
        lanes,
        effect,
        probe if effect else None,
        notes=tuple(notes),
        timings=_timings(lanes, generated - started, time.perf_counter() - generated),
    )
    tell(_progress("done", 1, 1, lanes))
    return capture


@torch.inference_mode()
def _generate(
    lanes: dict[str, LaneState],
    settings: Settings,
    prompt: tuple[int, ...],
    tell: OnProgress,
    stop: ShouldStop,
) -> bool:
    """Prefill and decode; return whether it came to the end."""
    total = settings.max_new_tokens
    read = under_way.prefill_lanes(
        lanes, prompt, stop, lambda done: tell(_progress("prefill", done, len(lanes), lanes))
    )
    if lanes["exact"].logits is None:
        raise ValueError("stopped before the prompt was read; nothing was recorded")
    return read and under_way.decode_lanes(
        lanes, settings, stop, lambda done: tell(_progress("decode", done, total, lanes))
    )


@torch.inference_mode()
def _measure(
    loaded: Loaded,
    settings: Settings,
    prompt: tuple[int, ...],
    lanes: dict[str, LaneState],
    tell: OnProgress,
    stop: ShouldStop,
) -> tuple[Effect | None, Probe]:
    """Measure over prompt and exact text; the exact pass is probed for what the cache does not see."""

    layers = layers_to_record(lanes["exact"].cache, settings.layers)
    probe = Probe(loaded.model, layers, _spread(layers, QUERY_LAYERS))
    ids = (*prompt, *lanes["exact"].ids)
    effect = measure(
        loaded.model,
        ids,
        settings.recipes(),
        backend=settings.backend,
        probe=probe,
        said=lambda done: tell(_progress("measure", done, len(lanes), lanes)),
        should_stop=stop,
    )
    return effect, probe


def _progress(stage: str, step: int, total: int, lanes: dict[str, LaneState]) -> Progress:
    speeds = {name: lane.tokens_per_second for name, lane in lanes.items()}
    return Progress(
        stage,
        step,
        total,
        texts={name: lane.stream.text for name, lane in lanes.items()},
        token_ids={name: tuple(lane.ids) for name, lane in lanes.items()},
        tokens_per_second={name: speed for name, speed in speeds.items() if speed is not None},
        stored_bytes={name: lane.stored_bytes for name, lane in lanes.items()},
    )


def _timings(lanes: dict[str, LaneState], generate_s: float, measure_s: float) -> dict[str, float]:
    found = {"generate_s": generate_s, "measure_s": measure_s}
    for name, lane in lanes.items():
        found[f"prefill_s.{name}"] = lane.prefill_s
        if lane.tokens_per_second is not None:
            found[f"tokens_per_second.{name}"] = lane.tokens_per_second
    return found


def _not_quantized(lane: LaneState) -> list[str]:
    """Say which layers a recipe could not reach, by reason."""
    reasons: dict[str, list[int]] = {}
    for layer, reason in lane.cache.not_quantized.items():
        if layer not in lane.cache.recipe.skip:
            reasons.setdefault(reason, []).append(layer)
    return [
        f"not quantized: layer{'s' if len(layers) > 1 else ''} {', '.join(map(str, layers))} ({reason})"
        for reason, layers in reasons.items()
    ]


def _spread(layers: tuple[int, ...], count: int) -> tuple[int, ...]:
    """Return at most `count` of these layers, evenly spread from the first to the last."""
    if len(layers) <= count:
        return layers
    return tuple(layers[round(i * (len(layers) - 1) / (count - 1))] for i in range(count))
