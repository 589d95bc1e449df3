"""One decode step's attention on the CPU: over the packed cache, and over float32 keys and values.

    python -m benchmarks.bench_attend [--recipes mxfp4 int4@tensor] [--layers 8] [-o attend.csv]

Contenders take turns over the same number of layers, each with keys and values of its own, as in a model; a
time is that of one layer. `sdpa` is torch's attention over float32 that lies ready, `cat + sdpa` appends a
token first, as transformers' DynamicCache does, and `dequantize + sdpa` unpacks the packed cache for it.
`of_sdpa` is the time in times of `sdpa`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor

from benchmarks._timing import interleaved, machine, write
from mxviz import ops
from mxviz.backends import Part, cpu
from mxviz.formats import Recipe

RECIPES = (
    "mxfp4", "k=mxfp4:axis=token;v=mxfp4", "nvfp4", "mxfp8_e4m3", "mxfp6_e2m3", "mxint8", "int4@tensor",
    "k=aint4:axis=token;v=aint4",
)  # fmt: skip
LENGTHS = (256, 2048, 8000)
HEADS, GROUP, DIM = 3, 3, 64  # those of SmolLM2-135M

sdpa = torch.nn.functional.scaled_dot_product_attention


def _part(x: Tensor, scheme) -> Part:
    """x packed, but for an open block along tokens."""
    tail = x.shape[2] % scheme.block if scheme.is_blocked and scheme.axis.dim == -2 else 0
    end = x.shape[2] - tail
    return Part(None, ops.quantize(x[:, :, :end], scheme, backend="cpu"), x[:, :, end:] if tail else None)


def _unpacked(part: Part) -> Tensor:
    x = ops.dequantize(part.blocks, backend="cpu")
    return x if part.tail is None else torch.cat((x, part.tail), dim=2)


def contenders(tokens: int, recipes: list[str], layers: int) -> dict[str, Callable[[], object]]:
    """Functions that go through all layers once, by name."""
    query, new = torch.randn(1, HEADS * GROUP, 1, DIM), torch.randn(1, HEADS, 1, DIM)
    exact = [(torch.randn(1, HEADS, tokens, DIM), torch.randn(1, HEADS, tokens, DIM)) for _ in range(layers)]

    def each(layer: Callable, held: list) -> Callable[[], None]:
        def run() -> None:
            for k, v in held:
                layer(k, v)

        return run

    found = {
        "sdpa": each(lambda k, v: sdpa(query, k, v, enable_gqa=True), exact),
        "cat + sdpa": each(
            lambda k, v: sdpa(query, torch.cat((k, new), 2), torch.cat((v, new), 2), enable_gqa=True), exact
        ),
    }
    for name in recipes:
        recipe = Recipe.parse(name)
        packed = [(_part(k, recipe.key), _part(v, recipe.value)) for k, v in exact]
        found[name] = each(lambda k, v: cpu.attend(query, k, v, scaling=DIM**-0.5), packed)
        if name == recipes[0]:
            found[f"dequantize + sdpa, {name}"] = each(
                lambda k, v: sdpa(query, _unpacked(k), _unpacked(v), enable_gqa=True), packed
            )
    return found


def rows(recipes: list[str], layers: int, seconds: float) -> Iterator[dict]:
    torch.manual_seed(0)
    for tokens in LENGTHS:
        timings = interleaved(contenders(tokens, recipes, layers), seconds)
        for what, t in timings.items():
            yield {
                "what": what,
                "tokens": tokens,
                "layers": layers,
                "median_us": f"{1e3 * t.median / layers:.1f}",
                "p20_us": f"{1e3 * t.p20 / layers:.1f}",
                "p80_us": f"{1e3 * t.p80 / layers:.1f}",
                "of_sdpa": f"{t.median / timings['sdpa'].median:.3f}",
                "of_cat_sdpa": f"{t.median / timings['cat + sdpa'].median:.3f}",
                **machine(),
            }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--recipes", nargs="*", default=list(RECIPES))
    parser.add_argument("--layers", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=5.0, help="about how long each length is timed")
    parser.add_argument("-o", "--out", type=Path, help="a CSV file; standard output without it")
    args = parser.parse_args()
    write(rows(args.recipes, args.layers, args.seconds), args.out)


if __name__ == "__main__":
    main()
