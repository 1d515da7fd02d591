"""Elements along an axis in order: cumulative sums and products, recurrences, and the order of sorted elements."""

from __future__ import annotations

from ..arguments import Axes, normalize_axes, normalize_axis
from ..catalogue.sequence import ARGSORT, CUMPROD, CUMSUM, LINEAR_RECURRENCE, REDUCE_PROD
from ..primitive import R
from .calls import Calls


class SequenceOps(Calls[R]):
    __slots__ = ()

    def cumsum(self, x: R, /, *, axis: int = -1, exclusive: bool = False, reverse: bool = False) -> R:
        """Sums of the elements up to each one along an axis; integers are added in int64. PyTorch: torch.cumsum.

        out[k] = Σ x[i] over i <= k; with exclusive=True over i < k, so that the first is 0; with reverse=True over the
        elements from k on. ONNX: CumSum.

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

        No gradient. nan is greater than any number, so it is last, and first with descending=True.

        Raises:
            ShapeError: no such axis; an invalid argument.
        """
        static = {"axis": normalize_axis("argsort", axis, len(x.shape)), "descending": descending}
        return self._call(ARGSORT, (x,), static)

    def linear_recurrence(self, a: R, b: R, /, *, axis: int = -1, reverse: bool = False) -> R:
        """out[k] = a[k]·out[k - 1] + b[k] along an axis, from 0 on; with reverse=True from the other end.

        a and b have one shape. A running sum is that with a = 1, a running product with b = 0 behind the first. One
        element after the other, so what is beside each other along the axis is not rounded together.

        Raises:
            DtypeError: a a mask; dtypes differ.
            ShapeError: shapes differ; no such axis; an invalid argument.
        """
        axis = normalize_axis("linear_recurrence", axis, len(b.shape))
        return self._call(LINEAR_RECURRENCE, (a, b), {"axis": axis, "reverse": reverse})

    def cumprod(self, x: R, /, *, axis: int = -1, exclusive: bool = False, reverse: bool = False) -> R:
        """Products of the elements up to each one along an axis; integers in int64. PyTorch: torch.cumprod.

        With exclusive=True of those before it, so that the first is 1; with reverse=True of the elements from each one
        on. Its derivative divides by nothing, so it is right where elements are 0.

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
        """Product over axes, all of them for None; 1 over an empty one. PyTorch: torch.prod.

        Integers are multiplied in int64. Its derivative divides by nothing, so it is right where elements are 0.

        Raises:
            DtypeError: x a mask.
            ShapeError: no such axis; an invalid argument.
        """
        axes = normalize_axes("reduce_prod", axis, len(x.shape))
        return self._call(REDUCE_PROD, (x,), {"axes": axes, "keepdims": keepdims})
