"""Figures and tables as files: SVG, PNG and PDF through Chrome, HTML that works offline, CSV.

Every file says where it came from, in the place its format has for that.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape as html_escape
from html import unescape as html_unescape
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from mxviz.figures import Figure

REMEDY = (
    "no Chrome or Chromium was found, which .svg, .png and .pdf need: `apt-get install chromium` (or set "
    "BROWSER_PATH to one); .html export works without it"
)
SECONDS = 60.0


class Size(NamedTuple):
    """CSS pixels (None: as the figure was built) and how many device pixels each becomes in a PNG."""

    width: int | None
    height: int | None
    scale: float


SIZES = {
    "slide": Size(1280, 720, 1.5),
    "figure": Size(None, None, 2.0),
    "phone": Size(390, None, 3.0),
}
"""Build a figure at the width and height named here, then write it: labels are laid out for that width."""


class ExportError(RuntimeError):
    """A file could not be written; the message is one line that says what to do."""


def find_browser() -> str | None:
    """Return the Chrome or Chromium that exports will use, or None where there is none."""
    if find_spec("choreographer") is None:
        return None
    from choreographer.browsers.chromium import Chromium

    path = os.environ.get("BROWSER_PATH") or Chromium.find_browser(skip_local=False)
    return path if path and os.access(path, os.X_OK) else None


def write(
    fig: Figure | None,
    path: str | Path,
    *,
    size: str = "slide",
    table: tuple[Sequence[str], Iterable[Sequence[Any]]] | None = None,
    provenance: Mapping[str, Any] | None = None,
    timeout: float = SECONDS,
) -> Path:
    """Write a figure to a file of the kind its name ends in, and return the path.

    Args:
        fig: the figure; not needed for .csv.
        path: ends in .svg, .png, .pdf, .html or .csv.
        size: a name of `SIZES`.
        table: for .csv: column names and rows.
        provenance: what made the figure (model, recipe, versions, …), written into the file as JSON.
        timeout: seconds after which rendering is given up.

    Raises:
        ValueError: for an unknown ending or size, or .csv without a table.
        ExportError: where Chrome is missing, fails, or takes too long.
    """
    path = Path(path)
    kind = path.suffix.lower().lstrip(".")
    if kind not in KINDS:
        raise ValueError(f"cannot write {path.name!r}; expected a name that ends in .{', .'.join(KINDS)}")
    if size not in SIZES:
        raise ValueError(f"unknown size {size!r}; expected one of: {', '.join(SIZES)}")
    about = json.dumps(dict(provenance or {}), ensure_ascii=False, default=str)
    about = about.encode("utf-8", "replace").decode()  # a lone surrogate fits in no file
    if kind == "csv":
        if table is None:
            raise ValueError("a .csv needs the figure's numbers; give table=(column names, rows)")
        path.write_text(_csv(*table, about), encoding="utf-8", newline="")
        return path
    if fig is None:
        raise ValueError(f"a .{kind} needs a figure; only .csv is written from a table alone")
    path.write_bytes(DRAWERS[kind](fig, SIZES[size], about, timeout))
    return path


def _svg(fig: Figure, size: Size, about: str, timeout: float) -> bytes:
    """SVG whose title is the alt text and whose metadata is the provenance."""
    text = _render(fig, "svg", size, timeout).decode()
    inside = f"<desc>{html_escape(_alt(fig))}</desc><metadata>{html_escape(about)}</metadata>"
    return re.sub(r"(<svg\b[^>]*>)", lambda m: m[1] + inside, text, count=1).encode()


def _png(fig: Figure, size: Size, about: str, timeout: float) -> bytes:
    """PNG with the provenance and the alt text as iTXt chunks after the header (PNG, section 11.3.4.5)."""
    image = _render(fig, "png", size, timeout)
    header_end = 8 + 25  # signature, and IHDR with its length, name and checksum
    texts = _chunk("Description", _alt(fig)) + _chunk("Comment", about) + _chunk("Software", "mxviz")
    return image[:header_end] + texts + image[header_end:]


def _chunk(keyword: str, text: str) -> bytes:
    body = b"iTXt" + keyword.encode("latin-1") + b"\0\0\0\0\0" + text.encode("utf-8", "replace")
    return struct.pack(">I", len(body) - 4) + body + struct.pack(">I", zlib.crc32(body))


def _pdf(fig: Figure, size: Size, about: str, timeout: float) -> bytes:
    """PDF with the provenance as an incremental update of its document information (PDF 1.7, 7.5.6)."""
    return _with_info(_render(fig, "pdf", size, timeout), {"Subject": _alt(fig), "Keywords": about})


def _with_info(pdf: bytes, entries: Mapping[str, str]) -> bytes:
    """Append an Info object; a file without a plain trailer (a cross-reference stream) is left as it is."""
    trailer = pdf[pdf.rfind(b"trailer") :]
    size, root = re.search(rb"/Size (\d+)", trailer), re.search(rb"/Root (\d+ \d+ R)", trailer)
    previous = re.search(rb"startxref\s+(\d+)", trailer)
    if not (size and root and previous):
        return pdf
    number, at = int(size[1]), len(pdf) + 1
    fields = {"Producer": "mxviz"} | dict(entries)
    body = b" ".join(
        f"/{key} <feff{text.encode('utf-16-be', 'replace').hex()}>".encode() for key, text in fields.items()
    )
    info = b"%d 0 obj\n<< %s >>\nendobj\n" % (number, body)
    table = b"xref\n%d 1\n%010d 00000 n \n" % (number, at)
    tail = b"trailer\n<< /Size %d /Root %s /Info %d 0 R /Prev %s >>\nstartxref\n%d\n%%%%EOF\n"
    return pdf + b"\n" + info + table + tail % (number + 1, root[1], number, previous[1], at + len(info))


def _html(fig: Figure, size: Size, about: str, timeout: float) -> bytes:
    """One page that holds plotly.js itself and asks nobody for anything."""
    alt = html_escape(_alt(fig), quote=True)
    body = fig.to_html(
        full_html=False, include_plotlyjs=True, include_mathjax=False, config={"displaylogo": False}
    )
    paper = fig.layout.paper_bgcolor or "#ffffff"
    return (
        "<!DOCTYPE html>\n<html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width'>"
        f"<title>{html_escape(_title(fig))}</title><meta name='description' content=\"{alt}\">"
        "<meta name='generator' content='mxviz'>"
        f"<meta name='provenance' content=\"{html_escape(about, quote=True)}\">"
        f"</head><body style='margin:0;background:{paper}'><div role='img' aria-label=\"{alt}\">{body}</div>"
        "</body></html>\n"
    ).encode()


def _csv(columns: Sequence[str], rows: Iterable[Sequence[Any]], about: str) -> str:
    """Comma-separated values with the provenance in a first line that starts with #."""
    out = io.StringIO()
    out.write(f"# {about}\n")
    writer = csv.writer(out)
    writer.writerow(columns)
    writer.writerows(rows)
    return out.getvalue()


