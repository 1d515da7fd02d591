"""Helpers of rules and of functions over ops: agreement of operands, canonical arguments, errors, zeros and ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from .dims import Dim, DimExpr, Verdict, equal, is_one, maximum, ratio, require_at_most, require_equal
from .errors import DtypeError, LocatedError, ShapeError, brief
from .primitive import R, Types
from .static_arguments import Axes, InvalidStatic, as_dim, as_int, as_sequence, normalize_axes, normalize_axis, plain
from .types import EXACT, DType, Shape, TensorType, require_same_dtype, show_shape

if TYPE_CHECKING:
    from .protocol import Ops


NO_BROADCAST = "named ops never broadcast, use infix (x + y) or ops.broadcast_to"


def same_shape(x: Shape, y: Shape, x_name: str, y_name: str, purpose: str = "") -> None:
    """Raise ShapeError unless two operands have the same shape: named ops never broadcast. `purpose` states another
    reason."""
    if x is y:
        return

    def message(why: str) -> str:
        hint = purpose or (NO_BROADCAST if _broadcast(x, y) else "they must have one shape")
        return f"{x_name} is {show_shape(x)} but {y_name} is {show_shape(y)}: {why}; {hint}"

    if len(x) != len(y):
        raise ShapeError(message(f"ranks {len(x)} and {len(y)} differ"))
    for axis, (a, b) in enumerate(zip(x, y)):
        require_equal(a, b, lambda: message(f"axis {axis} has {a} and {b}"))


def _broadcast(x: Shape, y: Shape) -> bool:
    """Return whether the shapes are compatible by NumPy's rules."""
    pairs = zip(reversed(x), reversed(y))
    return all(is_one(a) or is_one(b) or equal(a, b) is Verdict.proved for a, b in pairs)


def same_type(x: TensorType, y: TensorType, x_name: str = "x", y_name: str = "y", purpose: str = "") -> TensorType:
    """Require that two operands agree in shape and dtype; return their type."""
    same_shape(x.shape, y.shape, x_name, y_name, purpose)
    require_same_dtype(x, y, x_name, y_name)
    return x


def require_rank(x: TensorType, rank: int, name: str) -> None:
    """Raise ShapeError unless operand `name` has `rank` axes."""
    if len(x.shape) != rank:
        raise ShapeError(f"{name} must have rank {rank} but is {show_shape(x.shape)} of rank {len(x.shape)}")


def alike(
    require: Callable[[TensorType, str], None],
    *names: str,
    to: DType | None = None,
    check: Callable[..., None] | None = None,
) -> Callable[..., Types]:
    """Make the shape rule of operands of one type, which `require` checks: the result has it too, or has dtype `to`.

    `check(**static)` raises for invalid static parameters.
    """

    def shape(x: TensorType, *others: TensorType, **static: Any) -> Types:
        require(x, names[0])
        if check is not None:
            check(**static)
        for other, name in zip(others, names[1:]):
            same_type(x, other, names[0], name)
        return (x if to is None else TensorType(x.shape, to),)

    return shape


def anything(x: TensorType, name: str) -> None:
    """Accept every operand."""


def full_like(ops: Ops[R], x: R, value: Any) -> R:
    """Return a constant with x's shape and dtype."""
    return ops.full(shape=x.shape, value=value, dtype=x.dtype)


def zeros_like(ops: Ops[R], x: R) -> R:
    """Return zeros of x's shape and dtype."""
    return full_like(ops, x, 0.0)


def add_all(ops: Ops[R], *terms: R | None) -> R | None:
    """Return the sum of the terms that are not None, or None."""
    total: R | None = None
    for term in terms:
        if term is not None:
            total = term if total is None else ops.add(total, term)
    return total


