"""Declared facts about the named dims of a scope, in solved form.

A claim says that a polynomial is zero or that it is nonnegative. `Facts` turns the declared claims into

* a range for every name (low >= 0; 1 unless declared otherwise),
* an image for every name that an equation determines: D == H*K gives D -> H*K, and N % 3 == 0 gives N -> 3*N', with a
  new name N' (primed names are never shown to the user),
* the remaining inequalities, and equations, used as rules that rewrite their leading monomial.

`normal` rewrites a polynomial accordingly. Two polynomials with the same normal form are equal wherever the facts hold.
"""

from __future__ import annotations

import copy
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from itertools import groupby
from typing import NamedTuple, TypeAlias

from . import polynomial as poly
from .simplification import floor_divide, minimum, split_minimum, substitute

# A sound lower bound of a polynomial over a box of ranges -------------------------------------------------------------

# Every atom is shifted to start at 0: x = low + t with t >= 0, or x = low + (high - low)*t with t in [0, 1] if both
# ends are known. In the bounded variables the polynomial is written in the Bernstein basis, whose coefficients bound
# it from below (exactly so when it is linear in each variable). In the unbounded ones every coefficient must be >= 0.
#
# Source: J. Garloff, "Convergent bounds for the range of multivariate polynomials", 1985.

_MOST_COEFFICIENTS = 512  # of a Bernstein form; beyond it a coarser bound is used
_MOST_TERMS = 1024  # of a shifted polynomial; beyond it a coarser bound is used


class Range(NamedTuple):
    """The integers from `low` to `high`, inclusive; None for an open end."""

    low: int | None
    high: int | None


def lower_bound(p: poly.Polynomial, get_range: Callable[[poly.Atom], Range]) -> Fraction | None:
    """Return a number that `p` never falls below while every atom is in its range, or None."""
    bounded: dict[poly.Atom, int] = {}
    shifts: dict[poly.Atom, poly.Polynomial] = {}
    for atom in {atom: None for monomial in p for atom in monomial}:
        low, high = get_range(atom)
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
        return _term_by_term(p, get_range)
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


def _term_by_term(p: poly.Polynomial, get_range: Callable[[poly.Atom], Range]) -> Fraction | None:
    """Return the sum of lower bounds of the terms, for atoms that are never negative, or None."""
    least = 0
    for monomial, coefficient in p.items():
        for atom in monomial:
            low, high = get_range(atom)
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


# Declared facts about the named dims of a scope, in solved form -------------------------------------------------------

_DEFAULT = Range(1, None)  # a named dim is at least 1


Key: TypeAlias = tuple[bool, frozenset[tuple[poly.Monomial, int]]]


class Claim(NamedTuple):
    """The claim `polynomial == 0` if `is_zero`, else `polynomial >= 0`, for all values of its names."""

    is_zero: bool
    polynomial: poly.Polynomial

    def holds(self, values: Mapping[str, int]) -> bool | None:
        """Return whether the claim holds at these values; None if it is undefined there. KeyError for a missing
        value."""
        try:
            value = poly.evaluate(self.polynomial, values)
        except poly.Undefined:
            return None
        return value == 0 if self.is_zero else value >= 0

    @property
    def key(self) -> Key:
        """Return a key of this claim, for caching answers."""
        return self.is_zero, frozenset(self.polynomial.items())


class Congruence(NamedTuple):
    """The claim `dividend % divisor == remainder`; impossible unless the remainder is in [0, divisor)."""

    dividend: poly.Polynomial
    divisor: poly.Polynomial
    remainder: int


class Contradiction(Exception):
    """No value satisfies the claims."""


