"""A row of numbers: each with its unit, and something to hold it against."""

from __future__ import annotations

from functools import lru_cache

import streamlit as st

from mxviz.capture import Capture
from mxviz.page import numbers_html
from mxviz.report import report

_report = lru_cache(maxsize=8)(report)


def show(capture: Capture) -> None:
    """Show bytes, bits, error and effect of the micro-scaled cache beside the single-scale one."""
    st.html(numbers_html(capture, _report(capture)))
