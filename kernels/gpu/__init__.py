"""Triton kernels: quantize, dequantize and decode attention over packed tensors."""

from .attend import attend_kernel, merge_kernel
from .quantize import dequantize_kernel, quantize_kernel

KERNELS = {
    "quantize": quantize_kernel,
    "dequantize": dequantize_kernel,
    "attend": attend_kernel,
    "merge": merge_kernel,
}
"""Every kernel that is launched, by name."""
