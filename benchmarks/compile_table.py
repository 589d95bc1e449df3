"""Compile every Triton kernel for every target, without a GPU, and write what each takes as a table.

    python -m benchmarks.compile_table [--jobs 2] [-o docs/kernel-compile-table.md]

A launch is planned by `mxviz.backends.gpu` on small CPU tensors, so the constants are those of real use.
Registers, spills and shared memory are read from the binary with the cuobjdump that Triton brings.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from datetime import date
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import torch

from mxviz.backends import Part, gpu
from mxviz.formats import Scheme
from mxviz.quantize import quantize

CUDA = (75, 80, 86, 89, 90, 100, 120)
TARGETS = (*(f"sm_{cc}" for cc in CUDA), "gfx942")
SHARED_LIMIT = {
    "sm_75": 65536,
    "sm_80": 166912,
    "sm_86": 101376,
    "sm_89": 101376,
    "sm_90": 232448,
    "sm_100": 232448,
    "sm_120": 101376,
    "gfx942": 65536,
}
"""Bytes of shared memory a program can ask for (CUDA C++ programming guide, compute capabilities; CDNA3)."""


class Case(NamedTuple):
    """One kernel with the constants of one use; `what` is its name in the table."""

    what: str
    plan: gpu.Plan
    targets: tuple[str, ...] = TARGETS


class Compiled(NamedTuple):
    """What a compiler made of a case: text of the intermediate code and of the assembly, and what it takes.

    registers: per thread; spills: bytes of local memory per thread; shared: bytes a program.
    """

    ttir: str
    assembly: str
    registers: int
    spills: int
    shared: int


def quantize_cases() -> list[Case]:
    """Quantize and dequantize for one scheme of each kind, in the dtype a model would bring."""
    made = []
    for text, dtype in (
        ("mxfp4", torch.bfloat16),
        ("mxfp4:axis=token", torch.bfloat16),
        ("mxfp4:scale=rceil", torch.float32),
        ("nvfp4", torch.bfloat16),
        ("aint4:axis=token", torch.float16),
        ("aint2", torch.float16),
        ("mxfp6_e3m2", torch.bfloat16),
        ("mxfp8_e5m2", torch.bfloat16),
        ("int8@tensor", torch.bfloat16),
        ("fp8_e4m3@channel", torch.float32),
    ):
        scheme = Scheme.parse(text)
        x = torch.ones(1, 2, 64, 64, dtype=dtype)
        axis = scheme.axis.dim
        made.append(Case(f"quantize {text}", gpu.plan_quantize(x, scheme, axis, None)[1]))
        made.append(Case(f"dequantize {text}", gpu.plan_dequantize(quantize(x, scheme), dtype)[1]))
    return made


def attend_cases() -> list[Case]:
    """Attention of grouped queries over the stores a cache keeps, at two widths of a head; and the merge."""
    made = []
    for keys, values, dim, dtype, queries in (
        ("mxfp4", "mxfp4", 64, torch.float16, 1),
        ("mxfp4", "mxfp4", 128, torch.float16, 1),
        ("mxfp4:axis=token", "mxfp4", 64, torch.float16, 1),
        ("mxfp4:axis=token", "mxfp4", 128, torch.float16, 1),
        ("nvfp4", "nvfp4", 128, torch.float16, 1),
        ("aint2:axis=token", "aint2", 128, torch.float16, 1),
        ("mxfp6_e3m2", "mxfp8_e4m3", 64, torch.float16, 1),
        ("int8@tensor", "int8@tensor", 128, torch.float16, 1),
        ("mxfp4", "mxfp4", 64, torch.float32, 1),
        ("mxfp4:axis=token", "mxfp4", 128, torch.bfloat16, 1),
        ("mxfp4:axis=token", "mxfp4", 64, torch.bfloat16, 16),
    ):
        parts = []
        for text in (keys, values):
            x = torch.ones(1, 2, 200, dim, dtype=dtype)
            parts.append(Part(x[:, :, :4], quantize(x[:, :, 4:196], text), x[:, :, 196:]))
        query = torch.ones(1, 8, queries, dim, dtype=dtype)
        plans = gpu.plan_attend(query, *parts, scaling=0.1)[1]
        kind = str(dtype).removeprefix("torch.")
        what = f"k={keys};v={values} {kind} head_dim {dim}" + (f" queries {queries}" if queries > 1 else "")
        # Turing has no bfloat16; there such a query is multiplied in float32.
        made.append(Case(f"attend {what}", plans[0], TARGETS[1:] if dtype is torch.bfloat16 else TARGETS))
        if keys == values == "mxfp4":
            made.append(Case(f"merge {kind} head_dim {dim}", plans[1]))
    return made


@cache
def cases() -> list[Case]:
    """Every case of the table, in its order."""
    return quantize_cases() + attend_cases()


def specialise(plan: gpu.Plan, target: str):
    """Return what Triton's launcher would compile for a launch, and the key by which it finds that again."""
    from triton.compiler import ASTSource, make_backend
    from triton.runtime.jit import create_function_from_signature

    from mxviz.kernels.gpu import KERNELS

    kernel, backend = KERNELS[plan.kernel], make_backend(target_of(target))
    binder = create_function_from_signature(kernel.signature, kernel.params, backend)
    bound, kinds, options = binder(*plan.arguments, **plan.constants, **plan.options)
    _, signature, constants, hints = kernel._pack_args(backend, options, bound, kinds, options)
    return ASTSource(kernel, signature, constants, hints), str((kinds, plan.constants))


