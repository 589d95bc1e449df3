"""Pause: between two steps a run can let another one use its model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from mxviz._cache_attention import NAME


@contextmanager
def set_aside(model: Any) -> Iterator[None]:
    """Leave a model as another run expects it while this is open: with the attention it was loaded with.

    Only between two steps, as when `on_progress` is called: in the middle of a pass it holds a run's hooks.

    Args:
        model: of transformers; one that attends to packed parts does so again afterwards.
    """
    if model.config.get_text_config(decoder=True)._attn_implementation != NAME:
        yield
        return
    model.set_attn_implementation("sdpa")
    try:
        yield
    finally:
        model.set_attn_implementation(NAME)
