"""What generated kernels on a GPU want."""

from __future__ import annotations

from ..target import Target

CUDA = Target(frozenset(), strided=False, batch_axes=1, index_checks=False, both_sums=False, few_rows=256)
