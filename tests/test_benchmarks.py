"""Benchmarks run, their rows come back as they were written, and the goals and tables say what rows say."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny
import torch

from benchmarks import __main__ as command
from benchmarks import _rows, bench_decode, bench_length, bench_memory, bench_quantize, table
from benchmarks._attention import config, decode_step, random_states
from benchmarks._caches import BASE, CACHES, OURS, PEERS, Walk, again, around, fill
from benchmarks._rows import Row
from benchmarks._timing import in_rounds
from mxviz.formats import SCHEMES, Recipe


def test_in_rounds_leaves_out_what_fails_and_the_first_round() -> None:
    calls: list[str] = []

    def fine() -> float:
        calls.append("fine")
        return float(len(calls))

    def broken() -> float:
        raise RuntimeError("size mismatch\nand more")

    taken, failed = in_rounds({"fine": fine, "broken": broken}, 3, may_fail=("broken",))
    assert taken == {"fine": [2.0, 3.0, 4.0]}
    assert failed == {"broken": "RuntimeError: size mismatch"}
    with pytest.raises(RuntimeError, match="size mismatch"):
        in_rounds({"broken": broken}, 1)


@pytest.mark.parametrize("tokens", [256, 2048, 8000, 16384])
@pytest.mark.parametrize("steps", [2, 4])
def test_walks_stay_within_two_percent(tokens: int, steps: int) -> None:
    lengths = around(tokens, 10_000, steps)
    assert lengths.start % 2 == 0 and len(lengths) % steps == 0
    assert 0.98 * tokens <= lengths.start < lengths.stop <= 1.02 * tokens


@pytest.mark.parametrize("name", [name for name in CACHES if name not in PEERS] + ["QuantizedCache FP8"])
def test_a_walk_comes_back_to_its_first_length(name: str) -> None:
    contender = CACHES[name]
    held: list[int] = []
    step = decode_step(contender.attention)

    def noted(cache) -> None:
        held.append(cache.get_seq_length())
        step(cache)

    states = random_states(40, layers=2)
    make = lambda: fill(contender.make(config(2)), states, 40)  # noqa: E731
    walk = Walk(make, noted, range(40, 44), steps=2)
    with torch.inference_mode():
        assert all(walk() > 0 for _ in range(3))
    assert held == [40, 41, 42, 43, 44, 40, 41, 42], "the first step of a copy is not timed"
    assert walk.kept.get_seq_length() == 40


def test_copies_of_a_filled_cache_are_independent() -> None:
    states = random_states(40, layers=2)
    for name in (BASE, OURS):
        cache = fill(CACHES[name].make(config(2)), states, 32)
        other = again(cache)
        other.update(*(x[:, :, :8] for x in states[0]), 0)
        assert (cache.get_seq_length(), other.get_seq_length()) == (32, 40)


def test_decode_rows_have_a_ratio_and_say_how_they_attended() -> None:
    model = tiny.llama()
    states = bench_decode.prompt_states(model, 64)
    assert states[0][0].shape[2] == 64
    contenders = {name: CACHES[name] for name in (BASE, OURS, "MXCache mxfp4, unpacked for sdpa")}
    rows = {r.name: r for r in bench_decode.at_length(model, states, 64, 2, 2, contenders)}
    assert set(rows) == set(contenders)
    assert rows[BASE].ratio == 1.0 and rows[OURS].ratio > 0
    assert rows[OURS].note.startswith("attention packed")
    assert rows["MXCache mxfp4, unpacked for sdpa"].note.startswith("attention unpacked")


def test_quantize_measures_every_scheme() -> None:
    assert set(SCHEMES) - {"none"} <= set(bench_quantize.NAMES)
    rows = list(bench_quantize.rows(("nvfp4",), tokens=64, rounds=2))
    assert [row.name for row in rows] == ["copy", "quantize", "dequantize"]
    assert rows[0].ratio == 1.0 and all(row.ratio > 0 for row in rows)


def test_the_exponent_is_the_slope() -> None:
    assert bench_length.exponent((256, 512, 1024), (3.0, 6.0, 12.0)) == pytest.approx(1)
    assert bench_length.exponent((256, 512, 1024), (5.0, 5.0, 5.0)) == pytest.approx(0)


def test_length_rows_end_with_exponents() -> None:
    rows = list(bench_length.rows((32, 64), rounds=2, layers=1))
    assert [row.name for row in rows if row.setting == bench_length.EXPONENT] == list(bench_length.NAMES)


@pytest.mark.parametrize("recipe, tokens, bits", [("mxfp4", 8000, 4.25), ("mxfp8_e4m3", 8200, 8.25)])
def test_the_formula_is_bits_per_element(recipe: str, tokens: int, bits: float) -> None:
    elements = 2 * 30 * 3 * 64 * tokens
    assert bench_memory.formula_bytes(Recipe.parse(recipe), tokens) == elements * bits / 8


def test_the_formula_counts_what_stays_exact() -> None:
    of_one = lambda bits, packed, exact: 30 * 3 * 64 * (bits * packed / 8 + 4 * exact)  # noqa: E731
    kivi = bench_memory.formula_bytes(Recipe.parse("kivi4"), 8200)
    assert kivi == of_one(5, 8064, 136) + of_one(5, 8072, 128)


def test_memory_of_a_small_cache() -> None:
    if not Path("/proc/self/statm").exists():
        assert {r.note for r in bench_memory.measure(True)} == {"not here: needs Linux's /proc"}
        return
    rows = {(r.setting, r.name): r for r in bench_memory.rows(("mxfp4",), 640, 40)}
    for tokens in (640, 680):
        assert rows[f"mxfp4, {tokens} tokens", bench_memory.HELD].ratio == 1.0
    assert 1 < rows["mxfp4, 680 tokens", bench_memory.ALLOCATED].ratio <= 1.125
    assert rows["mxfp4, 680 tokens", bench_memory.RESIDENT].median < 45


def _decode(tokens: int, name: str, ms: float, ratio: float) -> Row:
    return Row("decode", bench_decode.setting(tokens), name, "ms/token", ms, ms, ms, ratio, ratio, ratio, 5)


def test_rows_come_back_and_runs_are_merged(tmp_path: Path) -> None:
    for date, run, ms in (("2025-01-01", 1, 99.0), ("2025-01-02", 1, 4.0), ("2025-01-02", 2, 6.0)):
        place = _rows.where(date, run)
        _rows.append([_decode(256, OURS, ms, ms / 4)], place, tmp_path)
    _rows.append([Row("decode", "256 tokens", "HQQ", "ms/token", note="not here, sorry")], place, tmp_path)
    place, rows = _rows.latest("decode", tmp_path)
    assert (place["date"], place["runs"], place["threads"]) == (
        "2025-01-02",
        "2",
        str(torch.get_num_threads()),
    )
    assert (rows[0].median, rows[0].ratio, rows[0].rounds) == (5.0, 1.25, 10)
    assert (rows[1].median, rows[1].note) == (None, "not here, sorry")
    assert _rows.latest("length", tmp_path) == ({}, [])


def test_goals_are_passed_or_missed() -> None:
    rows = [
        _decode(256, OURS, 10, 1.05),
        _decode(2048, OURS, 20, 0.81),
        _decode(2048, PEERS[0], 40, 1.6),
        Row("decode", "2048 tokens", PEERS[1], "ms/token", note="not here"),
        Row("quantize", "mxfp4", "quantize", "ms", 2, ratio=0.5),
        Row("quantize", "mxfp4", bench_quantize.TORCHAO, "ms", 39, ratio=0.02),
        Row("quantize", "int8@head", "quantize", "ms", 2, ratio=0.12),
        Row("memory", "mxfp4, 8000 tokens", bench_memory.HELD, "MB", 49, ratio=1.0),
        Row("memory", "mxfp4, 8000 tokens", bench_memory.RESIDENT, "MB", 80, ratio=1.6),
    ]
    said = {line[8:]: line[:6].strip() for line in table.summary(rows).splitlines()[len(rows) + 1 :]}
    assert {what.split(": ")[0]: verdict for what, verdict in said.items()} == {
        f"decode, {OURS}, 256 tokens held, ratio to {BASE}": "PASS",
        f"decode, {OURS}, 2048 tokens held, ratio to {BASE}": "missed",
        "decode, 2048 tokens held, ratio to the best of transformers' quantized caches": "PASS",
        "quantize mxfp4, times torchao's speed": "missed",
        "quantize mxfp4, share of the speed of a copy": "PASS",
        "quantize, slowest scheme to fastest": "missed",
        "memory, bytes in use to formula, the worst": "PASS",
        "memory, resident growth to 1.25 × formula + 40 MB, the worst": "PASS",
    }


def test_resident_growth_beyond_its_allowance_is_missed() -> None:
    row = Row("memory", "mxfp4, 8000 tokens", bench_memory.RESIDENT, "MB", 110, ratio=2.0)  # allowed: 108.75
    assert "missed" in table.summary([row])


def test_the_table_goes_between_the_markers(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(f"above\n{table.BEGIN}\nold\n{table.END}\nbelow\n", encoding="utf-8")
    assert table.write(tmp_path, readme) == "No row has been written yet."
    _rows.append([_decode(256, OURS, 12.34, 0.5)], _rows.where("2025-01-02", 1), tmp_path)
    table.write(tmp_path, readme)
    text = readme.read_text(encoding="utf-8")
    assert text.startswith("above\n") and text.endswith("below\n") and "old" not in text
    assert "| MXCache mxfp4 | 12.3 (0.50) | – | – |" in text and "2025-01-02, 1 run;" in text
    with pytest.raises(ValueError, match="once each"):
        table.into("no markers", "x")


def test_the_readme_has_its_place_for_the_table() -> None:
    table.into(table.README.read_text(encoding="utf-8"), "x")


def test_the_command_runs_and_writes_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command.main(["length", "--quick", "--runs", "2", "--results", str(tmp_path)])
    assert "exponent" in capsys.readouterr().out
    place, rows = _rows.latest("length", tmp_path)
    assert place["runs"] == "2" and len(rows) == 3 * len(bench_length.NAMES)
    with pytest.raises(SystemExit):
        command.main(["--runs", "0"])


def test_quick_writes_nowhere_unless_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "BENCHMARKS", {"length": lambda quick: iter([_decode(256, OURS, 1, 1)])})
    monkeypatch.setattr(command, "append", lambda *_: pytest.fail("a row was written"))
    command.main(["all", "--quick"])
    assert "no row was written" in capsys.readouterr().out
