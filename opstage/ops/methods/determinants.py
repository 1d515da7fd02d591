"""Determinants and cofactors, for each matrix of a stack."""

from __future__ import annotations

from ..calls import Calls
from ..catalogue.determinants import COFACTOR, DET, SLOGDET
from ..primitive import NO_STATIC, R


class DeterminantsOps(Calls[R]):
    __slots__ = ()

    def det(self, x: R, /) -> R:
        """The determinant: x (..., n, n) -> (...); 1 for n = 0. PyTorch: torch.linalg.det. ONNX: Det.

        Its gradient is `cofactor(x)`, also for singular x; the second derivative requires invertible x, and is nan
        where x is singular. nan where x has nan or inf.

        Raises:
            DtypeError: x not a float tensor.
            ShapeError: x of another shape.
        """
        return self._call1(DET, x)

    def cofactor(self, x: R, /) -> R:
        """The cofactor matrix, the transpose of the adjugate: x (..., n, n) -> (..., n, n), det(x)·x⁻ᵀ.

        Also for singular x: 0 where its rank is less than n - 1. Its derivatives require invertible x, and are nan
        where x is singular. nan where x has nan or inf. Not in PyTorch.

        Raises:
            DtypeError: x not a float tensor.
            ShapeError: x of another shape.
        """
        return self._call1(COFACTOR, x)

    def slogdet(self, x: R, /) -> tuple[R, R]:
        """The sign of the determinant and the logarithm of its absolute value: x (..., n, n) -> (...), (...).

        They do not overflow where the determinant would. 0 and -inf where x is singular (a pivot is exactly 0), and nan
        where it has nan or inf. The gradient of the logarithm is x⁻ᵀ, nan where x is singular; the sign has none.
        PyTorch: torch.linalg.slogdet.

        Raises:
            DtypeError: x not a float tensor.
            ShapeError: x of another shape.
        """
        sign, logarithm = self._call_many(SLOGDET, (x,), NO_STATIC)
        return sign, logarithm
