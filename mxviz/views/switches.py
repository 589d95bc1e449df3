"""The switches: what one looks through, and what that is compared with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import streamlit as st

from mxviz import looks
from mxviz.capture import PARTS, Capture
from mxviz.formats import BLOCK_SIZES, RECIPES, SCHEMES, Axis, ScaleRule
from mxviz.views import before_after
from mxviz.views import choice as choices
from mxviz.views.choice import BASELINES, FROZEN, Choice


class Look(NamedTuple):
    """What the pages draw: a capture (its keys may be those before RoPE), a recipe and a baseline.

    Args:
        capture: what to draw from.
        recipe: canonical string of what is looked through.
        baseline: canonical string of what it is compared with.
        frozen: whether the baseline's scales were set by the prompt alone; then a round trip through it is
            `mxviz.looks.frozen_trip`, and `mxviz.looks.cost(…, frozen=True)` has its numbers. A figure
            without that choice draws the kinder baseline, whose scales know every token.
    """

    capture: Capture
    recipe: str
    baseline: str
    frozen: bool = False


def choose(capture: Capture, run: str, *, numbers: bool = True) -> Look:
    """Draw the switches of a run and return what they are set to; every page shares them.

    Args:
        capture: the run.
        run: its name.
        numbers: whether to show at once what they changed (`before_after.show`); it takes every layer.
    """
    choice = _choice(capture, run)
    switches = _Switches(capture, run, choice)
    _in_sight(switches)
    with st.expander("More: block, rule, rotation, sinks, exempt layers, keys before RoPE"):
        _folded(switches)
    if choice.said:
        st.info(choice.said.replace("$", r"\$"), icon=":material/info:")
    look = chosen(capture, run)
    if numbers:
        before_after.show(capture, look)
    return look


def chosen(capture: Capture, run: str) -> Look:
    """Return what the switches of a run are set to, without drawing them."""
    choice = _choice(capture, run)
    drawn = looks.before_rope(capture) if choice.before_rope else capture
    return Look(drawn, choice.recipe, choice.baseline, choice.follows == FROZEN)


def _choice(capture: Capture, run: str) -> Choice:
    return st.session_state.setdefault("looks", {}).setdefault(run, choices.own(capture))


class _Switches(NamedTuple):
    """The run whose switches are drawn, and what they are set to."""

    capture: Capture
    run: str
    choice: Choice

    def draw(
        self, widget: Callable, words: str, name: str, value: Any, change: choices.Change, **more: Any
    ) -> None:
        """Draw a widget that shows `value`; the choice is the one truth, its own state is set each time."""
        key = f"look-{name}-{self.run}"
        st.session_state[key] = value
        widget(words, key=key, on_change=_apply, args=(self.capture, self.run, key, change), **more)

    def option(self, where: Any, words: str, field: str, values: Any, parts: tuple[str, ...] = PARTS) -> None:
        """Draw the choice of a field of some parts' schemes; it is disabled where it means nothing."""
        schemes = [self.choice.parsed.scheme(part) for part in parts]
        fits = [scheme for scheme in schemes if looks.takes(scheme, field)]
        value = getattr((fits or schemes)[0], field)
        self.draw(
            where.segmented_control,
            words,
            "-".join((field, *parts)),
            getattr(value, "value", value),
            choices.set_option(field, parts),
            options=values,
            format_func=lambda option: f"{option}s" if field == "axis" else str(option),
            required=True,
            disabled=not fits,
            help=None if fits else f"This does not apply to {schemes[0].label}.",
        )


def _apply(capture: Capture, run: str, key: str, change: choices.Change) -> None:
    choice = st.session_state["looks"][run]
    st.session_state["looks"][run] = choices.changed(capture, choice, change, st.session_state[key])


