"""Schemes and recipes as strings: what is read, how it is printed, and what is refused."""

from __future__ import annotations

import re
import warnings
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mxviz.formats import BLOCK_SIZES, RECIPES, SCHEMES, Axis, Recipe, ScaleRule, Scheme


def variants() -> list[Scheme]:
    """Every scheme with every combination of the options that apply to it."""
    choices = {"axis": tuple(Axis), "scale": tuple(ScaleRule), "block": BLOCK_SIZES}
    fields = {"axis": "axis", "scale": "rule", "block": "block"}
    return [
        replace(scheme, **{fields[o]: v for o, v in zip(scheme.options, values, strict=True)})
        for scheme in SCHEMES.values()
        for values in product(*(choices[o] for o in scheme.options))
    ]


VARIANTS = variants()
recipes = st.builds(
    Recipe,
    key=st.sampled_from([s for s in VARIANTS if not s.is_none]),
    value=st.sampled_from(VARIANTS),
    sink=st.integers(0, 1_000_000),
    residual=st.integers(0, 1_000_000),
    skip=st.sets(st.integers(0, 200)).map(lambda layers: tuple(sorted(layers))),
    rotate=st.booleans(),
)


def test_every_scheme_reads_back_as_itself() -> None:
    assert len(VARIANTS) == 7 * 24 + 3 * 6 + 34
    assert len({str(s) for s in VARIANTS}) == len(VARIANTS)
    for scheme in VARIANTS:
        assert Scheme.parse(str(scheme)) == scheme
        assert str(Scheme.parse(str(scheme))) == str(scheme)


@given(recipes)
def test_every_recipe_reads_back_as_itself(recipe: Recipe) -> None:
    assert Recipe.parse(str(recipe)) == recipe
    assert str(Recipe.parse(str(recipe))) == str(recipe)


@pytest.mark.parametrize(
    ("written", "canonical"),
    [
        ("mxfp4:axis=channel,scale=floor,block=32", "mxfp4"),
        ("mxfp4:block=16,scale=rceil,axis=token", "mxfp4:axis=token,scale=rceil,block=16"),
        ("nvfp4:block=16", "nvfp4"),
        ("nvfp4:block=32", "nvfp4:block=32"),
        (" mxfp4 : scale = even ", "mxfp4:scale=even"),
        ("\n kivi4 ; sink = 4 ; skip = 0 , 23 ", "k=aint4:axis=token;v=aint4;sink=4;residual=128;skip=0,23"),
        ("k=mxfp4;v=mxfp4", "mxfp4"),
        ("v=mxfp4;k=mxfp4:axis=token", "k=mxfp4:axis=token;v=mxfp4"),
        ("mxfp4;rotate=1;skip=23,0;residual=32;sink=4", "mxfp4;sink=4;residual=32;skip=0,23;rotate=1"),
        ("mxfp4;sink=0;residual=0;rotate=0", "mxfp4"),
        ("sink=4;mxfp4", "mxfp4;sink=4"),
        ("k=mxfp4;v=none", "k=mxfp4;v=none"),
        ("kivi2", "k=aint2:axis=token;v=aint2;residual=128"),
        ("kivi4", "k=aint4:axis=token;v=aint4;residual=128"),
        ("kivi4;sink=4", "k=aint4:axis=token;v=aint4;sink=4;residual=128"),
        ("none", "none"),
    ],
)
def test_printing_is_canonical(written: str, canonical: str) -> None:
    assert str(Recipe.parse(written)) == canonical
    assert str(Recipe.parse(canonical)) == canonical


def test_the_designs_own_recipe() -> None:
    recipe = Recipe.parse("k=mxfp4:axis=token;v=mxfp4;sink=4;residual=32;skip=0,23;rotate=1")
    assert (recipe.sink, recipe.residual, recipe.skip, recipe.rotate) == (4, 32, (0, 23), True)
    assert recipe.key.axis is Axis.TOKEN and recipe.value.axis is Axis.CHANNEL
    assert Recipe.parse(recipe) is recipe
    assert str(Recipe.parse(SCHEMES["nvfp4"])) == "nvfp4"


