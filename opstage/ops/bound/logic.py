"""Masks, dtypes, the gradient's end, and tensors made from nothing."""

from __future__ import annotations

from typing import final

from ..arguments import as_shape, normalize_axis
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
from ..protocol import Number, R, ShapeLike
from ..types import DType, as_dtype, dtype_name
from .calls import Calls


class LogicOps(Calls[R]):
    __slots__ = ()

    @final
    def less(self, x: R, y: R, /) -> R:
        return self._call2(LESS, x, y)

    @final
    def less_equal(self, x: R, y: R, /) -> R:
        return self._call2(LESS_EQUAL, x, y)

    @final
    def equal(self, x: R, y: R, /) -> R:
        return self._call2(EQUAL, x, y)

    @final
    def logical_and(self, x: R, y: R, /) -> R:
        return self._call2(LOGICAL_AND, x, y)

    @final
    def logical_not(self, x: R, /) -> R:
        return self._call1(LOGICAL_NOT, x)

    @final
    def detach(self, x: R, /) -> R:
        return self._call1(DETACH, x)

    @final
    def select(self, mask: R, x: R, y: R, /) -> R:
        return self._call3(SELECT, mask, x, y)

    @final
    def cast(self, x: R, /, *, dtype: str | DType) -> R:
        return self._call(CAST, (x,), {"dtype": dtype_name(as_dtype(dtype))})

    @final
    def full(self, *, shape: ShapeLike, value: Number, dtype: str | DType | None = None) -> R:
        target = self.dtype if dtype is None else as_dtype(dtype)
        return self._call(FULL, (), {"shape": as_shape("full", shape), "value": value, "dtype": dtype_name(target)})

    @final
    def iota(self, *, shape: ShapeLike, axis: int = 0, dtype: str | DType = "int64") -> R:
        sizes = as_shape("iota", shape)
        axis = normalize_axis("iota", axis, len(sizes))
        return self._call(IOTA, (), {"shape": sizes, "axis": axis, "dtype": dtype_name(as_dtype(dtype))})
