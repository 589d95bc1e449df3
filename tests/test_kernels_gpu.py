"""The Triton backend without a GPU: its kernels in the interpreter, and what it says where it cannot run."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import torch

from mxviz import ops
from mxviz._store import PartStore
from mxviz.backends import Part, gpu
from mxviz.backends._gpu_plan import announce
from mxviz.formats import Scheme

HERE = Path(__file__).parent
GROUPS = {
    "schemes": ("interpreted_kernels.py", "every_scheme"),
    "tails and strides": ("interpreted_kernels.py", "tails or strides or ranks or guard"),
    "values and scales": (
        "interpreted_kernels.py",
        "not (every_scheme or tails or strides or ranks or guard)",
    ),
    "attention": ("interpreted_attend.py", ""),
}


@pytest.mark.slow
@pytest.mark.parametrize("group", GROUPS)
def test_in_the_interpreter(group: str) -> None:
    """The interpreter is chosen when Triton is imported, so these tests run in a process of their own."""
    if group == "attention" and _cannot_loop():
        pytest.skip(
            "Triton 3.6's interpreter cannot loop with NumPy 2.4; run tests/interpreted_attend.py on a GPU"
        )
    file, chosen = GROUPS[group]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--no-header", HERE / file]
    done = subprocess.run(
        [*command, *(("-k", chosen) if chosen else ())],
        env=os.environ | {"TRITON_INTERPRET": "1"},
        cwd=HERE.parent,
        capture_output=True,
        text=True,
        timeout=290,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert " passed" in done.stdout and "skipped" not in done.stdout


def _cannot_loop() -> bool:
    triton, numpy = (tuple(int(n) for n in version(name).split(".")[:2]) for name in ("triton", "numpy"))
    return triton < (3, 7) and numpy >= (2, 4)


def test_first_use_says_so(caplog: pytest.LogCaptureFixture) -> None:
    """K7: one notice, once."""
    announce.cache_clear()
    announce()
    announce()
    assert [r.getMessage().split(":")[0] for r in caplog.records] == [
        "Triton compiles mxviz's GPU kernels at their first use"
    ]


@pytest.fixture
def _fresh(monkeypatch: pytest.MonkeyPatch):
    """No interpreter, and nothing remembered about which backends are there."""
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    ops.why_missing.cache_clear()
    yield
    ops.why_missing.cache_clear()


@pytest.mark.usefixtures("_fresh")
def test_missing_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    """K6: without Triton everything runs on the CPU, and asking for gpu gives one clear line."""
    monkeypatch.setitem(sys.modules, "triton", None)
    assert "\n" not in gpu.missing() and gpu.missing().startswith(
        "Triton cannot be imported (ModuleNotFoundError"
    )
    assert ops.pick("auto", "cpu") != "gpu"
    with pytest.raises(ValueError, match="backend gpu cannot run here: Triton cannot be imported"):
        ops.quantize(torch.ones(2, 32), "mxfp4", backend="gpu")
    assert ops.quantize(torch.ones(2, 32), "mxfp4").scales.tolist() == [[125], [125]]


@pytest.mark.usefixtures("_fresh")
def test_missing_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """K6: Triton without a GPU is the same."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "torch finds no GPU" in gpu.missing() and "\n" not in gpu.missing()
    with pytest.raises(
        ValueError, match=r"^backend gpu cannot run here: Triton is here, but torch finds no GPU"
    ):
        ops.quantize(torch.ones(2, 32), "mxfp4", backend="gpu")


def test_supports(monkeypatch: pytest.MonkeyPatch) -> None:
    """CPU tensors go to these kernels only where the interpreter was asked for."""
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert [gpu.supports(d) for d in ("cuda", "cpu", "mps")] == [True, False, False]
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert [gpu.supports(d) for d in ("cuda", "cpu", "mps")] == [True, True, False]


@pytest.mark.parametrize("head_dim", [64, 40])
@pytest.mark.parametrize("scheme", ["mxfp4", "mxfp4:axis=token", "nvfp4", "aint2:axis=token", "int8@tensor"])
def test_few_variants(scheme: str, head_dim: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """K7: decoding at lengths 1 to 300 compiles at most four variants of each kernel, by Triton's own key."""
    from benchmarks.compile_table import specialise

    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    keys: dict[str, set[str]] = {}

    def count(*plans: gpu.Plan) -> None:
        for plan in plans:
            keys.setdefault(plan.kernel, set()).add(specialise(plan, "sm_90")[1])

    parsed = Scheme.parse(scheme)
    store = PartStore(parsed, 4, 0, False, "reference")
    query = torch.ones(1, 4, 1, head_dim)
    for length in range(1, 301):
        store.append(torch.ones(1, 2, 1, head_dim))
        ends = [rows.view if len(rows) else None for rows in (store.sinks, store.tail)]
        part = Part(ends[0], store.blocks(), ends[1])
        count(*gpu.plan_attend(query, part, part, scaling=0.1)[1])
        prompt = torch.ones(1, 2, length, head_dim)
        blocks, plan = gpu.plan_quantize(prompt, parsed, parsed.axis.dim, None)
        count(plan, gpu.plan_dequantize(blocks, torch.float32)[1])
    assert set(keys) == {"attend", "merge", "quantize", "dequantize"}
    assert {kernel: len(found) for kernel, found in keys.items() if len(found) > 4} == {}
