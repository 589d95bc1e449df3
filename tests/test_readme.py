"""What the README says is what the code does."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from mxviz.cli import parser
from mxviz.formats import SCHEMES, Recipe

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
CODE = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
COMMANDS = re.findall(r"^    mxviz (.+?)(?:   .*)?$", README, re.MULTILINE)


def test_the_formats_table_is_the_codes() -> None:
    rows = [[c.strip() for c in line.strip("|").split("|")] for line in README.splitlines() if "|" in line]
    table = {row[0].strip("`"): row for row in rows if row[0].strip("`") in SCHEMES}
    blocked = {name: s for name, s in SCHEMES.items() if s.is_blocked}
    assert set(table) == set(blocked)
    for name, scheme in blocked.items():
        _, _, scale, one_for, bits = table[name]
        assert (scale, one_for) == (scheme.scale.value, f"{scheme.block} in a row")
        assert float(bits) == scheme.bits_per_element()


def test_every_single_scale_scheme_is_named() -> None:
    single = [name for name, s in SCHEMES.items() if not s.is_blocked and not s.is_none]
    assert len(single) > 30
    for element, _, reach in (name.partition("@") for name in single):
        assert f"`{element}`" in README and f"`@{reach}`" in README


def test_the_recipes_parse() -> None:
    recipes = [line.strip() for line in README.splitlines() if line.startswith("    k=")]
    recipes += re.findall(r'MXCache\(model\.config, "(.+?)"\)', README)
    assert len(recipes) == 2
    for text in recipes:
        assert str(Recipe.parse(text)) == text


@pytest.mark.parametrize("code", CODE, ids=["cache", "tensor"])
def test_the_examples_compile(code: str) -> None:
    compile(code, "README.md", "exec")


def test_the_tensor_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    scope: dict = {}
    exec(CODE[1], scope)
    bits, flushed, clipped = map(float, capsys.readouterr().out.split())
    assert (bits, clipped) == (4.25, 0.0)  # rceil never clips
    assert 0 < flushed < 0.2
    assert scope["restored"].shape == (1, 8, 512, 64)


@pytest.mark.parametrize("line", COMMANDS, ids=lambda line: line.split()[0])
def test_the_commands_parse(line: str) -> None:
    parser().parse_args(shlex.split(line))


def test_all_commands_are_there() -> None:
    assert [line.split()[0] for line in COMMANDS] == [
        "run", "race", "figure", "pack", "inspect", "models", "doctor",
    ]  # fmt: skip


def test_the_links_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^)#]+)", README) + re.findall(r'src="([^"]+)"', README)
    missing = [link for link in links if "://" not in link and not (ROOT / link).exists()]
    assert missing == []
