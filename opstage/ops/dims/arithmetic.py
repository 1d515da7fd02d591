"""Arithmetic of dims beyond the operators of `DimExpr`: real numbers, required divisions, extrema, evaluation."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias, TypeVar, overload

from ..errors import (
    MissingSizeError,
    ShapeError,
    SymbolicDimError,
    UndecidedDimError,
    UnknownDimError,
    UsageError,
    is_called_by_user,
    unhashable,
)
from . import polynomial as poly
from . import radicals as algebra
from . import simplification as simplification
from .expression import UNKNOWN, Dim, DimExpr, as_dim, as_polynomial, division_by_zero
from .radicals import Base, Opaque, Terms
from .relation import Message, build_claim, require_divides

if TYPE_CHECKING:
    from .scope import DimScope


_OnTerms: TypeAlias = Callable[[algebra.Terms, algebra.Terms], algebra.Terms]


class DimFloat:
    """An exact real expression in the dims of one scope, closed under + - * / with ints, floats, Fractions and dims.

    Exponents are multiples of 1/2. Constant results are Fractions. Floats are converted exactly; rounding happens once,
    in `evaluate`. Equal canonical expressions are the same object; neither other equality nor order is decided.
    """

    __slots__ = ("_text", "scope", "terms")

    scope: DimScope
    terms: algebra.Terms
    _text: str

    # NumPy leaves `np.float32(2) * x` to this class.
    __array_ufunc__ = None

    def __init__(self, scope: DimScope, terms: algebra.Terms):
        self._fill(scope, terms, algebra.render(terms))

    def _fill(self, scope: DimScope | None, terms: algebra.Terms, text: str) -> None:
        fill = object.__setattr__
        fill(self, "scope", scope)
        fill(self, "terms", terms)
        fill(self, "_text", text)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"the expression {self} is immutable; cannot set {name!r}")

    def __str__(self) -> str:
        return self._text

    __repr__ = __str__

    def __format__(self, specification: str) -> str:
        return format(self._text, specification)

    def __copy__(self) -> DimFloat:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> DimFloat:
        return self

    # ------------------------------------------------------------------ arithmetic

    def __add__(self, other: Dim | float | Fraction | DimFloat) -> Fraction | DimFloat:
        return self._combine(other, algebra.add)

    __radd__ = __add__

    def __sub__(self, other: Dim | float | Fraction | DimFloat) -> Fraction | DimFloat:
        return self._combine(other, lambda a, b: algebra.add(a, b, -1))

    def __rsub__(self, other: Dim | float | Fraction) -> Fraction | DimFloat:
        return self._combine(other, lambda a, b: algebra.add(b, a, -1))

    def __mul__(self, other: Dim | float | Fraction | DimFloat) -> Fraction | DimFloat:
        return self._combine(other, algebra.multiply)

    __rmul__ = __mul__

    def __truediv__(self, other: Dim | float | Fraction | DimFloat) -> Fraction | DimFloat:
        return self._combine(other, self._divide)

    def __rtruediv__(self, other: Dim | float | Fraction) -> Fraction | DimFloat:
        return self._combine(other, lambda a, b: self._divide(b, a))

    def __neg__(self) -> Fraction | DimFloat:
        return self * -1

    def __pos__(self) -> DimFloat:
        return self

    def __pow__(self, exponent: float | Fraction) -> Fraction | DimFloat:
        if (isinstance(exponent, float) and not math.isfinite(exponent)) or Fraction(exponent) * 2 % 1:
            raise UsageError(
                f"({self})**{exponent} is not supported exactly; use an exponent that is a multiple of 1/2"
            )
        return self.scope.intern_real(algebra.power(self.scope, self.terms, int(exponent * 2)))

    def _divide(self, a: algebra.Terms, b: algebra.Terms) -> algebra.Terms:
        return algebra.multiply(a, algebra.power(self.scope, b, -2))

    def _combine(self, other: object, function: _OnTerms) -> Fraction | DimFloat:
        if other is UNKNOWN or other is _UNKNOWN:
            return _UNKNOWN
        if isinstance(other, DimExpr):
            other = as_real(other)
        if isinstance(other, DimFloat):
            if other.scope is not self.scope:
                raise UsageError(f"{self} and {other} come from different scopes; make both with the same DimScope")
            return self.scope.intern_real(function(self.terms, other.terms))
        if hasattr(type(other), "__index__"):  # bool and NumPy integers
            other = operator.index(other)  # type: ignore[arg-type]
        elif isinstance(other, float):
            if not math.isfinite(other):
                raise UsageError(f"{self} cannot be combined exactly with {other}")
        elif not isinstance(other, Fraction):
            return NotImplemented  # type: ignore[no-any-return]  # handled by the operator that called
        return self.scope.intern_real(function(self.terms, algebra.of_number(other)))

    # ------------------------------------------------------------------ what only a number can do

    def evaluate(self, env: Mapping[str, int]) -> float:
        """Return the value at these sizes; KeyError for a name without one."""
        return algebra.evaluate(self.terms, env)

    def require_defined(self) -> None:
        """Require its divisors and radicands to be at least 1; see `require_at_most` for what happens if they are
        not."""
        for p, text in algebra.divisors(self.terms):
            if self.scope.is_proved(build_claim(poly.constant(1), "<=", poly.scale(p, -1))):
                continue  # a base of a positive leading coefficient, such as min(N, 1) - N - 1 of 1/max(N, 1)
            claim = build_claim(poly.constant(1), "<=", p)
            self.scope.require(claim, f"{self} needs {text} to be at least 1")

    def __eq__(self, other: object) -> bool:
        """Raise in a user's code unless the difference is a number; compare by identity in the framework's."""
        if self is other or not is_called_by_user() or not isinstance(other, (int, float, Fraction, DimExpr, DimFloat)):
            return self is other
        difference = self._combine(other, lambda a, b: algebra.add(a, b, -1))
        return bool(difference == 0 if isinstance(difference, Fraction) else difference)

    def __hash__(self) -> int:
        if is_called_by_user():
            raise unhashable(self._text)
        return object.__hash__(self)

    def __bool__(self) -> bool:
        raise UndecidedDimError(f"whether {self} is 0 is not decided; compare its dims instead")

    def __float__(self) -> NoReturn:
        raise SymbolicDimError(self._text, "float()")

    def __int__(self) -> NoReturn:
        raise SymbolicDimError(self._text, "int(); an integer quotient is written with //")


class _UnknownReal(DimFloat):
    """A real that depends on `UNKNOWN`."""

    __slots__ = ()

    def __init__(self) -> None:
        self._fill(None, {}, "?")

    def _absorb(self, *_: object) -> Any:
        return self

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _absorb
    __truediv__ = __rtruediv__ = __pow__ = __neg__ = _absorb

    def _combine(self, other: object, function: _OnTerms) -> DimFloat:
        return self

    def require_defined(self) -> None:
        return

    def __bool__(self) -> bool:
        return True

    def evaluate(self, env: Mapping[str, int]) -> NoReturn:
        raise UnknownDimError("? lacks a value: an earlier error left the size unknown")


_UNKNOWN: DimFloat = _UnknownReal()

Number: TypeAlias = int | float | Fraction | DimFloat


def as_real(dim: DimExpr) -> DimFloat:
    """Return a dim as a real."""
    if dim is UNKNOWN:
        return _UNKNOWN
    real = dim.scope.intern_real(algebra.of_polynomial(dim.polynomial))
    assert isinstance(real, DimFloat)  # a constant dim is an int
    return real


def ratio(a: Dim, b: Dim) -> Fraction | DimFloat:
    """Return `a / b` exactly: a Fraction for ints, else a `DimFloat`. Raises `ShapeError` for b = 0."""
    a, b = as_dim(a), as_dim(b)
    if isinstance(a, DimExpr):
        return as_real(a) / b
    if isinstance(b, DimExpr):
        return a / as_real(b)
    if b == 0:
        raise division_by_zero(a)
    return Fraction(a, b)


def rsqrt(d: Dim) -> float | DimFloat:
    """Return `1 / sqrt(d)`: a float for an int, else exact. Raises `ShapeError` for an int below 1."""
    d = as_dim(d)
    if isinstance(d, DimExpr):
        result = as_real(d) ** Fraction(-1, 2)
        assert isinstance(result, DimFloat)  # a constant d is an int
        return result
    if d < 1:
        raise ShapeError(f"1/sqrt({d}) is not a number; the size must be at least 1")
    return math.sqrt(Fraction(1, d))


# Products, required divisions, extrema and evaluation -----------------------------------------------------------------

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
        UsageError: no dims; a value that is not a dim.
    """
    return _extremum(dims, greatest=False, declared=True)


