"""Element formats, schemes and recipes: what a number is stored as, and how scales are shared.

Everything here is data. A format's limits follow from its field widths, a scheme's options from what its
scale is, so that a new format is a new row of a table.
"""

from mxviz._elements import ELEMENTS, FLT_MAX, ElementFormat, Kind, Specials
from mxviz._recipes import RECIPES, Recipe
from mxviz._schemes import BLOCK_SIZES, SCHEMES, Axis, Reach, ScaleFormat, ScaleRule, Scheme

__all__ = [
    "BLOCK_SIZES",
    "ELEMENTS",
    "FLT_MAX",
    "RECIPES",
    "SCHEMES",
    "Axis",
    "ElementFormat",
    "Kind",
    "Reach",
    "Recipe",
    "ScaleFormat",
    "ScaleRule",
    "Scheme",
    "Specials",
]
