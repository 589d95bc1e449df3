"""What the rows say: the goals, passed or missed, and the Markdown table that goes into the README."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from benchmarks._caches import BASE, CACHES, OURS, PEERS
from benchmarks._rows import RESULTS, Row, latest
from benchmarks.bench_decode import LENGTHS, setting
from benchmarks.bench_length import EXPONENT
from benchmarks.bench_memory import HELD, RESIDENT
from benchmarks.bench_quantize import MAIN, TORCHAO

BEGIN, END = "<!-- bench:begin -->", "<!-- bench:end -->"
README = Path(__file__).resolve().parents[1] / "README.md"
BENCHMARKS = ("decode", "quantize", "memory", "length")


class Book:
    """Rows by benchmark, setting and name, one of each."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self.rows = {(row.benchmark, row.setting, row.name): row for row in rows}

    def find(self, benchmark: str, at: str, name: str) -> Row | None:
        """Return a row that holds a number, None where there is none."""
        row = self.rows.get((benchmark, at, name))
        return None if row is None or row.median is None else row

    def of(self, benchmark: str, name: str | None = None) -> list[Row]:
        """Return the rows of a benchmark that hold a number, of one name where it is given."""
        rows = [row for row in self.rows.values() if row.benchmark == benchmark and row.median is not None]
        return [row for row in rows if name is None or row.name == name]


def _decode_ratio(tokens: int) -> Callable[[Book], float | None]:
    def value(book: Book) -> float | None:
        row = book.find("decode", setting(tokens), OURS)
        return row and row.ratio

    return value


def _to_best_peer(book: Book) -> float | None:
    ours = book.find("decode", setting(2048), OURS)
    peers = [row.median for name in PEERS if (row := book.find("decode", setting(2048), name))]
    return ours.median / min(peers) if ours and peers else None


def _times_torchao(book: Book) -> float | None:
    ours, theirs = (book.find("quantize", MAIN, name) for name in ("quantize", TORCHAO))
    return theirs.median / ours.median if ours and theirs else None


def _of_copy(book: Book) -> float | None:
    row = book.find("quantize", MAIN, "quantize")
    return row and row.ratio


def _slowest_to_fastest(book: Book) -> float | None:
    shares = [row.ratio for row in book.of("quantize", "quantize")]
    return max(shares) / min(shares) if len(shares) > 1 else None


def _resident_over(book: Book) -> float | None:
    """Return the most that resident memory grew by, as a share of 1.25 × formula + 40 MB."""
    rows = book.of("memory", RESIDENT)
    return max((row.median / (1.25 * row.median / row.ratio + 40) for row in rows), default=None)


def _held_over(book: Book) -> float | None:
    return max((row.ratio for row in book.of("memory", HELD)), default=None)


class Goal(NamedTuple):
    """Something to reach: a number out of the rows, and the limit it is at most (or at least)."""

    what: str
    value: Callable[[Book], float | None]
    limit: float
    at_least: bool = False

    def says(self, book: Book) -> str | None:
        """Return one line, None where nothing was measured that tells."""
        found = self.value(book)
        if found is None:
            return None
        reached = found >= self.limit if self.at_least else found <= self.limit
        sign = "≥" if self.at_least else "≤"
        return f"{'PASS  ' if reached else 'missed'}  {self.what}: {found:.3g} (goal {sign} {self.limit:g})"


GOALS = (
    *(
        Goal(f"decode, {OURS}, {n} tokens held, ratio to {BASE}", _decode_ratio(n), limit)
        for n, limit in zip(LENGTHS, (1.05, 0.80, 0.50), strict=True)
    ),
    Goal("decode, 2048 tokens held, ratio to the best of transformers' quantized caches", _to_best_peer, 0.6),
    Goal("quantize mxfp4, times torchao's speed", _times_torchao, 20, at_least=True),
    Goal("quantize mxfp4, share of the speed of a copy", _of_copy, 0.5, at_least=True),
    Goal("quantize, slowest scheme to fastest", _slowest_to_fastest, 4),
    Goal("memory, bytes in use to formula, the worst", _held_over, 1),
    Goal("memory, resident growth to 1.25 × formula + 40 MB, the worst", _resident_over, 1),
)


def summary(rows: Iterable[Row]) -> str:
    """Return all rows as text, then what is passed and what is missed."""
    book = Book(rows)
    lines = [row.line() for row in book.rows.values()]
    goals = [says for goal in GOALS if (says := goal.says(book))]
    return "\n".join([*lines, *([""] if goals else []), *goals])


