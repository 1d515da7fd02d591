"""`DimExpr`: an integer expression in named dims that behaves like an int as far as that is sound.

`Dim` is an int or a `DimExpr`; both support the same `+ - * // %`, and constant results are plain ints. So a
shape rule is written once for both.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from fractions import Fraction
from numbers import Real
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias, overload

from ..errors import ShapeError, SymbolicDimError, UnknownDimError, UsageError, is_called_by_user, unhashable
from . import polynomial as poly

if TYPE_CHECKING:
    from .arithmetic import DimFloat
    from .scope import DimScope


class DimExpr:
    """An immutable integer expression in the named dims of one scope, created by `DimScope.dim` and arithmetic.

    Equal canonical expressions of a scope are the same object. The canonical form is a polynomial with integer
    coefficients over names, floor quotients and minima. `a % b` is `a - b*(a//b)`, and max(a, b) is a + b - min(a, b).
    A symbolic divisor must be at least 1; if the declared facts do not imply that, it becomes a condition of the scope.

    Comparisons are about all allowed values: they return True when proved, False when no allowed value satisfies them,
    and otherwise raise `UndecidedDimError`. The hash is by identity and for the framework alone: a user's set or dict
    would never find the size equal to a number, so there it raises `UndecidedDimError`.
    """

    __slots__ = ("_text", "polynomial", "scope")

    scope: DimScope
    polynomial: poly.Polynomial
    _text: str | None  # computed on first use

    # NumPy leaves `np.int64(2) * T` to this class instead of creating an object array.
    __array_ufunc__ = None

    def __init__(self, scope: DimScope, polynomial: poly.Polynomial):
        fill = object.__setattr__
        fill(self, "scope", scope)
        fill(self, "polynomial", polynomial)
        fill(self, "_text", None)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"the dim expression {self} is immutable; cannot set {name!r}")

    def __hash__(self) -> int:
        if is_called_by_user():
            raise unhashable(str(self))
        return object.__hash__(self)

    def __str__(self) -> str:
        if self._text is None:
            object.__setattr__(self, "_text", poly.render(self.polynomial))
        assert self._text is not None
        return self._text

    __repr__ = __str__

    def __format__(self, specification: str) -> str:
        return format(str(self), specification)

    def __copy__(self) -> DimExpr:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> DimExpr:
        return self

    # ------------------------------------------------------------------ arithmetic

    @overload
    def __add__(self, other: Dim) -> Dim: ...
    @overload
    def __add__(self, other: float | Fraction) -> Fraction | DimFloat: ...
    def __add__(self, other: Any) -> Any:
        return self._combine(other, operator.add, poly.add)

    __radd__ = __add__

    @overload
    def __sub__(self, other: Dim) -> Dim: ...
    @overload
    def __sub__(self, other: float | Fraction) -> Fraction | DimFloat: ...
    def __sub__(self, other: Any) -> Any:
        return self._combine(other, operator.sub, lambda p, q: poly.add(p, q, -1))

    @overload
    def __rsub__(self, other: Dim) -> Dim: ...
    @overload
    def __rsub__(self, other: float | Fraction) -> Fraction | DimFloat: ...
    def __rsub__(self, other: Any) -> Any:
        return self._combine(other, lambda a, b: b - a, lambda p, q: poly.add(q, p, -1))

    @overload
    def __mul__(self, other: Dim) -> Dim: ...
    @overload
    def __mul__(self, other: float | Fraction) -> Fraction | DimFloat: ...
    def __mul__(self, other: Any) -> Any:
        return self._combine(other, operator.mul, poly.multiply)

    __rmul__ = __mul__

    def __neg__(self) -> Dim:
        return self.scope.intern(poly.scale(self.polynomial, -1))

    def __pos__(self) -> Dim:
        return self

    def __floordiv__(self, other: Dim) -> Dim:
        return self._combine_exactly(other, self.scope.floor_divide)

    def __rfloordiv__(self, other: Dim) -> Dim:
        return self._combine_exactly(other, lambda p, q: self.scope.floor_divide(q, p))

    def __mod__(self, other: Dim) -> Dim:
        return self._combine_exactly(other, self._remainder)

    def __rmod__(self, other: Dim) -> Dim:
        return self._combine_exactly(other, lambda p, q: self._remainder(q, p))

    def __divmod__(self, other: Dim) -> tuple[Dim, Dim]:
        return self // other, self % other

    def __rdivmod__(self, other: Dim) -> tuple[Dim, Dim]:
        return other // self, other % self

    def __truediv__(self, other: Dim | float | Fraction | DimFloat) -> Fraction | DimFloat:
        return self._real() / other

    def __rtruediv__(self, other: Dim | float | Fraction) -> Fraction | DimFloat:
        return other / self._real()

    @overload
    def __pow__(self, exponent: int) -> Any: ...
    @overload
    def __pow__(self, exponent: float | Fraction) -> Fraction | DimFloat: ...
    def __pow__(self, exponent: Any) -> Any:
        """Return a dim for an integer exponent >= 0, else an exact real; exponents are multiples of 1/2."""
        if isinstance(exponent, int) and exponent >= 0:
            return self.scope.intern(poly.power(self.polynomial, exponent))
        return self._real() ** exponent

    def _combine(
        self,
        other: Any,
        on_reals: Callable[[Any, Any], Any],
        on_polynomials: Callable[[poly.Polynomial, poly.Polynomial], poly.Polynomial],
    ) -> Any:
        if type(other) is DimExpr:
            if other.scope is not self.scope:
                raise _other_scope(self, other)
            return self.scope.intern(on_polynomials(self.polynomial, other.polynomial))
        if isinstance(other, (float, Fraction)):
            return on_reals(self._real(), other)
        return self._combine_exactly(other, on_polynomials)

    def _combine_exactly(
        self, other: object, on_polynomials: Callable[[poly.Polynomial, poly.Polynomial], poly.Polynomial]
    ) -> Dim:
        operand = as_polynomial(other, self)
        if operand is None:
            return UNKNOWN if other is UNKNOWN else NotImplemented  # handled by the operator that called
        return self.scope.intern(on_polynomials(self.polynomial, operand))

    def _remainder(self, p: poly.Polynomial, q: poly.Polynomial) -> poly.Polynomial:
        return poly.add(p, poly.multiply(q, self.scope.floor_divide(p, q)), -1)

    def _real(self) -> DimFloat:
        from .arithmetic import as_real

        return as_real(self)

    # ------------------------------------------------------------------ relations

    def __eq__(self, other: object) -> bool:
        return self is other or self._compare("==", other)

    def __ne__(self, other: object) -> bool:
        return self is not other and self._compare("!=", other)

    def __le__(self, other: Dim) -> bool:
        return self._compare("<=", other)

    def __lt__(self, other: Dim) -> bool:
        return self._compare("<", other)

    def __ge__(self, other: Dim) -> bool:
        return self._compare(">=", other)

    def __gt__(self, other: Dim) -> bool:
        return self._compare(">", other)

    def __bool__(self) -> bool:
        """Return whether the dim is nonzero, as for an int; a dim >= 1 is truthy."""
        return self._compare("!=", 0)

    def _compare(self, relation: str, other: object) -> bool:
        if other is UNKNOWN:
            return relation != "!="
        if type(other) is not DimExpr and isinstance(other, Real) and other % 1 == 0:
            other = int(other)  # type: ignore[call-overload]
        operand = as_polynomial(other, self)
        if operand is None:
            return NotImplemented  # type: ignore[no-any-return]  # handled by the operator that called
        return self.scope.truth(self, relation, self.scope.intern(operand))

    # ------------------------------------------------------------------ what only a number can do

    def __index__(self) -> NoReturn:
        raise SymbolicDimError(str(self), "an index, a length or range()")

    def __int__(self) -> NoReturn:
        raise SymbolicDimError(str(self), "int()")

    def __float__(self) -> NoReturn:
        raise SymbolicDimError(str(self), "float(); a tensor is scaled by the size itself, as in x / T")


Dim: TypeAlias = int | DimExpr
Shape: TypeAlias = tuple[Dim, ...]


class _UnknownDim(DimExpr):
    """The type of `UNKNOWN`."""

    __slots__ = ()

    def __init__(self) -> None:
        object.__setattr__(self, "_text", "?")

    def _absorb(self, *_: object) -> Any:
        return self

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _absorb
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __neg__ = _absorb

    def __pow__(self, exponent: Any) -> Any:
        return self if isinstance(exponent, int) and exponent >= 0 else self._real()

    def _compare(self, relation: str, other: object) -> bool:
        return relation != "!="

    def __hash__(self) -> int:
        return self._no_number() if is_called_by_user() else object.__hash__(self)

    def __ne__(self, other: object) -> bool:
        return False

    def __bool__(self) -> bool:
        return True

    def _no_number(self, *_: object) -> NoReturn:
        raise UnknownDimError("? lacks a value: an earlier error left the size unknown")

    __index__ = __int__ = __float__ = _no_number


UNKNOWN: DimExpr = _UnknownDim()
"""A dim that is unknown after an earlier error: arithmetic returns it unchanged, and relations with it are proved."""


def as_polynomial(value: object, beside: DimExpr) -> poly.Polynomial | None:
    """Return the polynomial of an int or of a dim in the scope of `beside`; None for `UNKNOWN` and values that are not
    dims.

    Raises `UsageError` for a dim of another scope.
    """
    if type(value) is int:
        return poly.constant(value)
    if isinstance(value, DimExpr):
        if value is UNKNOWN:
            return None
        if value.scope is not beside.scope:
            raise _other_scope(beside, value)
        return value.polynomial
    if hasattr(type(value), "__index__"):  # bool and NumPy integers
        return poly.constant(operator.index(value))  # type: ignore[arg-type]
    return None


def as_dim(value: object) -> Dim:
    """Return `value` as a plain int or dim; raises `UsageError` for anything else."""
    if type(value) is int or isinstance(value, DimExpr):
        return value
    if hasattr(type(value), "__index__"):
        return operator.index(value)  # type: ignore[arg-type]
    raise UsageError(f"a dim is an int or a symbolic expression, not {value!r} of type {type(value).__name__}")


def _other_scope(a: DimExpr, b: DimExpr) -> UsageError:
    return UsageError(
        f"{a} and {b} come from different scopes, so nothing relates them; make both with the same DimScope"
    )


def division_by_zero(numerator: object) -> ShapeError:
    """Return the error for `numerator // 0`, the same for ints and symbolic dims."""
    return ShapeError(f"{numerator} is divided by 0; a divisor of a size must be at least 1")
