"""The smaller commands: race, figure, pack, inspect, models, doctor."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from mxviz import __version__
from mxviz._cli_run import check_writable, write_json
from mxviz.capture import PARTS, Capture
from mxviz.formats import Recipe


def race(args: argparse.Namespace) -> None:
    """Print every scheme on a capture."""
    from mxviz.analysis import race as race_table

    check_writable(args.json)
    rows = race_table(Capture.load(args.capture))
    if args.json:
        write_json(rows, args.json)
    if args.json != "-":
        print(_table(rows))


def _table(rows: list[dict]) -> str:
    """Lay rows out under their keys, numbers to three digits."""

    def shown(value: object) -> str:
        if value is None:
            return "n/a"
        return f"{value:.4g}" if isinstance(value, float) else str(value)

    names = list(rows[0]) if rows else []
    cells = [names] + [[shown(row[name]) for name in names] for row in rows]
    widths = [max(len(line[i]) for line in cells) for i in range(len(names))]
    return "\n".join(
        "  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in cells
    )


def figure(args: argparse.Namespace) -> int:
    """Draw one figure of a capture into a file; 1 where the browser that is needed is missing or fails."""
    from mxviz.export import ExportError
    from mxviz.pictures import write_picture

    if args.list:
        _list_figures()
        return 0
    if not (args.capture and args.name and args.out):
        raise ValueError(
            "expected: mxviz figure run.safetensors NAME -o FIG.svg; mxviz figure --list names them"
        )
    check_writable(args.out)
    place = {option: getattr(args, option) for option in _PLACE}
    sheet = {option: getattr(args, option) for option in ("theme", "size", "title", "caption", "font_scale")}
    try:
        path = write_picture(
            Capture.load(args.capture),
            args.name,
            args.out,
            **sheet,
            show_provenance=args.provenance,
            **place,
        )
    except ExportError as error:
        print(f"mxviz: {error}", file=sys.stderr)
        return 1
    print(path)
    return 0


_PLACE = (
    *("layer", "head", "part", "token", "channel", "query_head", "position", "measure", "schemes"),
    *("recipe", "baseline"),
)


def _list_figures() -> None:
    from mxviz.figures import FIGURES
    from mxviz.pictures import PICTURES

    for name, drawn in PICTURES.items():
        print(f"{name:12} {FIGURES[name].about.split('. ')[0].rstrip('.')}")
        if drawn.measures:
            print(f"{'':12} measures: {', '.join(drawn.measures)}")


def pack(args: argparse.Namespace) -> None:
    """Write the packed bytes of a capture's keys and values, with the layout in the header."""
    from safetensors.torch import save_file

    from mxviz.metrics import layer_trip, recipe_of

    check_writable(args.out)
    capture = Capture.load(args.capture)
    recipe = recipe_of(capture, args.recipe or capture.recipe)
    if recipe.residual:
        print("mxviz: note: residual is not applied; every token behind the sinks is packed", file=sys.stderr)
    tensors, layout = {}, {}
    for layer in capture.layers:
        for part in PARTS:
            x, name = capture.part(part, layer), f"{layer}.{part}"
            blocks = layer_trip(capture, recipe, part, layer).blocks
            if blocks is None:
                tensors[f"{name}.exact"] = x.contiguous()
                continue
            if sinks := x.shape[1] - blocks.shape[1]:
                tensors[f"{name}.sink"] = x[:, :sinks].contiguous()
            for field in ("packed", "scales", "zeros", "global_scale"):
                if getattr(blocks, field) is not None:
                    tensors[f"{name}.{field}"] = getattr(blocks, field).contiguous()
            layout[name] = {"shape": list(blocks.shape), "axis": blocks.axis, "scheme": str(blocks.scheme)}
    header = {
        "format": "mxviz-packed-1",
        "recipe": str(recipe),
        "layout": json.dumps(layout),
        "conventions": json.dumps(_CONVENTIONS),
    }
    save_file(tensors, args.out, metadata=header)
    print(f"{args.out}: {sum(t.numel() * t.element_size() for t in tensors.values()):,} bytes of tensors")


