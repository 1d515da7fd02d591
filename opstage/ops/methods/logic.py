"""Masks, dtypes, the gradient's end, and tensors made from nothing."""

from __future__ import annotations

from ..arguments import Number, ShapeLike, as_shape, normalize_axis
from ..catalogue.logic import (
    CAST,
    DETACH,
    EQUAL,
    FULL,
    IOTA,
    LESS,
    LESS_EQUAL,
    LOGICAL_AND,
    LOGICAL_NOT,
    SELECT,
)
from ..primitive import R
from ..types import DType, as_dtype, dtype_name
from .calls import Calls


class LogicOps(Calls[R]):
    __slots__ = ()

    def less(self, x: R, y: R, /) -> R:
        """The mask x < y; no gradient. PyTorch: torch.lt."""
        return self._call2(LESS, x, y)

    def less_equal(self, x: R, y: R, /) -> R:
        """The mask x <= y; no gradient. PyTorch: torch.le."""
        return self._call2(LESS_EQUAL, x, y)

    def equal(self, x: R, y: R, /) -> R:
        """The mask x = y, of numbers or of masks; no gradient. PyTorch: torch.eq."""
        return self._call2(EQUAL, x, y)

    def logical_and(self, x: R, y: R, /) -> R:
        """Both masks; no gradient. PyTorch: torch.logical_and."""
        return self._call2(LOGICAL_AND, x, y)

    def logical_not(self, x: R, /) -> R:
        """The opposite mask; no gradient. PyTorch: torch.logical_not."""
        return self._call1(LOGICAL_NOT, x)

    def detach(self, x: R, /) -> R:
        """x, through which no gradient or tangent flows. PyTorch: Tensor.detach."""
        return self._call1(DETACH, x)

    def select(self, mask: R, x: R, y: R, /) -> R:
        """x where mask, else y; all of one shape. PyTorch: torch.where.

        The side not selected gets no gradient, whatever its value.
        """
        return self._call3(SELECT, mask, x, y)

    def cast(self, x: R, /, *, dtype: str | DType) -> R:
        """x in another dtype. PyTorch: Tensor.to.

        Float to integer truncates towards 0, number to bool is x != 0, bool to number is 0 or 1. Between floats the
        gradient is cast back; an integer result has none.
        """
        return self._call(CAST, (x,), {"dtype": dtype_name(as_dtype(dtype))})

    def full(self, *, shape: ShapeLike, value: Number, dtype: str | DType | None = None) -> R:
        """A tensor filled with one static number. PyTorch: torch.full."""
        target = self.dtype if dtype is None else as_dtype(dtype)
        return self._call(FULL, (), {"shape": as_shape("full", shape), "value": value, "dtype": dtype_name(target)})

    def iota(self, *, shape: ShapeLike, axis: int = 0, dtype: str | DType = "int64") -> R:
        """Each element's own index along `axis`. PyTorch: torch.arange, broadcast."""
        sizes = as_shape("iota", shape)
        axis = normalize_axis("iota", axis, len(sizes))
        return self._call(IOTA, (), {"shape": sizes, "axis": axis, "dtype": dtype_name(as_dtype(dtype))})