def _alt(fig: Figure) -> str:
    return str((fig.layout.meta or {}).get("alt") or "")


def _title(fig: Figure) -> str:
    return html_unescape((fig.layout.title.text or "figure").replace("<br>", " "))


_DRAW = """
import asyncio, json, os, signal, sys, threading
out = os.fdopen(os.dup(1), "wb")
os.dup2(2, 1)  # whatever a library prints must not end up in the picture
import kaleido
from kaleido.errors import ChromeNotFoundError
figure, options, seconds = json.load(sys.stdin)

def give_up():
    try:
        os.killpg(chrome.subprocess.pid, signal.SIGKILL)
    finally:
        os._exit(5)

async def draw():
    async with chrome:
        return await chrome.calc_fig(figure, options)

try:
    chrome = kaleido.Kaleido(mathjax=False, timeout=None)
    watch = threading.Timer(seconds, give_up)
    watch.daemon = True
    watch.start()
    out.write(asyncio.run(draw()))
    out.flush()
except ChromeNotFoundError:
    os._exit(3)
except Exception as error:
    said = str(error.args[0] if error.args else type(error).__name__)
    print(said.strip().split(chr(10))[0], file=sys.stderr, flush=True)
    os._exit(4)
os._exit(0)
"""
_NO_CHROME, _TOO_LONG = 3, 5
_GRACE = 10.0
"""Seconds for Python itself to start and to end, on top of those for Chrome."""


def _render(fig: Figure, kind: str, size: Size, timeout: float) -> bytes:
    """Draw with Chrome, without MathJax and within a time limit.

    A process of its own drives Chrome: a browser that hangs can be ended whole, and neither a notebook's
    event loop nor a web page's threads are in the way.
    """
    if find_spec("kaleido") is None:
        raise ExportError("kaleido is not installed: `pip install kaleido`; .html export works without it")
    options = {
        "format": kind,
        "width": size.width or fig.layout.width or 1280,
        "height": size.height or fig.layout.height or 720,
        "scale": size.scale if kind == "png" else 1,
    }
    request = f"[{fig.to_json()}, {json.dumps(options)}, {timeout}]".encode()
    command = [sys.executable, "-P", "-c", _DRAW]
    try:
        done = subprocess.run(command, input=request, capture_output=True, timeout=timeout + _GRACE)
    except subprocess.TimeoutExpired:
        done = subprocess.CompletedProcess(command, _TOO_LONG)
    if done.returncode == _NO_CHROME:
        raise ExportError(REMEDY)
    if done.returncode == _TOO_LONG:
        raise ExportError(
            f"Chrome did not finish the .{kind} within {timeout:g} s; .html export works without it"
        )
    if done.returncode or not done.stdout:
        said = (done.stderr.decode(errors="replace").strip().splitlines() or ["it ended without a word"])[-1]
        raise ExportError(f"Chrome could not draw the .{kind}: {said.rstrip('.')}; .html works without it")
    return done.stdout


DRAWERS: dict[str, Callable[[Figure, Size, str, float], bytes]] = {
    "svg": _svg,
    "png": _png,
    "pdf": _pdf,
    "html": _html,
}
KINDS = (*DRAWERS, "csv")