def target_of(name: str):
    """Return Triton's target for a name of `TARGETS`; a wavefront of gfx942 has 64 lanes."""
    from triton.backends.compiler import GPUTarget

    return GPUTarget("hip", name, 64) if name.startswith("gfx") else GPUTarget("cuda", int(name[3:]), 32)


def compile_case(case: Case, target: str) -> Compiled:
    """Compile one case for one target as a launch would, and read what the binary takes."""
    import triton

    source, _ = specialise(case.plan, target)
    made = triton.compile(source, target=target_of(target), options=case.plan.options)
    if target.startswith("gfx"):
        text = made.asm["amdgcn"]
        registers = int(re.search(r"\.vgpr_count:\s*(\d+)", text)[1])
        return Compiled(
            made.asm["ttir"],
            text,
            registers,
            int(re.search(r"\.private_segment_fixed_size:\s*(\d+)", text)[1]),
            made.metadata.shared,
        )
    usage = _resource_usage(made.asm["cubin"])
    return Compiled(
        made.asm["ttir"], made.asm["ptx"], usage["REG"], usage["LOCAL"] + usage["STACK"], made.metadata.shared
    )


def _resource_usage(cubin: bytes) -> dict[str, int]:
    import triton

    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        out = subprocess.run(
            [tool, "-res-usage", file.name], check=True, capture_output=True, text=True, timeout=60
        ).stdout
    return {name: int(value) for name, value in re.findall(r"(REG|STACK|LOCAL|SHARED):(\d+)", out)}


def _row(job: tuple[str, str]) -> tuple[tuple[str, str], Compiled]:
    case = next(c for c in cases() if c.what == job[0])
    return job, compile_case(case, job[1])


def compile_all(jobs: list[tuple[str, str]], workers: int = 2) -> dict[tuple[str, str], Compiled]:
    """Compile (case, target) pairs in processes of their own.

    Raises:
        RuntimeError: under Triton's interpreter, which compiles nothing; whatever a compiler raises.
    """
    if gpu.interpreted():
        raise RuntimeError("TRITON_INTERPRET=1 is set, and the interpreter compiles nothing; unset it")
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        return dict(pool.map(_row, jobs))


def table(made: dict[tuple[str, str], Compiled]) -> str:
    """The table in Markdown: registers a thread, spilled bytes a thread where there are any, KiB shared."""
    import triton

    lines = [
        "# What the kernels take on each target",
        "",
        f"Compiled on {date.today()} without a GPU: Triton {triton.__version__}, torch {torch.__version__}, "
        f"Python {platform.python_version()}.",
        "A cell: registers a thread · shared memory a program in KiB; in bold, bytes a thread spills. Turing "
        "(sm_75) has no tensor-core path in Triton, and float32 queries use none: those dots are unrolled.",
        "Again with `python -m benchmarks.compile_table`.",
        "",
        f"| kernel | {' | '.join(TARGETS)} |",
        "|---" * (len(TARGETS) + 1) + "|",
    ]
    for case in cases():
        cells = []
        for target in TARGETS:
            one = made.get((case.what, target))
            spilled = f" **{one.spills} B**" if one and one.spills else ""
            cells.append(f"{one.registers} · {one.shared / 1024:.3g}{spilled}" if one else "–")
        lines.append(f"| {case.what} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("-o", "--out", type=Path, default=Path("docs/kernel-compile-table.md"))
    arguments = parser.parse_args()
    made = compile_all([(c.what, t) for c in cases() for t in c.targets], arguments.jobs)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(table(made), encoding="utf-8")
    print(f"{len(made)} kernels compiled; wrote {arguments.out}", file=sys.stderr)


if __name__ == "__main__":
    main()
