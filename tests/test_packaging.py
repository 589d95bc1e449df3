"""The package in a checkout, an editable install and a wheel, next to Hugging Face's `kernels` or not.

transformers imports a distribution named `kernels` where there is one; our folder of that name must never be
taken for it, and must be found all the same.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
LAYOUTS = ("checkout", "editable", "wheel")


def _python(code: str, *argv: str, cwd: Path, path: list[Path]) -> str:
    """Run code in a fresh interpreter that sees `path` first."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path)), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code, *argv], cwd=cwd, env=env, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def _build(hook: str, folder: Path) -> Path:
    """Build a wheel, ordinary or editable, and unpack it as an installer would."""
    code = f"import sys, hatchling.build as b; b.{hook}(sys.argv[1])"
    _python(code, str(folder), cwd=ROOT, path=[])
    (wheel,) = folder.glob("*.whl")
    site = folder / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    return site


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _build("build_wheel", tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def editable(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _build("build_editable", tmp_path_factory.mktemp("editable"))


@pytest.fixture(scope="session")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A distribution `kernels` 0.18.2 with the names that transformers imports from it."""
    site = tmp_path_factory.mktemp("stand_in")
    hub = Path(importlib.util.find_spec("transformers").origin).parent / "integrations" / "hub_kernels.py"
    names = {
        alias.name
        for node in ast.walk(ast.parse(hub.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and node.module == "kernels"
        for alias in node.names
    }
    assert {"LayerRepository", "Mode", "kernelize"} <= names, "transformers imports something else by now"
    lines = [
        "class _Any:",
        "    TRAINING = INFERENCE = None",
        "    def __init__(self, *args, **kwargs): pass",
        "def _decorator(*args, **kwargs): return lambda thing: thing",
        *(f"{name} = {'_Any' if name[0].isupper() else '_decorator'}" for name in sorted(names)),
    ]
    (site / "kernels").mkdir()
    (site / "kernels" / "__init__.py").write_text("\n".join(lines))
    info = site / "kernels-0.18.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: kernels\nVersion: 0.18.2\n")
    return site


PROBE = """
import json, pkgutil, site, sys
for folder in sys.argv[1:]:
    site.addsitedir(folder)
from mxviz._paths import APP, ASSETS
sys.path.insert(0, str(APP.parent))  # what Streamlit does
import transformers
from transformers.integrations import hub_kernels
from transformers.utils import is_kernels_available
import mxviz, mxviz.kernels
from mxviz import SCHEMES, MXBlocks
print(json.dumps({
    "available": is_kernels_available(),
    "theirs": getattr(getattr(hub_kernels, "LayerRepository", None), "__module__", None),
    "package": mxviz.__file__,
    "kernels": sorted(m.name for m in pkgutil.walk_packages(mxviz.kernels.__path__)),
    "paths": list(mxviz.kernels.__path__),
    "app": [str(APP), APP.is_file()],
    "assets": [str(ASSETS), sorted(p.name for p in ASSETS.iterdir())],
}))
"""


def _probe(layout: str, request: pytest.FixtureRequest, tmp_path: Path, others: list[Path]) -> dict:
    if layout == "checkout":
        return json.loads(_python(PROBE, cwd=ROOT, path=[ROOT, *others]))
    site = request.getfixturevalue(layout)
    if layout == "wheel":
        return json.loads(_python(PROBE, cwd=tmp_path, path=[site, *others]))
    return json.loads(_python(PROBE, str(site), cwd=tmp_path, path=others))


@pytest.mark.parametrize("with_theirs", [True, False], ids=["with-their-kernels", "without"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_kernels_are_found_and_shadow_nothing(
    layout: str,
    with_theirs: bool,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    stand_in: Path,
) -> None:
    seen = _probe(layout, request, tmp_path, [stand_in] if with_theirs else [])
    assert seen["available"] is with_theirs
    assert (seen["theirs"] == "kernels") is with_theirs
    home = request.getfixturevalue("wheel") if layout == "wheel" else ROOT
    assert seen["package"] == str(home / "mxviz" / "__init__.py")
    assert seen["app"] == [str(home / ("mxviz/_app" if layout == "wheel" else ".") / "app.py"), True]
    assert seen["assets"][0] == str(home / ("mxviz/_assets" if layout == "wheel" else "assets"))
    assert {"logo.svg", "favicon.png"} <= set(seen["assets"][1])
    folders = ["mxviz/kernels"] if layout == "wheel" else ["mxviz/kernels", "kernels"]
    assert seen["paths"] == [str(home / folder) for folder in folders]


def test_kernel_files_land_inside_the_package(wheel: Path) -> None:
    """Files of `kernels/` land inside `mxviz/kernels/`, and its own __init__.py survives."""
    for source in (ROOT / "kernels").rglob("*.py"):
        inside = wheel / "mxviz" / "kernels" / source.relative_to(ROOT / "kernels")
        assert inside.read_bytes() == source.read_bytes()
    mine = Path("mxviz", "kernels", "__init__.py")
    assert (wheel / mine).read_bytes() == (ROOT / mine).read_bytes()
    assert not (wheel / "kernels").exists()
    assert not (wheel / "mxviz" / "app.py").exists()


def test_the_wheel_next_to_their_package_keeps_them_apart(wheel: Path, tmp_path: Path) -> None:
    """Installed, `site-packages/kernels` is Hugging Face's: it must not leak into mxviz.kernels."""
    code = "import mxviz.kernels; print(list(mxviz.kernels.__path__))"
    theirs = wheel / "kernels"
    theirs.mkdir()
    try:
        (theirs / "__init__.py").write_text("")
        assert ast.literal_eval(_python(code, cwd=tmp_path, path=[wheel])) == [str(wheel / "mxviz/kernels")]
    finally:
        (theirs / "__init__.py").unlink()
        theirs.rmdir()


def test_the_wheel_carries_what_it_needs(wheel: Path) -> None:
    assert (wheel / "mxviz/py.typed").is_file()
    assert (wheel / "mxviz/_app/.streamlit/config.toml").is_file()
    (info,) = wheel.glob("mxviz-*.dist-info")
    assert "mxviz = mxviz.cli:main" in (info / "entry_points.txt").read_text()
    assert "Apache License" in (info / "licenses/LICENSE").read_text()
    strays = [p for p in wheel.iterdir() if p.name not in ("mxviz", info.name)]
    assert strays == []


def test_importing_the_package_is_light(tmp_path: Path) -> None:
    code = "import sys, mxviz; print(sorted({'torch', 'numpy', 'streamlit', 'plotly'} & set(sys.modules)))"
    assert _python(code, cwd=tmp_path, path=[ROOT]).strip() == "[]"


def test_lazy_names_and_modules_do_not_collide(tmp_path: Path) -> None:
    code = (
        "import mxviz; from mxviz.quantize import quantize; from mxviz import MXBlocks;"
        "print(mxviz.quantize.__name__, quantize.__name__, all(hasattr(mxviz, n) for n in mxviz.__all__))"
    )
    assert _python(code, cwd=tmp_path, path=[ROOT]).split() == ["mxviz.quantize", "quantize", "True"]


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
    for name in ("Makefile", "requirements.txt", "requirements-dev.txt", "pyproject.toml", ".ci/run"):
        text = (ROOT / name).read_text(encoding="utf-8")
        assert "://" not in text.replace("http://localhost", ""), name


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
