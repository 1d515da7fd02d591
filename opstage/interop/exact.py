"""Exact arithmetic on known numbers: an interpreter whose refs are arrays of Python numbers and dims.

Exporters write arithmetic on shapes as nodes. The rule of a node runs here if all of its inputs are known, so a shape
stays known for every size.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from functools import reduce
from typing import Any, final

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from ..ops import dims as dims
from ..ops.dims import DimExpr, DimFloat, UndecidedDimError
from ..ops.errors import UnsupportedError
from ..ops.primitive import Primitive, Static
from ..ops.types import FLOAT64, DType, TensorType, as_dtype
from ..transforms.interpreter import BaseInterpreter, Typed
from .values import KnownValue, TensorValue

Array = npt.NDArray[Any]
LARGEST = 1 << 16
"""The largest number of elements of a known result; larger ones are left to the interpreter."""


class NotExact(Exception):
    """Raised for an op without exact arithmetic; the interpreter of the program computes it."""


# Numbers and dims -----------------------------------------------------------------------------------------------------


def _whole(*numbers: Any) -> bool:
    return all(isinstance(number, (int, DimExpr)) for number in numbers)


def floor(x: Any) -> Any:
    """Return x rounded down."""
    if isinstance(x, DimFloat):
        raise UnsupportedError(f"{x} rounded down is not an expression in sizes")
    return x if isinstance(x, DimExpr) else math.floor(x)


def ceil(x: Any) -> Any:
    """Return x rounded up."""
    return -floor(-x)


def truncated(x: Any) -> Any:
    """Return x rounded towards zero; sizes are never negative."""
    return floor(x) if isinstance(x, (DimExpr, DimFloat)) else math.trunc(x)


def ratio(a: Any, b: Any) -> Any:
    """Return a / b, exact if both are sizes."""
    symbolic = isinstance(a, DimExpr) or isinstance(b, DimExpr)
    return dims.ratio(a, b) if symbolic and _whole(a, b) else a / b


def floor_divide(a: Any, b: Any) -> Any:
    """Return a / b rounded down."""
    if not _whole(a, b):
        return a // b
    if isinstance(b, int) and b == 0:
        raise UnsupportedError("an integer is divided by zero")
    return dims.floor_div(a, b)


def maximum(a: Any, b: Any) -> Any:
    """Return the greater number."""
    return dims.maximum(a, b) if _whole(a, b) else max(a, b)


def minimum(a: Any, b: Any) -> Any:
    """Return the lesser number."""
    return dims.minimum(a, b) if _whole(a, b) else min(a, b)


def prod(numbers: Any) -> Any:
    """Return the product of numbers."""
    return dims.prod(numbers) if _whole(*numbers) else math.prod(numbers)


def _converted(x: Any, kind: str) -> Any:
    if kind == "b":
        return bool(x != 0)
    if kind == "i":
        return truncated(x)
    return x if isinstance(x, (DimExpr, DimFloat)) else float(x)


# The interpreter ------------------------------------------------------------------------------------------------------


@final
class Exact(Typed):
    """A ref: an array of objects, with the dtype that the numbers are of."""

    __slots__ = ("array", "type", "ops")

    def __init__(self, array: Array, dtype: DType, ops: ExactOps):
        self.array = array
        self.type = TensorType(array.shape, dtype)
        self.ops = ops


@final
class ExactOps(BaseInterpreter[Exact]):
    """Runs ops on numbers and dims. Raises NotExact for ops without a kernel here."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(FLOAT64, 0)

    @override
    def bind(self, primitive: Primitive, refs: tuple[Exact, ...], static: Static, /) -> tuple[Exact, ...]:
        kernel = KERNELS.get(primitive.name)
        if kernel is None:
            if primitive.decomposition is None:
                raise NotExact(primitive.name)
            return self.decompose(primitive, refs, static)
        types = primitive.infer(tuple([ref.type for ref in refs]), static, "")
        if any(not isinstance(d, int) for d in types[0].shape) or types[0].size > LARGEST:
            raise NotExact(primitive.name)
        try:
            found = kernel(*[ref.array for ref in refs], **static)
        except (ArithmeticError, ValueError, UndecidedDimError) as error:
            raise NotExact(primitive.name) from error
        array = np.empty(types[0].shape, object)
        array[...] = found
        return (Exact(array, types[0].dtype, self),)

    @override
    def adopt(self, ref: Any, /) -> Exact:
        if type(ref) is not Exact:
            raise NotExact("a tensor")
        return ref

    @override
    def const(self, value: Any, /, *, dtype: str | DType | None = None) -> Exact:
        array = np.asarray(value)
        target = as_dtype(dtype) if dtype is not None else FLOAT64 if array.dtype.kind == "f" else array.dtype
        entries = array if array.dtype == object else array.astype(target).astype(object)
        return Exact(entries, target, self)

    put = const

    @override
    def get(self, ref: Exact, /) -> Array:
        return ref.array


