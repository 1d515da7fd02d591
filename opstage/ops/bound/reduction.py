"""Reductions along axes, and the normalised exponentials."""

from __future__ import annotations

from typing import final

from ..arguments import normalize_axes, normalize_axis
from ..catalogue.reduction import (
    ARGMAX,
    LOG_SOFTMAX,
    LOG_SOFTMAX_GRAD,
    REDUCE_MAX,
    REDUCE_MEAN,
    REDUCE_SUM,
    SOFTMAX,
    SOFTMAX_GRAD,
    SUM,
)
from ..protocol import Axes, R
from .calls import Calls


class ReductionOps(Calls[R]):
    __slots__ = ()

    @final
    def sum(self, x: R, /) -> R:
        return self._call1(SUM, x)

    @final
    def reduce_sum(self, x: R, /, *, axis: Axes = None, keepdims: bool = False) -> R:
        axes = normalize_axes("reduce_sum", axis, len(x.shape))
        return self._call(REDUCE_SUM, (x,), {"axes": axes, "keepdims": keepdims})

    @final
    def reduce_mean(self, x: R, /, *, axis: Axes = None, keepdims: bool = False) -> R:
        axes = normalize_axes("reduce_mean", axis, len(x.shape))
        return self._call(REDUCE_MEAN, (x,), {"axes": axes, "keepdims": keepdims})

    @final
    def reduce_max(self, x: R, /, *, axis: Axes = None, keepdims: bool = False) -> R:
        axes = normalize_axes("reduce_max", axis, len(x.shape))
        return self._call(REDUCE_MAX, (x,), {"axes": axes, "keepdims": keepdims})

    @final
    def argmax(self, x: R, /, *, axis: int = -1, keepdims: bool = False) -> R:
        return self._call(ARGMAX, (x,), {"axis": normalize_axis("argmax", axis, len(x.shape)), "keepdims": keepdims})

    @final
    def softmax(self, x: R, /, *, axis: int = -1) -> R:
        return self._call(SOFTMAX, (x,), {"axis": normalize_axis("softmax", axis, len(x.shape))})

    @final
    def log_softmax(self, x: R, /, *, axis: int = -1) -> R:
        return self._call(LOG_SOFTMAX, (x,), {"axis": normalize_axis("log_softmax", axis, len(x.shape))})

    @final
    def softmax_grad(self, y: R, g: R, /, *, axis: int) -> R:
        return self._call(SOFTMAX_GRAD, (y, g), {"axis": normalize_axis("softmax_grad", axis, len(y.shape))})

    @final
    def log_softmax_grad(self, y: R, g: R, /, *, axis: int) -> R:
        return self._call(LOG_SOFTMAX_GRAD, (y, g), {"axis": normalize_axis("log_softmax_grad", axis, len(y.shape))})
