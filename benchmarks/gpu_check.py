"""Check and time the Triton kernels on a GPU; `gpu_check.sh` runs this. Needs torch, triton and numpy alone.

It prints Markdown: bit-equality with the reference, attention against float64, codec bandwidth, decode times.
Times are medians with the 20th and 80th percentile, all peers in turn inside one loop, the second-level cache
emptied before each; the roofline is a copy of as many bytes. `--small` runs tiny shapes in Triton's
interpreter, which shows that the script works and nothing about speed.
"""

from __future__ import annotations

import argparse
import csv
import platform
import sys
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from statistics import median, quantiles

import torch
import triton
from torch import Tensor

from mxviz import quantize as reference
from mxviz.backends import Part, gpu
from mxviz.formats import Axis, Scheme

CODEC = (
    "mxfp4", "mxfp4:axis=token", "mxfp4:scale=rceil", "mxfp6_e3m2", "mxfp8_e4m3", "mxfp8_e5m2:axis=token",
    "mxint8", "nvfp4", "aint4:axis=token", "aint2", "int8@tensor", "fp8_e4m3@channel", "fp4@token",
)  # fmt: skip
STORES = (
    ("mxfp4:axis=token", "mxfp4"),
    ("nvfp4", "nvfp4"),
    ("aint4:axis=token", "aint4"),
    ("mxfp8_e4m3", "mxfp8_e4m3"),
)
BUDGET = 240.0  # seconds; sections that start later are left out, and named

Timing = tuple[float, float, float]
ROWS: list[dict] = []


def bits(t: Tensor | None) -> Tensor | None:
    """Bytes as integers, on the CPU: NaN equals NaN, -0 is not 0."""
    if t is None:
        return None
    return t.cpu().contiguous().view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[t.element_size()])


def same(a: Tensor | None, b: Tensor | None) -> bool:
    return (a is None and b is None) or torch.equal(bits(a), bits(b))


def check_bytes(device: str, tokens: int) -> bool:
    """Quantize and dequantize on the device against the reference on the CPU."""
    print("\n## Bytes\n\n| scheme | dtype | packed | scales | zeros | global | values |\n" + "|---" * 7 + "|")
    all_right = True
    for i, text in enumerate(CODEC):
        dtype = (torch.bfloat16, torch.float32, torch.float16)[i % 3]
        scheme = Scheme.parse(text)
        x = (torch.randn(1, 2, tokens, 128) * torch.exp2(torch.randn(1, 2, tokens, 128) * 4)).to(dtype)
        x[0, 0, 3, 5], x[0, 1, -1, -1], x[0, 0, 8] = torch.nan, torch.inf, 0
        want = reference.quantize(x, scheme)
        got = gpu.quantize(x.to(device), scheme, scheme.axis.dim, None)
        right = [
            same(getattr(got, part), getattr(want, part))
            for part in ("packed", "scales", "zeros", "global_scale")
        ]
        values, expected = gpu.dequantize(got, dtype).cpu(), want.dequantize(dtype)
        right.append(bool(torch.equal(values.nan_to_num(), expected.nan_to_num())))
        all_right &= all(right)
        print(f"| {text} | {str(dtype)[6:]} | {' | '.join('equal' if r else '**differs**' for r in right)} |")
    return all_right


def stored(x: Tensor, text: str) -> tuple[Part, Tensor]:
    """Cut x as a cache does (4 sinks, whole blocks, a tail of 40 and more); return what it stands for too."""
    scheme = Scheme.parse(text)
    unit = scheme.block if scheme.axis is Axis.TOKEN and scheme.is_blocked else 1
    end = 4 + max(0, x.shape[2] - 44) // unit * unit
    blocks = gpu.quantize(x[:, :, 4:end].contiguous(), scheme, scheme.axis.dim, None)
    exact = torch.cat([x[:, :, :4], gpu.dequantize(blocks, x.dtype), x[:, :, end:]], 2)
    return Part(x[:, :, :4].contiguous(), blocks, x[:, :, end:].contiguous()), exact


