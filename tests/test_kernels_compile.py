"""The Triton kernels compile for every target, and what the compiler made of them is what was meant.

No GPU is needed. By default every kernel meets every target once and the cases below meet theirs;
`MXVIZ_COMPILE_ALL=1` compiles the whole table of benchmarks/compile_table.py.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from benchmarks.compile_table import SHARED_LIMIT, TARGETS, Compiled, attend_cases, cases, compile_all

ROOT = Path(__file__).resolve().parents[1]
PER_TARGET = (
    "quantize nvfp4",
    "quantize mxfp4:axis=token",
    "dequantize mxfp6_e3m2",
    "dequantize aint4:axis=token",
    "attend k=mxfp4:axis=token;v=mxfp4 float16 head_dim 64",
    "merge float16 head_dim 64",
)
NAMES = [c.what for c in cases()]
CODEC = [name for name in NAMES if name.startswith(("quantize", "dequantize"))]
SPILL_FREE = [c.what for c in attend_cases() if c.what.startswith("attend") and "float32" not in c.what]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def _jobs() -> list[tuple[str, str]]:
    if os.environ.get("MXVIZ_COMPILE_ALL"):
        return [(case.what, target) for case in cases() for target in case.targets]
    chosen = {(what, target) for what in PER_TARGET for target in TARGETS}
    chosen |= {(what, "sm_80") for what in CODEC}
    chosen |= {(what, target) for what in SPILL_FREE for target in ("sm_80", "sm_90")}
    return sorted(chosen)


@pytest.fixture(scope="module")
def made() -> dict[tuple[str, str], Compiled]:
    """Everything compiled, in two processes; Triton keeps the results under build/."""
    patch = pytest.MonkeyPatch()
    patch.delenv("TRITON_INTERPRET", raising=False)
    patch.setenv("TRITON_CACHE_DIR", os.environ.get("TRITON_CACHE_DIR", str(ROOT / "build" / "triton")))
    try:
        return compile_all(_jobs())
    finally:
        patch.undo()


def test_every_kernel_for_every_target(made: dict[tuple[str, str], Compiled]) -> None:
    """K3: each of the four kernels has a binary for each target, within its shared memory."""
    assert {what.split()[0] for what, _ in made} == {"quantize", "dequantize", "attend", "merge"}
    for kernel in ("quantize", "dequantize", "attend", "merge"):
        assert {target for what, target in made if what.startswith(kernel)} == set(TARGETS)
    assert {job: one.shared for job, one in made.items() if one.shared > SHARED_LIMIT[job[1]]} == {}
    assert all(one.registers > 0 for one in made.values())


@pytest.mark.parametrize("what", CODEC)
def test_rounding_survives_the_compiler(what: str, made: dict[tuple[str, str], Compiled]) -> None:
    """The PTX divides correctly rounded, flushes no subnormal, and fuses no product with a sum."""
    ptx = made[what, "sm_80"].assembly
    assert not re.findall(r"\bfma\.\S+|\bmad\.\S*f32\S*", ptx)
    assert not re.findall(r"\S+\.ftz\S*|\bdiv\.(?:full|approx)\S*|\brcp\.\S+|\bex2\.\S+|\blg2\.\S+", ptx)
    divides = what.startswith("quantize") and ("mx" not in what or "rceil" in what)
    assert bool(re.findall(r"\bdiv\.rn\.f32\b", ptx)) == divides


@pytest.mark.parametrize(
    "what", ["quantize mxfp4:axis=token", "dequantize mxfp6_e3m2", "dequantize aint4:axis=token"]
)
def test_rounding_survives_on_amd(what: str, made: dict[tuple[str, str], Compiled]) -> None:
    """No product is fused with a sum and float32 subnormals are kept; these kernels do not divide."""
    text = made[what, "gfx942"].assembly
    assert not re.findall(r"\bv_(?:pk_)?(?:fma|fmac|mac|mad)_\w*f32\b", text)
    assert re.search(r"\.amdhsa_float_denorm_mode_32 3\b", text)


@pytest.mark.parametrize("what", SPILL_FREE)
@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
def test_attention_does_not_spill(what: str, target: str, made: dict[tuple[str, str], Compiled]) -> None:
    """Decode attention at head_dim 64 and 128 lives in registers."""
    assert made[what, target].spills == 0


@pytest.mark.parametrize("what", CODEC)
def test_addresses_are_64_bit(what: str, made: dict[tuple[str, str], Compiled]) -> None:
    """K4: 319 × 7,864,320 is 2,508,718,080, beyond 32 bits: every offset that meets a pointer has 64."""
    offsets = re.findall(r"tt\.addptr .*, (\S+)$", _without_locations(made[what, "sm_80"].ttir), re.MULTILINE)
    assert offsets and {o for o in offsets if "i64" not in o} == set()


def test_attention_addresses_are_64_bit(made: dict[tuple[str, str], Compiled]) -> None:
    """K4 again: what is multiplied in 32 bits is multiplied by a constant, never by a stride."""
    text = _without_locations(made["attend k=mxfp4:axis=token;v=mxfp4 float16 head_dim 64", "sm_80"].ttir)
    products = re.findall(r"arith\.muli (%\w+), (%\w+) : (\S+)$", text, re.MULTILINE)
    assert any("i64" in kind for _, _, kind in products)
    assert [p for p in products if "i32" in p[2] and not p[1].startswith("%c")] == []


def _without_locations(text: str) -> str:
    return re.sub(r" loc\(.*\)$", "", text, flags=re.MULTILINE)
