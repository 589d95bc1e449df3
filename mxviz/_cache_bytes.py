"""What the keys (or the values) of a layer take, counted part by part."""

from __future__ import annotations

from torch import Tensor


class CountedBytes:
    """The counting half of `PartStore`, which holds what is counted."""

    @property
    def nbytes(self) -> int:
        """Bytes in use: codes, scales, zeros, fixed scales, and what is exact."""
        return sum(rows.nbytes for rows in self._rows()) + _bytes_of(self.fixed)

    @property
    def allocated_bytes(self) -> int:
        """Bytes the buffers take, spare room and the counter of clipped elements included."""
        buffers = sum(rows.allocated_bytes for rows in self._rows())
        return buffers + _bytes_of(self.fixed) + _bytes_of(self.clipped)

    @property
    def code_and_scale_bytes(self) -> int:
        """Bytes of the packed part, NVFP4's global scale left out."""
        single = 0 if self.scale_per_row or not len(self.packed) else _bytes_of(self.fixed)
        return self.packed.nbytes + self.scales.nbytes + self.zeros.nbytes + single

    @property
    def packed_elements(self) -> int:
        if self.like is None:
            return 0
        return self.packed_tokens * self.like.shape[0] * self.like.shape[1] * self.like.shape[3]


def _bytes_of(t: Tensor | None) -> int:
    return 0 if t is None else t.numel() * t.element_size()
