"""Triton kernels: quantize, dequantize and decode attention over packed tensors."""

from .quantize import dequantize_kernel, quantize_kernel

KERNELS = {"quantize": quantize_kernel, "dequantize": dequantize_kernel}
"""Every kernel that is launched, by name."""
