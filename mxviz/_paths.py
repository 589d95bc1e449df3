"""Where the app and the assets lie: inside the package in a wheel, beside it in a checkout.

The package is asked first, because beside an installed package `assets` or `app.py` may be anybody's.
"""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def _find(inside: str, beside: str) -> Path:
    installed = _PACKAGE / inside
    return installed if installed.exists() else _PACKAGE.parent / beside


APP: Path = _find("_app/app.py", "app.py")
"""The Streamlit script."""

ASSETS: Path = _find("_assets", "assets")
"""The folder of gallery captures, lesson text, logo and css."""
