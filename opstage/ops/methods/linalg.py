"""Matrix products."""

from __future__ import annotations

from ..calls import Calls
from ..catalogue.linalg import BMM, LINEAR, MATMUL
from ..primitive import R


class LinalgOps(Calls[R]):
    __slots__ = ()

    def matmul(self, x: R, y: R, /) -> R:
        """Matrix product (m, k)·(k, n) -> (m, n). PyTorch: torch.mm.

        Raises:
            DtypeError: x not a float tensor; dtypes differ.
            ShapeError: x's columns are not y's rows; x, y of another shape.
        """
        return self._call2(MATMUL, x, y)

    def bmm(self, x: R, y: R, /) -> R:
        """Batched matrix product (..., m, k)·(..., k, n), with any number of equal leading axes. PyTorch: torch.bmm.

        Raises:
            DtypeError: x not a float tensor; dtypes differ.
            ShapeError: x's columns are not y's rows; x and y are stacks of other sizes.
        """
        return self._call2(BMM, x, y)

    def linear(self, weight: R, bias: R | None, x: R, /) -> R:
        """x · weightᵀ + bias, weight (out, in), bias (out), x (..., in). PyTorch: torch.nn.functional.linear.

        Raises:
            DtypeError: weight not a float tensor; dtypes differ.
            ShapeError: x has other features than the weight; the bias has another size than the weight's rows; weight,
                bias of another shape.
        """
        if bias is None:
            return self._call(LINEAR, (weight, x), {"has_bias": False})
        return self._call(LINEAR, (weight, bias, x), {"has_bias": True})
