"""Linear systems and Cholesky factors, for each matrix of a stack."""

from __future__ import annotations

from ..calls import Calls
from ..catalogue.solving import CHOLESKY, SOLVE, TRIANGULAR_SOLVE
from ..primitive import R


class SolvingOps(Calls[R]):
    __slots__ = ()

    def solve(self, a: R, b: R, /) -> R:
        """a⁻¹·b: a (..., n, n), b (..., n, k) with the same leading axes. PyTorch: torch.linalg.solve.

        Where a is singular (a pivot is exactly 0), or has nan or inf, the result is nan. Uses elimination with row
        exchanges.

        Raises:
            DtypeError: a not a float tensor; dtypes differ.
            ShapeError: b does not fit a; a of another shape.
        """
        return self._call2(SOLVE, a, b)

    def triangular_solve(self, a: R, b: R, /, *, lower: bool = True, transpose: bool = False) -> R:
        """a⁻¹·b, or a⁻ᵀ·b, for a triangular a. PyTorch: torch.linalg.solve_triangular.

        a (..., n, n), of which only the lower or upper triangle is read; b (..., n, k) with the same leading axes.
        Where the diagonal has a 0 the result has inf and nan.

        Raises:
            DtypeError: a not a float tensor; dtypes differ.
            ShapeError: b does not fit a; an invalid argument; a of another shape.
        """
        return self._call(TRIANGULAR_SOLVE, (a, b), {"lower": lower, "transpose": transpose})

    def cholesky(self, x: R, /) -> R:
        """The lower triangular L with L·Lᵀ = x, for a symmetric positive definite x. PyTorch: torch.linalg.cholesky.

        x (..., n, n), of which only the lower triangle is read; its gradient is symmetric. Where x is not positive
        definite, or the triangle has nan or inf, L is nan. Source of its derivatives: Murray 2016.

        Raises:
            DtypeError: x not a float tensor.
            ShapeError: shapes differ; no such axis; x of another shape.
        """
        return self._call1(CHOLESKY, x)
