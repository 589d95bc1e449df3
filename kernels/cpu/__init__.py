"""Numba kernels for the CPU: quantize, dequantize, decode attention.

Kernels take memory by address and formats as numbers (see `_base.Plan`), so one compiled kernel serves every
scheme. They release the GIL and take a range of work units `[first, last)`; the caller spreads the ranges
over threads. `mxviz.backends.cpu` wraps them for torch.
"""
