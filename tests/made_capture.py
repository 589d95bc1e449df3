"""A Capture made by hand from random numbers, and its errors computed again; no model is needed."""

from __future__ import annotations

import numpy as np
import oracle
import torch

from mxviz._hadamard import hadamard
from mxviz.capture import Capture, Lane
from mxviz.formats import Recipe

TOKENS = 70
LAYERS = 3
HEADS = 2
HEAD_DIM = 40
VALUE_DIM = 24


def made_capture(recipe: str = "mxfp4", baseline: str = "fp4@tensor", **changes) -> Capture:
    """Three layers with two KV heads; keys have an outlier channel (layer 1, head 1, channel 7)."""
    g = torch.Generator().manual_seed(5)
    keys = {i: torch.randn(HEADS, TOKENS, HEAD_DIM, generator=g) for i in range(LAYERS)}
    keys[1][1, :, 7] += 30
    values = {i: torch.randn(HEADS, TOKENS, VALUE_DIM, generator=g) * 0.1 for i in range(LAYERS)}
    exact = tuple(range(100, 111))
    made = {
        "model": "made by hand",
        "revision": None,
        "recipe": recipe,
        "baseline": baseline,
        "prompt": "a prompt",
        "prompt_tokens": 60,
        "token_ids": (*range(60), *exact),
        "token_texts": tuple(f"t{i}" for i in range(71)),
        "lanes": {
            "exact": Lane("exact text", exact),
            "micro": Lane("micro text", (*exact[:4], 9, *exact[5:])),
            "single": Lane("single text", (1, *exact[1:])),
        },
        "keys": keys,
        "values": values,
        "effect": {
            lane: {
                "kl": torch.rand(70, generator=g) * scale,
                "top1": torch.rand(70, generator=g) < share,
            }
            for lane, scale, share in (("micro", 0.1, 0.9), ("single", 1.0, 0.5))
        },
        "sampling": {"seed": 7, "temperature": 0.0},
        "shape": {
            "layers": LAYERS,
            "kv_heads": HEADS,
            "head_dim": HEAD_DIM,
            "value_dim": VALUE_DIM,
            "dtype": "float32",
            "model_dtype": "float32",
        },
        "storage": {
            lane: {"tokens_held": 70, "stored_bytes": size, "bits_per_element": bits}
            for lane, size, bits in (("exact", 53760, 16.0), ("micro", 15120, 4.5), ("single", 13464, 4.0))
        },
        "timings": {"prefill_s": 0.123},
        "versions": {"mxviz": "0.1.0"},
        "backend": "reference",
        "threads": 2,
    }
    return Capture(**(made | changes))


def expected_error(capture, recipe: str, part: str) -> dict[str, float]:
    """part_error again, from the oracle's decoded values, in plain float64 NumPy."""
    read = Recipe.parse(recipe)
    x_all, hat_all, clipped, flushed, stored_all = [], [], 0, 0, []
    for layer in capture.layers:
        x = capture.part(part, layer).numpy()
        turned = x @ hadamard(x.shape[-1]).numpy() if read.rotate else x
        scheme, sink = str(read.scheme(part)), read.sink
        x_hat = x.astype(np.float64)
        if layer not in read.skip and scheme != "none":
            result = oracle.quantize(turned[:, sink:], scheme)
            back = result.x_hat.astype(np.float64)
            x_hat[:, sink:] = (
                back @ hadamard(x.shape[-1]).numpy().T.astype(np.float64) if read.rotate else back
            )
            clipped, flushed = clipped + result.clipped.sum(), flushed + result.flushed.sum()
        x_all.append(x.astype(np.float64).ravel())
        hat_all.append(x_hat.ravel())
        stored_all.append(turned.ravel())
    x, x_hat, stored = map(np.concatenate, (x_all, hat_all, stored_all))
    noise = np.square(x - x_hat)
    return {
        "sqnr_db": 10 * np.log10(np.square(x).sum() / noise.sum()),
        "mse": noise.mean(),
        "flushed": flushed / np.count_nonzero(stored),
        "clipped": clipped / stored.size,
    }