REFUSED = {
    "mxfp5": "unknown scheme",
    "MXFP4": "unknown scheme",
    "": "empty part",
    ";": "empty part",
    "mxfp4;": "empty part",
    "mxfp4:": "unknown option",
    "mxfp4\n:": "unknown option '' of mxfp4;",
    "int4@tensor\n:axis=token": "does not apply to int4@tensor; it",
    "mxfp4:axis": "unknown axis",
    "mxfp4:axis=row": "expected one of: channel, token",
    "mxfp4:scale=nearest": "expected one of: floor, even, rceil, ceil",
    "mxfp4:block=8": "expected one of: 16, 32, 64",
    "mxfp4:block=032": "expected one of: 16, 32, 64",
    "mxfp4:size=32": "expected one of: axis, scale, block",
    "mxfp4:axis=token,axis=token": "given twice",
    "nvfp4:scale=rceil": "does not apply to nvfp4; it takes axis, block",
    "aint4:scale=even": "does not apply to aint4; it takes axis, block",
    "int4@tensor:axis=token": "does not apply to int4@tensor; it takes no options",
    "int4@tensor:block=32": "does not apply",
    "none:axis=token": "does not apply",
    "int4@one": "unknown scheme",
    "uint4@tensor": "unknown scheme",
    "int4@": "unknown scheme",
    "k=mxfp4;k=nvfp4;v=none": "given twice",
    "mxfp4;k=nvfp4": "given twice",
    "mxfp4;nvfp4": "given twice",
    "mxfp4;sink=1;sink=1": "given twice",
    "kivi2;residual=32": "given twice",
    "sink=4": "names no scheme",
    "mxfp4;sink=-1": "whole number from 0 to 1,000,000",
    "mxfp4;sink=4.0": "whole number",
    "mxfp4;sink=": "whole number",
    "mxfp4;sink=1000001": "whole number",
    "mxfp4;residual=١": "whole number",
    "mxfp4;skip=": "whole number",
    "mxfp4;skip=1,,2": "whole number",
    "mxfp4;skip=1,1": "names a layer twice",
    "mxfp4;rotate=yes": "expected rotate=0 or rotate=1",
    "mxfp4;tail=3": "expected a scheme or one of: k=, v=, sink=, residual=, skip=, rotate=",
    "none;sink=4": "do nothing",
    "none;rotate=1": "do nothing",
    "none;residual=32": "do nothing",
    "none;skip=0": "do nothing",
    "mxfp4;skip=x": "skip='x' is not valid",
    "mxfp4;k": "k in recipe 'mxfp4;k' needs a value, for instance k=mxfp4",
    "mxfp4;v": "v in recipe 'mxfp4;v' needs a value, for instance k=mxfp4",
    "mxfp4;sink": "needs a value, for instance sink=4",
    "mxfp4;residual": "needs a value, for instance residual=32",
    "mxfp4;skip": "needs a value, for instance skip=0,23",
    "mxfp4;rotate": "needs a value, for instance rotate=1",
}


@pytest.mark.parametrize("text", REFUSED)
def test_a_mistake_is_refused_in_one_line_that_helps(text: str) -> None:
    with pytest.raises(ValueError, match=r"(?s).+") as caught:
        Recipe.parse(text)
    assert REFUSED[text] in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_unknown_scheme_lists_every_name() -> None:
    with pytest.raises(ValueError, match="expected one of") as caught:
        Scheme.parse("mxfp5")
    listed = str(caught.value)
    for name in SCHEMES:  # single-scale schemes stand together: int4@(tensor, head, token, channel)
        element, at, reach = name.partition("@")
        group = re.search(rf"\b{element}@\(([^)]*)\)", listed)
        assert (reach in group[1].split(", ")) if at else re.search(rf"\b{name}\b", listed)


def test_only_value_errors_and_short_ones_for_anything_at_all() -> None:
    hostile = [
        "\x00",
        "k=" * 500,
        "mxfp4:" + "axis=token," * 300,
        "🙂=1",
        "a\nb",
        "%s",
        "{}",
        "mxfp4;sink=" + "9" * 9999,
    ]
    for text in hostile:
        with pytest.raises(ValueError, match=r"(?s).+") as caught:
            Recipe.parse(text)
        assert len(str(caught.value)) < 1500
        assert "\n" not in str(caught.value)


