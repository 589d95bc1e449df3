"""InPlace: tokens quantized straight into the rows of a cache's buffers."""

from __future__ import annotations

from torch import Tensor

from mxviz import ops
from mxviz._cache_rows import Rows
from mxviz.formats import Scheme


class InPlace:
    """Writes behind the rows of packed codes, scales and zeros, where the buffers have room.

    Args:
        scheme: one whose blocks run along channels.
        backend: which backend of `mxviz.ops` packs.
        packed, scales, zeros: one row of each a token.
    """

    def __init__(self, scheme: Scheme, backend: str, packed: Rows, scales: Rows, zeros: Rows) -> None:
        self.scheme, self.backend = scheme, backend
        self.packed, self.scales, self.zeros = packed, scales, zeros
        self._write, self._serial = None, -1  # what writes, and the serial of the buffer it writes into

    def __getstate__(self) -> dict[str, object]:
        """What a copy takes along: not where the buffers lie."""
        return self.__dict__ | {"_write": None, "_serial": -1}

    @property
    def is_ready(self) -> bool:
        """Whether `append` needs to find out nothing about the buffers."""
        return self._serial == self.packed.serial

    def append(self, x: Tensor, frozen: Tensor | None = None) -> int | Tensor | None:
        """Pack x `[batch, kv_heads, n, head_dim]` behind the rows where there is room.

        Args:
            frozen: NVFP4's global scale, the same one as long as the buffers are the same.

        Returns:
            how many elements lie beyond a frozen scale, None where there was no room.
        """
        n, packed, scales, zeros = x.shape[2], self.packed, self.scales, self.zeros
        if packed.end + n > packed.room:
            return None
        if self._serial != packed.serial:
            buffers = packed.buffer, scales.buffer, zeros.buffer
            self._write = ops.row_writer(self.scheme, *buffers, frozen, backend=self.backend)
            self._serial = packed.serial
        clipped = self._write(x, packed.end, scales.end)
        packed.end += n
        scales.end += n
        zeros.end += n if zeros.room else 0
        return clipped
