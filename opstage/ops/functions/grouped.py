"""Products of rows with the matrix of their group, as mixtures of experts have them."""

from __future__ import annotations

from ..protocol import Ops, R


def grouped_matmul(ops: Ops[R], x: R, w: R, ends: R, /) -> R:
    """y[i] = x[i] · w[g] for the group g of row i: rows of one group stand together, those of group g before ends[g].

    The op `ops.grouped_matmul`: x (n, k), w (groups, k, m), ends (groups) integers, the running sum of how many rows
    each group has; (n, m). Rows at ends[-1] and behind are of no group and 0.

    Raises:
        DtypeError: x not a float tensor; ends not an integer tensor; dtypes differ.
        ShapeError: ends, w, x of another shape; operands that do not fit each other.
    """
    return ops.grouped_matmul(x, w, ends)
