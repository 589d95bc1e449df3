"""Quantize and dequantize on the CPU, every scheme, against a copy of the same numbers.

    python -m benchmarks.bench_quantize [--schemes mxfp4 nvfp4] [--tokens 60000] [--rounds 15]

A row's ratio is its speed in copies, taken round by round: 0.5 takes twice the time of `torch.Tensor.copy_`
of the float32 tensor. For mxfp4 the reference and torchao's `to_mx` take part, which packs the same bytes.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor

from benchmarks._rows import Row, timed_row
from benchmarks._timing import in_rounds, stopwatch
from mxviz import ops
from mxviz.formats import SCHEMES, Scheme

MAIN = "mxfp4"
TORCHAO = "quantize, torchao"
NAMES = (
    *(name for name, scheme in SCHEMES.items() if not scheme.is_none),
    "mxfp4:axis=token", "mxfp4:scale=rceil", "nvfp4:axis=token", "aint4:axis=token", "aint2:axis=token",
)  # fmt: skip
TOKENS, ROUNDS = 60_000, 15
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def measure(quick: bool = False) -> Iterator[Row]:
    """Measure all schemes on 11.5 million float32 numbers; `quick` takes two schemes and few numbers."""
    if quick:
        return rows((MAIN, "nvfp4"), tokens=1000, rounds=3)
    return rows(NAMES, tokens=TOKENS, rounds=ROUNDS)


def rows(names: Iterable[str], tokens: int, rounds: int, dtype: str = "float32") -> Iterator[Row]:
    """Measure schemes on keys `[1, 3, tokens, 64]` of random numbers."""
    x = torch.randn(1, 3, tokens, 64, generator=torch.Generator().manual_seed(0)).to(DTYPES[dtype])
    for name in names:
        setting = name if dtype == "float32" else f"{name}, {dtype}"
        taken, failed = in_rounds(contenders(x, Scheme.parse(name)), rounds, may_fail=(TORCHAO,))
        for what, ms in taken.items():
            shares = [copy / own for copy, own in zip(taken["copy"], ms, strict=True)]
            yield timed_row("quantize", setting, what, "ms", ms, shares, f"{x.numel():,} numbers")
        for what, why in failed.items():
            yield Row("quantize", setting, what, "ms", note=why)


def contenders(x: Tensor, scheme: Scheme) -> dict[str, Callable[[], float]]:
    """Return what is timed for one scheme, by name; each returns its milliseconds."""
    target, exact = torch.empty(x.shape), x.float()
    blocks = ops.quantize(x, scheme, backend="cpu")
    found: dict[str, Callable[[], object]] = {
        "copy": lambda: target.copy_(exact),
        "quantize": lambda: ops.quantize(x, scheme, backend="cpu"),
        "dequantize": lambda: ops.dequantize(blocks, backend="cpu"),
    }
    if str(scheme) == MAIN:
        found["quantize, reference"] = lambda: ops.quantize(x, scheme, backend="reference")
        found["dequantize, reference"] = lambda: ops.dequantize(blocks, backend="reference")
        found[TORCHAO] = lambda: _torchao(exact)
    return {name: stopwatch(run) for name, run in found.items()}


def _torchao(x: Tensor) -> object:
    """Quantize x to packed MXFP4 with torchao, floor rule."""
    try:
        from torchao.prototype.mx_formats.mx_tensor import to_mx
    except ImportError as error:
        raise RuntimeError(f"not here: {error}") from None
    return to_mx(x, torch.float4_e2m1fn_x2, 32)


def main() -> None:
    """Print rows for the schemes that are asked for; nothing is appended."""
    parser = argparse.ArgumentParser(description="Quantize and dequantize on the CPU, against a copy.")
    parser.add_argument("--schemes", nargs="*", default=NAMES)
    parser.add_argument("--tokens", type=int, default=TOKENS, help="tokens of three heads of 64")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--dtype", choices=DTYPES, default="float32")
    args = parser.parse_args()
    for row in rows(args.schemes, args.tokens, args.rounds, args.dtype):
        print(row.line())


if __name__ == "__main__":
    main()