def written_extremum(dims: Iterable[Dim], greatest: bool) -> Dim:
    """Return the extremum of one or more dims in the form for parsed text, independent of declared facts."""
    return _extremum(tuple(dims), greatest, declared=False)


def _extremum(dims: tuple[Dim, ...], greatest: bool, declared: bool) -> Dim:
    dims = tuple([as_dim(d) for d in dims])
    if not dims:
        raise UsageError("a minimum or maximum needs at least one dim")
    if any(d is UNKNOWN for d in dims):
        return UNKNOWN
    symbolic = next((d for d in dims if isinstance(d, DimExpr)), None)
    if symbolic is None:
        numbers = [d for d in dims if isinstance(d, int)]
        return max(numbers) if greatest else min(numbers)
    scope, sign = symbolic.scope, ">=" if greatest else "<="
    kept: list[poly.Polynomial] = []
    for d in dims:
        p = as_polynomial(d, symbolic)
        assert p is not None
        if declared:
            if any(scope.is_proved(build_claim(other, sign, p)) for other in kept):
                continue
            kept = [other for other in kept if not scope.is_proved(build_claim(p, sign, other))]
        kept.append(p)
    return scope.intern((simplification.maximum if greatest else simplification.minimum)(scope.atoms, kept))


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
        raise UnknownDimError("? lacks a value: an earlier error left the size unknown")
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
        return _substitute_real(x.terms, sizes)
    return _substitute_polynomial(x.polynomial, sizes) if isinstance(x, DimExpr) and x is not UNKNOWN else x


