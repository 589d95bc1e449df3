"""What every test shares: no network, seeded random numbers, and where a browser is."""

from __future__ import annotations

import os
import random
import shutil
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"  # before anything imports huggingface_hub
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def root() -> Path:
    """The checkout."""
    return ROOT


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Give every test the same random numbers, whichever tests ran before it."""
    random.seed(0)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(0)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)


@pytest.fixture(autouse=True)
def _nobody_warms_up() -> Iterator[None]:
    """Wait for the thread that a page has left, or has made and never started: until it is done `auto` means
    another backend."""
    yield
    for thread in threading.enumerate():
        if thread.name == "mxviz-warm-up":
            thread.join()
    if "mxviz.ops" in sys.modules:
        sys.modules["mxviz.ops"]._postponed.clear()


@pytest.fixture(autouse=True)
def _main_stays_main() -> Iterator[None]:
    """Put `__main__` back: Streamlit leaves a page's script there, and a spawned process would run it."""
    before = sys.modules["__main__"]
    yield
    sys.modules["__main__"] = before


@pytest.fixture(scope="session")
def chromium() -> str:
    """Path of a Chrome or Chromium; a test that needs one fails where there is none."""
    for name in ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable"):
        if found := shutil.which(name):
            return found
    pytest.fail("no Chrome or Chromium on PATH; `make browser` says how to get one")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A served app, one a file of tests."""
    from tests.browser import serve

    with serve(tmp_path_factory.mktemp("server") / "log.txt") as running:
        yield running


@pytest.fixture(scope="module")
def browser(chromium):
    """A Chromium that Playwright drives, one a file of tests."""
    from playwright.sync_api import sync_playwright

    from tests.browser import CHROMIUM_ARGS

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=CHROMIUM_ARGS)
        yield browser
        browser.close()
