"""Functions of matrices: inverses, and products of rows with the matrix of their group."""

from __future__ import annotations

from ..catalogue.determinants import inverse_of
from ..catalogue.solving import require_square
from ..protocol import Ops, R
from .tools import placed, type_of


def inverse(ops: Ops[R], x: R, /) -> R:
    """The inverse matrix x⁻¹: x (..., n, n) -> (..., n, n). PyTorch: torch.linalg.inv. NumPy: np.linalg.inv.

    Where x is singular (a pivot is exactly 0), or has nan or inf, it is nan. To apply it, `ops.solve(x, b)` is
    faster and more accurate. `ops.inv` is the elementwise 1/x. Raises ShapeError unless x is square.

    Raises:
        DtypeError: x not a float tensor.
        ShapeError: x of another shape.
    """
    placed(ops, "inverse", lambda: require_square(type_of(x), "x"))
    return inverse_of(ops, x)


def grouped_matmul(ops: Ops[R], x: R, w: R, ends: R, /) -> R:
    """y[i] = x[i] · w[g] for the group g of row i: rows of one group stand together, those of group g before ends[g].

    The op `ops.grouped_matmul`: x (n, k), w (groups, k, m), ends (groups) integers, the running sum of how many rows
    each group has; (n, m). Rows at ends[-1] and behind are of no group and 0.

    Raises:
        DtypeError: x not a float tensor; ends not an integer tensor; dtypes differ.
        ShapeError: ends, w, x of another shape; operands that do not fit each other.
    """
    return ops.grouped_matmul(x, w, ends)
