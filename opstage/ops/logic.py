# mypy: disable-error-code=empty-body
"""Masks, selection, casts, detach, and constant tensors."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Any, cast

from .method import NUMBERS, Calls, chosen_numbers
from .primitive import Context, Kind, Primitive, R, Row, ShapeRule, Some, Types, no_flops
from .rule_helpers import alike, anything, full_like, same_shape, same_type, zeros_like
from .static_arguments import Number, ShapeLike, as_number, as_shape, only_axis
from .types import (
    BOOL,
    EXACT,
    FLOAT64,
    DType,
    Shape,
    TensorType,
    as_dtype,
    dtype_name,
    is_float,
    require_bool,
    require_number,
    require_value,
)

if TYPE_CHECKING:
    from .protocol import Ops


# Comparisons --------------------------------------------------------------------------------------------------------


def _mask(shape: ShapeRule, decomposition: Any = None) -> Primitive:
    """Make an elementwise op whose result is a mask or a mask's."""
    return Primitive(kind=Kind.POINTWISE, shape=shape, decomposition=decomposition, differentiable=False)


_ORDERED = alike(require_number, "x", "y", to=BOOL)
_LOGICAL = alike(require_bool, "x", "y")
_CLASSIFYING = alike(require_number, "x", to=BOOL)

LESS = _mask(_ORDERED)
LESS_EQUAL = _mask(_ORDERED)
EQUAL = _mask(alike(anything, "x", "y", to=BOOL))
LOGICAL_AND = _mask(_LOGICAL)
LOGICAL_NOT = _mask(alike(require_bool, "x"))
LOGICAL_OR = _mask(
    _LOGICAL, lambda ops, x, y, /: (ops.logical_not(ops.logical_and(ops.logical_not(x), ops.logical_not(y))),)
)
LOGICAL_XOR = _mask(_LOGICAL, lambda ops, x, y, /: (ops.logical_not(ops.equal(x, y)),))


def _size_against_infinity(ops: Ops[R], x: R, compare: Any, otherwise: bool) -> Row[R]:
    """Return `compare(|x|, inf)` for floats, and `otherwise` for integers and fractions, which are finite."""
    if x.dtype.kind != "f":
        return (ops.full(shape=x.shape, value=otherwise, dtype="bool"),)
    return (compare(ops.abs(x), full_like(ops, x, math.inf)),)


ISNAN = _mask(_CLASSIFYING, lambda ops, x, /: (ops.logical_not(ops.equal(x, x)),))
ISINF = _mask(_CLASSIFYING, lambda ops, x, /: _size_against_infinity(ops, x, ops.equal, False))
ISFINITE = _mask(_CLASSIFYING, lambda ops, x, /: _size_against_infinity(ops, x, ops.less, True))

# Selection and conversion -------------------------------------------------------------------------------------------


def _select_shape(mask: TensorType, x: TensorType, y: TensorType) -> Types:
    require_bool(mask, "mask")
    same_shape(mask.shape, x.shape, "mask", "x")
    return (same_type(x, y),)


def _select_vjp(ops: Ops[R], ctx: Context[R], cotangents: Row[R], /) -> Some[R]:
    (g,), (mask,) = cotangents, ctx.saved
    zero = zeros_like(ops, g)
    return (
        None,
        ops.select(mask, g, zero) if ctx.needs[1] else None,
        ops.select(mask, zero, g) if ctx.needs[2] else None,
    )


def _select_jvp(ops: Ops[R], primals: Row[R], outputs: Row[R], tangents: Some[R], /) -> tuple[R | None]:
    mask, (_, tx, ty) = primals[0], tangents
    if tx is None and ty is None:
        return (None,)
    return (
        ops.select(
            mask,
            tx if tx is not None else zeros_like(ops, outputs[0]),
            ty if ty is not None else zeros_like(ops, outputs[0]),
        ),
    )


SELECT = Primitive(
    "select",
    operands=("mask", "x", "y"),
    kind=Kind.POINTWISE,
    shape=_select_shape,
    vjp=_select_vjp,
    jvp=_select_jvp,
    saves={"mask": ("x", "y")},
)


def _cast_shape(x: TensorType, *, dtype: str) -> Types:
    return (TensorType(x.shape, as_dtype(dtype)),)


def _cast_vjp(ops: Ops[R], ctx: Context[R], cotangents: Row[R], /, *, dtype: str) -> Some[R]:
    return (ops.cast(cotangents[0], dtype=ctx.inputs[0].dtype),)


def _cast_jvp(ops: Ops[R], primals: Row[R], outputs: Row[R], tangents: Row[R], /, *, dtype: str) -> tuple[R | None]:
    return (ops.cast(tangents[0], dtype=dtype) if is_float(as_dtype(dtype)) else None,)


CAST = Primitive(
    "cast", operands=("x",), kind=Kind.POINTWISE, shape=_cast_shape, vjp=_cast_vjp, jvp=_cast_jvp, flops=no_flops
)


DETACH = Primitive(shape=alike(anything, "x"), differentiable=False, kind=Kind.LAYOUT, view=True)

# Creation -----------------------------------------------------------------------------------------------------------


def _full_shape(*, shape: Shape, value: Any, dtype: str) -> Types:
    require_value(value, as_dtype(dtype))
    return (TensorType(shape, as_dtype(dtype)),)


FULL = Primitive("full", operands=(), shape=_full_shape, differentiable=False, flops=no_flops)


def _iota_shape(*, shape: Shape, axis: int, dtype: str) -> Types:
    out = TensorType(shape, as_dtype(dtype))
    require_number(out, "the result")
    return (out,)


IOTA = Primitive("iota", operands=(), shape=_iota_shape, differentiable=False, flops=no_flops)


# The methods of Ops ------------------------------------------------------------------------------------------


