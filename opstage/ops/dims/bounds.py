"""A sound lower bound of a polynomial over a box of ranges.

Every atom is shifted to start at 0: x = low + t with t >= 0, or x = low + (high - low)*t with t in [0, 1] if both ends
are known. In the bounded variables the polynomial is written in the Bernstein basis, whose coefficients bound it from
below (exactly so when it is linear in each variable). In the unbounded ones every coefficient must be >= 0.

Source: J. Garloff, "Convergent bounds for the range of multivariate polynomials", 1985.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from fractions import Fraction
from itertools import groupby
from typing import NamedTuple

from . import polynomial as poly

_MOST_COEFFICIENTS = 512  # of a Bernstein form; beyond it a coarser bound is used
_MOST_TERMS = 1024  # of a shifted polynomial; beyond it a coarser bound is used


class Range(NamedTuple):
    """The integers from `low` to `high`, inclusive; None for an open end."""

    low: int | None
    high: int | None


def lower_bound(p: poly.Polynomial, range_of: Callable[[poly.Atom], Range]) -> Fraction | None:
    """Return a number that `p` never falls below while every atom is in its range, or None."""
    bounded: dict[poly.Atom, int] = {}
    shifts: dict[poly.Atom, poly.Polynomial] = {}
    for atom in {atom: None for monomial in p for atom in monomial}:
        low, high = range_of(atom)
        if low is not None and high is not None:
            shifts[atom] = {(): low, (atom,): high - low}
            bounded[atom] = len(bounded)
        elif low is not None:
            shifts[atom] = {(): low, (atom,): 1}
        elif high is not None:
            shifts[atom] = {(): high, (atom,): -1}
        else:
            return None
    if sum([_terms_of_shifted(monomial, shifts) for monomial in p]) > _MOST_TERMS:
        return _term_by_term(p, range_of)
    shifted: poly.Polynomial = {}
    for monomial, coefficient in p.items():
        term = poly.constant(coefficient)
        for atom in monomial:
            term = poly.multiply(term, shifts[atom])
        shifted = poly.add(shifted, term)

    # Collect, for each monomial of unbounded variables, its coefficient: a polynomial in the bounded ones.
    groups: defaultdict[poly.Monomial, dict[tuple[int, ...], int]] = defaultdict(dict)
    for monomial, coefficient in shifted.items():
        exponents = [0] * len(bounded)
        for atom, repeats in groupby(monomial):
            if atom in bounded:
                exponents[bounded[atom]] = sum(1 for _ in repeats)
        unbounded = tuple(atom for atom in monomial if atom not in bounded)
        groups[unbounded][tuple(exponents)] = coefficient
    least = _least_on_unit_box(groups.pop((), {}))
    if any(_least_on_unit_box(group) < 0 for group in groups.values()):
        return None
    return least


def _terms_of_shifted(monomial: poly.Monomial, shifts: Mapping[poly.Atom, poly.Polynomial]) -> int:
    """Return an upper bound of the number of terms of the monomial after its atoms are shifted."""
    return math.prod([1 + sum(1 for _ in repeats) for atom, repeats in groupby(monomial) if len(shifts[atom]) > 1])


def _term_by_term(p: poly.Polynomial, range_of: Callable[[poly.Atom], Range]) -> Fraction | None:
    """Return the sum of lower bounds of the terms, for atoms that are never negative, or None."""
    least = 0
    for monomial, coefficient in p.items():
        for atom in monomial:
            low, high = range_of(atom)
            end = low if coefficient > 0 else high
            if low is None or low < 0 or end is None:
                return None
            coefficient *= end
        least += coefficient
    return Fraction(least)


def _least_on_unit_box(coefficients: dict[tuple[int, ...], int]) -> Fraction:
    """Return the least Bernstein coefficient of a polynomial, given as coefficients by exponents, on [0, 1]^n."""
    if not coefficients:
        return Fraction(0)
    degrees = [max(exponents) for exponents in zip(*coefficients, strict=True)]
    constant = coefficients.get((0,) * len(degrees), 0)
    negative = sum(c for exponents, c in coefficients.items() if c < 0 and any(exponents))
    size = math.prod(degree + 1 for degree in degrees)
    if not negative or size > _MOST_COEFFICIENTS:
        return Fraction(constant + negative)
    # With n the degree in one variable, b_i = sum over j <= i of C(i, j)/C(n, j) a_j. Everything is multiplied by a
    # common multiple of the C(n, j), to stay in integers.
    multiple = 1
    for axis, degree in enumerate(degrees):
        common = math.lcm(*(math.comb(degree, j) for j in range(degree + 1)))
        multiple *= common
        transformed: defaultdict[tuple[int, ...], int] = defaultdict(int)
        for exponents, coefficient in coefficients.items():
            before, j, after = exponents[:axis], exponents[axis], exponents[axis + 1 :]
            part = coefficient * (common // math.comb(degree, j))
            for i in range(j, degree + 1):
                transformed[(*before, i, *after)] += part * math.comb(i, j)
        coefficients = transformed
    least = min(coefficients.values())
    return Fraction(least if len(coefficients) == size else min(least, 0), multiple)  # an absent coefficient is 0
