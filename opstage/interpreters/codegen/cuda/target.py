"""The target of generated kernels on a GPU."""

from __future__ import annotations

from ..target import Target

CUDA = Target(
    frozenset(),
    strided=False,
    batch_axes=1,
    both_sums=False,
    few_rows=256,
    counts=True,
    turns=True,
    broken_rows=True,
    joins_rows=True,
    anywhere=False,  # the summation order of a product depends on the alignment of its operands
)