class LogicOps(Calls[R]):
    __slots__ = ()

    @LESS.method
    def less(self, x: R | Number, y: R | Number, /) -> R:
        """Return the mask x < y; no gradient. PyTorch: torch.lt.

        Raises:
            DtypeError: x a mask; dtypes differ; a number that the dtype does not hold.
            ShapeError: shapes differ.
        """

    @LESS_EQUAL.method
    def less_equal(self, x: R | Number, y: R | Number, /) -> R:
        """Return the mask x <= y; no gradient. PyTorch: torch.le.

        Raises:
            DtypeError: x a mask; dtypes differ; a number that the dtype does not hold.
            ShapeError: shapes differ.
        """

    @EQUAL.method
    def equal(self, x: R | Number, y: R | Number, /) -> R:
        """Return the mask x = y, for numbers or masks; no gradient. PyTorch: torch.eq.

        Raises:
            DtypeError: dtypes differ; a number that the dtype does not hold.
            ShapeError: shapes differ.
        """

    @LOGICAL_AND.method
    def logical_and(self, x: R | Number, y: R | Number, /) -> R:
        """Return the elementwise and of two masks; no gradient. PyTorch: torch.logical_and.

        Raises:
            DtypeError: x not a mask; dtypes differ; a number that the dtype does not hold.
            ShapeError: shapes differ.
        """

    @LOGICAL_NOT.method
    def logical_not(self, x: R, /) -> R:
        """Return the negated mask; no gradient. PyTorch: torch.logical_not.

        Raises:
            DtypeError: x not a mask.
        """

    @LOGICAL_OR.method
    def logical_or(self, x: R, y: R, /) -> R:
        """Return the elementwise or of two masks; no gradient. PyTorch: torch.logical_or.

        Raises:
            DtypeError: x not a mask; dtypes differ.
            ShapeError: shapes differ.
        """

    @LOGICAL_XOR.method
    def logical_xor(self, x: R, y: R, /) -> R:
        """Return the elementwise exclusive or of two masks; no gradient. PyTorch: torch.logical_xor.

        Raises:
            DtypeError: x not a mask; dtypes differ.
            ShapeError: shapes differ.
        """

    @ISNAN.method
    def isnan(self, x: R, /) -> R:
        """Return the mask of elements that are nan; no gradient. PyTorch: torch.isnan.

        Raises:
            DtypeError: x a mask.
        """

    @ISINF.method
    def isinf(self, x: R, /) -> R:
        """Return the mask of elements that are infinite, of either sign; no gradient. PyTorch: torch.isinf.

        Raises:
            DtypeError: x a mask.
        """

    @ISFINITE.method
    def isfinite(self, x: R, /) -> R:
        """Return the mask of elements that are neither nan nor infinite; no gradient. PyTorch: torch.isfinite.

        Raises:
            DtypeError: x a mask.
        """

    @DETACH.method
    def detach(self, x: R, /) -> R:
        """Return x, without its gradient and tangent. PyTorch: Tensor.detach."""

    def select(self, mask: R, x: R | Number, y: R | Number, /) -> R:
        """Return x where mask is True, else y; all of one shape, or numbers. PyTorch: torch.where.

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
        """Cast x to another dtype. PyTorch: Tensor.to.

        Float to integer truncates towards 0, number to bool is x != 0, bool to number is 0 or 1. Between floats the
        gradient is cast back; integer results have none.

        Raises:
            UsageError: no such dtype.
        """
        return self._call(CAST, (x,), {"dtype": dtype_name(as_dtype(dtype))})

    def full(self, *, shape: ShapeLike, value: Number, dtype: str | DType | None = None) -> R:
        """Return a tensor filled with a static number. PyTorch: torch.full.

        Raises:
            DtypeError: a number that the dtype does not hold.
            ShapeError: an invalid argument; no such shape.
            UsageError: no such dtype.
        """
        target = self.dtype if dtype is None else as_dtype(dtype)
        number = as_number("full", "value", value)
        return self._call(FULL, (), {"shape": as_shape("full", shape), "value": number, "dtype": dtype_name(target)})

    def iota(self, *, shape: ShapeLike, axis: int | None = None, dtype: str | DType = "int64") -> R:
        """Return each element's index along `axis`, which may be omitted for vectors. PyTorch: torch.arange, broadcast.

        A default axis of 0 would silently make zeros for `shape=(1, N)`.

        Raises:
            ShapeError: the axis left out; no such axis; no such shape.
            UsageError: no such dtype.
        """
        sizes = as_shape("iota", shape)
        along = only_axis("iota", axis, len(sizes))
        return self._call(IOTA, (), {"shape": sizes, "axis": along, "dtype": dtype_name(as_dtype(dtype))})


# Functions ------------------------------------------------------------------------------------------------------------


def nan_to_num(
    ops: Ops[R], x: R, /, *, nan: Number = 0.0, posinf: Number | None = None, neginf: Number | None = None
) -> R:
    """Return x with nan, inf and -inf replaced; None means the largest and the smallest finite number.

    Replaced elements have no gradient. Integers are returned unchanged. PyTorch: torch.nan_to_num. NumPy:
    np.nan_to_num.

    Raises:
        ShapeError: an invalid argument.
    """
    if x.dtype.kind != "f" or x.dtype == EXACT:
        return x
    most = sys.float_info.max if x.dtype == FLOAT64 else (2 - 2.0**-23) * 2.0**127

    def full(value: Number) -> R:
        return full_like(ops, x, value)

    out = ops.select(ops.isnan(x), full(nan), x)
    out = ops.select(ops.equal(x, full(math.inf)), full(most if posinf is None else posinf), out)
    return ops.select(ops.equal(x, full(-math.inf)), full(-most if neginf is None else neginf), out)
