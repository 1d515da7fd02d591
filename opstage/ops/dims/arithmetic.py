"""Arithmetic of dims without an operator: products, required divisions, extrema and evaluation."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Any, TypeVar, overload

from ..errors import ShapeError, UsageError
from . import canonical
from . import polynomial as poly
from .expression import UNKNOWN, Dim, DimExpr, as_dim, division_by_zero, polynomial_of
from .problems import MissingSizeError, UnknownDimError
from .real import DimFloat
from .relation import Message, claim_of, require_divides
from .terms import Base, Opaque, Terms

T = TypeVar("T")


def prod(dims: Iterable[Dim]) -> Dim:
    """Return the product of dims; 1 for none. This is the number of elements of a shape."""
    result: Dim = 1
    for d in dims:
        result = result * d
    return result


def floor_div(a: Dim, b: Dim) -> Dim:
    """Return `a // b`, rounded down. Raises `ShapeError` for b = 0; a symbolic b must be at least 1."""
    if type(b) is int and b == 0:
        raise division_by_zero(a)
    return a // b


def exact_div(a: Dim, b: Dim, message: Message) -> Dim:
    """Return `a / b`, where b must divide a. Raises `ShapeError` when it does not; records a condition when
    undecided."""
    require_divides(b, a, message)
    return floor_div(a, b)


def maximum(*dims: Dim) -> Dim:
    """Return the greatest of one or more dims, without those that are proved never to exceed another one."""
    return _extremum(dims, greatest=True, declared=True)


def minimum(*dims: Dim) -> Dim:
    """Return the least of one or more dims, without those that are proved never to be below another one.

    Raises:
        UsageError: no dims; what is no dim.
    """
    return _extremum(dims, greatest=False, declared=True)


def written_extremum(dims: Iterable[Dim], greatest: bool) -> Dim:
    """Return the extremum of one or more dims in the form for parsed text, independent of declared facts."""
    return _extremum(tuple(dims), greatest, declared=False)


def _extremum(dims: tuple[Dim, ...], greatest: bool, declared: bool) -> Dim:
    dims = tuple([as_dim(d) for d in dims])
    if not dims:
        raise UsageError("a minimum or maximum is that of one dim or more; there is none")
    if any(d is UNKNOWN for d in dims):
        return UNKNOWN
    symbolic = next((d for d in dims if isinstance(d, DimExpr)), None)
    if symbolic is None:
        numbers = [d for d in dims if isinstance(d, int)]
        return max(numbers) if greatest else min(numbers)
    scope, sign = symbolic.scope, ">=" if greatest else "<="
    kept: list[poly.Polynomial] = []
    for d in dims:
        p = polynomial_of(d, symbolic)
        assert p is not None
        if declared:
            if any(scope.is_proved(claim_of(other, sign, p)) for other in kept):
                continue
            kept = [other for other in kept if not scope.is_proved(claim_of(p, sign, other))]
        kept.append(p)
    return scope.intern((canonical.maximum if greatest else canonical.minimum)(scope.atoms, kept))


@overload
def evaluate(x: Dim, env: Mapping[str, int]) -> int: ...
@overload
def evaluate(x: DimFloat, env: Mapping[str, int]) -> float: ...
@overload
def evaluate(x: tuple[Dim, ...], env: Mapping[str, int]) -> tuple[int, ...]: ...
@overload
def evaluate(x: T, env: Mapping[str, int]) -> T: ...
def evaluate(x: Any, env: Mapping[str, int]) -> Any:
    """Return `x` with sizes substituted for names: an int for a dim, a float for a `DimFloat`, tuples element by
    element.

    Anything else is returned unchanged. Raises `MissingSizeError` for a name without a value, and `ShapeError` if an
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


def substitute(x: Any, sizes: Mapping[str, Dim]) -> Any:
    """Return `x` with sizes, which may be symbolic, in place of names; exact, unless it has a root.

    Dims and `DimFloat` are substituted, in tuples too; anything else is returned unchanged.
    """
    if isinstance(x, tuple):
        return tuple([substitute(element, sizes) for element in x])
    if isinstance(x, DimFloat):
        return _real_at(x.terms, sizes)
    return _polynomial_at(x.polynomial, sizes) if isinstance(x, DimExpr) and x is not UNKNOWN else x


def _polynomial_at(p: poly.Polynomial, sizes: Mapping[str, Dim]) -> Any:
    return sum([c * math.prod([_base(atom, sizes) for atom in monomial]) for monomial, c in p.items()])


def _real_at(terms: Terms, sizes: Mapping[str, Dim]) -> Any:
    return sum([c * math.prod([_power(_base(b, sizes), k) for b, k in factors]) for factors, c in terms.items()])


def _base(base: Base, sizes: Mapping[str, Dim]) -> Any:
    if isinstance(base, poly.NamedDim):
        return sizes[base.text]
    if isinstance(base, poly.Minimum):
        return minimum(*[_polynomial_at(p, sizes) for p in base.arguments])
    if isinstance(base, poly.Quotient):
        return _polynomial_at(base.numerator, sizes) // _polynomial_at(base.denominator, sizes)
    if isinstance(base, Opaque):
        return _real_at(base.terms, sizes)
    return _polynomial_at(base.polynomial, sizes) if isinstance(base, DimExpr) else base


def _power(base: Any, twice: int) -> Any:
    """Return base**(twice/2)."""
    if twice % 2 == 0:
        return (Fraction(base) if isinstance(base, int) else base) ** (twice // 2)
    return base ** Fraction(twice, 2) if isinstance(base, (DimExpr, DimFloat)) else math.sqrt(base) ** twice
