"""Which small wrong changes to the arithmetic would no test notice?

    make mutants                        all targets, about twenty minutes on one core
    python tools/mutants.py _scales     one file;  --list names the mutants and runs nothing

Each mutant changes one node of one file's syntax tree in a forked process and runs quick tests of that file;
no file is written. A mutant that lives is either equivalent, and then named with its reason in
tools/equivalent_mutants.txt, or a test is missing: the exit code is 1.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import os
import signal
import sys
import time
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
KNOWN = ROOT / "tools" / "equivalent_mutants.txt"
LIMIT_S = 300
PYTEST = ["-x", "-q", "--tb=no", "-p", "no:cacheprovider", "-p", "pytest_timeout", "--timeout=0"]

# Quick ones first: most mutants die at the first failure.
TESTS = {
    "_elements": ("formats", "elements_exhaustive"),
    "_schemes": ("grammar", "formats"),
    "_recipes": ("grammar",),
    "_codec": ("elements_exhaustive", "numeric_cases", "quantize"),
    "_scales": ("numeric_cases", "elements_exhaustive", "quantize"),
    "quantize": ("numeric_cases", "quantize"),
    "metrics": ("metrics", "numeric_cases"),
}

SWAPS: dict[type, tuple[type, ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
    ast.And: (ast.Or,),
    ast.Or: (ast.And,),
    ast.Add: (ast.Sub,),
    ast.Sub: (ast.Add,),
    ast.Mult: (ast.Div,),
    ast.Div: (ast.Mult,),
    ast.FloorDiv: (ast.Div,),
    ast.Mod: (ast.FloorDiv,),
    ast.Pow: (ast.Mult,),
    ast.LShift: (ast.RShift,),
    ast.RShift: (ast.LShift,),
    ast.BitAnd: (ast.BitOr,),
    ast.BitOr: (ast.BitAnd,),
}
MODULES = {"torch", "np", "math", "ops", "re", "warnings"}
# Words for people are compared by no test, and annotations are not run.
SKIPPED = (ast.JoinedStr, ast.Import, ast.ImportFrom)
SKIPPED_FIELDS = {"annotation", "returns", "decorator_list"}


class Mutant(NamedTuple):
    """One changed node: where it hangs in the tree, and what is put there instead."""

    parent: ast.AST
    field: str
    index: int | None
    new: ast.AST
    line: int
    column: int
    change: str

    def apply(self) -> None:
        if self.index is None:
            setattr(self.parent, self.field, self.new)
        else:
            getattr(self.parent, self.field)[self.index] = self.new


def mutants(tree: ast.AST) -> Iterator[Mutant]:
    """Yield every mutant of a tree, in the order of its lines."""
    for parent, field, index, node in _places(tree):
        for new in _alternatives(node, parent):
            ast.copy_location(new, node)
            change = f"{_shown(node)}  ->  {_shown(new)}"
            yield Mutant(
                parent, field, index, ast.fix_missing_locations(new), node.lineno, node.col_offset, change
            )


def _places(node: ast.AST) -> Iterator[tuple[ast.AST, str, int | None, ast.AST]]:
    for field, value in ast.iter_fields(node):
        if field in SKIPPED_FIELDS or (isinstance(node, ast.Raise) and field == "exc"):
            continue
        listed = value if isinstance(value, list) else [value]
        for index, child in enumerate(listed):
            if isinstance(child, ast.AST) and not isinstance(child, SKIPPED):
                if hasattr(child, "lineno"):
                    yield node, field, index if isinstance(value, list) else None, child
                yield from _places(child)


def _shown(node: ast.AST) -> str:
    return " ".join(ast.unparse(node).split())[:110]


def _alternatives(node: ast.AST, parent: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.Compare):
        for place, op in enumerate(node.ops):
            for swap in SWAPS[type(op)]:
                ops = [*node.ops[:place], swap(), *node.ops[place + 1 :]]
                yield ast.Compare(node.left, ops, node.comparators)
    elif isinstance(node, ast.BinOp):
        yield from (ast.BinOp(node.left, swap(), node.right) for swap in SWAPS.get(type(node.op), ()))
    elif isinstance(node, ast.BoolOp):
        yield from (ast.BoolOp(swap(), node.values) for swap in SWAPS[type(node.op)])
        yield from (ast.BoolOp(node.op, [v for v in node.values if v is not out]) for out in node.values)
    elif isinstance(node, ast.UnaryOp):
        yield node.operand
    elif isinstance(node, ast.Constant):
        yield from (ast.Constant(value) for value in _other_values(node.value, parent))
    elif isinstance(node, ast.IfExp):
        yield from (node.body, node.orelse)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if not isinstance(node.func.value, ast.Name) or node.func.value.id not in MODULES:
            yield node.func.value  # x.clamp(…) without its clamp
        elif len(node.args) == 1:
            yield node.args[0]  # torch.round(x) without its rounding
    elif isinstance(node, ast.Raise) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)):
        yield ast.Pass()
    elif isinstance(node, ast.Name | ast.Attribute) and getattr(parent, "test", None) is node:
        yield ast.UnaryOp(ast.Not(), node)


def _other_values(value: object, parent: ast.AST) -> tuple[object, ...]:
    if isinstance(value, bool):
        return (not value,)
    if isinstance(value, int):
        return (value + 1,)
    if isinstance(value, float):
        return (value * 2 if value else 1.0,)
    named = isinstance(value, str) and value and not isinstance(parent, ast.Expr)
    return (f"XX{value}",) if named else ()


class _Mutated(SourceFileLoader):
    """Loads one module from a tree instead of its file; also its finder."""

    tree: ast.AST

    def get_code(self, fullname: str):
        return compile(self.tree, self.path, "exec")

    def find_spec(self, fullname: str, path=None, target=None):
        mine = fullname == self.name
        return importlib.util.spec_from_file_location(fullname, self.path, loader=self) if mine else None


def survives(module: str, tree: ast.AST, mutant: Mutant | None) -> bool:
    """Run a file's tests against a mutant, in a process of its own; True if all of them pass."""
    child = os.fork()
    if not child:
        signal.alarm(LIMIT_S)  # a mutant that never ends has been noticed
        out = os.open(os.devnull, os.O_WRONLY)
        os.dup2(out, 1), os.dup2(out, 2)
        try:
            os._exit(_run(module, tree, mutant))
        except BaseException:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def _run(module: str, tree: ast.AST, mutant: Mutant | None) -> int:
    import pytest

    if mutant is not None:
        mutant.apply()
    loader = _Mutated(f"mxviz.{module}", str(ROOT / "mxviz" / f"{module}.py"))
    loader.tree = tree
    sys.meta_path.insert(0, loader)
    tests = [str(ROOT / "tests" / f"test_{name}.py") for name in TESTS[module]]
    return next((failed for test in tests if (failed := int(pytest.main([*PYTEST, test])))), 0)


