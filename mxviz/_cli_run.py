"""`mxviz run`: generate, measure, and write the report."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from mxviz._schemes import quoted
from mxviz.capture import Capture
from mxviz.engine import Progress, Settings
from mxviz.engine import run as run_engine
from mxviz.models import load
from mxviz.report import report


def run(args: argparse.Namespace) -> None:
    """Run the three lanes and write what was asked for."""
    settings = Settings(
        prompt=_prompt(args),
        recipe=args.recipe,
        baseline=args.baseline,
        max_new_tokens=args.max_new_tokens,
        seed=args.seed,
        temperature=args.temperature,
        top_p=args.top_p,
        raw=args.raw,
        backend=args.backend,
    )
    for path in (args.out, args.json, args.html):
        check_writable(path)
    print(f"mxviz: loading {args.model}", file=sys.stderr)
    loaded = load(args.model, revision=args.revision, device=args.device)
    capture = run_engine(loaded, settings, on_progress=_ProgressLine())
    for note in capture.notes:
        print(f"mxviz: note: {note}", file=sys.stderr)
    if args.json:  # first, since it is the smallest: what fails later does not take it along
        write_json(report(capture), args.json)
    if args.out:
        capture.save(args.out)
    if args.html:
        from mxviz.page import html_report

        Path(args.html).write_text(html_report(capture), encoding="utf-8")
    if args.json != "-":
        print(summary(capture))


def write_json(value: object, path: str) -> None:
    """Write JSON to a file, or to standard output for `-`."""
    text = json.dumps(value, ensure_ascii=False, indent=2, allow_nan=False)
    if path == "-":
        print(text)
    else:
        Path(path).write_text(text + "\n", encoding="utf-8")


def summary(capture: Capture) -> str:
    """Say in a few lines what a run found."""
    numbers = report(capture)
    lines = [f"{numbers['model']}: {numbers['prompt_tokens']} + {numbers['new_tokens']} tokens"]
    for lane, title in (("exact", "exact"), ("micro", numbers["recipe"]), ("single", numbers["baseline"])):
        text = " ".join(numbers["lanes"][lane]["text"].split())
        lines += ["", f"[{lane}] {title}", f"  {text if len(text) <= 300 else text[:299] + '…'}"]
        lines.append(f"  {numbers['bytes_per_token'][lane]:,.0f} bytes per token")
        if lane != "exact":
            lines.append("  " + _effect_line(numbers, lane))
    return "\n".join(lines)


def _effect_line(numbers: dict, lane: str) -> str:
    error, effect = numbers["error"][lane], numbers["effect"].get(lane) or {}
    parts = [
        f"{part}s {_number(error[part]['sqnr_db'], '.1f')} dB, "
        f"{_number(error[part]['flushed'], '.1%')} flushed to zero"
        for part in ("key", "value")
    ]
    parts.append(f"KL {_number(effect.get('kl_mean'), '.3f')} nats")
    parts.append(f"same top token {_number(effect.get('top1_agreement'), '.0%')}")
    where = numbers["first_divergence"][lane]
    parts.append("same text" if where is None else f"differs from new token {where + 1}")
    return "; ".join(parts)


def _number(value: float | None, spec: str) -> str:
    return "n/a" if value is None else format(value, spec)


def _prompt(args: argparse.Namespace) -> str:
    if args.prompt_file is None:
        return args.prompt
    try:
        return Path(args.prompt_file).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"{args.prompt_file} is not UTF-8 text; save it as UTF-8") from None
    except OSError as error:
        raise ValueError(f"cannot read {args.prompt_file} ({error.strerror})") from None


def check_writable(path: str | None) -> None:
    """Find out before a long run that its result could not be written."""
    if path in (None, "-"):
        return
    target = Path(path)
    there = target.exists()
    if there and not target.is_file():  # a folder, or a device that a rename would replace
        raise ValueError(f"cannot write {quoted(path)}: it is not an ordinary file; name another")
    try:
        target.open("ab").close()
    except OSError as error:
        raise ValueError(f"cannot write {path} ({error.strerror}); name a file that can be made") from None
    if not there:
        target.unlink()


class _ProgressLine:
    """Shows progress on standard error: rewritten in place on a terminal, a line a stage elsewhere."""

    def __init__(self) -> None:
        self.live = sys.stderr.isatty()
        self.stage, self.shown = None, 0.0

    def __call__(self, progress: Progress) -> None:
        changed = progress.stage != self.stage
        if not changed and (not self.live or time.monotonic() - self.shown < 0.1):
            return
        self.stage, self.shown = progress.stage, time.monotonic()
        text = f"mxviz: {progress.stage} {progress.step}/{progress.total}"
        print(
            f"\r\033[K{text}" if self.live else text,
            end="" if self.live else "\n",
            file=sys.stderr,
            flush=True,
        )
        if self.live and progress.stage == "done":
            print(file=sys.stderr)