def check_attention(device: str, tokens: int) -> bool:
    """The largest error of attention, over the largest |output|, against float64 on the same values."""
    print("\n## Attention\n\n| keys | values | dtype | error | plain attention's |\n|---|---|---|---|---|")
    all_right = True
    for i, (keys, values) in enumerate(STORES):
        dtype = (torch.bfloat16, torch.float16)[i % 2]
        x, y = (torch.randn(2, 2, tokens, 128, device=device).to(dtype) for _ in range(2))
        query = torch.randn(2, 8, 1, 128, device=device).to(dtype)
        (k, k_exact), (v, v_exact) = stored(x, keys), stored(y, values)
        got = gpu.attend(query, k, v, scaling=0.1)
        want = plain(query.double(), k_exact.double(), v_exact.double())
        errors = [
            ((one.double() - want).abs().max() / want.abs().max()).item()
            for one in (got, plain(query, k_exact, v_exact))
        ]
        right = errors[0] < 0.02
        all_right &= right
        mark = "" if right else " **too large**"
        print(f"| {keys} | {values} | {str(dtype)[6:]} | {errors[0]:.1e}{mark} | {errors[1]:.1e} |")
    return all_right


def plain(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """torch's own attention over uncompressed keys and values, grouped queries."""
    attention = torch.nn.functional.scaled_dot_product_attention
    return attention(query, keys, values, scale=0.1, enable_gqa=True)


def timed(peers: dict[str, Callable[[], object]], device: str, rounds: int) -> dict[str, Timing]:
    """Milliseconds of each peer, in turn in one loop: median, 20th and 80th percentile."""
    flush = torch.empty(1 if device == "cpu" else 256 * 2**20, dtype=torch.int8, device=device)
    seen: dict[str, list[float]] = {name: [] for name in peers}
    for turn in range(rounds + 3):
        for name, call in peers.items():
            flush.zero_()
            took = _once(call, device)
            if turn >= 3:  # the first turns compile
                seen[name].append(took)
    return {name: (median(t), *quantiles(t, n=5, method="inclusive")[::3]) for name, t in seen.items()}


def _once(call: Callable[[], object], device: str) -> float:
    if device == "cpu":
        start = time.perf_counter()
        call()
        return 1e3 * (time.perf_counter() - start)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end)


def keep(section: str, what: str, peer: str, timing: Timing, moved: int) -> str:
    """Remember a row for the CSV file and return its cells for the table."""
    row = {
        "section": section,
        "what": what,
        "peer": peer,
        "ms": timing[0],
        "p20": timing[1],
        "p80": timing[2],
    }
    ROWS.append(row | {"bytes": moved, "gb_per_s": moved / timing[0] / 1e6})
    return f"{timing[0]:.3f} ({timing[1]:.3f}–{timing[2]:.3f}) | {moved / timing[0] / 1e6:,.0f}"


def time_codec(device: str, tokens: int, rounds: int) -> None:
    """Bandwidth of quantize and dequantize beside a copy; bytes are what is read and written."""
    print("\n## Codec\n\n| what | scheme | ms (p20–p80) | GB/s |\n|---|---|---|---|")
    x = torch.randn(1, 8, tokens, 128, device=device, dtype=torch.bfloat16)
    size = x.numel() * 2
    peers: dict[str, Callable[[], object]] = {"copy –": x.clone}
    moved = {"copy –": 2 * size}
    for text in ("mxfp4", "mxfp4:axis=token", "mxfp6_e3m2", "nvfp4"):
        scheme = Scheme.parse(text)
        blocks = gpu.quantize(x, scheme, scheme.axis.dim, None)
        peers[f"quantize {text}"] = lambda s=scheme: gpu.quantize(x, s, s.axis.dim, None)
        peers[f"dequantize {text}"] = lambda b=blocks: gpu.dequantize(b, torch.bfloat16)
        moved |= dict.fromkeys((f"quantize {text}", f"dequantize {text}"), size + blocks.nbytes)
    for name, timing in timed(peers, device, rounds).items():
        what, text = name.split(" ")
        print(f"| {what} | {text} | {keep('codec', text, what, timing, moved[name])} |")


