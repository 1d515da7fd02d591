"""Functions of the matrices in the last two axes: programs over other ops."""

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
