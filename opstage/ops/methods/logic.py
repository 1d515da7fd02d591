"""Masks, selection, casts, detach, and constant tensors."""

from __future__ import annotations

from typing import cast

from ..arguments import Number, ShapeLike, as_shape, only_axis
from ..calls import Calls
from ..catalogue.logic import (
    CAST,
    DETACH,
    EQUAL,
    FULL,
    IOTA,
    ISFINITE,
    ISINF,
    ISNAN,
    LESS,
    LESS_EQUAL,
    LOGICAL_AND,
    LOGICAL_NOT,
    LOGICAL_OR,
    LOGICAL_XOR,
    SELECT,
)
from ..operands import NUMBERS, chosen_numbers
from ..primitive import R
from ..types import DType, as_dtype, dtype_name


class LogicOps(Calls[R]):
    __slots__ = ()

    def less(self, x: R | Number, y: R | Number, /) -> R:
        """The mask x < y; no gradient. PyTorch: torch.lt.

        Raises:
            DtypeError: x a mask; dtypes differ; a number that the dtype does not hold.
            ShapeError: shapes differ.
        """
        return self._pointwise2(LESS, x, y)

    def less_equal(self, x: R | Number, y: R | Number, /) -> R:
        """The mask x <= y; no gradient. PyTorch: torch.le.

        Raises:
            DtypeError: x a mask; dtypes differ; a number that the dtype does not hold.
            ShapeError: shapes differ.
        """
        return self._pointwise2(LESS_EQUAL, x, y)

    def equal(self, x: R | Number, y: R | Number, /) -> R:
        """The mask x = y, for numbers or masks; no gradient. PyTorch: torch.eq.

        Raises:
            DtypeError: dtypes differ; a number that the dtype does not hold.
            ShapeError: shapes differ.
        """
        return self._pointwise2(EQUAL, x, y)

    def logical_and(self, x: R | Number, y: R | Number, /) -> R:
        """The elementwise and of two masks; no gradient. PyTorch: torch.logical_and.

        Raises:
            DtypeError: x not a mask; dtypes differ; a number that the dtype does not hold.
            ShapeError: shapes differ.
        """
        return self._pointwise2(LOGICAL_AND, x, y)

    def logical_not(self, x: R, /) -> R:
        """The negated mask; no gradient. PyTorch: torch.logical_not.

        Raises:
            DtypeError: x not a mask.
        """
        return self._call1(LOGICAL_NOT, x)

    def logical_or(self, x: R, y: R, /) -> R:
        """The elementwise or of two masks; no gradient. PyTorch: torch.logical_or.

        Raises:
            DtypeError: x not a mask; dtypes differ.
            ShapeError: shapes differ.
        """
        return self._call2(LOGICAL_OR, x, y)

    def logical_xor(self, x: R, y: R, /) -> R:
        """The elementwise exclusive or of two masks; no gradient. PyTorch: torch.logical_xor.

        Raises:
            DtypeError: x not a mask; dtypes differ.
            ShapeError: shapes differ.
        """
        return self._call2(LOGICAL_XOR, x, y)

    def isnan(self, x: R, /) -> R:
        """The mask of elements that are nan; no gradient. PyTorch: torch.isnan.

        Raises:
            DtypeError: x a mask.
        """
        return self._call1(ISNAN, x)

    def isinf(self, x: R, /) -> R:
        """The mask of elements that are infinite, of either sign; no gradient. PyTorch: torch.isinf.

        Raises:
            DtypeError: x a mask.
        """
        return self._call1(ISINF, x)

    def isfinite(self, x: R, /) -> R:
        """The mask of elements that are neither nan nor infinite; no gradient. PyTorch: torch.isfinite.

        Raises:
            DtypeError: x a mask.
        """
        return self._call1(ISFINITE, x)

    def detach(self, x: R, /) -> R:
        """x, without its gradient and tangent. PyTorch: Tensor.detach."""
        return self._call1(DETACH, x)

    def select(self, mask: R, x: R | Number, y: R | Number, /) -> R:
        """x where mask is True, else y; all of one shape, or numbers. PyTorch: torch.where.

        The unselected side gets no gradient, whatever its value. Two numbers, at least one a float, give the
        program's float dtype.

        Raises:
            DtypeError: mask not a mask; dtypes differ.
            ShapeError: shapes differ.
        """
        if type(x) in NUMBERS or type(y) in NUMBERS:
            x, y = chosen_numbers(self, mask, x, y)
        return self._call3(SELECT, mask, cast("R", x), cast("R", y))

    def cast(self, x: R, /, *, dtype: str | DType) -> R:
        """x in another dtype. PyTorch: Tensor.to.

        Float to integer truncates towards 0, number to bool is x != 0, bool to number is 0 or 1. Between floats the
        gradient is cast back; integer results have none.

        Raises:
            UsageError: no such dtype.
        """
        return self._call(CAST, (x,), {"dtype": dtype_name(as_dtype(dtype))})

    def full(self, *, shape: ShapeLike, value: Number, dtype: str | DType | None = None) -> R:
        """A tensor filled with a static number. PyTorch: torch.full.

        Raises:
            DtypeError: a number that the dtype does not hold.
            ShapeError: an invalid argument; no such shape.
            UsageError: no such dtype.
        """
        target = self.dtype if dtype is None else as_dtype(dtype)
        return self._call(FULL, (), {"shape": as_shape("full", shape), "value": value, "dtype": dtype_name(target)})

    def iota(self, *, shape: ShapeLike, axis: int | None = None, dtype: str | DType = "int64") -> R:
        """Each element's index along `axis`, which may be omitted for vectors. PyTorch: torch.arange, broadcast.

        A default axis of 0 would silently make zeros for `shape=(1, N)`.

        Raises:
            ShapeError: the axis left out; no such axis; no such shape.
            UsageError: no such dtype.
        """
        sizes = as_shape("iota", shape)
        along = only_axis("iota", axis, len(sizes))
        return self._call(IOTA, (), {"shape": sizes, "axis": along, "dtype": dtype_name(as_dtype(dtype))})
