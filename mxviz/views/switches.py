"""The switches: what one looks through, and what that is compared with."""

from __future__ import annotations

from typing import NamedTuple

from mxviz.capture import Capture


class Look(NamedTuple):
    """What the pages draw: a capture (its keys may be those before RoPE), a recipe and a baseline.

    Args:
        capture: what to draw from.
        recipe: canonical string of what is looked through.
        baseline: canonical string of what it is compared with.
    """

    capture: Capture
    recipe: str
    baseline: str


def choose(capture: Capture, run: str) -> Look:
    """Draw the switches of a run and return what they are set to."""
    return Look(capture, capture.recipe, capture.baseline)
