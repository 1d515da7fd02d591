"""The arithmetic of dims that operators do not spell: products, required divisions, extrema and evaluation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar, overload

from ..errors import ShapeError
from . import polynomial as poly
from .expression import UNKNOWN, Dim, DimExpr, as_dim, division_by_zero
from .problems import MissingSizeError, UndecidedDimError, UnknownDimError
from .real import DimFloat
from .relation import Message, Verdict, at_most, require_divides

T = TypeVar("T")


def prod(dims: Iterable[Dim]) -> Dim:
    """The product of dims; 1 for none, so the number of elements of a shape."""
    result: Dim = 1
    for d in dims:
        result = result * d
    return result


def floor_div(a: Dim, b: Dim) -> Dim:
    """`a // b`, rounded down. Raises `ShapeError` for b = 0; a symbolic b must be at least 1."""
    if type(b) is int and b == 0:
        raise division_by_zero(a)
    return a // b


def exact_div(a: Dim, b: Dim, message: Message) -> Dim:
    """`a / b` where b must divide a. Raises `ShapeError` when it does not; records a condition when undecided."""
    require_divides(b, a, message)
    return floor_div(a, b)


def maximum(a: Dim, b: Dim) -> Dim:
    """The greater of two dims where one is at least the other for every allowed value; else `UndecidedDimError`."""
    return b if _is_at_most(a, b, "maximum") else a


def minimum(a: Dim, b: Dim) -> Dim:
    """The smaller of two dims where one is at most the other for every allowed value; else `UndecidedDimError`."""
    return a if _is_at_most(a, b, "minimum") else b


def _is_at_most(a: Dim, b: Dim, what: str) -> bool:
    a, b = as_dim(a), as_dim(b)
    if a is UNKNOWN or b is UNKNOWN:
        return (a is UNKNOWN) == (what == "minimum")  # either way the result is UNKNOWN
    if at_most(a, b) is Verdict.proved:
        return True
    if at_most(b, a) is Verdict.proved:
        return False
    raise UndecidedDimError(
        f"the {what} of {a} and {b} is not decided by what is declared; "
        f'declare where=["{a} <= {b}"] or where=["{b} <= {a}"]'
    )


@overload
def evaluate(x: Dim, env: Mapping[str, int]) -> int: ...
@overload
def evaluate(x: DimFloat, env: Mapping[str, int]) -> float: ...
@overload
def evaluate(x: tuple[Dim, ...], env: Mapping[str, int]) -> tuple[int, ...]: ...
@overload
def evaluate(x: T, env: Mapping[str, int]) -> T: ...
def evaluate(x: Any, env: Mapping[str, int]) -> Any:
    """`x` with sizes put in for names: an int for a dim, a float for a `DimFloat`, tuples element by element.

    Anything else is returned as it is. Raises `MissingSizeError` for a name without a value, and `ShapeError` where an
    expression is undefined (a divisor below 1, the root of a negative number).
    """
    if isinstance(x, tuple):
        return tuple(evaluate(element, env) for element in x)
    if not isinstance(x, (DimExpr, DimFloat)):
        return x
    if x is UNKNOWN:
        raise UnknownDimError("? has no value: an error reported before this one left the size unknown")
    try:
        return x.evaluate(env) if isinstance(x, DimFloat) else poly.evaluate(x.polynomial, env)
    except KeyError as error:
        raise MissingSizeError(str(error.args[0]), env) from None
    except poly.Undefined as error:
        at = ", ".join(f"{name}={value}" for name, value in env.items())
        raise ShapeError(f"{x} is undefined at {at}: {error}") from None
