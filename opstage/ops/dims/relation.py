"""Statements about dims: proofs, counterexamples, and conditions for undecided ones.

A statement is about every allowed value of the named dims. *Proved*: it holds for all of them. *Refuted*: some allowed
value breaks it. *Undecided*: neither could be shown; then `require_…` records a condition, to be enforced once the
values are known, and the check continues.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from ..errors import MissingSizeError, ShapeError, SourceLine, UsageError
from . import polynomial as poly
from .expression import UNKNOWN, Dim, DimExpr, as_dim, as_polynomial, division_by_zero
from .facts import Claim, as_congruence
from .simplification import split_minimum

if TYPE_CHECKING:
    from .scope import DimScope

Message: TypeAlias = str | Callable[[], str]


class Verdict(enum.Enum):
    """The verdict on a statement about every allowed value."""

    proved = "proved"
    refuted = "refuted"
    undecided = "undecided"


_PROVED, _REFUTED = Verdict.proved, Verdict.refuted


@dataclass(frozen=True, eq=False)
class Condition:
    """A relation that must hold at run time, in the user's names, with the message if it does not."""

    relation: str
    claim: Claim
    message: str = ""
    source: SourceLine | None = None

    def holds(self, env: Mapping[str, int]) -> bool:
        """Return whether the relation holds at these sizes; `MissingSizeError` if a name has no value."""
        try:
            return self.claim.holds(env) is True
        except KeyError as error:
            raise MissingSizeError(str(error.args[0]), env) from None

    def __str__(self) -> str:
        return self.relation


def build_claim(left: poly.Polynomial, operator: str, right: poly.Polynomial) -> Claim:
    """Return the claim `left operator right`, for one of == <= < >= >."""
    if operator in (">=", ">"):
        left, right = right, left
    difference = poly.add(right, left, -1)
    if operator in ("<", ">"):
        difference = poly.add(difference, poly.constant(1), -1)
    return Claim(operator == "==", difference)


def equal(a: Dim, b: Dim) -> Verdict:
    """Return the verdict on `a == b` for every allowed value."""
    if a is b:
        return _PROVED
    if type(a) is int and type(b) is int:
        return _PROVED if a == b else _REFUTED
    return _verdict(a, "==", b)


def at_most(a: Dim, b: Dim) -> Verdict:
    """Return the verdict on `a <= b` for every allowed value."""
    if type(a) is int and type(b) is int:
        return _PROVED if a <= b else _REFUTED
    return _verdict(a, "<=", b)


def witness(a: Dim, operator: str, b: Dim) -> dict[str, int] | None:
    """Return allowed values at which `a operator b` fails, for one of == <= < >= >; None if a small search finds none.

    They include every name that the declared facts relate to those of a and b. Two ints that violate the relation have
    the witness {}.
    """
    if operator not in ("==", "<=", "<", ">=", ">"):
        raise UsageError(f"a relation of sizes is one of ==, <=, <, >=, >, not {operator!r}")
    scope, claim = _claim(a, operator, b)
    if scope is not None:
        return scope.witness(claim)
    return None if _holds_for_ints(claim) else {}


def require_equal(a: Dim, b: Dim, message: Message) -> None:
    """Require `a == b`. Raises `ShapeError` when refuted; records a condition when undecided."""
    if a is b:
        return
    if type(a) is int and type(b) is int:
        if a == b:
            return
        raise ShapeError(_text(message))
    _require(a, "==", b, message)


def require_at_most(a: Dim, b: Dim, message: Message) -> None:
    """Require `a <= b`. Raises `ShapeError` when refuted; records a condition when undecided."""
    if type(a) is int and type(b) is int:
        if a <= b:
            return
        raise ShapeError(_text(message))
    _require(a, "<=", b, message)


def require_divides(k: Dim, n: Dim, message: Message) -> None:
    """Require that k divides n. Raises `ShapeError` when refuted; records a condition when undecided."""
    if type(k) is int and k == 0:
        raise division_by_zero(n)
    _require(n % k, "==", 0, message)


def is_one(d: Dim) -> bool:
    """Return whether `d` is literally 1; a named dim never is, even if declared to be."""
    return isinstance(d, int) and d == 1


def is_zero(d: Dim) -> bool:
    """Return whether `d` is literally 0."""
    return isinstance(d, int) and d == 0


