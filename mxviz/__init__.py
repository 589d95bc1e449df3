"""mxviz: a microscope for micro-scaled KV caches.

The names below load on first use, so that `import mxviz` is quick and needs no torch. The functions
`quantize` and `dequantize` stay in their modules, because `mxviz.quantize` is one: write
`from mxviz.quantize import quantize` for the reference, `from mxviz.ops import quantize` for the fastest
backend that is here.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mxviz.cache import MXCache
    from mxviz.capture import Capture
    from mxviz.formats import ELEMENTS, RECIPES, SCHEMES, Recipe, Scheme
    from mxviz.quantize import MXBlocks

__version__ = "0.1.0"

__all__ = ["ELEMENTS", "RECIPES", "SCHEMES", "Capture", "MXBlocks", "MXCache", "Recipe", "Scheme"]

_HOMES = {
    "ELEMENTS": "formats",
    "RECIPES": "formats",
    "SCHEMES": "formats",
    "Recipe": "formats",
    "Scheme": "formats",
    "MXBlocks": "quantize",
    "MXCache": "cache",
    "Capture": "capture",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'mxviz' has no attribute {name!r}; it offers {', '.join(__all__)}")
    value = globals()[name] = getattr(import_module(f"mxviz.{_HOMES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
