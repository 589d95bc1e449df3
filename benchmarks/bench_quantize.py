"""Quantize and dequantize on the CPU, against a copy of the same bytes, the reference and torchao.

    python -m benchmarks.bench_quantize [--schemes mxfp4 nvfp4] [--tokens 60000] [-o quantize.csv]

`of_copy` is the speed in copies: 0.5 takes twice the time of `torch.Tensor.copy_` of the float32 tensor.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor

from benchmarks._timing import interleaved, machine, write
from mxviz import ops
from mxviz.formats import Scheme

SCHEMES = (
    "mxfp4", "mxfp4:axis=token", "mxfp4:scale=rceil", "mxfp8_e4m3", "mxfp8_e5m2", "mxfp6_e2m3", "mxfp6_e3m2",
    "mxint8", "mxint4", "nvfp4", "nvfp4:axis=token", "aint4", "aint4:axis=token", "aint2", "int4@tensor",
    "int8@channel", "fp4@token", "fp8_e4m3@one",
)  # fmt: skip
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def contenders(x: Tensor, scheme: Scheme, reference: bool) -> dict[str, Callable[[], object]]:
    """What is timed for one scheme, by name."""
    target = torch.empty(x.shape)
    exact = x.float()
    blocks = ops.quantize(x, scheme, backend="cpu")
    found: dict[str, Callable[[], object]] = {
        "copy": lambda: target.copy_(exact),
        "quantize": lambda: ops.quantize(x, scheme, backend="cpu"),
        "dequantize": lambda: ops.dequantize(blocks, backend="cpu"),
    }
    if reference:
        found["quantize, reference"] = lambda: ops.quantize(x, scheme, backend="reference")
        found["dequantize, reference"] = lambda: ops.dequantize(blocks, backend="reference")
    if str(scheme) == "mxfp4" and (to_mx := _torchao()):
        found["quantize, torchao"] = lambda: to_mx(exact)
    return found


def _torchao() -> Callable[[Tensor], object] | None:
    """torchao's MXFP4 quantizer with packing, where it is installed."""
    try:
        from torchao.prototype.mx_formats.mx_tensor import to_mx
    except ImportError:
        return None
    return lambda x: to_mx(x, torch.float4_e2m1fn_x2, 32)


def rows(names: list[str], tokens: int, dtype: str, reference: bool, seconds: float) -> Iterator[dict]:
    torch.manual_seed(0)
    x = torch.randn(1, 3, tokens, 64).to(DTYPES[dtype])
    for name in names:
        timings = interleaved(contenders(x, Scheme.parse(name), reference), seconds)
        for what, t in timings.items():
            yield {
                "what": what,
                "scheme": name,
                "dtype": dtype,
                "numbers": x.numel(),
                "median_ms": f"{t.median:.3f}",
                "p20_ms": f"{t.p20:.3f}",
                "p80_ms": f"{t.p80:.3f}",
                "of_copy": f"{timings['copy'].median / t.median:.3f}",
                **machine(),
            }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--schemes", nargs="*", default=list(SCHEMES))
    parser.add_argument("--tokens", type=int, default=20_000, help="tokens of three heads of 64")
    parser.add_argument("--dtype", choices=DTYPES, default="float32")
    parser.add_argument("--seconds", type=float, default=1.0, help="about how long each scheme is timed")
    parser.add_argument("--no-reference", action="store_true", help="leave the slow reference out")
    parser.add_argument("-o", "--out", type=Path, help="a CSV file; standard output without it")
    args = parser.parse_args()
    write(rows(args.schemes, args.tokens, args.dtype, not args.no_reference, args.seconds), args.out)


if __name__ == "__main__":
    main()
