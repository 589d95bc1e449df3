"""What pyproject.toml, the pins, the settings of the page and the package's front door say."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]


def _printed(code: str) -> str:
    """What code prints in a fresh interpreter that starts in the checkout."""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_the_package_is_light() -> None:
    code = "import sys, mxviz; print(sorted({'torch', 'numpy', 'streamlit', 'plotly'} & set(sys.modules)))"
    assert _printed(code).strip() == "[]"


def test_lazy_names_and_modules_do_not_collide() -> None:
    code = (
        "import mxviz; from mxviz.quantize import quantize; from mxviz import MXBlocks;"
        "print(mxviz.quantize.__name__, quantize.__name__, all(hasattr(mxviz, n) for n in mxviz.__all__))"
    )
    assert _printed(code).split() == ["mxviz.quantize", "quantize", "True"]


def test_an_unknown_name_lists_the_known_ones() -> None:
    import mxviz

    with pytest.raises(AttributeError, match="'mxviz' has no attribute 'MXCach'; it offers .*MXCache"):
        _ = mxviz.MXCach


def _project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def _pins(name: str) -> dict[str, str]:
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    wanted = [Requirement(line) for line in lines if re.match(r"[A-Za-z]", line)]
    for requirement in wanted:
        assert re.fullmatch(r"==[\w.]+", str(requirement.specifier)), (
            f"{requirement} in {name} is no exact pin"
        )
    return {r.name: str(r.specifier).removeprefix("==") for r in wanted}


def test_pins_lie_inside_the_ranges() -> None:
    """Each library has a range in pyproject.toml and one pin that was run, and they agree."""
    project = _project()
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    ranges = {r.name: r for r in (Requirement(line) for group in groups for line in group)}
    ranges.pop("mxviz")
    pins = {**_pins("requirements.txt"), **_pins("requirements-dev.txt")}
    assert set(pins) == set(ranges)
    outside = [f"{n}=={v} is not in {ranges[n]}" for n, v in pins.items() if v not in ranges[n].specifier]
    assert outside == []


def test_the_core_needs_no_browser_and_no_compiler() -> None:
    core = {Requirement(line).name for line in _project()["dependencies"]}
    assert core == {"torch", "transformers", "numpy", "safetensors"}


def test_no_registry_is_named() -> None:
    """Host names of package registries stay with the user's own settings."""
    for name in (
        "Makefile",
        "requirements.txt",
        "requirements-dev.txt",
        "pyproject.toml",
        ".ci/run",
        "Dockerfile",
    ):
        text = (ROOT / name).read_text(encoding="utf-8")
        assert "://" not in re.sub(r"http://(localhost|127\.0\.0\.1)", "", text), name


@pytest.mark.parametrize("name", ["light", "dark"])
def test_the_page_and_the_figures_share_their_colours(name: str) -> None:
    from mxviz.figures.theme import THEMES

    page = tomllib.loads((ROOT / ".streamlit/config.toml").read_text(encoding="utf-8"))["theme"][name]
    ours = THEMES[name]
    pairs = {"backgroundColor": ours.paper, "textColor": ours.ink, "borderColor": ours.grid}
    pairs |= {"grayColor": ours.exact, "greenColor": ours.micro, "orangeColor": ours.single}
    pairs |= {"violetColor": ours.outlier}
    assert {key: page[key] for key in pairs} == pairs


def test_every_setting_of_the_page_exists() -> None:
    """Streamlit says no more than a log line about a setting it does not know."""
    from streamlit import config

    known = set(config.get_config_options())
    sections = tomllib.loads((ROOT / ".streamlit/config.toml").read_text(encoding="utf-8"))
    written = set()
    for section, settings in sections.items():
        for key, value in settings.items():
            nested = value if isinstance(value, dict) else None
            written |= {f"{section}.{key}.{k}" for k in nested} if nested else {f"{section}.{key}"}
    assert written - known == set()
