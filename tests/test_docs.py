"""The files beside the code: the API reference has something to show, and what they say is what is there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
import yaml

from mxviz import __version__

ROOT = Path(__file__).resolve().parents[1]
SHOWN = (
    "mxviz/[!_]*.py",
    "mxviz/figures/[!_]*.py",
    "mxviz/_elements.py",
    "mxviz/_schemes.py",
    "mxviz/_recipes.py",
)
MODULES = sorted(path for pattern in SHOWN for path in ROOT.glob(pattern))
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("kernels/*.md")]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_every_public_function_and_class_is_described(path: Path) -> None:
    module = ast.parse(path.read_text(encoding="utf-8"))
    assert ast.get_docstring(module)
    public = [n for n in module.body if isinstance(n, ast.FunctionDef | ast.ClassDef) and n.name[0] != "_"]
    assert [node.name for node in public if not ast.get_docstring(node)] == []


def test_the_reference_reads_our_docstrings() -> None:
    """`make docs`, for one module: arguments and errors become lists, and nothing comes from elsewhere."""
    import pdoc

    pdoc.render.configure(docformat="google", show_source=False)
    page = pdoc.pdoc("mxviz.formats")
    assert "mxfp4:axis=token,scale=rceil" in page
    assert re.search(r"<li><strong>mantissa_bits:</strong>", page)
    assert re.search(r"<li><strong>ValueError:</strong>", page)
    assert re.findall(r"<(?:script|link|img)[^>]+(?:src|href)=\"(?:https?:)?//", page) == []


def test_the_citation_is_this_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert (citation["cff-version"], citation["version"]) == ("1.2.0", __version__)
    assert citation["license"] == "Apache-2.0" and citation["authors"] and citation["title"]
    assert f"## {__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8"))
    missing = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert missing == []


def test_the_container_takes_what_is_there() -> None:
    """No Docker runs in the tests: its file at least names files, extras and commands that exist."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    assert "UNVERIFIED" in text
    assert (ROOT / re.search(r"COPY (\S+) /tmp", text)[1]).is_file()
    model = re.search(r'BUILTIN_MODEL="(.+)"', text)[1]
    assert f"BUILTIN_MODEL ?= {model}\n" in (ROOT / "Makefile").read_text(encoding="utf-8")
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    assert not {"assets", "kernels", "mxviz", "README.md", "LICENSE", ".streamlit", "app.py"} & set(ignored)
