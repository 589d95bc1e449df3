"""What a first run would otherwise wait for, once ever: `python -m mxviz.prepare [model] [kernels]`.

`make setup` calls it, and so does the app, in a process of its own: both take half a minute of pure Python,
and a page that shares its interpreter with them does not answer.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from mxviz import _models_builtin, ops


def ready(what: str) -> bool:
    """Whether `model` (the built-in one, converted) or `kernels` (compiled) is there, or can never be."""
    if what == "model":
        return _models_builtin.kept_copy() is not None or _models_builtin.find() is None
    return ops.is_compiled()


def prepare(what: str) -> None:
    """Convert the model or compile the kernels, where that has not been done.

    Raises:
        ValueError: where the built-in model's file is not the expected one.
    """
    if ready(what):
        return
    if what == "model":
        _models_builtin.convert()
    else:
        ops.warm_up()


def prepare_apart(what: str) -> None:
    """Do it in another process and wait for it; a failure shows where the thing is needed."""
    if ready(what):
        return
    found = [str(Path(__file__).resolve().parents[1]), os.environ.get("PYTHONPATH")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, found))}
    command = [sys.executable, "-m", "mxviz.prepare", what]
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    subprocess.run(command, env=environment, check=False, **quiet)


if __name__ == "__main__":
    for name in sys.argv[1:] or ("model", "kernels"):
        prepare(name)
