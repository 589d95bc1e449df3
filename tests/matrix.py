"""python -m tests.matrix [NAME ...]: the fast tests in one fresh environment after another, and a table.

An environment is what requirements.txt pins, with some of it at another version or left out. A Python that is
not here, or a wheel that cannot be had, is a row that says so and no failure. `TORCH_INDEX` names the index
address of a torch build, as for `make run`. An environment that failed stays in build/matrix, others go.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PLACE = ROOT / "build" / "matrix"
TOOLS = ("hypothesis", "ml_dtypes", "pytest", "pytest-timeout", "hatchling")
APP = ("streamlit", "plotly", "kaleido", "gguf", "accelerate")  # the library does without them
CACHE = ("cache", "cache_models", "cache_batches", "cache_windows", "cache_rotation", "attention")
FAST = (*CACHE, "quantize", "formats", "grammar", "kernels_cpu", "capture", "teacher_forced", "metrics")
LIMIT = 1800  # seconds for one environment's tests


class Environment(NamedTuple):
    """What one environment has other than requirements.txt says.

    Args:
        python: name of the interpreter, None for the one that runs this.
        pins: distribution to version; None leaves it out.
        has_app: whether what only the app needs is there.
        has_browser: whether a Chrome or Chromium on the PATH is to be found.
        tests: tests/test_<name>.py to run.
        keyword: what pytest's -k gets, to leave out what is about something that is not there.
    """

    python: str | None = None
    pins: dict[str, str | None] = {}
    has_app: bool = False
    has_browser: bool = True
    tests: tuple[str, ...] = FAST
    keyword: str = ""


OLDEST = {"transformers": "5.13.0"}
# The refusals of transformers, word for word, are those of the release that the README's table was made with.
ENVIRONMENTS = {
    "as pinned": Environment(tests=(*FAST, "conformance")),
    "oldest transformers": Environment(
        pins=OLDEST, tests=(*FAST, "conformance"), keyword="not (readme and (sdpa or eager or mxviz))"
    ),
    "torch 2.11, triton 3.6": Environment(pins={"torch": "2.11.0", "triton": "3.6.0"}),
    "without triton": Environment(pins={"triton": None}),
    "without Numba": Environment(pins={"numba": None}, keyword="not cpu"),
    "without Chrome": Environment(has_app=True, has_browser=False, tests=("export", "cli"), keyword="chrome"),
    "Python 3.12": Environment(python="python3.12"),
    "Python 3.13": Environment(python="python3.13"),
}


class Result(NamedTuple):
    """A row of the table."""

    name: str
    versions: str
    outcome: str
    seconds: float


def make(name: str, environment: Environment) -> Path | str:
    """Make the environment; return its Python, or why there is none."""
    python = shutil.which(environment.python) if environment.python else sys.executable
    if python is None:
        return f"no {environment.python} on the PATH"
    folder = PLACE / re.sub(r"\W+", "-", name)
    shutil.rmtree(folder, ignore_errors=True)
    made = _run([python, "-m", "venv", str(folder)])
    if made.returncode:
        return _last_line(made)
    wanted = [*requirements(environment), *TOOLS]
    index = os.environ.get("TORCH_INDEX")
    found = folder / "bin" / "python"
    done = _run(
        [str(found), "-m", "pip", "install", "-q", *(["--extra-index-url", index] if index else []), *wanted]
    )
    return found if done.returncode == 0 else _last_line(done)


def requirements(environment: Environment) -> list[str]:
    """Return what requirements.txt pins, as this environment has it."""
    wanted = []
    for line in (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines():
        if not line or line.startswith("#"):
            continue
        name, _, marker = line.partition(";")
        name = name.partition("==")[0].strip()
        if environment.pins.get(name, "") is None or (name in APP and not environment.has_app):
            continue
        pinned = f"{name}=={environment.pins[name]}" if name in environment.pins else line.partition(";")[0]
        wanted.append(f"{pinned.strip()} ;{marker}" if marker else pinned)
    return wanted


def test(name: str, environment: Environment, python: Path) -> Result:
    """Run the tests of an environment."""
    start = time.perf_counter()
    for missing in (pin for pin, version in environment.pins.items() if version is None):
        _run([str(python), "-m", "pip", "uninstall", "-q", "-y", missing])  # torch may have brought it
    command = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not browser and not model"]
    command += ["-k", environment.keyword] if environment.keyword else []
    done = _run(
        [*command, *(f"tests/test_{test}.py" for test in environment.tests)],
        PYTHONPATH=str(ROOT),
        OMP_NUM_THREADS="1",
        **({} if environment.has_browser else {"PATH": "/nowhere"}),
    )
    print(done.stdout[-4000:], file=sys.stderr)
    return Result(name, versions(python), _last_line(done), time.perf_counter() - start)


def versions(python: Path) -> str:
    """Return the versions that matter, as they are installed."""
    code = """
import platform, importlib.metadata as m
def of(name):
    try: return f"{name} {m.version(name)}"
    except m.PackageNotFoundError: return f"no {name}"
print(f"Python {platform.python_version()}", *map(of, ("torch", "transformers", "triton", "numba")), sep=", ")
"""
    return _run([str(python), "-c", code]).stdout.strip()


def _run(command: list[str], **more: str) -> subprocess.CompletedProcess[str]:
    low = [nice, "-n", "15"] if (nice := shutil.which("nice")) else []
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", **more}
    try:
        return subprocess.run(
            [*low, *command], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LIMIT
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 124, "", f"not done after {LIMIT} s")


def _last_line(done: subprocess.CompletedProcess[str]) -> str:
    lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    return lines[-1].strip("= ") if lines else f"exit code {done.returncode}"


def table(results: list[Result]) -> str:
    """Return the results as Markdown."""
    rows = [f"| {r.name} | {r.versions} | {r.outcome} | {r.seconds:.0f} |" for r in results]
    return "\n".join(["| environment | versions | tests | s |", "|---|---|---|---|", *rows])


def main(arguments: list[str] | None = None) -> int:
    """Run what is asked for; return 1 where a test failed."""
    made = argparse.ArgumentParser(prog="python -m tests.matrix", description=__doc__)
    made.add_argument("names", nargs="*", metavar="NAME", help=f"any of: {', '.join(ENVIRONMENTS)}")
    chosen = made.parse_args(arguments).names or list(ENVIRONMENTS)
    if unknown := set(chosen) - set(ENVIRONMENTS):
        made.error(f"unknown: {', '.join(sorted(unknown))}; expected any of: {', '.join(ENVIRONMENTS)}")
    results = []
    for name in chosen:
        python = make(name, ENVIRONMENTS[name])
        if isinstance(python, str):
            results.append(Result(name, "", f"not run: {python}", 0))
            continue
        results.append(test(name, ENVIRONMENTS[name], python))
        if "failed" not in results[-1].outcome and "error" not in results[-1].outcome:
            shutil.rmtree(python.parents[1], ignore_errors=True)
        print(table(results[-1:]), file=sys.stderr)
    print(table(results))
    return any("failed" in r.outcome or "error" in r.outcome for r in results)


if __name__ == "__main__":
    sys.exit(main())