def constraint_text(scope: DimScope, claim: Claim, declared: bool = False) -> str:
    """Return the claim as the shortest constraint in the user's names, such as `M == N`, `T <= 1024` or `N % 3 == 0`.

    If `declared`, the text stays equivalent even if names that are positive so far may be 0 later.
    """
    if not declared:
        claim = _without_minima(scope, claim)
    p = claim.polynomial
    if not declared:
        # A positive factor common to all terms is redundant: B*M == B*N is M == N.
        p = poly.strip(p, tuple(atom for atom in poly.common_factor(p) if scope.is_positive(atom)))
    common = math.gcd(*(coefficient for monomial, coefficient in p.items() if monomial or claim.is_zero))
    if common > 1:
        p = {monomial: rounded for monomial, coefficient in p.items() if (rounded := coefficient // common)}
    if claim.is_zero:
        congruence = as_congruence(scope.atoms, p)
        if congruence is not None:
            dividend, divisor = poly.as_operand(congruence.dividend), poly.as_operand(congruence.divisor)
            return f"{dividend} % {divisor} == {congruence.remainder}"
    low = {monomial: -coefficient for monomial, coefficient in p.items() if coefficient < 0}
    high = {monomial: coefficient for monomial, coefficient in p.items() if coefficient > 0}
    if claim.is_zero:
        sides = sorted((high, low), key=lambda side: (poly.constant_value(side) is not None, poly.render(side)))
        return f"{poly.render(sides[0])} == {poly.render(sides[1])}"
    if poly.constant_value(low) is not None and poly.constant_value(high) is None:
        return f"{poly.render(high)} >= {poly.render(low)}"
    return f"{poly.render(low)} <= {poly.render(high)}"


def _without_minima(scope: DimScope, claim: Claim) -> Claim:
    """Return the claim without a redundant minimum: T == min(T, 8) is T <= 8."""
    p = claim.polynomial
    if not any(isinstance(atom, poly.Minimum) for monomial in p for atom in monomial):
        return claim
    if claim.is_zero:
        opposite = poly.scale(p, -1)
        if scope.is_proved(Claim(False, p)):
            p = opposite
        elif not scope.is_proved(Claim(False, opposite)):
            return claim
    open_ones = [each for each in split_minimum(p) if not scope.is_proved(Claim(False, each))]
    return Claim(False, open_ones[0]) if len(open_ones) == 1 else claim


def values_text(values: Mapping[str, int], claim: Claim) -> str:
    """Format the values of the names in the claim: `M=2, N=3`."""
    mentioned = {name.text for name in poly.iterate_names(claim.polynomial)}
    return ", ".join(f"{name}={value}" for name, value in values.items() if name in mentioned)


def _verdict(a: Dim, operator: str, b: Dim) -> Verdict:
    scope, claim = _claim(a, operator, b)
    if scope is not None:
        return scope.verdict(claim)
    return _PROVED if _holds_for_ints(claim) else _REFUTED


def _require(a: Dim, operator: str, b: Dim, message: Message) -> None:
    scope, claim = _claim(a, operator, b)
    if scope is not None:
        scope.require(claim, message)
    elif not _holds_for_ints(claim):
        raise ShapeError(_text(message))


def _claim(a: Dim, operator: str, b: Dim) -> tuple[DimScope | None, Claim]:
    """Return the claim and its scope: without a scope for two ints, and for `UNKNOWN`, of which every claim holds."""
    a, b = as_dim(a), as_dim(b)
    if a is UNKNOWN or b is UNKNOWN:
        return None, Claim(True, {})
    symbolic = a if isinstance(a, DimExpr) else b
    if not isinstance(symbolic, DimExpr):
        assert isinstance(a, int) and isinstance(b, int)
        return None, build_claim(poly.constant(a), operator, poly.constant(b))
    left, right = as_polynomial(a, symbolic), as_polynomial(b, symbolic)
    assert left is not None and right is not None
    return symbolic.scope, build_claim(left, operator, right)


def _holds_for_ints(claim: Claim) -> bool:
    value = claim.polynomial.get((), 0)
    return value == 0 if claim.is_zero else value >= 0


def _text(message: Message) -> str:
    return message if isinstance(message, str) else message()
