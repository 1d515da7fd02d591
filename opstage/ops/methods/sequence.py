"""Ops along an ordered axis: cumulative sums and products, linear recurrences, argsort."""

from __future__ import annotations

from ..arguments import Axes, normalize_axes, normalize_axis
from ..calls import Calls
from ..catalogue.sequence import ARGSORT, CUMPROD, CUMSUM, LINEAR_RECURRENCE, REDUCE_PROD
from ..primitive import R


class SequenceOps(Calls[R]):
    __slots__ = ()

    def cumsum(self, x: R, /, *, axis: int = -1, exclusive: bool = False, reverse: bool = False) -> R:
        """Cumulative sums along an axis; integers are summed in int64. PyTorch: torch.cumsum.

        out[k] = Σ x[i] over i <= k; with exclusive=True over i < k, so that the first is 0; with reverse=True over
        i >= k. ONNX: CumSum.

        Raises:
            DtypeError: x a mask.
            ShapeError: no such axis; an invalid argument.
        """
        static = {
            "axis": normalize_axis("cumsum", axis, len(x.shape)),
            "exclusive": exclusive,
            "reverse": reverse,
        }
        return self._call(CUMSUM, (x,), static)

    def argsort(self, x: R, /, *, axis: int = -1, descending: bool = False) -> R:
        """Indices that sort x along an axis, int64; equal elements keep their order. PyTorch: torch.argsort.

        No gradient. nan counts as larger than any number: last, or first with descending=True.

        Raises:
            ShapeError: no such axis; an invalid argument.
        """
        static = {"axis": normalize_axis("argsort", axis, len(x.shape)), "descending": descending}
        return self._call(ARGSORT, (x,), static)

    def linear_recurrence(self, a: R, b: R, /, *, axis: int = -1, reverse: bool = False) -> R:
        """out[k] = a[k]·out[k - 1] + b[k] along an axis, starting from 0; with reverse=True from the end.

        a and b have one shape. With a = 1 it is a cumulative sum, with b = 0 after the first a cumulative product.
        Elements are computed in sequence, so rounding does not depend on later elements.

        Raises:
            DtypeError: a a mask; dtypes differ.
            ShapeError: shapes differ; no such axis; an invalid argument.
        """
        axis = normalize_axis("linear_recurrence", axis, len(b.shape))
        return self._call(LINEAR_RECURRENCE, (a, b), {"axis": axis, "reverse": reverse})

    def cumprod(self, x: R, /, *, axis: int = -1, exclusive: bool = False, reverse: bool = False) -> R:
        """Cumulative products along an axis; integers are multiplied in int64. PyTorch: torch.cumprod.

        With exclusive=True of the elements before each one, so that the first is 1; with reverse=True from each one
        on. Its derivative does not divide, so it is correct where elements are 0.

        Raises:
            DtypeError: x a mask.
            ShapeError: no such axis; an invalid argument.
        """
        static = {
            "axis": normalize_axis("cumprod", axis, len(x.shape)),
            "exclusive": exclusive,
            "reverse": reverse,
        }
        return self._call(CUMPROD, (x,), static)

    def reduce_prod(self, x: R, /, *, axis: Axes = None, keepdims: bool = False) -> R:
        """Product over axes, or all for None; 1 over an empty axis. PyTorch: torch.prod.

        Integers are multiplied in int64. Its derivative does not divide, so it is correct where elements are 0.

        Raises:
            DtypeError: x a mask.
            ShapeError: no such axis; an invalid argument.
        """
        axes = normalize_axes("reduce_prod", axis, len(x.shape))
        return self._call(REDUCE_PROD, (x,), {"axes": axes, "keepdims": keepdims})