class Facts:
    """The solved form of `claims`; raises `Contradiction` if they visibly exclude each other."""

    def __init__(self, atoms: poly.AtomTable, claims: Iterable[Claim] = ()):
        self.inequalities: list[poly.Polynomial] = []
        self.equations: list[poly.Polynomial] = []
        self.claims = tuple(claims)
        self.atoms = atoms
        self._rules: list[poly.Polynomial] = []
        self._ranges: dict[poly.NamedDim, Range] = {}
        self._images: dict[poly.NamedDim, poly.Polynomial] = {}
        self._normal_atoms: dict[poly.Atom, poly.Polynomial] = {}
        self._chosen: dict[poly.Atom, poly.Polynomial] = {}
        equations: list[poly.Polynomial] = []
        inequalities: list[poly.Polynomial] = []
        lows: dict[poly.NamedDim, int] = {}
        for claim in self.claims:
            (equations if claim.is_zero else inequalities).append(claim.polynomial)
            single = _linear_in_one_name(claim.polynomial)
            if single is not None:
                # A declared lower bound or value replaces the default, so these come first.
                name, factor, offset = single
                if claim.is_zero or factor > 0:
                    lows[name] = max(lows.get(name, 0), -(offset // abs(factor)) if factor > 0 else offset // -factor)
        self._ranges = {name: Range(low, None) for name, low in lows.items()}
        self._add(equations, inequalities)

    def assuming(self, claims: Iterable[Claim], least: tuple[poly.Minimum, poly.Polynomial] | None = None) -> Facts:
        """Return these facts plus further claims, and the argument of a minimum that is the `least`.

        Unlike declared claims they never widen a range. Raises `Contradiction` if they visibly exclude each other.
        """
        result = copy.copy(self)
        claims = tuple(claims)
        result.claims += claims
        result._ranges, result._normal_atoms = dict(self._ranges), {}
        if least is not None:
            result._chosen = {**self._chosen, least[0]: least[1]}
            result._images = {
                name: substitute(self.atoms, p, lambda atom: least[1] if atom is least[0] else None)
                for name, p in self._images.items()
            }
        result.equations, result._rules, result.inequalities = [], [], []
        result._add(
            self.equations + [claim.polynomial for claim in claims if claim.is_zero],
            self.inequalities + [claim.polynomial for claim in claims if not claim.is_zero],
        )
        return result

    def get_range(self, name: poly.NamedDim) -> Range:
        """Return the range of a name without an image."""
        return self._ranges.get(name, _DEFAULT)

    def get_image(self, name: poly.NamedDim) -> poly.Polynomial:
        """Return the name itself, or the polynomial that the equations equate it with."""
        image = self._images.get(name)
        return poly.variable(name) if image is None else image

    def normal(self, p: poly.Polynomial) -> poly.Polynomial:
        """Return `p` rewritten by the equations; equal to `p` wherever the facts hold."""
        if not self._images and not self.equations and all(isinstance(atom, poly.NamedDim) for m in p for atom in m):
            return p
        return self._reduce(substitute(self.atoms, p, self._normal_atom))

    def _normal_atom(self, atom: poly.Atom) -> poly.Polynomial:
        found = self._normal_atoms.get(atom)
        if found is None:
            if atom in self._chosen:
                found = self.normal(self._chosen[atom])
            elif isinstance(atom, poly.NamedDim):
                found = self.get_image(atom)
            elif isinstance(atom, poly.Quotient):
                found = self._normal_quotient(atom)
            else:
                found = self._normal_minimum(atom)
            self._normal_atoms[atom] = found
        return found

    def _normal_minimum(self, atom: poly.Minimum) -> poly.Polynomial:
        """Return the minimum of the arguments that do not visibly exceed another one."""
        kept: list[poly.Polynomial] = []
        for argument in map(self.normal, atom.arguments):
            if not any(self._is_seen(poly.add(argument, other, -1)) for other in kept):
                kept = [other for other in kept if not self._is_seen(poly.add(other, argument, -1))]
                kept.append(argument)
        return minimum(self.atoms, kept)

    def _is_seen(self, p: poly.Polynomial) -> bool:
        """Return whether p >= 0 is one of the inequalities, or follows from the ranges of its names."""
        if p in self.inequalities:
            return True
        least = lower_bound(
            p, lambda atom: self.get_range(atom) if isinstance(atom, poly.NamedDim) else Range(None, None)
        )
        return least is not None and least >= 0

    def _normal_quotient(self, quotient: poly.Quotient) -> poly.Polynomial:
        # Try exact division before the rules rewrite the dividend: (H*K)//H is K whatever H*K equals.
        substituted = substitute(self.atoms, quotient.numerator, self._normal_atom)
        denominator = self.normal(quotient.denominator)
        if poly.constant_value(denominator) == 0:
            return poly.variable(quotient)
        numerator = self._reduce(substituted)
        candidates = [substituted, numerator]
        candidates += [poly.add(numerator, p, sign) for p in self.equations for sign in (1, -1)]
        for p in self.equations:  # 4 == M*(4//M), so 256*T == 64*T*M*(4//M)
            whole, rest = poly.divide(numerator, poly.constant(abs(p.get((), 0)) or 1))
            if p.get(()) and not rest:
                candidates.append(poly.add(numerator, poly.multiply(whole, p), -1 if p[()] > 0 else 1))
        for candidate in candidates:
            exact = floor_divide(self.atoms, candidate, denominator)
            if not poly.add(candidate, poly.multiply(exact, denominator), -1):
                return exact
        return floor_divide(self.atoms, numerator, denominator)

    def _reduce(self, p: poly.Polynomial) -> poly.Polynomial:
        """Rewrite leading monomials by the rules until none applies; each step lowers the monomials."""
        for rule in self._rules:
            quotient, remainder = poly.divide(p, rule)
            if quotient:
                return self._reduce(remainder)
        return p

    # ------------------------------------------------------------------ solving

    def _add(self, equations: list[poly.Polynomial], inequalities: list[poly.Polynomial]) -> None:
        self._image_ranges: list[poly.Polynomial] = []
        # Plain equations first: they may simplify a congruence or an inequality.
        for p in sorted(equations, key=self._precedence):
            self._add_equation(p)
        for p in inequalities + self._image_ranges:
            self._add_inequality(p)
        self._normal_atoms.clear()  # minima may be simpler now

    def _precedence(self, p: poly.Polynomial) -> int:
        """Return the order of solving, most informative first: plain equations, then N % 3 == 0, then D % H == 0."""
        congruence = as_congruence(self.atoms, p)
        if congruence is None:
            return 0
        return 1 if poly.constant_value(congruence.divisor) is not None else 2

    def _add_equation(self, p: poly.Polynomial) -> None:
        while True:
            p = poly.ordered(_primitive(self._without_positive(self.normal(p))))
            value = poly.constant_value(p)
            if value is not None:
                if value:
                    raise Contradiction
                return
            if p.get((), 0) % poly.content({m: c for m, c in p.items() if m}):
                raise Contradiction
            if self._solve_for_name(p):
                return
            if not self._solve_congruence(p):
                break
        self.equations.append(p)
        leading = poly.leading(p)
        # Do not replace a name by an expression that contains it: B == min(A, B) does not simplify B.
        others = poly.iterate_names({monomial: 1 for monomial in p if monomial != leading})
        if p[leading] == 1 and (len(leading) > 1 or leading[0] not in set[poly.Atom](others)):
            self._rules.append(p)
            self._normal_atoms.clear()
            if self.normal(p):  # B == C//(A + B) would grow without end: it rewrites the B inside as well
                self._rules.pop()
                self._normal_atoms.clear()

    def _without_positive(self, p: poly.Polynomial) -> poly.Polynomial:
        """Return `p` without the positive names that divide it: B*M == B*N implies M == N."""
        names = (atom for atom in poly.common_factor(p) if isinstance(atom, poly.NamedDim))
        return poly.strip(p, tuple([name for name in names if (self.get_range(name).low or 0) > 0]))

    def _solve_for_name(self, p: poly.Polynomial) -> bool:
        """Use `p == 0` as `name = image` if a name is a separate term with coefficient 1 or -1."""
        solutions = [
            (name, poly.scale(poly.add(p, {(name,): p[(name,)]}, -1), -p[(name,)]))
            for name in _lone_names(p)
            if abs(p[(name,)]) == 1
        ]
        if not solutions:
            return False
        # Prefer an image that is visibly nonnegative: N -> 2*M leaves less to check than M -> N - 1.
        self._assign(*min(solutions, key=lambda solution: min(solution[1].values(), default=0) < 0))
        return True

    def _solve_congruence(self, p: poly.Polynomial) -> bool:
        """Use the divisibility implied by `p == 0`; return False if that is nothing new."""
        congruence = as_congruence(self.atoms, p)
        if congruence is not None:
            dividend, divisor, remainder = congruence
            modulus = poly.constant_value(divisor)
            if remainder < 0 or (modulus is not None and remainder >= modulus):
                raise Contradiction
            if modulus is not None:
                return self._solve_modulo(poly.add(dividend, poly.constant(remainder), -1), modulus)
            if not remainder and (poly.constant_value(dividend) or 0) > 0:
                self._image_ranges.append(poly.add(dividend, divisor, -1))  # a divisor of 4 is at most 4
            name = _single_name(dividend)
            if name is None or remainder or name in poly.iterate_names(divisor):
                return False
            primed = self._primed(name, min(self.get_range(name).low or 0, 1))
            self._assign(name, poly.multiply(divisor, poly.variable(primed)))
            return True
        # c*x + rest == 0 implies that c divides the rest.
        for name in _lone_names(p):
            modulus = abs(p[(name,)])
            _, rest = poly.divide(p, poly.constant(modulus))
            if self._solve_modulo(rest, modulus):
                return True
        return False

    def _solve_modulo(self, p: poly.Polynomial, modulus: int) -> bool:
        """Use `p % modulus == 0` for p = a*name + b: then name = step*name' + first."""
        single = _linear_in_one_name(p)
        if single is None:
            return False
        name, factor, offset = single
        common = math.gcd(factor, modulus)
        if offset % common:
            raise Contradiction
        step = modulus // common
        first = -(offset // common) * pow(factor // common, -1, step) % step
        if step == 1:
            return False
        self._assign(name, poly.add({(self._primed(name, 0),): step}, poly.constant(first)))
        return True

    def _primed(self, name: poly.NamedDim, low: int) -> poly.NamedDim:
        """Return a new name for the quotient that replaces `name`; its other bounds follow from the range of `name`."""
        primed = self.atoms.name(name.text + "'")
        self._ranges[primed] = Range(low, None)
        return primed

    def _assign(self, name: poly.NamedDim, image: poly.Polynomial) -> None:
        def replace(atom: poly.Atom) -> poly.Polynomial | None:
            return image if atom is name else None

        self._images = {other: substitute(self.atoms, p, replace) for other, p in self._images.items()}
        self._images[name] = image
        self._normal_atoms.clear()
        waiting, self.equations, self._rules = self.equations, [], []
        for equation in waiting:
            self._add_equation(equation)
        low, high = self.get_range(name)
        self._image_ranges.append(poly.add(image, poly.constant(low or 0), -1))
        if high is not None:
            self._image_ranges.append(poly.add(poly.constant(high), image, -1))

    def _add_inequality(self, p: poly.Polynomial) -> None:
        for each in split_minimum(self.normal(p)):
            self._add_normal_inequality(poly.ordered(self._without_positive(each)))

    def _add_normal_inequality(self, p: poly.Polynomial) -> None:
        value = poly.constant_value(p)
        if value is not None:
            if value < 0:
                raise Contradiction
            return
        single = _linear_in_one_name(p)
        if single is None:
            if p not in self.inequalities:
                self.inequalities.append(p)
            return
        name, factor, offset = single
        low, high = self.get_range(name)
        if factor > 0:
            low = max(low or 0, -(offset // factor))
        else:
            end = offset // -factor
            high = end if high is None else min(high, end)
        if high is not None and high < (low or 0):
            raise Contradiction
        self._ranges[name] = Range(low, high)


def as_congruence(atoms: poly.AtomTable, p: poly.Polynomial) -> Congruence | None:
    """Recognise `p == 0` as a statement about a remainder: N - 3*(N//3) == 0 is N % 3 == 0."""
    quotients = {atom: None for monomial in p for atom in monomial if isinstance(atom, poly.Quotient)}
    for quotient in quotients:
        for signed in (p, poly.scale(p, -1)):
            readings = [(quotient.numerator, quotient.denominator)]
            whole, part = poly.constant_value(quotient.denominator), -signed.get((quotient,), 0)
            if whole is not None and 1 < part < whole and whole % part == 0:
                # x//whole may stand for (x//(whole/part))//part, which was merged.
                divided = floor_divide(atoms, quotient.numerator, poly.constant(whole // part))
                readings.append((divided, poly.constant(part)))
            for dividend, divisor in readings:
                # Check whether `signed` is dividend - divisor*(dividend//divisor) - remainder.
                rest = poly.add(dividend, poly.multiply(divisor, poly.variable(quotient)), -1)
                remainder = poly.constant_value(poly.add(rest, signed, -1))
                if remainder is not None:
                    return Congruence(dividend, divisor, remainder)
    return None


def _primitive(p: poly.Polynomial) -> poly.Polynomial:
    """Return `p` divided by the content of its coefficients, with a positive leading one; zero if `p` is zero."""
    if not p:
        return p
    common = poly.content(p)
    common = -common if p[poly.leading(p)] < 0 else common
    return {monomial: coefficient // common for monomial, coefficient in p.items()}


def _linear_in_one_name(p: poly.Polynomial) -> tuple[poly.NamedDim, int, int] | None:
    """Return (name, a, b) if `p` is a*name + b, else None."""
    monomials = [monomial for monomial in p if monomial]
    if len(monomials) == 1 and len(monomials[0]) == 1 and isinstance(monomials[0][0], poly.NamedDim):
        return monomials[0][0], p[monomials[0]], p.get((), 0)
    return None


def _single_name(p: poly.Polynomial) -> poly.NamedDim | None:
    linear = _linear_in_one_name(p)
    return linear[0] if linear is not None and linear[1:] == (1, 0) else None


def _lone_names(p: poly.Polynomial) -> list[poly.NamedDim]:
    """Return the names that occur in `p` exactly once, as separate terms."""
    occurrences = [*poly.iterate_names(p)]
    return [m[0] for m in p if len(m) == 1 and isinstance(m[0], poly.NamedDim) and occurrences.count(m[0]) == 1]
