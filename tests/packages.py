"""Distributions of this checkout, built and fresh interpreters to try them in."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def python(code: str, *argv: str, cwd: Path, path: list[Path]) -> str:
    """Run code in a fresh interpreter that sees `path` first."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path)), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code, *argv], cwd=cwd, env=env, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def build(hook: str, source: Path, folder: Path) -> Path:
    """Build a distribution with the project's own back end, without a network."""
    code = f"import sys, hatchling.build as b; print(b.{hook}(sys.argv[1]))"
    return folder / python(code, str(folder), cwd=source, path=[]).split()[-1]


def unpacked(wheel: Path) -> Path:
    """Unpack a wheel as an installer would."""
    site = wheel.parent / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    return site


def built_wheel(folders: pytest.TempPathFactory) -> Path:
    """Build the wheel, once a session, from the unpacked source distribution: neither may forget a file."""
    folder = folders.getbasetemp() / "built"
    if not folder.exists():
        folder.mkdir()
        sdist = build("build_sdist", ROOT, folder)
        with tarfile.open(sdist) as archive:
            archive.extractall(folder, filter="data")
        build("build_wheel", folder / sdist.name.removesuffix(".tar.gz"), folder)
    return next(folder.glob("*.whl"))