def corrected_mean(ops: Ops[R], x: R, axes: tuple[int, ...]) -> R:
    """Return the mean over `axes`, kept at size 1: m + mean(x - m) for a rounded mean m.

    It is exact where all elements are equal; a mean that is rounded there makes a deviation of its error.
    """
    part = ops.detach(x)
    if 0 in axes:  # a sixteenth of a batch will do, and costs a sixteenth of a pass
        part = ops.slice(part, axis=0, start=0, length=maximum(x.shape[0] // 16, 1))
    mean = ops.reduce_mean(part, axis=axes, keepdims=True)
    apart = ops.sub(x, ops.broadcast_to(mean, shape=x.shape))
    return ops.add(mean, ops.reduce_mean(apart, axis=axes, keepdims=True))


def error(ops: Ops[R], op: str, reason: str) -> ShapeError:
    """Return the error of the function `op`, located at the user's line."""
    return ShapeError(reason, op=op, region=ops.cursor.region.name)


def dtype_error(ops: Ops[R], op: str, reason: str) -> DtypeError:
    """Return the error of a function of the name `op` given a tensor of a dtype that it does not take."""
    return DtypeError(reason, op=op, region=ops.cursor.region.name)


def valid(ops: Ops[R], op: str, value: Any) -> Any:
    """Return a static argument in canonical form; raises if it has none."""
    if isinstance(value, InvalidStatic):
        raise error(ops, op, value.reason)
    return value


def read_axis(ops: Ops[R], op: str, axis: Any, rank: int) -> int:
    """Return a nonnegative axis."""
    found: int = valid(ops, op, normalize_axis(op, axis, rank))
    return found


def read_axes(ops: Ops[R], op: str, axis: Axes, rank: int) -> tuple[int, ...]:
    """Return nonnegative sorted axes; None means all."""
    found = valid(ops, op, normalize_axes(op, axis, rank))
    return tuple(read_axis(ops, op, a, rank) for a in found)


def read_int(ops: Ops[R], op: str, name: str, value: Any, least: int | None = None) -> int:
    """Return an int >= `least`."""
    found: int = valid(ops, op, as_int(op, name, value))
    if least is not None and found < least:
        raise error(ops, op, f"{name} must be at least {least} but is {found}")
    return found


def read_sequence(ops: Ops[R], op: str, name: str, value: Any) -> tuple[Any, ...]:
    """Return the entries of a sequence."""
    found: tuple[Any, ...] = valid(ops, op, as_sequence(op, name, value))
    return found


def read_number(ops: Ops[R], op: str, name: str, value: Any) -> Any:
    """Return a finite number."""
    number = plain(value)
    if isinstance(number, int | float | Fraction) and math.isfinite(number):
        return number
    raise error(ops, op, f"{name} must be a number that is finite but is {brief(value)}")


def read_dim(ops: Ops[R], op: str, name: str, value: Any) -> Dim:
    """Return an int or a dim."""
    found: Dim = valid(ops, op, as_dim(op, name, value))
    return found


def read_count(ops: Ops[R], op: str, name: str, value: Any) -> Dim:
    """Return a dim >= 0."""
    found = read_dim(ops, op, name, value)
    at_most(ops, op, 0, found, lambda: f"{name} must be at least 0 but is {found}")
    return found


def known(ops: Ops[R], op: str, size: Dim, why: Callable[[], str]) -> int:
    """Return a size that must be a number, since the structure of the program depends on it."""
    if isinstance(size, DimExpr):
        raise error(ops, op, f"{why()}, which must be a number, not a named size")
    return size


def equal_sizes(ops: Ops[R], op: str, a: Dim, b: Dim, why: Callable[[], str]) -> None:
    """Require that two sizes agree for all values of symbolic sizes."""
    placed(ops, op, lambda: require_equal(a, b, why))


def at_most(ops: Ops[R], op: str, a: Dim, b: Dim, why: Callable[[], str]) -> None:
    """Require that one size does not exceed another."""
    placed(ops, op, lambda: require_at_most(a, b, why))


def placed(ops: Ops[R], op: str, check: Callable[[], object]) -> None:
    """Run a check of shapes or dtypes; its error is located at the function `op` and the user's line."""
    try:
        check()
    except LocatedError as found:
        found.place(op, ops.cursor.region.name)
        raise


def type_of(x: R) -> TensorType:
    """Return the type of a ref, for checks of shapes and dtypes."""
    return TensorType(x.shape, x.dtype)


def require_same_type(found: TensorType, expected: TensorType, message: str | Callable[[], str]) -> None:
    """Require one dtype and one shape."""
    if found.dtype != expected.dtype or len(found.shape) != len(expected.shape):
        raise ShapeError(message if isinstance(message, str) else message())
    for size, wanted in zip(found.shape, expected.shape):
        require_equal(size, wanted, message)


def whole(ops: Ops[R], shape: Any, value: Dim, dtype: Any = "int64") -> R:
    """Return a constant integer tensor, or a constant size."""
    return ops.full(shape=shape, value=ratio(value, 1) if isinstance(value, DimExpr) else value, dtype=dtype)


def zeros(ops: Ops[R], x: R, shape: Any = None) -> R:
    """Return zeros (False for masks) of x's dtype, in x's shape by default."""
    return ops.full(shape=x.shape if shape is None else shape, value=0, dtype=x.dtype)


def to_front(rank: int, axis: int) -> list[int]:
    """Return the permutation that moves an axis to the front."""
    return [axis, *(a for a in range(rank) if a != axis)]


def from_front(rank: int, axis: int) -> list[int]:
    """Return the inverse permutation: it moves the first axis to `axis`."""
    return [*range(1, axis + 1), 0, *range(axis + 1, rank)]


def numbers(ops: Ops[R], values: Any, dtype: DType) -> R:
    """Return nested lists of fractions as a constant, each rounded once."""
    exact = np.array(values, dtype=object)
    return ops.const(exact if dtype == EXACT else exact.astype(np.float64), dtype=dtype)


def weighted(ops: Ops[R], x: R, axis: int, table: Sequence[Any], weights: Sequence[Any] | None) -> R:
    """Return sums of weighted entries along an axis: Σ_t weights[j][t] · x[table[j][t]] replaces entry j.

    Entries of weight 0 are ignored, even if not finite. Without weights the table has one entry for each j.
    """
    rank = len(x.shape)
    rows = ops.gather_rows(x if axis == 0 else ops.permute(x, axes=to_front(rank, axis)), ops.const(np.array(table)))
    if weights is not None:
        shape = (*np.shape(table), *[1] * (rank - 1))
        factors = ops.broadcast_to(ops.reshape(numbers(ops, weights, x.dtype), shape=shape), shape=rows.shape)
        parts = ops.mul(rows, factors)
        present = np.array([[weight != 0 for weight in row] for row in weights])
        if not present.all():  # an infinite entry of weight 0 would give nan
            mask = ops.broadcast_to(ops.reshape(ops.const(present), shape=shape), shape=rows.shape)
            parts = ops.select(mask, parts, zeros(ops, parts))
        rows = ops.reduce_sum(parts, axis=1)
    return rows if axis == 0 else ops.permute(rows, axes=from_front(rank, axis))
