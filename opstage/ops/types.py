"""The shape and dtype of tensors, the supported dtypes, and checks shared by rules."""

from __future__ import annotations

import math
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from .dims import Dim, DimExpr, DimFloat, prod, require_at_most
from .errors import DtypeError, UsageError, brief, nearest

DType: TypeAlias = "np.dtype[Any]"
Shape: TypeAlias = "tuple[Dim, ...]"

FLOAT32: DType = np.dtype(np.float32)
FLOAT64: DType = np.dtype(np.float64)
INT32: DType = np.dtype(np.int32)
INT64: DType = np.dtype(np.int64)
BOOL: DType = np.dtype(np.bool_)
EXACT: DType = np.dtype(object)
"""Arrays of `fractions.Fraction`: rational programs, computed without rounding."""

DTYPES: dict[str, DType] = {
    "float32": FLOAT32,
    "float64": FLOAT64,
    "int32": INT32,
    "int64": INT64,
    "bool": BOOL,
    "exact": EXACT,
}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}


class TensorType(NamedTuple):
    """The shape and dtype of a tensor, as seen by shape rules."""

    shape: Shape
    dtype: DType

    def __str__(self) -> str:
        return f"{show_shape(self.shape)} {dtype_name(self.dtype)}"

    @property
    def size(self) -> Dim:
        """Return the number of elements."""
        return prod(self.shape)

    @property
    def nbytes(self) -> Dim:
        """Return the bytes of a dense tensor of this type."""
        return self.size * self.dtype.itemsize


def as_dtype(name: str | DType) -> DType:
    """Return the dtype called `name`. Raises UsageError, which suggests the nearest name."""
    if isinstance(name, np.dtype):
        if name in _NAMES:
            return name
        name = name.name
    if not isinstance(name, str) or name not in DTYPES:
        near = nearest(name, DTYPES) if isinstance(name, str) else ""
        raise UsageError(f"unknown dtype {brief(name)}{near}; Opstage has {', '.join(DTYPES)}")
    return DTYPES[name]


def dtype_name(dtype: DType) -> str:
    """Return the user-facing name of `dtype` (`exact` for arrays of fractions)."""
    name = _NAMES.get(dtype)
    return str(dtype) if name is None else name


def is_float(dtype: DType) -> bool:
    """Return whether tensors of `dtype` are differentiable: float32, float64 and exact."""
    return dtype.kind in "fO"


def show_shape(shape: Shape) -> str:
    """Format a shape as a Python tuple: `(B, 3, 32)`, and `(B,)` for rank 1."""
    return f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"


def require_shape(shape: Shape) -> None:
    """Raise `UsageError` if no array can have the numbers in a shape from outside."""
    numbers = [size for size in shape if isinstance(size, int)]
    if any(size < 0 for size in numbers) or math.prod([size for size in numbers if size]) >= 2**63:
        raise UsageError(
            f"an array cannot have the shape {brief(tuple(shape))}: sizes are at least 0, and elements fewer than 2**63"
        )


def require_sizes(shape: Shape) -> None:
    """Require that every size of a result is at least 0. Raises ShapeError when refuted; records a condition when
    undecided."""
    for size in shape:
        if type(size) is not int or size < 0:
            require_at_most(0, size, lambda: f"a size must be at least 0 but the result is {show_shape(shape)}")


def require_value(value: Any, dtype: DType) -> None:
    """Raise DtypeError if `dtype` cannot represent a static number: nothing is silently truncated or wrapped."""
    if dtype.kind == "f" or isinstance(value, (DimExpr, DimFloat)):
        return
    if isinstance(value, float) and not math.isfinite(value):
        fits = False
    elif dtype.kind == "O":
        fits = True
    elif dtype.kind == "b":
        fits = value in (0, 1)
    else:
        limits = np.iinfo(dtype)
        fits = int(value) == value and limits.min <= value <= limits.max
    if not fits:
        raise DtypeError(f"value {value!r} is not a value of {dtype_name(dtype)}; give one that is, or another dtype")


def require_float(x: TensorType, name: str) -> None:
    """Raise DtypeError unless operand `name` is float32, float64 or exact."""
    if x.dtype.kind not in "fO":
        raise DtypeError(f"{name} must be a float tensor but is {x}; cast it with ops.cast(…, dtype='float32')")


def require_number(x: TensorType, name: str) -> None:
    """Raise DtypeError if operand `name` is boolean."""
    if x.dtype.kind == "b":
        raise DtypeError(f"{name} must be a tensor of numbers but is {x}; cast it with ops.cast(…, dtype=…)")


def require_integer(x: TensorType, name: str) -> None:
    """Raise DtypeError unless operand `name` has integers (labels, indices)."""
    if x.dtype.kind not in "iu":
        raise DtypeError(f"{name} must be an integer tensor but is {x}; pass an integer array")


def require_bool(x: TensorType, name: str) -> None:
    """Raise DtypeError unless operand `name` is a boolean mask."""
    if x.dtype.kind != "b":
        raise DtypeError(f"{name} must be a boolean mask but is {x}; make one with ops.less, ops.equal or a bool array")


def require_same_dtype(x: TensorType, y: TensorType, x_name: str, y_name: str) -> None:
    """Raise DtypeError unless two operands have the same dtype: nothing is promoted implicitly."""
    if x.dtype != y.dtype:
        raise DtypeError(
            f"{x_name} is {dtype_name(x.dtype)} but {y_name} is {dtype_name(y.dtype)}; cast one of them with ops.cast"
        )
