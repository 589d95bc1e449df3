"""The import direction of the rooms, who may import what, and other rules that the source shows.

A new module belongs in a room: add its name to ROOMS if it is not found there.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

# Left to right: a room may import what stands to its left, and itself.
ROOMS: dict[str, tuple[str, ...]] = {
    "paths": ("mxviz", "mxviz._paths"),
    "formats": ("mxviz.formats", "mxviz._elements", "mxviz._schemes", "mxviz._recipes"),
    "quantize": ("mxviz.quantize", "mxviz._codec", "mxviz._scales"),
    "kernels": ("mxviz.kernels", "mxviz.kernels.*"),
    "ops": ("mxviz.ops", "mxviz.backends", "mxviz.backends.*"),
    "cache": ("mxviz.cache", "mxviz._store", "mxviz._hadamard", "mxviz._cache_*"),
    "capture": ("mxviz.capture", "mxviz._capture_*"),
    "models": ("mxviz.models", "mxviz._models_*", "mxviz.prepare"),
    "engine": ("mxviz.engine", "mxviz._engine_*"),
    "analysis": (
        "mxviz.metrics",
        "mxviz.outliers",
        "mxviz._outliers_*",
        "mxviz.analysis",
        "mxviz.report",
        "mxviz.tensors",
        "mxviz._tensors_*",
        "mxviz.blocks",
        "mxviz.cuts",
        "mxviz.looks",
        "mxviz.race",
        "mxviz.attention",
        "mxviz.planner",
        "mxviz._planner_*",
        "mxviz.lesson",
        "mxviz._lesson_*",
    ),  # fmt: skip
    "figures": ("mxviz.figures", "mxviz.figures.*"),
    "export": (
        "mxviz.export",
        "mxviz._export_*",
        "mxviz.pictures",
        "mxviz._pictures_*",
        "mxviz.page",
        "mxviz._page_*",
    ),
    "views": ("mxviz.views", "mxviz.views.*"),
    "cli": ("mxviz.cli", "mxviz._cli_*"),
    "app": ("app", "mxviz.__main__"),
}
EXCEPTIONS = {"mxviz._cli_app": "app"}  # the command that starts Streamlit

ORDER = list(ROOMS)

# Who may import a library; libraries that are not named here are free.
ALLOWED: dict[str, set[str]] = {
    "streamlit": {"views", "app"},
    "plotly": {"figures"},
    "transformers": {"cache", "models", "engine"},
    "numba": {"kernels", "ops"},
    "triton": {"kernels", "ops"},
    "gguf": {"models"},
    "kaleido": {"figures", "export"},
    "torch": set(ORDER) - {"paths", "formats", "kernels", "figures", "app"},
}
KERNEL_LIBRARIES = {"numba", "llvmlite", "triton", "numpy"}
MAX_LINES = 300


def _name(path: Path) -> str:
    """The dotted name a file is imported by."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    if parts[0] == "kernels":
        parts = ("mxviz", *parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _python_files(*folders: str) -> list[Path]:
    return sorted(p for folder in folders for p in (ROOT / folder).rglob("*.py"))


APP = [ROOT / "app.py"] if (ROOT / "app.py").exists() else []
SOURCES = {_name(p): p for p in [*_python_files("mxviz", "kernels"), *APP]}
EVERYTHING = [*SOURCES.values(), *_python_files("tests", "benchmarks")]


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def _room(module: str) -> str | None:
    if module in EXCEPTIONS:
        return EXCEPTIONS[module]
    return next((r for r, names in ROOMS.items() if any(fnmatch(module, n) for n in names)), None)


def _imports(path: Path) -> Iterator[str]:
    """Dotted names a file imports, anywhere in it; `from mxviz import x` is mxviz.x if that is a module."""
    package = _name(path) if path.name == "__init__.py" else _name(path).rpartition(".")[0]
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")
                base = ".".join(parents[: len(parents) - node.level + 1] + ([base] if base else []))
            deeper = [f"{base}.{alias.name}" for alias in node.names]
            yield from (name if name in SOURCES else base for name in deeper)
        elif isinstance(node, ast.Call) and _called(node) in ("import_module", "__import__"):
            yield from (str(arg.value) for arg in node.args[:1] if isinstance(arg, ast.Constant))


def _called(node: ast.Call) -> str:
    return getattr(node.func, "attr", getattr(node.func, "id", ""))


def _at(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("module", SOURCES)
def test_every_module_has_a_room(module: str) -> None:
    assert _room(module), f"{module} is in no room; add it to ROOMS in tests/test_layers.py"


# The package itself names its rooms in strings and, for type checkers only, in imports.
@pytest.mark.parametrize("module", [m for m in SOURCES if m != "mxviz"])
def test_imports_point_left(module: str) -> None:
    mine, wrong = ORDER.index(_room(module)), []
    for name in _imports(SOURCES[module]):
        if name.partition(".")[0] == "mxviz":
            room = _room(name)
            assert room, f"{module} imports {name}, which is in no room"
            if ORDER.index(room) > mine:
                wrong.append(f"{module} ({ORDER[mine]}) imports {name} ({room})")
    assert not wrong, f"{wrong}; the order is {' → '.join(ORDER)}"


@pytest.mark.parametrize("module", SOURCES)
def test_libraries_stay_in_their_rooms(module: str) -> None:
    roots = {name.partition(".")[0] for name in _imports(SOURCES[module])}
    wrong = [lib for lib in roots if _room(module) not in ALLOWED.get(lib, ORDER)]
    assert not wrong, f"{module} imports {wrong}, which belong to {[sorted(ALLOWED[lib]) for lib in wrong]}"


@pytest.mark.parametrize("module", [m for m in SOURCES if _room(m) == "figures"])
def test_figures_never_see_torch(module: str) -> None:
    """Not by a detour either: follow what a figure imports to the end."""
    seen, todo = set(), [module]
    while todo:
        for name in _imports(SOURCES[todo.pop()]):
            if name not in seen:
                seen.add(name)
                todo += [name] if name in SOURCES and name != "mxviz" else []
    assert not {name for name in seen if name.partition(".")[0] == "torch"}, (
        f"{module} reaches {sorted(seen)}"
    )


@pytest.mark.parametrize("module", [m for m in SOURCES if _room(m) == "kernels"])
def test_kernels_import_their_compiler_alone(module: str) -> None:
    free = KERNEL_LIBRARIES | set(sys.stdlib_module_names)
    wrong = [
        name
        for name in _imports(SOURCES[module])
        if name.partition(".")[0] not in free and not name.startswith("mxviz.kernels")
    ]
    assert not wrong, f"{module} imports {wrong}; kernels know numba or triton, numpy and nothing else"


def test_the_kernels_folder_is_no_package() -> None:
    assert (ROOT / "kernels").is_dir()
    assert not (ROOT / "kernels" / "__init__.py").exists(), "it would shadow Hugging Face's `kernels`"


@pytest.mark.parametrize("path", EVERYTHING, ids=_at)
def test_nobody_imports_the_kernels_folder(path: Path) -> None:
    wrong = [name for name in _imports(path) if name.partition(".")[0] == "kernels"]
    assert not wrong, f"{_at(path)} imports {wrong}; write mxviz.kernels"


@pytest.mark.parametrize("path", EVERYTHING, ids=_at)
def test_nothing_unpickles(path: Path) -> None:
    roots = {name.partition(".")[0] for name in _imports(path)}
    assert not roots & {"pickle", "_pickle", "cPickle", "cloudpickle", "dill", "joblib", "shelve", "marshal"}
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            assert name != "torch.load", f"{_at(path)}:{node.lineno} calls torch.load, which unpickles"
            opens = name.endswith("load") and "allow_pickle" in _switched_on(node)
            assert not opens, f"{_at(path)}:{node.lineno} lets numpy unpickle"


@pytest.mark.parametrize("path", EVERYTHING, ids=_at)
def test_no_remote_code(path: Path) -> None:
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Call | ast.Dict):
            assert "trust_remote_code" not in _switched_on(node), f"{_at(path)}:{node.lineno}"


def _switched_on(node: ast.Call | ast.Dict) -> set[str]:
    """Keywords of a call, or keys of a dict, whose value is anything but the word False."""
    if isinstance(node, ast.Call):
        pairs = [(k.arg, k.value) for k in node.keywords]
    else:
        pairs = [(getattr(k, "value", None), v) for k, v in zip(node.keys, node.values, strict=True)]
    off = lambda value: isinstance(value, ast.Constant) and value.value is False  # noqa: E731
    return {str(name) for name, value in pairs if not off(value)}


@pytest.mark.parametrize("path", [*SOURCES.values(), *_python_files("benchmarks")], ids=_at)
def test_files_stay_short(path: Path) -> None:
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines <= MAX_LINES, f"{_at(path)} has {lines} lines; a noun is missing, so split it"


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("from mxviz import ops", "mxviz.ops"),
        ("from mxviz import __version__", "mxviz"),
        ("from mxviz.formats import Scheme", "mxviz.formats"),
        ("from .formats import Scheme", "mxviz.formats"),
        ("from . import formats", "mxviz.formats"),
        ("def f():\n    import streamlit.web.cli", "streamlit.web.cli"),
        ("import_module('mxviz.cache')", "mxviz.cache"),
        ("from kernels.cpu import quantize", "kernels.cpu"),
    ],
)
def test_the_import_reader_sees(
    line: str, found: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rules above are worth what this reader finds."""
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    path = tmp_path / "mxviz" / "ours.py"
    path.parent.mkdir()
    path.write_text(line)
    assert list(_imports(path)) == [found]
