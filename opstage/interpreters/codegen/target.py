"""Targets: the constraints of a target's kernels on lowered equations."""

from __future__ import annotations

from typing import NamedTuple

from ...ops.primitive import Primitive


class Target(NamedTuple):
    """The differences between targets in a body's lowered form.

    by_hand         ops with hand-written kernels that require packed operands
    strided         whether all other ops without a formula accept any strides; if not, they get packed operands
    batch_axes      the largest number of batch axes of a matrix product
    both_sums       whether one loop can sum both along rows and over rows
    few_rows        the number of rows up to which workers are idle
    counts          whether kernels compute 0, 1, 2, … instead of reading them
    turns           whether a loop may iterate in another order than memory, so that a reduction over an inner axis
                    becomes a row reduction
    broken_rows     whether the elements of a row may have several strides
    joins_rows      whether a loop over elements may also compute values of its rows, before or after
    anywhere        whether results have the same bits wherever the memory of a tensor begins, so that it may be a
                    part of another's memory
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