def _each(function: Callable[..., Any]) -> Callable[..., Any]:
    """Apply a function of entries."""

    def apply(*arrays: Array, **static: Any) -> Any:
        return np.frompyfunc(lambda *entries: function(*entries, **static), len(arrays), 1)(*arrays)

    return apply


def _iota(*, shape: Any, axis: int, dtype: str) -> Any:
    return np.indices(shape)[axis]


def _slice(x: Array, *, axis: int, start: Any, length: int, step: int) -> Any:
    if not isinstance(start, int):
        raise NotExact("slice")
    return np.take(x, range(start, start + length * step, step), axis)


def _gather(x: Array, index: Array, *, mode: str) -> Any:
    places = index.astype(np.int64)
    if places.size and not (places.min() >= 0 and places.max() < len(x)):
        raise NotExact("gather_rows")
    return x[places]


def _reduced(function: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    def apply(x: Array, *, axes: tuple[int, ...], keepdims: bool) -> Any:
        rest = [a for a in range(x.ndim) if a not in axes]
        rows = np.transpose(x, [*rest, *axes]).reshape(math.prod(x.shape[a] for a in rest), -1)
        found = np.empty(len(rows), object)
        found[:] = [reduce(function, row) for row in rows]
        return found.reshape([1 if a in axes else n for a, n in enumerate(x.shape) if keepdims or a not in axes])

    return apply


KERNELS: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "neg": np.negative,
    "detach": np.asarray,
    "mod": _each(operator.mod),
    "div": _each(ratio),
    "floor_divide": _each(floor_divide),
    "maximum": _each(maximum),
    "minimum": _each(minimum),
    "scale": lambda x, c: x * c,
    "sqrt": _each(lambda x: x**0.5 if isinstance(x, (DimExpr, DimFloat)) else math.sqrt(x)),
    "floor": _each(floor),
    "ceil": _each(ceil),
    "abs": _each(lambda x: x if isinstance(x, (DimExpr, DimFloat)) else abs(x)),
    "less": _each(lambda x, y: bool(x < y)),
    "less_equal": _each(lambda x, y: bool(x <= y)),
    "equal": _each(lambda x, y: bool(x == y)),
    "logical_not": _each(operator.not_),
    "logical_and": _each(lambda x, y: x and y),
    "select": _each(lambda mask, x, y: x if mask else y),
    "cast": lambda x, dtype: _each(lambda entry: _converted(entry, as_dtype(dtype).kind))(x),
    "full": lambda shape, value, dtype: value,
    "iota": _iota,
    "reshape": lambda x, shape: x.reshape(shape),
    "permute": lambda x, axes: x.transpose(axes),
    "broadcast_to": lambda x, shape: np.broadcast_to(x, shape),
    "slice": _slice,
    "concat": lambda *xs, axis: np.concatenate(xs, axis),
    "gather_rows": _gather,
    "reduce_sum": _reduced(operator.add),
    "reduce_prod": _reduced(lambda x, y: x * y),
    "reduce_max": _reduced(maximum),
    "reduce_min": _reduced(minimum),
}
"""The ops on arrays of numbers and dims."""


def known_again(value: Any) -> Any:
    """Return results of a rule on ExactOps as known values; integers wrap around as in the file."""
    if isinstance(value, (tuple, list)) and not isinstance(value, (KnownValue, TensorValue)):
        return type(value)([known_again(each) for each in value])
    if not isinstance(value, TensorValue):
        return value
    array, dtype = value.ref.array, value.dtype
    if any(isinstance(entry, (DimExpr, DimFloat)) for entry in array.flat):
        return KnownValue(array, dtype)
    if dtype.kind in "iu":
        size, low = 1 << (8 * dtype.itemsize), int(np.iinfo(dtype).min)
        array = _each(lambda entry: (int(entry) - low) % size + low)(array)
    return KnownValue(np.asarray(array).astype(dtype), dtype)
