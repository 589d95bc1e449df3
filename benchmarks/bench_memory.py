"""Memory: what a cache says it holds, what a formula says, and what the process grows by.

Each cache is filled in a process of its own: 8,000 tokens as one prompt, then 200 more one by one, so that
the buffers have to grow. Resident memory is read after garbage collection and malloc_trim. Shapes are those
of SmolLM2-135M: 30 layers, 3 KV heads, head_dim 64, float32. A row's ratio is to the formula.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import torch

from benchmarks._attention import DIM, KV_HEADS, LAYERS, begin, config, random_states
from benchmarks._rows import Row
from mxviz.cache import MXCache
from mxviz.formats import Axis, Recipe, Scheme

RECIPES = ("mxfp4", "nvfp4", "kivi4", "k=mxfp4:axis=token;v=mxfp4")
PROMPT, MORE = 8000, 200
HELD, ALLOCATED, RESIDENT = "bytes in use", "bytes allocated", "resident growth"
MB = 1e6


def measure(quick: bool = False) -> Iterator[Row]:
    """Measure all recipes; `quick` takes one, and fewer tokens."""
    if not Path("/proc/self/statm").exists():
        return iter([Row("memory", r, RESIDENT, "MB", note="not here: needs Linux's /proc") for r in RECIPES])
    return rows(RECIPES[:1], 800, 40) if quick else rows(RECIPES, PROMPT, MORE)


def rows(recipes: tuple[str, ...], prompt: int, more: int) -> Iterator[Row]:
    """Fill a cache in a fresh process for each recipe."""
    for recipe in recipes:
        for tokens, found in _in_fresh_process(recipe, prompt, more).items():
            formula = formula_bytes(Recipe.parse(recipe), int(tokens))
            empty = Row("memory", f"{recipe}, {tokens} tokens", "", "MB", rounds=1)
            for name, value in {"formula": formula, **found}.items():
                yield empty._replace(name=name, median=value / MB, ratio=value / formula)


def formula_bytes(recipe: Recipe, tokens: int, itemsize: int = 4) -> int:
    """Return what the keys and values of all layers take: bits per element, and exact what is exact."""
    return LAYERS * sum(_part_bytes(recipe.scheme(p), recipe, tokens, itemsize) for p in ("key", "value"))


def _part_bytes(scheme: Scheme, recipe: Recipe, tokens: int, itemsize: int) -> int:
    unit = scheme.block if scheme.is_blocked and scheme.axis is Axis.TOKEN else 1
    packed = (tokens - recipe.sink - recipe.residual) // unit * unit
    elements = KV_HEADS * DIM
    single = 4 if scheme.name == "nvfp4" else 0  # its one float32 a tensor
    bits = scheme.bits_per_element() * packed + 8 * itemsize * (tokens - packed)
    return round(bits * elements / 8) + single


def _in_fresh_process(recipe: str, prompt: int, more: int) -> dict[str, dict[str, int]]:
    command = [sys.executable, "-m", "benchmarks.bench_memory", recipe, str(prompt), str(more)]
    threads = {"OMP_NUM_THREADS": str(torch.get_num_threads())}
    root = Path(__file__).resolve().parents[1]
    done = subprocess.run(
        command, env={**os.environ, **threads}, cwd=root, stdout=subprocess.PIPE, check=True, text=True
    )
    return json.loads(done.stdout)


def _fill_here(recipe: str, prompt: int, more: int) -> dict[int, dict[str, int]]:
    """Fill a cache in this process and return bytes by tokens held."""
    with torch.inference_mode():
        _steps(_prompt(recipe, 256), 40)  # packs beyond the residual: kernels are compiled, threads started
        before = _resident()
        cache = _prompt(recipe, prompt)
        found = {prompt: _bytes(cache, before)}
        _steps(cache, more)
        return {**found, prompt + more: _bytes(cache, before)}


def _prompt(recipe: str, tokens: int) -> MXCache:
    cache = MXCache(config(), recipe)
    for layer, (k, v) in enumerate(random_states(tokens)):
        cache.update(k, v, layer)
    return cache


def _steps(cache: MXCache, count: int) -> None:
    new = torch.randn(1, KV_HEADS, 1, DIM)
    for _ in range(count):
        begin(cache, "mxviz")
        for layer in range(len(cache)):
            cache.update(new, new, layer)


def _bytes(cache: MXCache, before: int) -> dict[str, int]:
    return {HELD: cache.nbytes, ALLOCATED: cache.allocated_bytes, RESIDENT: _resident() - before}


def _resident() -> int:
    """Return the bytes this process has in memory, once what is free has gone back."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Fill one cache and print its bytes as JSON.")
    parser.add_argument("recipe")
    parser.add_argument("prompt", type=int)
    parser.add_argument("more", type=int)
    print(json.dumps(_fill_here(**vars(parser.parse_args()))))
