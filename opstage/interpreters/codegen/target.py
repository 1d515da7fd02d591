"""Targets: the constraints of a target's kernels on the equations that they are generated from."""

from __future__ import annotations

from typing import NamedTuple

from ...ops.primitive import Primitive


class Target(NamedTuple):
    """The differences that a body's legal form has between targets.

    by_hand         ops that are done by kernels which read packed tensors alone
    strided         whether every other op without a formula reads any strides; if not, it too gets packed tensors
    batch_axes      along how many axes, at most, a stack of products may be stepped through
    index_checks    whether generated kernels can look at indices
    both_sums       whether one loop can take sums along rows and over rows
    few_rows        so many rows, or fewer, leave workers idle
    """

    by_hand: frozenset[Primitive]
    strided: bool
    batch_axes: int
    index_checks: bool
    both_sums: bool
    few_rows: int
