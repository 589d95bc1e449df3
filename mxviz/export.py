"""Figures and tables as files: SVG, PNG and PDF through Chrome, HTML that works offline, CSV and NumPy.

Every file says where it came from, in the place its format has for that.
"""

from __future__ import annotations

import csv
import io
import json
import re
import struct
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape as html_escape
from html import unescape as html_unescape
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mxviz._export_chrome import REMEDY, SECONDS, ExportError, find_browser, render
from mxviz._export_sheet import SIZES, WIDTH, Size
from mxviz.figures import Figure

__all__ = [
    "KINDS",
    "REMEDY",
    "SECONDS",
    "SIZES",
    "ExportError",
    "File",
    "Size",
    "find_browser",
    "made",
    "write",
]

Table = tuple[Sequence[str], Iterable[Sequence[Any]]]
"""Column names, and rows."""


class File(NamedTuple):
    """What goes into a file: the figure, its size, the numbers behind it, and where it came from."""

    fig: Figure | None
    size: Size = SIZES["slide"]
    table: Table | None = None
    provenance: Mapping[str, Any] | None = None


def write(
    fig: Figure | None,
    path: str | Path,
    *,
    size: str | Size = "slide",
    table: Table | None = None,
    provenance: Mapping[str, Any] | None = None,
    timeout: float = SECONDS,
) -> Path:
    """Write a figure to a file of the kind its name ends in, and return the path.

    Args:
        fig: the figure; not needed for .csv and .npz.
        path: ends in .svg, .png, .pdf, .html, .csv or .npz.
        size: a name of `SIZES`, or a size.
        table: for .csv and .npz: column names and rows.
        provenance: what made the figure (model, recipe, versions, …), written into the file as JSON.
        timeout: seconds after which rendering is given up.

    Raises:
        ValueError: for an unknown ending or size, or .csv without a table.
        ExportError: where Chrome is missing, fails, or takes too long.
    """
    path = Path(path)
    kind = kind_of(path)
    if not isinstance(size, Size):
        if size not in SIZES:
            raise ValueError(f"unknown size {size!r}; expected one of: {', '.join(SIZES)}")
        size = SIZES[size]
    path.write_bytes(made([File(fig, size, table, provenance)], kind, timeout)[0])
    return path


def kind_of(path: str | Path) -> str:
    """Return the kind of file that a name's ending chooses; ValueError lists the kinds."""
    kind = Path(path).suffix.lower().lstrip(".")
    if kind not in KINDS:
        raise ValueError(
            f"cannot write {Path(path).name!r}; expected a name that ends in .{', .'.join(KINDS)}"
        )
    return kind


def made(files: Sequence[File], kind: str, timeout: float = SECONDS) -> list[bytes]:
    """Return the bytes of some files of one kind; Chrome is started once for all of them.

    Raises:
        ValueError: for an unknown kind, or a file without what its kind needs.
        ExportError: where Chrome is missing, fails, or takes too long.
    """
    if kind not in KINDS:
        raise ValueError(f"unknown kind {kind!r}; expected one of: {', '.join(KINDS)}")
    abouts = [_about(file.provenance) for file in files]
    if kind in TABLES:
        if any(file.table is None for file in files):
            raise ValueError(f"a .{kind} needs the figure's numbers; give table=(column names, rows)")
        return [TABLES[kind](*file.table, about) for file, about in zip(files, abouts, strict=True)]
    if any(file.fig is None for file in files):
        raise ValueError(f"a .{kind} needs a figure; only .{' and .'.join(TABLES)} are written from a table")
    if kind == "html":
        return [_html(file, about) for file, about in zip(files, abouts, strict=True)]
    drawn = render([(file.fig, _options(file, kind)) for file in files], timeout) if files else []
    return [
        CHROME[kind](picture, file.fig, about)
        for picture, file, about in zip(drawn, files, abouts, strict=True)
    ]


def _about(provenance: Mapping[str, Any] | None) -> str:
    about = json.dumps(dict(provenance or {}), ensure_ascii=False, default=str)
    return about.encode("utf-8", "replace").decode()  # a lone surrogate fits in no file


