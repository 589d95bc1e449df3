"""What a first run would wait for is done once, in a process of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

from mxviz import _models_builtin, prepare
from mxviz.backends import _numba_host


@pytest.fixture
def fresh_home(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    return tmp_path


def test_nothing_is_started_where_it_is_ready(monkeypatch):
    monkeypatch.setattr(prepare, "ready", lambda what: True)
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: pytest.fail("a process was started"))
    prepare.prepare_apart("model")
    prepare.prepare("kernels")


@pytest.mark.parametrize("what", ["model", "kernels"])
def test_another_process_gets_the_work_and_finds_the_package(monkeypatch, what):
    started = []
    monkeypatch.setattr(prepare, "ready", lambda what: False)
    monkeypatch.setattr(subprocess, "run", lambda command, **options: started.append((command, options)))
    prepare.prepare_apart(what)
    [(command, options)] = started
    assert command == [sys.executable, "-m", "mxviz.prepare", what]
    probe = [sys.executable, "-c", "import mxviz.prepare"]
    monkeypatch.undo()
    assert subprocess.run(probe, env=options["env"], cwd="/", check=False).returncode == 0


def test_without_its_wheel_the_model_is_as_ready_as_it_gets(fresh_home, monkeypatch):
    assert not prepare.ready("model")
    monkeypatch.setattr(_models_builtin, "find", lambda: None)
    assert prepare.ready("model")


def test_kernels_are_ready_once_the_word_is_left(fresh_home, monkeypatch):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(fresh_home))
    assert not _numba_host.is_compiled()
    _numba_host.note_compiled()
    assert _numba_host.is_compiled()
