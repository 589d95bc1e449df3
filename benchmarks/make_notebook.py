"""Write and execute docs/notebook.ipynb: `python -m benchmarks.make_notebook`. Pictures need a Chrome.

The notebook is plain JSON (nbformat 4.5), so neither Jupyter nor its libraries are needed here.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import io
import json
import os
from pathlib import Path
from typing import Any

from mxviz.export import File, Size, made
from mxviz.figures import Figure, alt_text

DOCS = Path(__file__).resolve().parents[1] / "docs"
WIDTH = 860
"""CSS pixels of a picture in the executed notebook; live, it is as wide as the figure."""

CELLS = (
    (
        "markdown",
        "# mxviz in a notebook\n\n"
        "A KV cache is a prep bowl: chop once, keep it at hand. To make it smaller one stores its numbers "
        "on a ruler with few marks. This notebook measures with one ruler for everything, and with a ruler "
        "for each small block, on keys of a real model that were recorded with mxviz.\n\n"
        "`pip install '.[figures]'` in the folder of mxviz is enough to run it; no model is loaded.",
    ),
    (
        "markdown",
        "## A tensor\n\n`quantize` packs a tensor `[batch, kv_heads, tokens, head_dim]` for real: "
        "codes, and one shared scale for every 32 numbers. One channel here is large at every token.",
    ),
    (
        "code",
        "import torch\n\nfrom mxviz.ops import quantize\n\n"
        "x = torch.randn(1, 2, 256, 64, generator=torch.Generator().manual_seed(0))\n"
        "x[..., 31] += 200\n"
        'for scheme in ("mxfp4:axis=token", "mxfp4", "nvfp4", "fp4@tensor"):\n'
        "    blocks = quantize(x, scheme)\n"
        '    print(f"{scheme:18} {blocks.bits_per_element:5.2f} bits an element, '
        '{blocks.flushed(x):6.1%} become zero")',
    ),
    (
        "markdown",
        "## A run\n\nA capture is the record of one run: keys and values as the model made them, what was "
        "written from three caches, and what was measured. `mxviz run --out run.safetensors` makes one.",
    ),
    (
        "code",
        "from mxviz.capture import Capture\nfrom mxviz.report import report\n\n"
        'capture = Capture.load("../assets/gallery/qwen-code.safetensors")\n'
        "numbers = report(capture)\n"
        'print(capture.model, "·", capture.recipe, "against", capture.baseline)\n'
        'for lane in ("micro", "single"):\n'
        '    keys, effect = numbers["error"][lane]["key"], numbers["effect"][lane]\n'
        "    print(\n"
        "        f\"{lane:7} keys: SQNR {keys['sqnr_db']:.1f} dB, {keys['flushed']:.1%} flushed to zero; \"\n"
        "        f\"next token: KL {effect['kl_mean']:.3f} nats, same first choice "
        "{effect['top1_agreement']:.0%}\"\n"
        "    )",
    ),
    (
        "markdown",
        "## Figures\n\nEvery figure has a name; with nothing told, it looks at the largest outlier.",
    ),
    (
        "code",
        "from mxviz.pictures import available, picture\n\n"
        'print(", ".join(available(capture)))\n'
        'picture(capture, "overview", width=860)',
    ),
    ("code", 'picture(capture, "rulers", width=860, height=560)'),
    (
        "markdown",
        "Above: one block of 32 keys on its own ruler, and on the one that all keys of the layer share. "
        "Below: did it matter? The same query's attention over exact and over quantized keys.",
    ),
    ("code", 'picture(capture, "attention", width=860)'),
    (
        "markdown",
        "## Into a file\n\n"
        "```python\nfrom mxviz.pictures import write_picture\n\n"
        'write_picture(capture, "rulers", "rulers.svg", theme="transparent", size="slide", font_scale=1.25)\n'
        'write_picture(capture, "rulers", "rulers.csv")  # the numbers behind it\n```\n\n'
        "Every file holds where it came from: model, prompt hash, layer, head, recipe, version.",
    ),
)


def main() -> None:
    """Execute the cells in order, in one namespace, from the folder docs."""
    os.chdir(DOCS)
    namespace: dict[str, Any] = {}
    cells, count = [], 0
    for index, (kind, source) in enumerate(CELLS):
        cell = {"cell_type": kind, "id": f"cell-{index}", "metadata": {}, "source": source.splitlines(True)}
        if kind == "code":
            count += 1
            cell |= {"execution_count": count, "outputs": _executed(source, namespace, count)}
        cells.append(cell)
    metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    notebook = {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}
    text = json.dumps(notebook, ensure_ascii=False, indent=1) + "\n"
    if str(DOCS.parent) in text or str(Path.home()) + "/" in text:
        raise SystemExit("an output names a folder of this machine")
    (DOCS / "notebook.ipynb").write_text(text, encoding="utf-8")
    print(f"docs/notebook.ipynb: {count} cells executed, {len(text) // 1000} kB")


def _executed(source: str, namespace: dict[str, Any], count: int) -> list[dict[str, Any]]:
    """Run a cell and return its outputs: what it printed, and the value of its last expression."""
    tree, printed, value = ast.parse(source), io.StringIO(), None
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, "<cell>", "exec"), namespace)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), namespace)
    outputs = []
    if printed.getvalue():
        lines = printed.getvalue().splitlines(True)
        outputs.append({"name": "stdout", "output_type": "stream", "text": lines})
    if value is not None:
        data = _shown(value)
        outputs.append(
            {"data": data, "execution_count": count, "metadata": {}, "output_type": "execute_result"}
        )
    return outputs


def _shown(value: Any) -> dict[str, Any]:
    if not isinstance(value, Figure):
        return {"text/plain": repr(value).splitlines(True)}
    size = Size(WIDTH, None, 1.0)
    (image,) = made([File(value, size)], "png")
    return {"image/png": base64.b64encode(image).decode(), "text/plain": [alt_text(value)]}


if __name__ == "__main__":
    main()
