"""Adding to rows at indices."""

from __future__ import annotations

from ...host import Array
from .jit import loop


@loop()
def scatter_add_rows(v: Array, idx: Array, out: Array) -> None:
    """Compute out[idx[i]] += v[i] in order; indices out of range are skipped."""
    for i in range(idx.size):
        row = idx[i]
        if 0 <= row < out.shape[0]:
            for j in range(out.shape[1]):
                out[row, j] += v[i, j]
