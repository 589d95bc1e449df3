"""python -m benchmarks [decode|quantize|memory|length|table|all] [--runs N] [--quick]"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from benchmarks import bench_decode, bench_length, bench_memory, bench_quantize, table
from benchmarks._rows import RESULTS, Row, append, over_runs, where

BENCHMARKS: dict[str, Callable[[bool], Iterator[Row]]] = {
    "memory": bench_memory.measure,  # first: its processes start while this one is small
    "decode": bench_decode.measure,
    "quantize": bench_quantize.measure,
    "length": bench_length.measure,
}


def main(arguments: list[str] | None = None) -> None:
    """Run what is asked for, append the rows, and say what they are over all runs."""
    args = parser().parse_args(arguments)
    if args.what == "table":
        print(table.write(args.results or RESULTS))
        return
    chosen = list(BENCHMARKS) if args.what == "all" else [args.what]
    folder = args.results or (None if args.quick else RESULTS)
    rows = over_runs(_runs(chosen, args.runs, args.quick, folder))
    print(table.summary(rows))
    if folder is None:
        print("\n--quick: these numbers say nothing about speed, and no row was written")
    else:
        print(f"\nrows appended in {folder}; python -m benchmarks table puts them into the README")


def _runs(chosen: list[str], runs: int, quick: bool, folder: Path | None) -> Iterator[Row]:
    date = datetime.now(UTC).isoformat(timespec="seconds")
    for run in range(1, runs + 1):
        for name in chosen:
            start = time.perf_counter()
            for row in BENCHMARKS[name](quick):
                if folder is not None:
                    append([row], where(date, run), folder)
                yield row
            took = time.perf_counter() - start
            print(f"run {run} of {runs}: {name} took {took:.0f} s", file=sys.stderr)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python -m benchmarks", description="Measure, or make the README's table."
    )
    made.add_argument("what", nargs="?", choices=(*BENCHMARKS, "table", "all"), default="all")
    made.add_argument("--runs", type=_positive, default=1, help="how often; medians are taken over them")
    made.add_argument("--quick", action="store_true", help="small sizes: shows that it works, nothing else")
    made.add_argument(
        "--results", type=Path, help=f"folder of the CSV files (default {RESULTS.name}/ beside)"
    )
    return made


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} came; expected 1 or more")
    return value


if __name__ == "__main__":
    main()
