"""Reductions along axes, softmax and log-softmax."""

from __future__ import annotations

from ..arguments import Axes, normalize_axes, normalize_axis
from ..catalogue.reduction import (
    ARGMAX,
    ARGMIN,
    LOG_SOFTMAX,
    LOG_SOFTMAX_GRAD,
    REDUCE_ALL,
    REDUCE_ANY,
    REDUCE_MAX,
    REDUCE_MEAN,
    REDUCE_MIN,
    REDUCE_SUM,
    SOFTMAX,
    SOFTMAX_GRAD,
    SUM,
)
from ..primitive import R
from .calls import Calls


class ReductionOps(Calls[R]):
    __slots__ = ()

    def sum(self, x: R, /) -> R:
        """Sum of all elements, a scalar. PyTorch: torch.sum.

        Raises:
            DtypeError: x a mask.
        """
        return self._call1(SUM, x)

    def reduce_sum(self, x: R, /, *, axis: Axes = None, keepdims: bool = False) -> R:
        """Sum over axes, or all for None; 0 over an empty axis. Integers are summed in int64. PyTorch: torch.sum.

        Raises:
            DtypeError: x a mask.
            ShapeError: no such axis; an invalid argument.
        """
        axes = normalize_axes("reduce_sum", axis, len(x.shape))
        return self._call(REDUCE_SUM, (x,), {"axes": axes, "keepdims": keepdims})

    def reduce_mean(self, x: R, /, *, axis: Axes = None, keepdims: bool = False) -> R:
        """Mean over axes, with at least one element. PyTorch: torch.mean.

        Raises:
            DtypeError: x not a float tensor.
            ShapeError: no such axis; an invalid argument; an axis is empty.
        """
        axes = normalize_axes("reduce_mean", axis, len(x.shape))
        return self._call(REDUCE_MEAN, (x,), {"axes": axes, "keepdims": keepdims})

    def reduce_max(self, x: R, /, *, axis: Axes = None, keepdims: bool = False) -> R:
        """Maximum over axes; ties share the gradient evenly. PyTorch: torch.amax.

        Over at least one element; nan if any element is nan, and the gradient of these elements is nan.

        Raises:
            DtypeError: x a mask.
            ShapeError: no such axis; an invalid argument; an axis is empty.
        """
        axes = normalize_axes("reduce_max", axis, len(x.shape))
        return self._call(REDUCE_MAX, (x,), {"axes": axes, "keepdims": keepdims})

    def argmax(self, x: R, /, *, axis: int = -1, keepdims: bool = False) -> R:
        """Index of the first maximum along an axis, int64; no gradient. PyTorch: torch.argmax.

        Raises:
            DtypeError: x a mask.
            ShapeError: no such axis; an invalid argument; an axis is empty.
        """
        return self._call(ARGMAX, (x,), {"axis": normalize_axis("argmax", axis, len(x.shape)), "keepdims": keepdims})

    def reduce_min(self, x: R, /, *, axis: Axes = None, keepdims: bool = False) -> R:
        """Minimum over axes; ties share the gradient evenly. PyTorch: torch.amin.

        Over at least one element; nan if any element is nan, and the gradient of these elements is nan.

        Raises:
            DtypeError: x a mask.
            ShapeError: no such axis; an invalid argument; an axis is empty.
        """
        axes = normalize_axes("reduce_min", axis, len(x.shape))
        return self._call(REDUCE_MIN, (x,), {"axes": axes, "keepdims": keepdims})

    def argmin(self, x: R, /, *, axis: int = -1, keepdims: bool = False) -> R:
        """Index of the first minimum along an axis, int64; no gradient. PyTorch: torch.argmin.

        Raises:
            DtypeError: x a mask.
            ShapeError: no such axis; an invalid argument; an axis is empty.
        """
        return self._call(ARGMIN, (x,), {"axis": normalize_axis("argmin", axis, len(x.shape)), "keepdims": keepdims})

    def reduce_any(self, x: R, /, *, axis: Axes = None, keepdims: bool = False) -> R:
        """Whether any element over axes is True or nonzero; False over an empty axis.

        A mask; no gradient; nan is nonzero. PyTorch: torch.any.

        Raises:
            ShapeError: no such axis; an invalid argument.
        """
        axes = normalize_axes("reduce_any", axis, len(x.shape))
        return self._call(REDUCE_ANY, (x,), {"axes": axes, "keepdims": keepdims})

    def reduce_all(self, x: R, /, *, axis: Axes = None, keepdims: bool = False) -> R:
        """Whether all elements over axes are True or nonzero; True over an empty axis.

        A mask; no gradient; nan is nonzero. PyTorch: torch.all.

        Raises:
            ShapeError: no such axis; an invalid argument.
        """
        axes = normalize_axes("reduce_all", axis, len(x.shape))
        return self._call(REDUCE_ALL, (x,), {"axes": axes, "keepdims": keepdims})

    def softmax(self, x: R, /, *, axis: int = -1) -> R:
        """e^x / Σ e^x along an axis of at least one element, without overflow. PyTorch: torch.softmax.

        Raises:
            DtypeError: x not a float tensor.
            ShapeError: no such axis.
        """
        return self._call(SOFTMAX, (x,), {"axis": normalize_axis("softmax", axis, len(x.shape))})

    def log_softmax(self, x: R, /, *, axis: int = -1) -> R:
        """x - log Σ e^x along an axis of at least one element, without overflow. PyTorch: torch.log_softmax.

        Raises:
            DtypeError: x not a float tensor.
            ShapeError: no such axis.
        """
        return self._call(LOG_SOFTMAX, (x,), {"axis": normalize_axis("log_softmax", axis, len(x.shape))})

    def softmax_grad(self, y: R, g: R, /, *, axis: int) -> R:
        """y · (g - Σ g·y), for y = softmax(x).

        Raises:
            DtypeError: x not a float tensor; dtypes differ.
            ShapeError: shapes differ; no such axis.
        """
        return self._call(SOFTMAX_GRAD, (y, g), {"axis": normalize_axis("softmax_grad", axis, len(y.shape))})

    def log_softmax_grad(self, y: R, g: R, /, *, axis: int) -> R:
        """g - e^y · Σ g, for y = log_softmax(x).

        Raises:
            DtypeError: x not a float tensor; dtypes differ.
            ShapeError: shapes differ; no such axis.
        """
        return self._call(LOG_SOFTMAX_GRAD, (y, g), {"axis": normalize_axis("log_softmax_grad", axis, len(y.shape))})