def _known() -> set[str]:
    """Equivalent mutants as they are printed, each below its reason (a line that begins with #)."""
    lines = KNOWN.read_text(encoding="utf-8").splitlines() if KNOWN.exists() else []
    return {line.strip() for line in lines if line.strip() and not line.startswith("#")}


def check(module: str, known: set[str], every: int, only_list: bool) -> int:
    """Run one file's mutants, print those that live and are not known, and return how many these are."""
    source = (ROOT / "mxviz" / f"{module}.py").read_text(encoding="utf-8")
    tree, lines, started = ast.parse(source), source.splitlines(), time.monotonic()
    found = list(mutants(tree))[::every]
    if not only_list and not survives(module, tree, None):
        raise SystemExit(f"{module}: its tests fail as it is; mend that first")
    lived = equivalent = 0
    for number, mutant in enumerate(found):
        if number % 20 == 0 and not only_list:
            print(f"{module} {number}/{len(found)}, {lived} lived", file=sys.stderr, flush=True)
        line = lines[mutant.line - 1]
        at = mutant.column - len(line) + len(line.lstrip())  # from the first letter: indenting moves nothing
        name = f"{module}: {line.strip()} | {at}: {mutant.change}"
        if only_list:
            print(name)
        elif survives(module, tree, mutant):
            equivalent += name in known
            lived += name not in known
            if name not in known:
                print(f"{mutant.line:4} {name}", flush=True)
    if not only_list:
        killed = len(found) - lived - equivalent
        counts = f"{killed} killed, {equivalent} equivalent, {lived} lived"
        print(f"{module}: {len(found)} mutants, {counts}, {time.monotonic() - started:.0f} s", flush=True)
    return lived


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("files", nargs="*", metavar="FILE", help=f"of {', '.join(TESTS)}; all by default")
    options.add_argument("--every", type=int, default=1, metavar="N", help="a sample: every Nth mutant")
    options.add_argument("--list", action="store_true", help="name the mutants and run nothing")
    args = options.parse_args()
    if unknown := set(args.files) - set(TESTS):
        options.error(f"no tests are named for {', '.join(sorted(unknown))}; known: {', '.join(TESTS)}")
    os.environ["OMP_NUM_THREADS"] = "1"  # before torch: a forked child must find no threads
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    os.chdir(ROOT)
    sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
    if not args.list:  # loaded once, here; mxviz itself is loaded by each child
        import hypothesis
        import ml_dtypes  # noqa: F401
        import numba  # noqa: F401
        import torch  # noqa: F401

        # The same examples for every mutant, and no time spent on making a failing one smaller.
        phases = [hypothesis.Phase.explicit, hypothesis.Phase.generate]
        hypothesis.settings.register_profile(
            "mutants", database=None, derandomize=True, deadline=None, phases=phases
        )
        hypothesis.settings.load_profile("mutants")
    known = _known()
    return int(sum(check(module, known, args.every, args.list) for module in args.files or TESTS) > 0)


if __name__ == "__main__":
    sys.exit(main())