def _in_sight(switches: _Switches) -> None:
    capture, run, choice = switches
    recipe, known = choice.parsed, choice.follows or choice.baseline
    scheme, axis, baseline, back = st.columns([2.3, 1.6, 2, 1.5], vertical_alignment="bottom")
    names = [name for name, row in SCHEMES.items() if row.is_blocked or row.is_none] + list(RECIPES)
    name = recipe.key.name if recipe.key.name == recipe.value.name else choice.recipe
    switches.draw(
        scheme.selectbox,
        "Look through",
        "scheme",
        name,
        choices.set_scheme,
        options=[*names, *([] if name in names else [name])],
        format_func=_scheme_words,
        accept_new_options=True,
        help="How the micro-scaled numbers are stored. Any recipe can be typed in, such as mxfp4;sink=4.",
    )
    switches.option(axis, "Key blocks along", "axis", [a.value for a in Axis], ("key",))
    switches.draw(
        baseline.selectbox,
        "Compare with one scale",
        "baseline",
        known,
        choices.set_baseline,
        options=[*BASELINES, *([] if known in BASELINES else [known])],
        format_func=lambda name: BASELINES.get(name, name),
        accept_new_options=True,
        help="The same element format with few scales: what shares each float32 scale, or that the prompt "
        "set it and later tokens keep it, as while generating. Any recipe can be typed in, as int8@head.",
    )
    own = choices.own(capture)
    back.button(
        "Back to the run's own",
        key=f"look-back-{run}",
        width="stretch",
        disabled=choice == own,
        on_click=lambda: st.session_state["looks"].update({run: own}),
    )


def _folded(switches: _Switches) -> None:
    capture, _, choice = switches
    recipe = choice.parsed
    text = choice.typed or choice.recipe
    switches.draw(st.text_input, "The recipe as text", "text", text, choices.set_text)
    left, middle, right = st.columns(3)
    switches.option(left, "Elements in a block", "block", BLOCK_SIZES)
    switches.option(middle, "Scale rule", "rule", [rule.value for rule in ScaleRule])
    switches.option(right, "Value blocks along", "axis", [a.value for a in Axis], ("value",))
    for column, field, words, why in (
        (left, "sink", "Sinks: first tokens exact", "Most heads look at the first tokens most."),
        (middle, "residual", "Residual: newest tokens exact", "Pictures of a finished run leave it out."),
    ):
        value, limits = getattr(recipe, field), {"min_value": 0, "max_value": 1_000_000}
        switches.draw(column.number_input, words, field, value, choices.set_field(field), help=why, **limits)
    switches.draw(
        right.multiselect,
        "Exempt layers",
        "skip",
        list(recipe.skip),
        choices.set_field("skip"),
        options=sorted({*capture.layers, *recipe.skip}),
        help="These layers stay uncompressed.",
    )
    switches.draw(
        left.toggle,
        "Hadamard rotation",
        "rotate",
        recipe.rotate,
        choices.set_field("rotate"),
        help="Spreads an outlier channel over all channels of its head before it is stored.",
    )
    switches.draw(
        middle.toggle,
        "Keys before RoPE",
        "before",
        choice.before_rope,
        choices.set_before_rope,
        disabled=not capture.keys_pre_rope,
    )
    middle.caption(_rope_words(capture))


def _scheme_words(name: str) -> str:
    scheme = SCHEMES.get(name)
    if scheme is None or scheme.is_none:
        return "Uncompressed" if scheme else name
    apart = " · not in OCP MX" if "not in OCP" in scheme.describe() else ""
    return f"{scheme.label} · {scheme.bits_per_element():g} bits{apart}"


def _rope_words(capture: Capture) -> str:
    if not capture.keys_pre_rope:
        return "This run has none: its model could not be hooked, or the file was saved without them."
    lacking = [str(layer) for layer in capture.layers if layer not in capture.keys_pre_rope]
    left_out = f" Layers {', '.join(lacking)} have none and are left out." if lacking else ""
    return "RoPE turns pairs of channels by the token's position." + left_out
