"""What kernels on the CPU want."""

from __future__ import annotations

from ...structural import SCAN
from ..lowering.target import Target
from .library import LIBRARY

# Every op that has neither a formula nor loops of its own is computed by eager_cpu, which reads any strides.
CPU = Target(frozenset({*LIBRARY, SCAN}), strided=True, batch_axes=2, index_checks=True, both_sums=True, few_rows=1)