_CONVENTIONS = {
    "shape": "[kv_heads, tokens, head_dim]; packed replaces axis by bytes, scales replace it by blocks",
    "packing": "along axis, low nibble first; 6-bit codes four to three bytes, little-endian; "
    "each row begins at a byte boundary",
    "e8m0": "scale byte b is 2**(b - 127); 255 is NaN",
    "nvfp4": "scale is E4M3 times the float32 global_scale; element = code value * (scale * global_scale)",
    "integers": "two's complement; INT8 codes are multiples of 2**-6, INT4 of 2**-2",
    "zeros": "element = code * scale + zero, both float16",
    "scale_rule": "in the scheme string; floor (OCP MX v1.0, section 6.3) where none is given",
    "left_out": "residual is not applied: every token behind the sinks is packed",
    "rotate": "with rotate=1 in the recipe, head_dim was multiplied by an orthonormal Hadamard matrix first",
}


def inspect(args: argparse.Namespace) -> None:
    """Quantize a tensor of the user's own and say what is lost under each scheme."""
    from mxviz.metrics import json_safe, part_error
    from mxviz.outliers import channel_outliers
    from mxviz.tensors import as_capture, read_tensor

    check_writable(args.json)
    recipe = Recipe.parse(args.recipe)
    if recipe.key.is_none or recipe.residual or recipe.skip:
        raise ValueError(
            f"recipe {recipe} does not apply to one tensor: it needs a key scheme, and residual= and skip= "
            "do nothing to it; write, for instance, mxfp4;sink=4"
        )
    baseline = recipe.twin() if args.baseline == "twin" else Recipe.parse(args.baseline)
    array = read_tensor(args.tensor, args.name)
    capture = as_capture(array, args.tensor, str(recipe), str(baseline))
    rows = [
        {"lane": lane, "scheme": str(r.key)} | part_error(capture, r, "key")
        for lane, r in (("micro", recipe), ("single", baseline))
    ]
    channels = [row._asdict() for row in channel_outliers(capture, "key")][:20]
    if args.json:
        write_json(json_safe({"shape": array.shape, "error": rows, "outliers": channels}), args.json)
    if args.json != "-":
        print(f"{args.tensor}: {' × '.join(map(str, array.shape))}")
        print(_table(rows))
        for row in channels:
            print(
                f"outlier: layer {row['layer']}, head {row['head']}, channel {row['channel']}: "
                f"peaks at {row['amax']:.4g}, {row['ratio_to_median']:.0f} times the median"
            )


def models(args: argparse.Namespace) -> None:
    """Print what models are here and how to get others."""
    from mxviz.models import available

    for row in available():
        print(f"{row.name:36} {'here' if row.present else 'not here':9} {row.what}")
        if row.how:
            print(f"{'':36} {'':9} {row.how}")
    print("Also: any hub id with .safetensors weights, a local folder, or a .gguf file.")


def doctor(args: argparse.Namespace) -> None:
    """Print what this machine offers."""
    import torch

    from mxviz._models_builtin import cache_folder
    from mxviz.export import find_browser
    from mxviz.models import available
    from mxviz.ops import BACKENDS, pick, why_missing

    print(f"mxviz {__version__}, Python {platform.python_version()}")
    for name in ("torch", "transformers", "numba", "triton", "streamlit", "plotly", "kaleido", "gguf"):
        print(f"  {name:13} {version(name) if _has(name) else 'not installed'}")
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    print(f"device          {device}; torch uses {torch.get_num_threads()} threads")
    for name in BACKENDS:
        reason = why_missing(name)
        print(f"backend {name:10} {'ready' if reason is None else 'not here: ' + reason}")
    print(f"backend auto    picks {pick('auto', 'cuda' if torch.cuda.is_available() else 'cpu')}")
    browser = find_browser()
    print(f"export          {browser or 'no Chrome or Chromium: PNG, SVG and PDF need one, HTML does not'}")
    print(f"memory          {_memory()}")
    built_in = next(row for row in available() if row.name == "smollm2")
    print(f"built-in model  {'here' if built_in.present else built_in.how}")
    print(f"model cache     {cache_folder()}")


def _has(name: str) -> bool:
    try:
        version(name)
    except PackageNotFoundError:
        return False
    return True


def _memory() -> str:
    try:
        pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
        free = next(
            int(line.split()[1]) / 2**20
            for line in Path("/proc/meminfo").read_text().splitlines()
            if line.startswith("MemAvailable")
        )
        return f"{pages * size / 2**30:.1f} GiB, {free:.1f} GiB available"
    except (ValueError, OSError, AttributeError, StopIteration):
        return "unknown"
