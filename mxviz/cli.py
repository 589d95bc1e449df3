"""The command line: `mxviz app | run | race | figure | pack | inspect | models | doctor`.

A user's mistake is one line on standard error and exit code 2. Progress goes to standard error.
"""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Sequence

PROG = "mxviz"


class _Parser(argparse.ArgumentParser):
    """An argument parser whose complaint is one line."""

    def error(self, message: str) -> None:
        self.exit(2, f"{PROG}: {message}; see {self.prog} --help\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 done, 1 failed, 2 a user's mistake, 130 interrupted."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch: see mxviz/views/__init__.py
    args = parser().parse_args(argv)
    warnings.showwarning = _one_line_warning
    try:
        return args.command(args) or 0
    except ValueError as error:
        if os.environ.get("MXVIZ_DEBUG"):
            raise
        print(f"{PROG}: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"{PROG}: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of a pipe had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:  # a disk that is full, a folder that went away
        print(f"{PROG}: {error}", file=sys.stderr)
        return 1


def parser() -> argparse.ArgumentParser:
    """Build the parser; commands import what they need when they run, so that --help is instant."""
    from mxviz import __version__

    top = _Parser(prog=PROG, description="A microscope for micro-scaled KV caches.")
    top.add_argument("--version", action="version", version=f"{PROG} {__version__}")
    commands = top.add_subparsers(required=True, metavar="COMMAND")

    app = commands.add_parser("app", help="open the microscope in a browser")
    app.add_argument("--port", type=int, default=8501, help="port to listen on (default 8501)")
    app.add_argument(
        "--public", action="store_true", help="for strangers: on every address, with limits (docs/hosting.md)"
    )
    app.add_argument("--base-path", default="", metavar="PATH", help="path below which a proxy serves it")
    app.add_argument(
        "--host", action="append", default=[], metavar="NAME", help="name it is reached by; may be repeated"
    )
    app.set_defaults(command=_lazy("_cli_app", "app"))

    _add_run(commands)

    race = commands.add_parser("race", help="every scheme on a capture: bits, SQNR, flushed, clipped")
    race.add_argument("capture", help="a file made by: mxviz run --out")
    race.add_argument("--json", metavar="FILE", help="write the table as JSON; - is standard output")
    race.set_defaults(command=_lazy("_cli_tools", "race"))

    _add_figure(commands)

    pack = commands.add_parser("pack", help="write the packed bytes of a capture, layout in the header")
    pack.add_argument("capture", help="a file made by: mxviz run --out")
    pack.add_argument("-o", "--out", required=True, metavar="FILE", help="where to write, .safetensors")
    pack.add_argument("--recipe", help="default: the recipe of the run")
    pack.set_defaults(command=_lazy("_cli_tools", "pack"))

    inspect = commands.add_parser("inspect", help="quantize a tensor of your own and say what is lost")
    inspect.add_argument("tensor", help=".npy, .npz or .safetensors: [tokens, channels], or more")
    inspect.add_argument("--name", help="which tensor of a file that holds several")
    inspect.add_argument("--recipe", default="mxfp4", help="default mxfp4; its key scheme is used")
    inspect.add_argument("--baseline", default="twin", help="a recipe, or twin (default)")
    inspect.add_argument("--json", metavar="FILE", help="write the numbers as JSON; - is standard output")
    inspect.set_defaults(command=_lazy("_cli_tools", "inspect"))

    models = commands.add_parser("models", help="what models are here and how to get others")
    models.set_defaults(command=_lazy("_cli_tools", "models"))
    doctor = commands.add_parser("doctor", help="what is here: torch, backends, browser for export, memory")
    doctor.set_defaults(command=_lazy("_cli_tools", "doctor"))
    return top


def _add_figure(commands: argparse._SubParsersAction) -> None:
    figure = commands.add_parser("figure", help="draw one figure of a capture into a file")
    figure.add_argument("capture", nargs="?", help="a file made by: mxviz run --out")
    figure.add_argument("name", nargs="?", help="which figure; --list shows them")
    figure.add_argument("-o", "--out", metavar="FIG", help="FIG.svg, .png, .pdf, .html, .csv or .npz")
    figure.add_argument("--list", action="store_true", help="list the figures and stop")
    place = figure.add_argument_group(
        "what is drawn; where the largest outlier is, and the run's own, by default"
    )
    place.add_argument("--layer", type=int)
    place.add_argument("--head", type=int, help="KV head")
    place.add_argument("--part", choices=("key", "value"))
    place.add_argument("--token", type=int)
    place.add_argument("--channel", type=int)
    place.add_argument("--query-head", type=int, help="of attention")
    place.add_argument("--position", type=int, help="of attention: the token that asks")
    place.add_argument("--measure", help="of overview and race; --list shows them")
    place.add_argument("--schemes", nargs="+", metavar="SCHEME", help="of race-layers")
    place.add_argument("--recipe", help="look through another recipe than the run's")
    place.add_argument("--baseline", help="compare with another baseline than the run's")
    sheet = figure.add_argument_group("how it looks")
    sheet.add_argument("--theme", default="light", help="light, dark, transparent or transparent-dark")
    sheet.add_argument(
        "--size", default="slide", help="slide (16:9), square, column or page (of a paper), figure or phone"
    )
    sheet.add_argument("--title", help="instead of the figure's own sentence; empty for none")
    sheet.add_argument("--caption", default="", help="a text below the figure")
    sheet.add_argument("--font-scale", type=float, default=1.0, metavar="X", help="0.5 to 3 (default 1)")
    sheet.add_argument(
        "--provenance", action="store_true", help="say below the figure where it came from; files always do"
    )
    figure.set_defaults(command=_lazy("_cli_tools", "figure"))


def _add_run(commands: argparse._SubParsersAction) -> None:
    run = commands.add_parser(
        "run", help="generate with exact, micro-scaled and single-scale caches, and measure"
    )
    run.add_argument("--model", required=True, help="smollm2, a hub id, a folder or a .gguf file")
    prompt = run.add_mutually_exclusive_group(required=True)
    prompt.add_argument("--prompt", metavar="TEXT")
    prompt.add_argument("--prompt-file", metavar="F", help="a UTF-8 text file")
    run.add_argument("--raw", action="store_true", help="leave the chat template out")
    run.add_argument("--recipe", default="mxfp4", metavar="R", help="default mxfp4; quote it in a shell")
    run.add_argument("--baseline", default="twin", metavar="R", help="a recipe, or twin (default)")
    run.add_argument("--max-new-tokens", type=int, default=48, metavar="N")
    run.add_argument("--seed", type=int, default=0, metavar="N")
    run.add_argument("--temperature", type=float, default=0.0, metavar="T", help="0 (default) is greedy")
    run.add_argument("--top-p", type=float, default=1.0, metavar="P")
    run.add_argument("--revision", metavar="REV", help="revision of a hub model")
    run.add_argument("--device", default="auto", metavar="D", help="auto (default), cpu or cuda")
    run.add_argument("--backend", default="auto", metavar="B", help="auto (default), reference, cpu or gpu")
    run.add_argument("--out", metavar="FILE", help="save the capture, .safetensors")
    run.add_argument("--json", metavar="FILE", help="write the report as JSON; - is standard output")
    run.add_argument("--html", metavar="FILE", help="write a report page that works offline")
    run.set_defaults(command=_lazy("_cli_run", "run"))


def _lazy(module: str, function: str):
    def command(args: argparse.Namespace) -> int | None:
        from importlib import import_module

        return getattr(import_module(f"mxviz.{module}"), function)(args)

    return command


def _one_line_warning(message, category, filename, lineno, file=None, line=None) -> None:
    if issubclass(category, UserWarning):
        print(f"{PROG}: note: {' '.join(str(message).split())}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
