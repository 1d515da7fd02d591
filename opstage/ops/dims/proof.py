"""What follows from the facts: `Prover` answers whether a claim holds for every allowed value, or for none.

An inequality p >= 0 is shown by bounding p over the ranges of its atoms, less up to three known inequalities, each
times a nonnegative term (so K <= T and T <= S give K <= S). A floor quotient q = n//d counts as an atom with a
range of its own and the known inequalities d*q <= n <= d*q + d - 1. Every answer is sound; some truths are not found.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import chain

from . import polynomial as poly
from .bounds import Range, lower_bound
from .facts import Claim, Facts

_MOST_COMBINED = 3  # known inequalities in one proof
_MOST_BOUNDS = 120  # bounds computed in one proof


class Prover:
    """Decides claims from `facts`; remembers its answers."""

    def __init__(self, facts: Facts):
        self.facts = facts
        self._ranges: dict[poly.Quotient, Range] = {}
        self._proved = {claim.key: True for claim in facts.claims}

    def always(self, claim: Claim) -> bool:
        """Whether the claim is shown to hold for every allowed value."""
        key = claim.key
        found = self._proved.get(key)
        if found is None:
            p = self.facts.normal(claim.polynomial)
            found = self._is_nonnegative(p) and (not claim.is_zero or self._is_nonnegative(poly.scale(p, -1)))
            self._proved[key] = found
        return found

    def never(self, claim: Claim) -> bool:
        """Whether the claim is shown to fail for every allowed value."""
        p = claim.polynomial
        below = Claim(False, poly.add(poly.scale(p, -1), poly.constant(1), -1))
        if self.always(below):
            return True
        return claim.is_zero and (
            self.always(Claim(False, poly.add(p, poly.constant(1), -1))) or _has_no_root(self.facts.normal(p))
        )

    def _is_nonnegative(self, p: poly.Polynomial, most_combined: int = _MOST_COMBINED) -> bool:
        value = poly.constant_value(p)
        if value is not None:
            return value >= 0
        known = [*self.facts.inequalities]
        known += [poly.scale(equation, sign) for equation in self.facts.equations for sign in (1, -1)]
        known += [inequality for quotient in _quotients(p, *known) for inequality in _defining_inequalities(quotient)]
        bounds_left = _MOST_BOUNDS

        def show(q: poly.Polynomial, multiple: int, to_combine: int) -> bool:
            """Whether q > -multiple; as `multiple * p >= q` and p is an integer, p >= 0 follows."""
            nonlocal bounds_left
            if to_combine == 0:
                bounds_left -= 1
                least = lower_bound(q, self._range_of)
                return least is not None and least > -multiple
            for times, inequality, factor in self._eliminations(q, known):
                rest = poly.add(poly.scale(q, times), poly.multiply(factor, inequality), -1)
                if show(rest, times * multiple, to_combine - 1):
                    return True
                if bounds_left <= 0:
                    return False
            return False

        return any(show(p, 1, to_combine) for to_combine in range(most_combined + 1))

    def _eliminations(
        self, p: poly.Polynomial, known: list[poly.Polynomial]
    ) -> Iterator[tuple[int, poly.Polynomial, poly.Polynomial]]:
        """The (times, inequality, factor) where `times*p - factor*inequality` lacks a term of p, worst terms first."""
        for monomial, coefficient in sorted(p.items(), key=lambda term: term[1] > 0):
            if not monomial:
                continue
            for inequality in known:
                for other, c in inequality.items():
                    cofactor = poly.without(monomial, other) if other and c * coefficient > 0 else None
                    if cofactor is not None and all(self._is_natural(atom) for atom in cofactor):
                        common = math.gcd(c, coefficient)
                        yield abs(c) // common, inequality, {cofactor: abs(coefficient) // common}

    def _is_natural(self, atom: poly.Atom) -> bool:
        low = self._range_of(atom).low
        return low is not None and low >= 0

    def _range_of(self, atom: poly.Atom) -> Range:
        if isinstance(atom, poly.Name):
            return self.facts.range_of(atom)
        found = self._ranges.get(atom)
        if found is None:
            found = self._ranges[atom] = self._quotient_range(atom)
        return found

    def _quotient_range(self, quotient: poly.Quotient) -> Range:
        """The range of q = n//d from those of n and of d >= 1, and from what the facts say."""
        n_low, n_high = self._range_of_polynomial(quotient.numerator)
        d_low, d_high = self._range_of_polynomial(quotient.denominator)
        d_low = max(d_low or 1, 1)
        d_high = None if d_high is None else max(d_high, d_low)
        low, high = n_low, n_high
        if n_low is not None:
            low = n_low // d_low if n_low < 0 else 0 if d_high is None else n_low // d_high
        if n_high is not None:
            high = n_high // d_low if n_high >= 0 else -1 if d_high is None else n_high // d_high
        # n >= k*d means q >= k, and n < k*d means q < k. This range stands while the two are looked for.
        self._ranges[quotient] = Range(low, high)
        for k in (0, -1):
            if (low is None or low < k) and self._is_nonnegative(_minus_times(quotient, k), 1):
                low = k
        for k in (0, 1):
            below = poly.add(poly.constant(-1), _minus_times(quotient, k), -1)
            if (high is None or high >= k) and self._is_nonnegative(below, 1):
                high = k - 1
        return Range(low, high)

    def _range_of_polynomial(self, p: poly.Polynomial) -> Range:
        low = lower_bound(p, self._range_of)
        high = lower_bound(poly.scale(p, -1), self._range_of)
        return Range(None if low is None else math.ceil(low), None if high is None else -math.ceil(high))


def _quotients(*polynomials: poly.Polynomial) -> list[poly.Quotient]:
    """The floor quotients that are atoms of the polynomials, and those inside them."""
    found: dict[poly.Quotient, None] = {}
    waiting = list(polynomials)
    while waiting:
        for atom in chain.from_iterable(waiting.pop()):
            if isinstance(atom, poly.Quotient) and atom not in found:
                found[atom] = None
                waiting += [atom.numerator, atom.denominator]
    return list(found)


def _defining_inequalities(quotient: poly.Quotient) -> tuple[poly.Polynomial, poly.Polynomial]:
    """n - d*q >= 0 and d*q + d - 1 - n >= 0."""
    product = poly.multiply(quotient.denominator, poly.variable(quotient))
    rest = poly.add(quotient.numerator, product, -1)
    return rest, poly.add(poly.add(quotient.denominator, poly.constant(1), -1), rest, -1)


def _minus_times(quotient: poly.Quotient, k: int) -> poly.Polynomial:
    """n - k*d."""
    return poly.add(quotient.numerator, quotient.denominator, -k)


def _has_no_root(p: poly.Polynomial) -> bool:
    """Whether p is never 0 because what divides all other coefficients does not divide the constant one."""
    others = poly.content({monomial: coefficient for monomial, coefficient in p.items() if monomial})
    return others > 0 and p.get((), 0) % others != 0