_pieces = st.sampled_from(
    [*SCHEMES, *RECIPES, *";:,=@ ", "k=", "v=", "axis=token", "sink=", "4", "skip=", "\n"]
)


@given(st.one_of(st.text(max_size=60), st.lists(_pieces, max_size=12).map("".join)))
def test_any_string_parses_or_raises_a_value_error(text: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            recipe = Recipe.parse(text)
        except ValueError as error:
            assert "\n" not in str(error)
            return
    assert Recipe.parse(str(recipe)) == recipe


@pytest.mark.parametrize(("text", "missing"), [("k=mxfp4", "values"), ("v=mxfp4;sink=4", "keys")])
def test_a_missing_half_means_none_and_is_warned_about(text: str, missing: str) -> None:
    with pytest.warns(UserWarning, match=f"the {missing} stay uncompressed") as caught:
        recipe = Recipe.parse(text)
    assert caught[0].filename == __file__  # it is the caller's line that is shown
    assert recipe.scheme({"values": "value", "keys": "key"}[missing]).is_none


@pytest.mark.parametrize("text", ["mxfp4", "k=mxfp4;v=none", "none", "kivi2", "mxfp4;sink=4"])
def test_a_whole_recipe_warns_about_nothing(text: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Recipe.parse(text)


PHRASES = {
    "none": "uncompressed",
    "mxfp4": "MXFP4, E8M0 scale per 32 channels, rule floor",
    "k=int4@head;v=int8@token": "keys INT4, one scale per head (float32 scale); "
    "values INT8, one scale per token (float32 scale)",
    "nvfp4;sink=4": "NVFP4, E4M3 × float32 scale per 16 channels; first 4 tokens exact",
    "int4@tensor;sink=2;residual=32;skip=0,23;rotate=1": "INT4, one scale for the layer (float32 scale); "
    "first 2 tokens exact; newest 32 tokens exact; layers 0, 23 exact; rotated",
}


@pytest.mark.parametrize("text", PHRASES)
def test_a_recipe_in_one_phrase(text: str) -> None:
    assert Recipe.parse(text).describe() == PHRASES[text]


TWINS = {
    "mxfp8_e4m3": "fp8_e4m3@tensor",
    "mxfp8_e5m2": "fp8_e5m2@tensor",
    "mxfp6_e2m3": "fp6_e2m3@tensor",
    "mxfp6_e3m2": "fp6_e3m2@tensor",
    "mxfp4": "fp4@tensor",
    "mxint8": "int8@tensor",
    "mxint4": "int4@tensor",
    "nvfp4": "fp4@tensor",
    "aint4": "int4@tensor",
    "int4@channel": "int4@tensor",
    "fp8_e4m3@one": "fp8_e4m3@tensor",
    "fp4@tensor": "fp4@tensor",
    "none": "none",
}


@pytest.mark.parametrize("name", TWINS)
def test_the_twin_has_the_same_marks_and_one_ruler(name: str) -> None:
    scheme = SCHEMES[name]
    twin = scheme.twin()
    assert str(twin) == TWINS[name]
    assert scheme.is_none or twin.element.bits == scheme.element.bits
    assert all(str(v.twin()) == TWINS[name] for v in VARIANTS if v.name == name)


def test_aint2_has_no_twin_and_says_so() -> None:
    with pytest.raises(ValueError, match="aint2 has no single-scale twin"):
        SCHEMES["aint2"].twin()
    with pytest.raises(ValueError, match="no single-scale twin"):
        Recipe.parse("kivi2").twin()


def test_a_recipes_twin_keeps_what_stays_exact() -> None:
    twin = Recipe.parse("k=mxfp4:axis=token;v=nvfp4;sink=4;residual=32;skip=0,23;rotate=1").twin()
    assert str(twin) == "fp4@tensor;sink=4;residual=32;skip=0,23;rotate=1"
    assert str(Recipe.parse("k=mxint8;v=none;sink=1").twin()) == "k=int8@tensor;v=none;sink=1"