def _options(file: File, kind: str) -> dict[str, Any]:
    """Return what Kaleido is told; a hair is added to the scale, or 1919.99… pixels become 1919."""
    size, layout = file.size, file.fig.layout
    return {
        "format": kind,
        "width": size.width or layout.width or WIDTH,
        "height": size.height or layout.height or 720,
        "scale": size.zoom * (size.scale * (1 + 1e-9) if kind == "png" else 1),
    }


def _svg(drawn: bytes, fig: Figure, about: str) -> bytes:
    """SVG whose description is the alt text and whose metadata is the provenance."""
    text = drawn.decode()
    inside = f"<desc>{html_escape(_alt(fig))}</desc><metadata>{html_escape(about)}</metadata>"
    return re.sub(r"(<svg\b[^>]*>)", lambda m: m[1] + inside, text, count=1).encode()


def _png(image: bytes, fig: Figure, about: str) -> bytes:
    """PNG with the provenance and the alt text as iTXt chunks after the header (PNG, section 11.3.4.5)."""
    header_end = 8 + 25  # signature, and IHDR with its length, name and checksum
    texts = _chunk("Description", _alt(fig)) + _chunk("Comment", about) + _chunk("Software", "mxviz")
    return image[:header_end] + texts + image[header_end:]


def _chunk(keyword: str, text: str) -> bytes:
    body = b"iTXt" + keyword.encode("latin-1") + b"\0\0\0\0\0" + text.encode("utf-8", "replace")
    return struct.pack(">I", len(body) - 4) + body + struct.pack(">I", zlib.crc32(body))


def _pdf(drawn: bytes, fig: Figure, about: str) -> bytes:
    """PDF with the provenance as an incremental update of its document information (PDF 1.7, 7.5.6)."""
    entries = {"Title": _title(fig), "Subject": _alt(fig), "Keywords": about}
    return _with_info(drawn, entries)


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


def _html(file: File, about: str) -> bytes:
    """One page that holds plotly.js itself and asks nobody for anything; a zoom enlarges it as a whole."""
    fig, zoom = file.fig, file.size.zoom
    laid = (fig.layout.width or WIDTH, fig.layout.height or 720)
    wide, high = (round(zoom * n) for n in laid)
    larger = f" style='width:{laid[0]}px;transform:scale({zoom:.6g});transform-origin:0 0'"
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
        f"</head><body style='margin:0;background:{paper}'>"
        f"<div role='img' aria-label=\"{alt}\" style='width:{wide}px;height:{high}px'>"
        f"<div{larger if zoom != 1 else ''}>{body}</div></div>"
        "</body></html>\n"
    ).encode()


def _csv(columns: Sequence[str], rows: Iterable[Sequence[Any]], about: str) -> bytes:
    """Comma-separated values with the provenance in a first line that starts with #."""
    out = io.StringIO()
    out.write(f"# {about}\n")
    writer = csv.writer(out)
    writer.writerow(columns)
    writer.writerows(rows)
    return out.getvalue().encode("utf-8", "replace")


def _npz(columns: Sequence[str], rows: Iterable[Sequence[Any]], about: str) -> bytes:
    """NumPy arrays, one a column, nothing pickled; the provenance is an array of one text."""
    rows = list(rows)
    arrays = {name: _array([row[i] for row in rows]) for i, name in enumerate(columns)}
    out = io.BytesIO()
    np.savez_compressed(out, provenance=np.array(about), **arrays)
    return out.getvalue()


def _array(column: list[Any]) -> np.ndarray:
    if any(isinstance(value, str) for value in column):
        return np.array(["" if value is None else str(value) for value in column], dtype=np.str_)
    return np.array([np.nan if value is None else value for value in column])


def _alt(fig: Figure) -> str:
    return str((fig.layout.meta or {}).get("alt") or "")


def _title(fig: Figure) -> str:
    return html_unescape((fig.layout.title.text or "figure").replace("<br>", " "))


CHROME: dict[str, Callable[[bytes, Figure, str], bytes]] = {"svg": _svg, "png": _png, "pdf": _pdf}
"""Kinds that Chrome draws, and what puts words into its pictures."""

TABLES: dict[str, Callable[[Sequence[str], Iterable[Sequence[Any]], str], bytes]] = {
    "csv": _csv,
    "npz": _npz,
}
"""Kinds that hold the numbers behind a figure."""

KINDS = (*CHROME, "html", *TABLES)
