"""What Numba kernels need of the machine: a place for compiled code, and threads."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from mxviz import kernels

if TYPE_CHECKING:
    from numba.core.ccallback import CFunc


def set_cache_folder() -> None:
    """Tell Numba where compiled kernels go, unless the user has said so; call it before importing them.

    The folder carries a hash of all kernels: Numba looks at one source file alone, and would keep stale code
    when a helper in another file changes.
    """
    if os.environ.get("NUMBA_CACHE_DIR"):
        return
    os.environ["NUMBA_CACHE_DIR"] = str(_cache_folder())
    if "numba" in sys.modules:
        sys.modules["numba"].core.config.reload_config()


def _cache_folder() -> Path:
    """The user's cache folder, or a private temporary one that goes with the process."""
    digest = hashlib.sha256()
    for folder in kernels.__path__:
        for source in sorted(Path(folder, "cpu").glob("*.py")):
            digest.update(source.read_bytes())
    try:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        folder = base / "mxviz" / f"numba-{digest.hexdigest()[:16]}"
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except (OSError, RuntimeError):  # no home, or one that cannot be written
        folder = Path(tempfile.mkdtemp(prefix="mxviz-numba-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        return folder


def _marker() -> Path:
    """The file that says that another process need not compile; Numba compiles anew for another version."""
    return Path(os.environ["NUMBA_CACHE_DIR"], f"mxviz-compiled-numba-{version('numba')}")


def note_compiled() -> None:
    """Leave word that the kernels are compiled."""
    with contextlib.suppress(OSError):
        _marker().touch()


def is_compiled() -> bool:
    """Whether word was left."""
    set_cache_folder()
    return _marker().is_file()


@cache
def _pool(size: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(size, thread_name_prefix="mxviz-kernel")


_forked: list[bool] = []


def _after_fork() -> None:
    """A child has the pool and OpenMP's team, but none of their threads."""
    _pool.cache_clear()
    _torchs_team.cache_clear()
    _forked.append(True)


os.register_at_fork(after_in_child=_after_fork)


def spread(
    kernel: Callable[..., None], arguments: tuple, units: int, cost: int, team: CFunc | None = None
) -> None:
    """Run `kernel(*arguments, first, last)` over all units, on several threads where that pays.

    Not Numba's `parallel=True`: its default layer aborts the process where two threads enter at once.

    Args:
        kernel: a compiled kernel that releases the GIL and takes a range of units at the end.
        arguments: all its other arguments.
        units: independent pieces of work, each done by one thread: their number changes no byte.
        cost: numbers that are worked on, all units together.
        team: the same kernel as a C callback (`mxviz.kernels.cpu.team`), for torch's own threads.
    """
    threads = min(torch.get_num_threads(), units, cost // _NUMBERS_A_THREAD + 1)
    if threads <= 1:
        kernel(*arguments, 0, units)
        return
    run = None if team is None else _torchs_team()
    if run is not None:
        *numbers, plan = arguments
        chunk = max(1, units // (threads * _CHUNKS_A_MEMBER))
        job = np.array((0, units, chunk, plan.ctypes.data, *numbers), np.int64)
        run(team.address, job.ctypes.data, threads, 0)
        return
    ends = [units * i // threads for i in range(threads + 1)]
    pool = _pool(torch.get_num_threads())
    waiting = [pool.submit(kernel, *arguments, ends[i], ends[i + 1]) for i in range(1, threads)]
    kernel(*arguments, 0, ends[1])
    for task in waiting:
        task.result()


_NUMBERS_A_THREAD = 1 << 16
"""Below this a second thread costs more to wake than it saves."""


def together(kernel: Callable[[int], None], team: CFunc, job: int, units: int, cost: int) -> None:
    """Let several threads work off a job: they take its units from each other until none is left.

    Where torch computes with OpenMP, its own team does it. That team has just multiplied matrices and spins
    in wait of more: other threads would have to share the cores with its waiting.

    Args:
        kernel: takes the job's address, works until nothing is left of it, and releases the GIL.
        team: the same as a C callback.
        job: the address.
        units: pieces of work.
        cost: numbers that are worked on, all units together.
    """
    threads = min(torch.get_num_threads(), units, cost // _NUMBERS_A_MEMBER + 1)
    run = _torchs_team() if threads > 1 else None
    if threads <= 1:
        kernel(job)
    elif run is not None:
        run(team.address, job, threads, 0)
    else:
        pool = _pool(torch.get_num_threads())
        waiting = [pool.submit(kernel, job) for _ in range(1, threads)]
        kernel(job)
        for task in waiting:
            task.result()


_NUMBERS_A_MEMBER = 1 << 16
_CHUNKS_A_MEMBER = 8


@cache
def _torchs_team() -> Callable[[int, int, int, int], None] | None:
    """`GOMP_parallel` of the OpenMP library that torch itself is linked to; None where there is none.

    Found through torch's own library: another copy of OpenMP would have threads of its own.
    """
    if _forked:
        return None
    try:
        run = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so")).GOMP_parallel
    except (OSError, AttributeError):
        return None
    run.argtypes, run.restype = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint), None
    return run
