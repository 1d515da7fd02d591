"""The target of generated loops on the CPU."""

from __future__ import annotations

from ..target import Target

LOOPS = Target(frozenset(), strided=True, batch_axes=2, index_checks=True, both_sums=True, few_rows=1)
