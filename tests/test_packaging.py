"""The package in a checkout, an editable install and a wheel, next to Hugging Face's `kernels` or not.

transformers imports a distribution named `kernels` where there is one; our folder of that name must never be
taken for it, and must be found all the same.
"""

from __future__ import annotations

import ast
import importlib.util
import json
from pathlib import Path

import pytest
from packages import build, built_wheel, python, unpacked

ROOT = Path(__file__).resolve().parents[1]
LAYOUTS = ("checkout", "editable", "wheel")


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpacked(built_wheel(tmp_path_factory))


@pytest.fixture(scope="session")
def editable(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("editable")
    return unpacked(build("build_editable", ROOT, folder))


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
        return json.loads(python(PROBE, cwd=ROOT, path=[ROOT, *others]))
    site = request.getfixturevalue(layout)
    if layout == "wheel":
        return json.loads(python(PROBE, cwd=tmp_path, path=[site, *others]))
    return json.loads(python(PROBE, str(site), cwd=tmp_path, path=others))


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
        assert ast.literal_eval(python(code, cwd=tmp_path, path=[wheel])) == [str(wheel / "mxviz/kernels")]
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


def test_the_wheel_carries_every_asset(wheel: Path) -> None:
    files = [path.relative_to(ROOT / "assets") for path in (ROOT / "assets").rglob("*") if path.is_file()]
    assert len(files) > 20
    for name in files:
        assert (wheel / "mxviz/_assets" / name).stat().st_size == (ROOT / "assets" / name).stat().st_size, (
            name
        )