def _substitute_polynomial(p: poly.Polynomial, sizes: Mapping[str, Dim]) -> Any:
    return sum([c * math.prod([_base(atom, sizes) for atom in monomial]) for monomial, c in p.items()])


def _substitute_real(terms: Terms, sizes: Mapping[str, Dim]) -> Any:
    return sum([c * math.prod([_power(_base(b, sizes), k) for b, k in factors]) for factors, c in terms.items()])


def _base(base: Base, sizes: Mapping[str, Dim]) -> Any:
    if isinstance(base, poly.NamedDim):
        return sizes[base.text]
    if isinstance(base, poly.Minimum):
        return minimum(*[_substitute_polynomial(p, sizes) for p in base.arguments])
    if isinstance(base, poly.Quotient):
        return _substitute_polynomial(base.numerator, sizes) // _substitute_polynomial(base.denominator, sizes)
    if isinstance(base, Opaque):
        return _substitute_real(base.terms, sizes)
    return _substitute_polynomial(base.polynomial, sizes) if isinstance(base, DimExpr) else base


def _power(base: Any, twice: int) -> Any:
    """Return base**(twice/2)."""
    if twice % 2 == 0:
        return (Fraction(base) if isinstance(base, int) else base) ** (twice // 2)
    return base ** Fraction(twice, 2) if isinstance(base, (DimExpr, DimFloat)) else math.sqrt(base) ** twice
