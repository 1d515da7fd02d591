"""Tools of the functions over ops: their errors, axes and integers in one form, zeros."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from ..arguments import Axes, as_dim, as_int, as_sequence, normalize_axes, normalize_axis
from ..dims import Dim, DimExpr, ratio, require_at_most, require_equal
from ..errors import DtypeError, LocatedError, ShapeError
from ..invalid_static import InvalidStatic
from ..numbers import plain
from ..protocol import Ops, R
from ..types import EXACT, DType, TensorType
from ..untrusted import brief


def error(ops: Ops[R], op: str, reason: str) -> ShapeError:
    """The error of a function of the name `op`, placed at the user's line."""
    return ShapeError(reason, op=op, region=ops.cursor.region.name)


def dtype_error(ops: Ops[R], op: str, reason: str) -> DtypeError:
    """The error of a function of the name `op` given a tensor of a dtype that it does not take."""
    return DtypeError(reason, op=op, region=ops.cursor.region.name)


def valid(ops: Ops[R], op: str, value: Any) -> Any:
    """A static argument in its canonical form; raises where it has none."""
    if isinstance(value, InvalidStatic):
        raise error(ops, op, value.reason)
    return value


def axis_of(ops: Ops[R], op: str, axis: Any, rank: int) -> int:
    """The axis, counted from the first."""
    found: int = valid(ops, op, normalize_axis(op, axis, rank))
    return found


def axes_of(ops: Ops[R], op: str, axis: Axes, rank: int) -> tuple[int, ...]:
    """Axes, counted from the first and in order; None stands for all."""
    found = valid(ops, op, normalize_axes(op, axis, rank))
    return tuple(axis_of(ops, op, a, rank) for a in found)


def int_of(ops: Ops[R], op: str, name: str, value: Any, least: int | None = None) -> int:
    """An int, which is at least `least`."""
    found: int = valid(ops, op, as_int(op, name, value))
    if least is not None and found < least:
        raise error(ops, op, f"{name} must be at least {least} but is {found}")
    return found


def sequence_of(ops: Ops[R], op: str, name: str, value: Any) -> tuple[Any, ...]:
    """The entries of a sequence."""
    found: tuple[Any, ...] = valid(ops, op, as_sequence(op, name, value))
    return found


def number_of(ops: Ops[R], op: str, name: str, value: Any) -> Any:
    """A finite number."""
    number = plain(value)
    if isinstance(number, int | float | Fraction) and math.isfinite(number):
        return number
    raise error(ops, op, f"{name} must be a number that is finite but is {brief(value)}")


def dim_of(ops: Ops[R], op: str, name: str, value: Any) -> Dim:
    """An int or a dim."""
    found: Dim = valid(ops, op, as_dim(op, name, value))
    return found


def count_of(ops: Ops[R], op: str, name: str, value: Any) -> Dim:
    """A dim, or an int that is at least 0."""
    return value if isinstance(value, DimExpr) else int_of(ops, op, name, value, 0)


def known(ops: Ops[R], op: str, size: Dim, why: Callable[[], str]) -> int:
    """A size that must be a number, since how the result is put together depends on it."""
    if isinstance(size, DimExpr):
        raise error(ops, op, f"{why()}, which must be a number, not a named size")
    return size


def equal_sizes(ops: Ops[R], op: str, a: Dim, b: Dim, why: Callable[[], str]) -> None:
    """Two sizes must agree, for all values of the named ones."""
    placed(ops, op, lambda: require_equal(a, b, why))


def at_most(ops: Ops[R], op: str, a: Dim, b: Dim, why: Callable[[], str]) -> None:
    """One size must not exceed another."""
    placed(ops, op, lambda: require_at_most(a, b, why))


def placed(ops: Ops[R], op: str, check: Callable[[], object]) -> None:
    """A check of shapes or dtypes, whose error is that of a function of the name `op`, at the user's line."""
    try:
        check()
    except LocatedError as found:
        found.place(op, ops.cursor.region.name)
        raise


def type_of(x: R) -> TensorType:
    """The type of a ref, for the checks of shapes and dtypes that ops have."""
    return TensorType(x.shape, x.dtype)


def whole(ops: Ops[R], shape: Any, value: Dim, dtype: Any = "int64") -> R:
    """An integer, or a size, everywhere."""
    return ops.full(shape=shape, value=ratio(value, 1) if isinstance(value, DimExpr) else value, dtype=dtype)


def zeros(ops: Ops[R], x: R, shape: Any = None) -> R:
    """Zeros of x's dtype, False of masks; of x's shape where no other is given."""
    return ops.full(shape=x.shape if shape is None else shape, value=0, dtype=x.dtype)


def to_front(rank: int, axis: int) -> list[int]:
    """The permutation that moves an axis to the front."""
    return [axis, *(a for a in range(rank) if a != axis)]


def from_front(rank: int, axis: int) -> list[int]:
    """Its inverse: the permutation that moves the first axis to `axis`."""
    return [*range(1, axis + 1), 0, *range(axis + 1, rank)]


def numbers(ops: Ops[R], values: Any, dtype: DType) -> R:
    """Fractions in nested lists as a constant, each rounded once."""
    exact = np.array(values, dtype=object)
    return ops.const(exact if dtype == EXACT else exact.astype(np.float64), dtype=dtype)


def weighted(ops: Ops[R], x: R, axis: int, table: Sequence[Any], weights: Sequence[Any] | None) -> R:
    """Sums of weighted entries along an axis: Σ_t weights[j][t] · x[table[j][t]] in place of its entries.

    An entry of weight 0 is left out, whatever it is.
    Without weights the table has one entry for each j, which is taken as it is.
    """
    rank = len(x.shape)
    rows = ops.gather_rows(x if axis == 0 else ops.permute(x, axes=to_front(rank, axis)), ops.const(np.array(table)))
    if weights is not None:
        shape = (*np.shape(table), *[1] * (rank - 1))
        factors = ops.broadcast_to(ops.reshape(numbers(ops, weights, x.dtype), shape=shape), shape=rows.shape)
        parts = ops.mul(rows, factors)
        present = np.array([[weight != 0 for weight in row] for row in weights])
        if not present.all():  # an infinite entry that fills a row up, with weight 0, would make it nan
            mask = ops.broadcast_to(ops.reshape(ops.const(present), shape=shape), shape=rows.shape)
            parts = ops.select(mask, parts, zeros(ops, parts))
        rows = ops.reduce_sum(parts, axis=1)
    return rows if axis == 0 else ops.permute(rows, axes=from_front(rank, axis))
