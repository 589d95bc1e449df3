"""What every turn shares: waiting for the model, what is said while it goes on, and the record at its end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from mxviz._engine_effect import Effect, measure
from mxviz._engine_lanes import LaneState
from mxviz._engine_probe import Probe
from mxviz._engine_record import build_capture, layers_to_record
from mxviz._engine_settings import Progress, Settings
from mxviz.capture import Capture
from mxviz.models import Loaded

QUERY_LAYERS = 4
"""Layers whose queries are recorded, spread over the model."""

OnProgress = Callable[[Progress], None]
ShouldStop = Callable[[], bool]


@contextmanager
def alone(loaded: Loaded, tell: OnProgress, stop: ShouldStop) -> Iterator[None]:
    """Hold the model's lock; a stop is heard while waiting for it.

    Raises:
        ValueError: for a stop before the model was free.
    """
    if not loaded.lock.acquire(blocking=False):
        tell(Progress("waiting", 0, 1))
        while not loaded.lock.acquire(timeout=0.1):
            if stop():
                raise ValueError("stopped while another run used the model; nothing was recorded")
    try:
        yield
    finally:
        loaded.lock.release()


def finish(
    loaded: Loaded,
    settings: Settings,
    lanes: dict[str, LaneState],
    tell: OnProgress,
    stop: ShouldStop,
    *,
    written: bool,
    generate_s: float,
    notes: tuple[str, ...],
) -> Capture:
    """Measure what the lanes have written, where they came to the end, and return the record."""
    started = time.perf_counter()
    effect, probe, finished = None, None, written
    if written and settings.effect:
        effect, probe = _measure(loaded, settings, lanes, tell, stop)
        finished = effect is not None
    said = [*notes, *loaded.notes, *_not_quantized(lanes["micro"])]
    said += [note for lane in lanes.values() for note in lane.notes]
    if not finished:
        new = len(lanes["exact"].ids)
        said.append(f"stopped after {new} new token{'' if new == 1 else 's'}; the effect was not measured")
    capture = build_capture(
        loaded,
        settings,
        lanes["exact"].before,
        lanes,
        effect,
        probe if effect else None,
        notes=tuple(said),
        timings=_timings(lanes, generate_s, time.perf_counter() - started),
    )
    tell(progress("done", 1, 1, lanes))
    return capture


@torch.inference_mode()
def _measure(
    loaded: Loaded,
    settings: Settings,
    lanes: dict[str, LaneState],
    tell: OnProgress,
    stop: ShouldStop,
) -> tuple[Effect | None, Probe]:
    """Measure over all that was read and the exact text; the exact pass is probed for what no cache sees."""
    exact = lanes["exact"]
    layers = layers_to_record(exact.cache, settings.layers)
    queries = _spread(layers, QUERY_LAYERS) if settings.query_layers is None else settings.query_layers
    probe = Probe(loaded.model, layers, queries)
    effect = measure(
        loaded.model,
        (*exact.before, *exact.ids),
        settings.recipes(),
        backend=settings.backend,
        probe=probe,
        said=lambda done: tell(progress("measure", done, len(lanes), lanes)),
        should_stop=stop,
    )
    return effect, probe


def progress(stage: str, step: int, total: int, lanes: dict[str, LaneState]) -> Progress:
    """Return what the lanes have done so far."""
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
