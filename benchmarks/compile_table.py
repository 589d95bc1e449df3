"""Compile every Triton kernel for every target, without a GPU, and write what each takes as a table.

    python benchmarks/compile_table.py [--all] [--jobs N] [-o docs/kernel-compile-table.md]

A launch is planned by `mxviz.backends.gpu` on small CPU tensors, so the constants are those of real use.
Registers, spills and shared memory are read from the binary with the cuobjdump that Triton brings.
"""

from __future__ import annotations

import argparse
import platform
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from datetime import date
from pathlib import Path
from typing import NamedTuple

import torch

from mxviz.backends import gpu
from mxviz.formats import Scheme
from mxviz.quantize import quantize

CUDA = (75, 80, 86, 89, 90, 100, 120)
TARGETS = (*(f"sm_{cc}" for cc in CUDA), "gfx942")
_TYPES = {
    torch.float32: "*fp32",
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.int16: "*i16",
    torch.int32: "*i32",
    torch.uint8: "*u8",
}


class Case(NamedTuple):
    """One kernel with the constants of one use; `what` is its name in the table."""

    what: str
    plan: gpu.Plan


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


def cases() -> list[Case]:
    return quantize_cases()


def _source(plan: gpu.Plan):
    """What Triton's own launcher would compile for these arguments."""
    from triton.compiler import ASTSource

    from mxviz.kernels.gpu import KERNELS

    kernel = KERNELS[plan.kernel]
    names = kernel.arg_names
    free = kernel.do_not_specialize or ()
    signature, constants, hints = {}, dict(plan.constants), {}
    for place, (name, value) in enumerate(zip(names, plan.arguments, strict=False)):
        fixed = name in free or place in free
        if isinstance(value, torch.Tensor):
            signature[name], divisible = _TYPES[value.dtype], True
        elif isinstance(value, float):
            signature[name], divisible = "fp32", False
        elif value is None or (value == 1 and not fixed):
            constants[name], divisible = value, False
        else:
            signature[name], divisible = "i32", not fixed and value % 16 == 0
        if divisible:
            hints[(place,)] = [["tt.divisibility", 16]]
    signature |= dict.fromkeys(constants, "constexpr")
    return ASTSource(kernel, {n: signature[n] for n in names}, constants, hints)


def target_of(name: str):
    """Return Triton's target for a name of `TARGETS`; a wavefront of gfx942 has 64 lanes."""
    from triton.backends.compiler import GPUTarget

    return GPUTarget("hip", name, 64) if name.startswith("gfx") else GPUTarget("cuda", int(name[3:]), 32)


def compile_case(case: Case, target: str) -> Compiled:
    """Compile one case for one target as a launch would, and read what the binary takes."""
    import triton

    options = {"enable_fp_fusion": False} | {
        k: v for k, v in case.plan.constants.items() if k in ("num_warps", "num_stages")
    }
    plan = case.plan._replace(
        constants={k: v for k, v in case.plan.constants.items() if k not in options},
    )
    made = triton.compile(_source(plan), target=target_of(target), options=options)
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


def _row(job: tuple[str, str]) -> tuple[str, str, Compiled]:
    what, target = job
    case = next(c for c in cases() if c.what == what)
    return what, target, compile_case(case, target)


def compile_all(jobs: list[tuple[str, str]], workers: int = 2) -> dict[tuple[str, str], Compiled]:
    """Compile (case, target) pairs in processes of their own; a failure raises in the caller."""
    from multiprocessing import get_context

    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        return {(what, target): made for what, target, made in pool.map(_row, jobs)}
