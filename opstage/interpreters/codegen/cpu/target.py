"""The target of generated loops on the CPU."""

from __future__ import annotations

from ..target import Target

LOOPS = Target(
    frozenset(),
    strided=True,
    batch_axes=2,
    both_sums=True,
    few_rows=1,
    counts=False,
    turns=False,
    broken_rows=False,
    joins_rows=False,
    anywhere=True,
)
