"""Canonical forms of static arguments: axes, per-axis tuples, shapes.

Methods of `Ops` convert arguments once, so that shape rules, derivative rules and kernels only see nonnegative axes and
full tuples. An argument without a canonical form becomes an `InvalidStatic`, and the op is still bound:
`Primitive.infer` raises it, so that it is located and collected like any other error of an op.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping, Sequence, Set
from fractions import Fraction
from typing import Any, NoReturn, SupportsIndex, TypeAlias

import numpy as np

from .dims import Dim, DimExpr, DimFloat
from .errors import LocatedError, ShapeError, brief
from .types import show_shape

# Numbers from users: NumPy scalars and arrays of one number become Python numbers -------------------------------------


def plain(value: Any) -> Any:
    """Convert a NumPy scalar, or an array without axes, to a Python number; return anything else unchanged."""
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and not value.ndim):
        return value.item()
    return value


def plain_index(value: Any) -> Any:
    """Convert a NumPy integer, which is not a static parameter, to a Python int; return anything else unchanged."""
    return int(value) if isinstance(value, np.integer) else value


def plain_sequence(value: Any) -> Any:
    """Convert as `plain`, and an array with one axis to a tuple of Python numbers."""
    if isinstance(value, np.ndarray) and value.ndim == 1:
        return tuple(value.tolist())
    return plain(value)


# `InvalidStatic`: the placeholder of a static argument that has no canonical form -------------------------------------


class InvalidStatic(tuple[()]):
    """An empty tuple that carries the reason why an argument is invalid, and the called op."""

    reason: str
    op: str
    error: type[LocatedError]

    def __new__(cls, reason: str, op: str, error: type[LocatedError] = ShapeError) -> InvalidStatic:
        invalid = super().__new__(cls)
        invalid.reason = reason
        invalid.op = op
        invalid.error = error
        return invalid

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other

    def raise_(self) -> NoReturn:
        raise self.error(self.reason, op=self.op)


def raise_invalid(static: Mapping[str, Any]) -> None:
    """Raise the first invalid static parameter, including those in tuples; a symbolic number must be defined."""
    for value in static.values():
        if isinstance(value, tuple):
            _raise_invalid_entry(value)
        elif isinstance(value, DimFloat):
            value.require_defined()


def _raise_invalid_entry(value: tuple[Any, ...]) -> None:
    if isinstance(value, InvalidStatic):
        value.raise_()
    for entry in value:
        if isinstance(entry, tuple):
            _raise_invalid_entry(entry)


# Canonical forms of static arguments: axes, per-axis tuples, shapes ---------------------------------------------------

Number: TypeAlias = "int | float | Fraction | DimFloat"
ShapeLike: TypeAlias = "Sequence[Dim]"
Axis: TypeAlias = int
"""Of the first operand; negative ones count from the end."""
Axes: TypeAlias = "int | Sequence[int] | None"
IntOrTuple: TypeAlias = "int | tuple[int, ...]"


def normalize_axis(op: str, axis: int, rank: int) -> Any:
    """Return an axis in [0, rank); negative ones count from the end."""
    if type(axis) is not int:
        if isinstance(axis, InvalidStatic):
            return axis
        axis = plain(axis)
        if not isinstance(axis, int) or isinstance(axis, bool):
            return InvalidStatic(f"axis must be an int but is {axis!r}", op)
    if not -rank <= axis < rank:
        allowed = f"{-rank} … {rank - 1}" if rank else "none: it is a scalar"
        return InvalidStatic(f"axis {axis} is out of range for a tensor of rank {rank}, which has axes {allowed}", op)
    return axis % rank


def only_axis(op: str, axis: int | None, rank: int) -> Any:
    """Return an axis in [0, rank); it may be None if there is only one."""
    if axis is None and rank > 1:
        return InvalidStatic(
            f"the axis is missing: of {rank} axes one must be named, such as axis={rank - 1}, the last", op
        )
    return normalize_axis(op, 0 if axis is None else axis, rank)


def normalize_axes(op: str, axis: int | Sequence[int] | None, rank: int) -> Any:
    """Return sorted distinct axes; None means all."""
    if axis is None:
        return tuple(range(rank))
    given: Any = plain_sequence(axis)
    if not isinstance(given, (tuple, list)):
        return (normalize_axis(op, given, rank),)
    entries = tuple(normalize_axis(op, a, rank) for a in given)
    invalid = [entry for entry in entries if isinstance(entry, InvalidStatic)]
    if invalid:
        return invalid[0]
    axes = tuple(sorted(entries))
    if len(set(axes)) != len(axes):
        return InvalidStatic(f"axis {tuple(given)} names an axis twice", op)
    return axes


def per_axis(op: str, name: str, value: Any, rank: int, *, least: int) -> Any:
    """Return an int for each of `rank` spatial axes, from an int or a sequence of ints >= `least`."""
    if type(value) is tuple and len(value) == rank and all(type(e) is int and e >= least for e in value):
        return value  # nearly always, as derivative rules pass on what is canonical
    value = plain_sequence(value)
    values = tuple(value) if isinstance(value, (tuple, list)) else (value,) * rank
    if len(values) != rank:
        return InvalidStatic(f"{name} has {len(values)} entries but there are {rank} spatial axes: {values}", op)
    entries = [as_int(op, name, entry) for entry in values]
    if any(isinstance(e, InvalidStatic) or isinstance(v, bool) or e < least for v, e in zip(values, entries)):
        return InvalidStatic(f"{name} must be ints that are at least {least} but is {values}", op)
    return tuple(entries)


def as_shape(op: str, shape: Sequence[Dim], *, inferred: bool = False) -> Any:
    """Return a shape of ints >= 0 and dims; with `inferred`, one entry may be -1."""
    if type(shape) is tuple and all(type(d) is int and 0 < d < 2**31 for d in shape) and math.prod(shape) < 2**63:
        return shape  # nearly always
    shape = plain_sequence(shape)
    if isinstance(shape, (int, DimExpr)):
        shape = (shape,)
    shape = as_sequence(op, "a shape", shape)
    if isinstance(shape, InvalidStatic):
        return shape
    result = tuple(int(d) if not isinstance(d, (int, DimExpr)) and hasattr(d, "__index__") else d for d in shape)
    for d in result:
        if not isinstance(d, (int, DimExpr)) or isinstance(d, bool):
            return InvalidStatic(f"a shape holds ints and dims but is {show_shape(result)}", op)
        if isinstance(d, int) and d < (-1 if inferred else 0):
            return InvalidStatic(f"a shape holds sizes that are at least 0 but is {show_shape(result)}", op)
    if math.prod([d for d in result if isinstance(d, int) and d]) >= 2**63:
        return InvalidStatic(f"a shape has fewer than 2**63 elements but is {brief(result)}", op)
    return result


def as_int(op: str, name: str, value: Any) -> Any:
    """Return an int, from any value with `__index__`."""
    if type(value) is int:
        return value
    value = plain(value)
    if not isinstance(value, SupportsIndex) or isinstance(value, (DimExpr, np.ndarray)):
        return InvalidStatic(f"{name} must be an integer but is {brief(value)}", op)
    return operator.index(value)


def as_sequence(op: str, name: str, value: Any) -> Any:
    """Return a tuple, from an array with one axis or another ordered iterable."""
    value = plain_sequence(value)
    if isinstance(value, InvalidStatic):
        return value
    if not isinstance(value, Iterable) or isinstance(value, (str, Mapping, Set)):
        return InvalidStatic(f"{name} must be a sequence but is {brief(value)}", op)
    return tuple(value)


def as_dim(op: str, name: str, value: Any) -> Any:
    """Return a size or position as an int or dim."""
    return value if isinstance(value, DimExpr) else as_int(op, name, value)


def as_number(op: str, name: str, value: Any) -> Any:
    """Return a number."""
    value = plain(value)
    if isinstance(value, (int, float, Fraction, DimExpr, DimFloat, InvalidStatic)):
        return value
    if hasattr(value, "shape"):
        return InvalidStatic(
            f"{name} is a tensor, and must be a number: it is part of the program, not of its data", op
        )
    return InvalidStatic(f"{name} must be a number but is {value!r}", op)


def as_flag(op: str, name: str, value: Any) -> Any:
    """Return a boolean, from any number that is 0 or 1."""
    value = plain(value)
    if isinstance(value, InvalidStatic):
        return value
    if isinstance(value, int) and value in (0, 1):
        return bool(value)
    return InvalidStatic(f"{name} must be True or False but is {brief(value)}", op)
