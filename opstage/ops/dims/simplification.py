"""Simplification of floor quotients and minima: factor out, cancel and merge common parts.

Nothing here depends on declared facts: a name is only assumed to be a natural number, so an expression keeps its form
when facts are added later. `proof` derives consequences of declared facts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

from ..errors import TooComplexError
from . import polynomial as poly
from .polynomial import Atom, AtomTable, Minimum, Monomial, NamedDim, Polynomial, Quotient

_MOST_ARGUMENTS = 8  # of a minimum into which others are merged
_MOST_QUOTIENTS = 16  # into which a quotient of minima is split


def floor_divide(atoms: AtomTable, numerator: Polynomial, denominator: Polynomial) -> Polynomial:
    """Return `numerator // denominator` in canonical form, for a denominator that is positive wherever it is defined.

    Multiples of the denominator are factored out, common factors cancel, and nested quotients merge:
    (x//m + y)//d = (x + m*y)//(m*d) for positive m, d, because y is an integer. A quotient of a minimum is the minimum
    of the quotients.
    """
    whole: Polynomial = {}
    while True:
        numerator, denominator = _cancel(numerator, denominator)
        pulled, numerator = poly.divide(numerator, denominator)
        whole = poly.add(whole, pulled)
        if not numerator:
            return whole
        divisor = poly.constant_value(denominator)
        if divisor is not None:
            if poly.constant_value(numerator) is not None:
                return whole  # a remainder in [0, divisor)
            # (g*x + k)//(g*c) = (x + k//g)//c
            common = math.gcd(divisor, *(c for m, c in numerator.items() if m))
            if common > 1:
                numerator = {m: q for m, c in numerator.items() if (q := c // common)}
                denominator = poly.constant(divisor // common)
                continue
        inner = _lone_quotient(numerator)
        if inner is None:
            break
        outer = poly.add(numerator, poly.variable(inner), -1)
        numerator = poly.add(inner.numerator, poly.multiply(inner.denominator, outer))
        denominator = poly.multiply(inner.denominator, denominator)
    terms = _minimum_terms(numerator)
    count = math.prod(len(term.minimum.arguments) for term in terms)
    # Division by a sum with a minimum would leave that minimum in the remainder again.
    if not terms or count > _MOST_QUOTIENTS or any(isinstance(atom, Minimum) for m in denominator for atom in m):
        return poly.add(whole, poly.variable(atoms.quotient(numerator, denominator)))
    quotients = [floor_divide(atoms, n, denominator) for n in _alternatives(numerator, terms[0])]
    return poly.add(whole, (minimum if terms[0].coefficient > 0 else maximum)(atoms, quotients))


def minimum(atoms: AtomTable, arguments: Iterable[Polynomial]) -> Polynomial:
    """Return the least of one or more polynomials in canonical form.

    Common parts are factored out: min(a + c, b + c) = min(a, b) + c, and min(c*a, c*b) = c*min(a, b) for a natural c.
    Nested minima merge, and an argument that is another one plus a natural number is dropped.
    """
    arguments = list(arguments)
    if len(arguments) > poly.MOST_ARGUMENTS:
        raise TooComplexError(f"an extremum of {len(arguments):,} sizes")
    distinct = _least(arguments)
    if len(distinct) == 1:
        return distinct[0]
    shift: Polynomial = {}
    for monomial in {monomial: None for p in distinct for monomial in p}:
        lowest = min([p.get(monomial, 0) for p in distinct])
        if lowest:
            shift[monomial] = lowest
    distinct = [poly.add(p, shift, -1) for p in distinct]  # now with natural coefficients
    factor = math.gcd(*(poly.content(p) for p in distinct))
    shared = tuple(atom for atom in poly.common_factor(*distinct) if _is_natural(atom))
    distinct = [{m: c // factor for m, c in poly.strip(p, shared).items()} for p in distinct]
    merged = _merged(distinct)
    least = poly.variable(atoms.minimum(distinct)) if merged is None else minimum(atoms, merged)
    return poly.add(shift, poly.multiply({shared: factor}, least))


def maximum(atoms: AtomTable, arguments: Iterable[Polynomial]) -> Polynomial:
    """Return the greatest of one or more polynomials, as a minimum."""
    return poly.scale(minimum(atoms, [poly.scale(p, -1) for p in arguments]), -1)


def substitute(atoms: AtomTable, p: Polynomial, image: Callable[[Atom], Polynomial | None]) -> Polynomial:
    """Replace every atom by its image; None keeps a name, and rebuilds any other atom from its parts."""

    def replacement(atom: Atom) -> Polynomial:
        found = image(atom)
        if found is not None:
            return found
        if isinstance(atom, NamedDim):
            return poly.variable(atom)
        parts = [substitute(atoms, part, image) for part in poly.parts(atom)]
        if isinstance(atom, Minimum):
            return minimum(atoms, parts)
        if poly.constant_value(parts[1]) == 0:
            return poly.variable(atom)  # undefined there, so unchanged
        return floor_divide(atoms, *parts)

    result: Polynomial = {}
    for monomial, coefficient in p.items():
        term = poly.constant(coefficient)
        for atom in monomial:
            term = poly.multiply(term, replacement(atom))
        result = poly.add(result, term)
    return result


# ---------------------------------------------------------------------- quotients


def _cancel(numerator: Polynomial, denominator: Polynomial) -> tuple[Polynomial, Polynomial]:
    """Cancel common factors exactly, such that a positive denominator stays positive."""
    common = math.gcd(poly.content(numerator), poly.content(denominator))
    if (poly.constant_value(denominator) or 1) < 0:
        common = -common
    if common != 1:
        numerator = {m: c // common for m, c in numerator.items()}
        denominator = {m: c // common for m, c in denominator.items()}
    # Names are never negative; another atom might be, and cancelling it would change the denominator's sign.
    shared = tuple(atom for atom in poly.common_factor(denominator, numerator) if isinstance(atom, NamedDim))
    if shared:
        numerator = poly.strip(numerator, shared)
        denominator = poly.strip(denominator, shared)
    return numerator, denominator


def _lone_quotient(p: Polynomial) -> Quotient | None:
    """Return a quotient that is a term of `p` with coefficient 1, or None."""
    for monomial, coefficient in p.items():
        if coefficient == 1 and len(monomial) == 1 and isinstance(monomial[0], Quotient):
            return monomial[0]
    return None


# ---------------------------------------------------------------------- minima


class _MinimumTerm(NamedTuple):
    """A term that is a minimum multiplied by a coefficient and a natural cofactor."""

    minimum: Minimum
    cofactor: Monomial
    coefficient: int


def _minimum_terms(p: Polynomial) -> list[_MinimumTerm]:
    found = []
    for monomial, coefficient in p.items():
        for atom in monomial:
            if isinstance(atom, Minimum):
                cofactor = poly.without(monomial, (atom,)) or ()
                if all(map(_is_natural, cofactor)):
                    found.append(_MinimumTerm(atom, cofactor, coefficient))
                    break
    return found


def split_minimum(p: Polynomial) -> list[Polynomial]:
    """Return polynomials whose minimum is `p`: p itself, or polynomials without a minimum with a positive
    coefficient."""
    for term in _minimum_terms(p):
        if term.coefficient > 0:
            return [each for alternative in _alternatives(p, term) for each in split_minimum(alternative)]
    return [p]


def _alternatives(p: Polynomial, term: _MinimumTerm) -> list[Polynomial]:
    """Return `p` with each argument substituted for the minimum: p is their minimum, or their maximum for a negative
    term."""
    factor = {term.cofactor: term.coefficient}
    rest = poly.add(p, poly.multiply(factor, poly.variable(term.minimum)), -1)
    return [poly.add(rest, poly.multiply(factor, argument)) for argument in term.minimum.arguments]


def _merged(arguments: list[Polynomial]) -> list[Polynomial] | None:
    """Return the arguments with one nested minimum expanded; None if there is none, or it is too large."""
    for index, p in enumerate(arguments):
        for term in _minimum_terms(p):
            if len(arguments) - 1 + len(term.minimum.arguments) <= _MOST_ARGUMENTS:
                return arguments[:index] + _alternatives(p, term) + arguments[index + 1 :]
    return None


def _least(arguments: list[Polynomial]) -> list[Polynomial]:
    """Return the distinct arguments, without those that exceed another one by a natural number."""
    kept: list[Polynomial] = []
    for p in arguments:
        if not any(_is_natural_sum(poly.add(p, other, -1)) for other in kept):
            kept = [other for other in kept if not _is_natural_sum(poly.add(other, p, -1))]
            kept.append(p)
    return kept


def _is_natural_sum(p: Polynomial) -> bool:
    return all(coefficient > 0 and all(map(_is_natural, monomial)) for monomial, coefficient in p.items())


def _is_natural(atom: Atom) -> bool:
    """Return whether an atom is visibly at least 0 wherever it is defined."""
    if isinstance(atom, Quotient):
        return _is_natural_sum(atom.numerator)
    return all(map(_is_natural_sum, poly.parts(atom)))
