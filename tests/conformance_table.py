"""The table of what MXCache does in which family of models.

`python -m tests.conformance_table` writes it into the README; tests/test_conformance.py holds every cell of
it to what the checks find.
"""

from __future__ import annotations

import re
from pathlib import Path

from tests.conformance_checks import CHECKS, Cell, cell
from tests.conformance_models import FAMILIES

BEGIN, END = "<!-- support:begin -->", "<!-- support:end -->"
README = Path(__file__).resolve().parents[1] / "README.md"
TICK, REFUSED = "✓", "–"

Results = dict[str, dict[str, Cell]]


def results() -> Results:
    """Run every check on every family, each once a process."""
    return {family: {feature: cell(family, feature) for feature in CHECKS} for family in FAMILIES}


def markdown(results: Results) -> str:
    """Return the table, the lines its numbers stand for, and how many things were checked."""
    lines: list[str] = []
    rows = [_row(family, cells, lines) for family, cells in results.items()]
    found = sum(c.found for cells in results.values() for c in cells.values())
    refused = sum(c.refused for cells in results.values() for c in cells.values())
    return "\n".join(
        (
            f"| | {' | '.join(CHECKS)} |",
            "|---" * (len(CHECKS) + 1) + "|",
            *rows,
            "",
            *(f"{number}. {line}" for number, line in enumerate(lines, 1)),
            "",
            f"{found:,} checks over {len(results)} families; {refused} of "
            f"{sum(map(len, results.values()))} cells are refused, with the line that numbers stand for.",
        )
    )


def _row(family: str, cells: dict[str, Cell], lines: list[str]) -> str:
    note = FAMILIES[family].note
    return (
        f"| {family}{f' ({note})' if note else ''} | {' | '.join(_said(c, lines) for c in cells.values())} |"
    )


def _said(found: Cell, lines: list[str]) -> str:
    mark = REFUSED if found.refused else TICK
    if found.line is None:
        return mark
    line = literal(found.line)
    if line not in lines:
        lines.append(line)
    return f"{mark} {lines.index(line) + 1}"


def literal(line: str) -> str:
    """Return a refusal as it stands in Markdown, on one line."""
    return re.sub(r"\s+", " ", line).replace("<", "&lt;").replace("|", "/")


def read(text: str) -> tuple[dict[str, dict[str, str]], dict[str, str]]:
    """Return what stands in the README's table, by family and feature, and the numbered lines under it."""
    part = text.partition(BEGIN)[2].partition(END)[0]
    rows = [[c.strip() for c in line.strip("|").split("|")] for line in part.splitlines() if line[:1] == "|"]
    features = rows[0][1:]
    lines = dict(re.findall(r"^(\d+)\. (.+)$", part, re.MULTILINE))
    return {row[0].partition(" (")[0]: dict(zip(features, row[1:], strict=True)) for row in rows[2:]}, lines


def into(readme: str, table: str) -> str:
    """Return the README's text with this table between its markers."""
    if not (BEGIN in readme and END in readme):
        raise ValueError(f"the README has no {BEGIN} and {END}")
    head, _, rest = readme.partition(BEGIN)
    return f"{head}{BEGIN}\n{table}\n{END}{rest.partition(END)[2]}"


def main() -> None:
    """Run every check on every family and put the table into the README."""
    table = markdown(results())
    README.write_text(into(README.read_text(encoding="utf-8"), table), encoding="utf-8")
    print(table)


if __name__ == "__main__":
    main()
