"""Targets: the constraints of a target's kernels on the equations that they are generated from."""

from __future__ import annotations

from typing import NamedTuple

from ...ops.primitive import Primitive


class Target(NamedTuple):
    """The differences that a body's lowered form has between targets.

    by_hand         ops that are done by kernels which read packed tensors alone
    strided         whether every other op without a formula reads any strides; if not, it too gets packed tensors
    batch_axes      along how many axes, at most, a stack of products may be stepped through
    both_sums       whether one loop can take sums along rows and over rows
    few_rows        so many rows, or fewer, leave workers idle
    counts          whether generated kernels count for themselves, where they would otherwise read 0, 1, 2, …
    turns           whether a loop may go through elements in another order than that of memory, so that what is
                    reduced along an axis that others follow is a row of it
    broken_rows     whether the elements of a row may lie in memory with several strides
    joins_rows      whether a loop over elements may also do what is done once for each of its rows, before or after
    anywhere        whether loops and products do the same, to the bit, wherever the memory of a tensor begins, which so
                    may be a part of another one
    """

    by_hand: frozenset[Primitive]
    strided: bool
    batch_axes: int
    both_sums: bool
    few_rows: int
    counts: bool
    turns: bool
    broken_rows: bool
    joins_rows: bool
    anywhere: bool
