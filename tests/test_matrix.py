"""`make test-matrix` stands for the ranges of pyproject.toml and for the pins of requirements.txt."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.matrix import ENVIRONMENTS, ROOT, Environment, Result, main, make, requirements, table


def test_the_oldest_versions_are_the_ends_of_the_ranges() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    ranges = {r.name: r.specifier for r in map(Requirement, [*project["dependencies"], *extras["gpu"]])}
    oldest = ENVIRONMENTS["oldest transformers"].pins | ENVIRONMENTS["torch 2.11, triton 3.6"].pins
    for name, version in oldest.items():
        assert version in ranges[name]
        assert any(s.operator == ">=" and f"{s.version}.0" == version for s in ranges[name]), name


def test_requirements_are_the_pins_with_changes() -> None:
    pinned = {Requirement(line).name: Requirement(line) for line in requirements(Environment(has_app=True))}
    assert {"torch", "triton", "transformers", "numba", "streamlit"} <= set(pinned)
    changed = Environment(pins={"transformers": "5.13.0", "numba": None, "triton": "3.6.0"})
    library = {Requirement(line).name: Requirement(line) for line in requirements(changed)}
    assert "numba" not in library and "streamlit" not in library
    assert str(library["transformers"].specifier) == "==5.13.0"
    assert str(library["triton"].specifier) == "==3.6.0" and library["triton"].marker
    assert library["torch"].specifier == pinned["torch"].specifier


def test_every_named_test_is_there_and_a_missing_python_is_a_row(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for environment in ENVIRONMENTS.values():
        for name in environment.tests:
            assert (ROOT / "tests" / f"test_{name}.py").exists(), name
    why = make("none", Environment(python="python3.999"))
    assert why == "no python3.999 on the PATH" and not isinstance(why, Path)
    assert "| none |  | not run: no python3.999 on the PATH | 0 |" in table(
        [Result("none", "", f"not run: {why}", 0)]
    )
    with pytest.raises(SystemExit):
        main(["no such environment"])
    assert "expected any of: as pinned" in capsys.readouterr().err