def markdown(folder: Path = RESULTS) -> str:
    """Return the newest rows of every benchmark as Markdown; without rows, a line that says so."""
    parts = []
    for benchmark in BENCHMARKS:
        place, rows = latest(benchmark, folder)
        if rows:
            parts += [*_PARTS[benchmark](Book(rows)), "", _place(place), ""]
    return "\n".join(parts).strip() or "No row has been written yet."


def _place(place: Mapping[str, str]) -> str:
    runs = f"{place['runs']} run{'s' if place['runs'] != '1' else ''}"
    return (
        f"<sub>{place['date']}, {runs}; {place['machine']}, {place['cores']} cores, {place['threads']} "
        f"threads; {place['versions']}</sub>"
    )


def _decode(book: Book) -> Iterator[str]:
    yield "Decoding with the built-in model, float32 on the CPU: ms a token at so many tokens held, and in"
    yield f"brackets the ratio to {BASE}, median of interleaved rounds."
    yield ""
    yield from _grid(book, "decode", list(CACHES), [setting(n) for n in LENGTHS])


def _length(book: Book) -> Iterator[str]:
    settings = list(dict.fromkeys(row.setting for row in book.of("length") if row.setting != EXPONENT))
    names = list(dict.fromkeys(row.name for row in book.of("length")))
    layers = book.of("length")[0].note
    yield f"Attention and cache alone, {layers}: ms a step, in brackets the ratio to {BASE}, and the"
    yield "exponent of the growth with length."
    yield ""
    yield from _grid(book, "length", names, [*settings, EXPONENT])


def _grid(book: Book, benchmark: str, names: list[str], settings: list[str]) -> Iterator[str]:
    yield f"| cache | {' | '.join(settings)} |"
    yield "|---" * (1 + len(settings)) + "|"
    for name in names:
        yield f"| {name} | {' | '.join(_cell(book.rows.get((benchmark, at, name))) for at in settings)} |"


def _cell(row: Row | None) -> str:
    if row is None:
        return "–"
    if row.median is None:
        return row.note.replace("|", "/")
    return f"{row.median:.2f}" if row.ratio is None else f"{row.median:.1f} ({row.ratio:.2f})"


def _quantize(book: Book) -> Iterator[str]:
    numbers = book.of("quantize")[0].note
    yield f"Quantizing {numbers} of float32 on the CPU: ms, and the speed as a share of a copy's."
    yield ""
    yield "| | ms | of a copy |"
    yield "|---|---|---|"
    main = [row for row in book.of("quantize") if row.setting == MAIN]
    ours = book.of("quantize", "quantize")
    ends = [("slowest", min), ("fastest", max)]
    for row in main:
        yield f"| {MAIN}: {row.name} | {row.median:.1f} | {row.ratio:.2f} |"
    for what, pick in ends:
        row = pick(ours, key=lambda row: row.ratio)
        yield f"| {what} of {len(ours)} schemes: {row.setting} | {row.median:.1f} | {row.ratio:.2f} |"


def _memory(book: Book) -> Iterator[str]:
    yield "A filled cache, SmolLM2-135M's shapes, float32: MB, in brackets the ratio to the formula (bits per"
    yield "element, and what stays exact)."
    yield ""
    names = list(dict.fromkeys(row.name for row in book.of("memory")))
    settings = list(dict.fromkeys(row.setting for row in book.of("memory")))
    yield f"| cache | {' | '.join(names)} |"
    yield "|---" * (1 + len(names)) + "|"
    for at in settings:
        yield f"| {at} | {' | '.join(_cell(book.find('memory', at, name)) for name in names)} |"


_PARTS: dict[str, Callable[[Book], Iterator[str]]] = {
    "decode": _decode,
    "quantize": _quantize,
    "memory": _memory,
    "length": _length,
}


def into(text: str, table: str) -> str:
    """Return a text with the table between its two marker comments.

    Raises:
        ValueError: where the text does not have each marker once, in order.
    """
    if [text.count(BEGIN), text.count(END)] != [1, 1] or text.index(BEGIN) > text.index(END):
        raise ValueError(
            f"expected {BEGIN} and {END} once each, in this order; put them where the table goes"
        )
    return re.sub(f"{BEGIN}.*{END}", lambda _: f"{BEGIN}\n{table}\n{END}", text, count=1, flags=re.DOTALL)


def write(folder: Path = RESULTS, readme: Path = README) -> str:
    """Put the table into the README and return it."""
    table = markdown(folder)
    readme.write_text(into(readme.read_text(encoding="utf-8"), table), encoding="utf-8")
    return table
