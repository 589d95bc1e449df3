"""Torch wrappers around the kernels, one file a backend; `mxviz.ops` picks among them.

Each offers `missing() -> str | None` (why it cannot run here, in one line), `supports(device_type) -> bool`,
`quantize(x, scheme, axis, frozen) -> MXBlocks` and `dequantize(blocks, dtype) -> Tensor`.
"""
