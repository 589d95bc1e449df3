"""The wheel in a clean virtual environment, far from the checkout: its commands, its kernels and its app.

The environment has the wheel alone. Everything else comes from this one through a .pth file, so that nothing
is downloaded; Python does not follow the .pth files in there, so the checkout itself stays out of sight. The
kernels are imported and not compiled (Numba would take half a minute): the commands use the reference.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import sysconfig
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from packages import built_wheel

from mxviz.capture import Capture

ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if not name.startswith("PYTHON")},
    "NUMBA_DISABLE_JIT": "1",  # nothing is compiled behind the app's back either
}


class Installed:
    """A clean environment and an empty folder to be in."""

    def __init__(self, folder: Path, wheel: Path) -> None:
        self.bin, self.here = folder / "venv" / "bin", folder / "empty"
        self.here.mkdir()
        quietly(sys.executable, "-m", "venv", "--without-pip", folder / "venv")
        pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", self.bin / "python")
        quietly(*pip, "install", "--no-deps", "--no-index", "--no-compile", wheel)
        (site,) = (folder / "venv" / "lib").glob("python*/site-packages")
        (site / "peers.pth").write_text(sysconfig.get_path("purelib"))
        self.site = site

    def mxviz(self, *arguments: object) -> str:
        """Run the command as a user would, and return what it prints."""
        return quietly(self.bin / "mxviz", *arguments, cwd=self.here)


def quietly(*command: object, cwd: Path | None = None) -> str:
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, env=ENVIRONMENT, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return Installed(tmp_path_factory.mktemp("installed"), built_wheel(tmp_path_factory))


@pytest.fixture(scope="module")
def recorded(installed: Installed) -> Path:
    """A run of the command with a tiny model in a local folder."""
    import tiny_text

    made = tiny_text.loaded()
    made.model.save_pretrained(installed.here / "tiny")
    made.tokenizer.save_pretrained(installed.here / "tiny")
    wanted = ("--prompt", "hello", "--raw", "--max-new-tokens", 8, "--backend", "reference")
    printed = installed.mxviz("run", "--model", "tiny", *wanted, "--out", "run.safetensors", "--json", "-")
    report = json.loads(printed)
    assert (report["recipe"], report["backend"], report["new_tokens"]) == ("mxfp4", "reference", 8)
    assert report["bits_per_element"]["micro"] == 4.25
    return installed.here / "run.safetensors"


def test_nothing_of_it_comes_from_the_checkout(installed: Installed, root: Path) -> None:
    code = (
        "import json, sys, mxviz, mxviz.kernels.cpu.quantize as cpu, mxviz.kernels.gpu.quantize as gpu;"
        "from mxviz._paths import APP, ASSETS;"
        "print(json.dumps([sys.path, mxviz.__file__, cpu.__file__, gpu.__file__, str(APP), str(ASSETS)]))"
    )
    path, *files = json.loads(quietly(installed.bin / "python", "-c", code, cwd=installed.here))
    assert str(root) not in path
    assert [Path(file).relative_to(installed.site).as_posix() for file in files] == [
        "mxviz/__init__.py",
        "mxviz/kernels/cpu/quantize.py",
        "mxviz/kernels/gpu/quantize.py",
        "mxviz/_app/app.py",
        "mxviz/_assets",
    ]


def test_run_records_what_the_library_reads(recorded: Path) -> None:
    capture = Capture.load(recorded)
    assert (capture.prompt, capture.recipe, len(capture.layers)) == ("hello", "mxfp4", 2)


def test_figure_draws_what_was_run(installed: Installed, recorded: Path) -> None:
    installed.mxviz("figure", recorded.name, "scales", "-o", "scales.html")
    page = (installed.here / "scales.html").read_text(encoding="utf-8")
    assert "Plotly.newPlot" in page and "MXFP4" in page


@pytest.fixture
def address(installed: Installed) -> Iterator[str]:
    """Where the installed app listens, once it does."""
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = installed.here / "log.txt"
    with log.open("wb") as out:
        app = subprocess.Popen(
            [installed.bin / "mxviz", "app", "--port", str(port)],
            cwd=installed.here, env=ENVIRONMENT, stdout=out, stderr=subprocess.STDOUT,
        )  # fmt: skip
    try:
        end = time.monotonic() + 60
        while not answers(f"http://127.0.0.1:{port}/_stcore/health"):
            assert app.poll() is None and time.monotonic() < end, log.read_text()
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        app.terminate()
        app.wait(20)
    assert "Traceback" not in log.read_text()


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return answer.status == 200
    except (urllib.error.URLError, OSError):
        return False


@pytest.mark.browser
def test_the_app_opens_on_a_recorded_run_in_its_own_colours(browser, address: str) -> None:
    page = browser.new_page(color_scheme="light")
    page.goto(address)
    page.wait_for_selector(".stPlotlyChart .js-plotly-plot .heatmaplayer image", timeout=60_000)
    paper = page.evaluate("getComputedStyle(document.querySelector('.stApp')).backgroundColor")
    assert paper == "rgb(253, 253, 251)"  # .streamlit/config.toml of the wheel was read
    page.close()
