"""All figures of a run in one .zip, with the numbers behind them and where they came from."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable, Mapping
from typing import Any

from mxviz._export_sheet import size_of, theme_of
from mxviz._pictures_registry import entry, place_of
from mxviz.capture import Capture
from mxviz.export import made
from mxviz.figures import FIGURES, alt_text
from mxviz.pictures import Sheet, available, figure_file, short_name

Said = Callable[[str], None]


def bundle(
    capture: Capture,
    kind: str,
    sheet: Sheet,
    place: Mapping[str, Any] | None = None,
    say: Said = lambda text: None,
) -> bytes:
    """Return a .zip of every figure that a capture can give: a picture and a .csv each, and an index.

    Args:
        capture: the run.
        kind: of the pictures: svg, png, pdf or html.
        sheet: how they are drawn; its title and caption are for one figure and left out.
        place: what the figures are told, each what it takes of it; None for the default places.
        say: is told in a few words what is being done.

    Raises:
        ValueError: for an unknown kind, theme, size or font scale.
        mxviz.export.ExportError: where Chrome is needed and missing, or fails.
    """
    sheet, files, tables, left_out = sheet._replace(title=None, caption=""), {}, {}, []
    theme_of(sheet), size_of(sheet)
    for name in available(capture):
        say(f"drawing {name}")
        drawn = entry(name)
        given = {option: value for option, value in (place or {}).items() if option in drawn.options}
        if "queries" in drawn.needs:  # few layers have them, and the place need not be in one
            given.pop("layer", None)
        try:
            told = place_of(capture, name, **given)
            files[name] = figure_file(capture, name, told, sheet)
        except ValueError as error:
            left_out.append(f"{name}: {error}")
            continue
        tables[name] = figure_file(capture, name, told, sheet, numbers=True)
    say(f"writing {len(files)} files")
    pictures = dict(zip(files, made(list(files.values()), kind), strict=True))
    numbers = dict(zip(tables, made(list(tables.values()), "csv"), strict=True))
    index = {
        name: {"title": FIGURES[name].title, "shows": alt_text(file.fig), "from": dict(file.provenance)}
        for name, file in files.items()
    }
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in files:
            archive.writestr(f"{name}.{kind}", pictures[name])
            archive.writestr(f"{name}.csv", numbers[name])
        archive.writestr("index.json", json.dumps(index, ensure_ascii=False, indent=1, default=str))
        archive.writestr("about.txt", _words(capture, left_out))
    return out.getvalue()


def _words(capture: Capture, left_out: list[str]) -> str:
    lines = [f"Figures of a run of {short_name(capture.model)}, {capture.recipe} against {capture.baseline}."]
    lines += ["index.json says what each one shows and where it came from.", ""]
    return "\n".join([*lines, *(f"left out: {text}" for text in left_out)]) + "\n"
