"""The kernels: `mxviz.kernels.cpu` in Numba, `mxviz.kernels.gpu` in Triton.

In a checkout they lie in the folder `kernels/` beside the package `mxviz`; a wheel carries them in here.
They are never a top-level package: that name belongs to Hugging Face's `kernels`, which transformers imports.
"""

from pathlib import Path

_checkout = Path(__file__).resolve().parents[2] / "kernels"
# Once installed, the same path could be Hugging Face's package, which has an __init__.py; ours never has.
if _checkout.is_dir() and not (_checkout / "__init__.py").exists():
    __path__.append(str(_checkout))