def time_decode(device: str, batch: int, tokens: int, rounds: int) -> None:
    """One decode step of 32 query heads over 8 KV heads, head_dim 128, bfloat16."""
    what = f"batch {batch}, {tokens:,} tokens"
    x, y = (torch.randn(batch, 8, tokens, 128, device=device, dtype=torch.bfloat16) for _ in range(2))
    query = torch.randn(batch, 32, 1, 128, device=device, dtype=torch.bfloat16)
    size = 2 * x.numel() * 2
    peers: dict[str, Callable[[], object]] = {
        "copy of the uncompressed bytes": lambda: (x.clone(), y.clone()),
        "uncompressed, torch": lambda: plain(query, x, y),
    }
    moved = {"copy of the uncompressed bytes": 2 * size, "uncompressed, torch": size}
    for keys, values in STORES:
        name = f"k={keys};v={values}" if keys != values else keys
        k, v = stored(x, keys)[0], stored(y, values)[0]
        peers[name] = lambda k=k, v=v: gpu.attend(query, k, v, scaling=0.1)
        exact = [t for part in (k, v) for t in (part.sink, part.tail)]
        moved[name] = k.blocks.nbytes + v.blocks.nbytes + sum(t.numel() * 2 for t in exact)
    measured = timed(peers, device, rounds)
    base = measured["uncompressed, torch"][0]
    for name, timing in measured.items():
        cells = keep("decode", what, name, timing, moved[name])
        print(f"| {what} | {name} | {cells} | {timing[0] / base:.2f} |")


def machine(device: str) -> str:
    name = (
        torch.cuda.get_device_name() if device == "cuda" else f"Triton's interpreter on {platform.machine()}"
    )
    versions = f"torch {torch.__version__}, Triton {triton.__version__}, Python {platform.python_version()}"
    return f"{name}, {versions}, {date.today()}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--out", type=Path, help="also write the timings as CSV")
    parser.add_argument("--small", action="store_true", help="tiny shapes in Triton's interpreter")
    arguments = parser.parse_args()
    device = "cpu" if arguments.small else "cuda"
    reason = gpu.missing()
    if reason is not None or not gpu.supports(device):
        print(f"gpu_check: {reason or 'set TRITON_INTERPRET=1 for --small'}", file=sys.stderr)
        return 2
    torch.manual_seed(0)
    began = time.monotonic()
    print(f"# Triton kernels on {machine(device)}")
    tokens, rounds, decodes = 1033, 50, ((1, 1024), (1, 8192), (8, 8192), (1, 65536))
    if arguments.small:
        tokens, rounds, decodes = 77, 2, ((1, 110),)
    right = check_bytes(device, tokens)
    right &= check_attention(device, tokens + 100)
    time_codec(device, 110 if arguments.small else 65536, rounds)
    print("\n## Decode\n\n| what | cache | ms (p20–p80) | GB/s | × uncompressed |\n|---|---|---|---|---|")
    for batch, length in decodes:
        if time.monotonic() - began > BUDGET:
            print(f"| batch {batch}, {length:,} tokens | left out: over {BUDGET:.0f} s | – | – | – |")
            continue
        time_decode(device, batch, length, rounds)
    verdict = "All bytes and values are right" if right else "**Something differs**"
    print(f"\n{verdict}; {time.monotonic() - began:.0f} s.")
    if arguments.out is not None:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        with arguments.out.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, ["machine", *ROWS[0]])
            writer.writeheader()
            writer.writerows({"machine": machine(device)} | row for row in ROWS)
    return 0 if right else 1


if __name__ == "__main__":
    raise SystemExit(main())
