"""What has been declared about the named dims of a scope, in solved form.

A claim says that a polynomial is zero or that it is nonnegative. `Facts` turns the declared claims into

* a range for every name (low >= 0; 1 where nothing else was declared),
* an image for every name that an equation determines: D == H*K gives D -> H*K, and N % 3 == 0 gives N -> 3*N', with a
  new name N' (primed names never reach the user),
* what is left: inequalities, and equations, which serve as rules that rewrite their leading monomial where they can.

`normal` rewrites a polynomial accordingly. Two polynomials of one normal form are equal wherever the facts hold.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from . import polynomial as poly
from .bounds import Range

_DEFAULT = Range(1, None)  # a named dim is at least 1


class Claim(NamedTuple):
    """`polynomial == 0` when `is_zero`, else `polynomial >= 0`, for all values of its names."""

    is_zero: bool
    polynomial: poly.Polynomial

    @property
    def key(self) -> tuple[bool, frozenset[tuple[poly.Monomial, int]]]:
        """What tells this claim from others, to remember answers by."""
        return self.is_zero, frozenset(self.polynomial.items())


class Congruence(NamedTuple):
    """`dividend % divisor == remainder`; impossible unless the remainder lies in [0, divisor)."""

    dividend: poly.Polynomial
    divisor: poly.Polynomial
    remainder: int


class Contradiction(Exception):
    """No value satisfies the claims."""


class Facts:
    """The solved form of `claims`; raises `Contradiction` when they are seen to exclude each other."""

    def __init__(self, atoms: poly.AtomTable, claims: Iterable[Claim] = ()):
        self.inequalities: list[poly.Polynomial] = []
        self.equations: list[poly.Polynomial] = []
        self.claims = tuple(claims)
        self._atoms = atoms
        self._rules: list[poly.Polynomial] = []
        self._ranges: dict[poly.Name, Range] = {}
        self._images: dict[poly.Name, poly.Polynomial] = {}
        self._normal_atoms: dict[poly.Atom, poly.Polynomial] = {}
        equations: list[poly.Polynomial] = []
        inequalities: list[poly.Polynomial] = []
        lows: dict[poly.Name, int] = {}
        for claim in self.claims:
            (equations if claim.is_zero else inequalities).append(claim.polynomial)
            single = _linear_in_one_name(claim.polynomial)
            if single is not None:
                # A declared lower end or value takes the place of the default low, which is why these come first.
                name, factor, offset = single
                if claim.is_zero or factor > 0:
                    lows[name] = max(lows.get(name, 0), -(offset // abs(factor)) if factor > 0 else offset // -factor)
        self._ranges = {name: Range(low, None) for name, low in lows.items()}
        self._image_ranges: list[poly.Polynomial] = []
        # Plain equations first: they may turn a congruence or an inequality into a simpler one.
        for p in sorted(equations, key=self._precedence):
            self._add_equation(p)
        for p in inequalities + self._image_ranges:
            self._add_inequality(p)

    def range_of(self, name: poly.Name) -> Range:
        """The values that a name without an image may take, as far as its own range says."""
        return self._ranges.get(name, _DEFAULT)

    def image_of(self, name: poly.Name) -> poly.Polynomial:
        """The name itself, or what the equations say it equals."""
        image = self._images.get(name)
        return poly.variable(name) if image is None else image

    def normal(self, p: poly.Polynomial) -> poly.Polynomial:
        """`p` rewritten by the equations; equal to `p` wherever the facts hold."""
        if not self._images and not self.equations:
            return p
        return self._reduce(poly.substitute(self._atoms, p, self._normal_atom))

    def _normal_atom(self, atom: poly.Atom) -> poly.Polynomial:
        found = self._normal_atoms.get(atom)
        if found is None:
            found = self.image_of(atom) if isinstance(atom, poly.Name) else self._normal_quotient(atom)
            self._normal_atoms[atom] = found
        return found

    def _normal_quotient(self, quotient: poly.Quotient) -> poly.Polynomial:
        # Exact division is looked for before the rules rewrite the dividend: (H*K)//H is K whatever H*K equals.
        substituted = poly.substitute(self._atoms, quotient.numerator, self._normal_atom)
        denominator = self.normal(quotient.denominator)
        if poly.constant_value(denominator) == 0:
            return poly.variable(quotient)
        numerator = self._reduce(substituted)
        candidates = [substituted, numerator]
        candidates += [poly.add(numerator, p, sign) for p in self.equations for sign in (1, -1)]
        for candidate in candidates:
            exact = poly.floor_divide(self._atoms, candidate, denominator)
            if not poly.add(candidate, poly.multiply(exact, denominator), -1):
                return exact
        return poly.floor_divide(self._atoms, numerator, denominator)

    def _reduce(self, p: poly.Polynomial) -> poly.Polynomial:
        """Rewrite leading monomials of the rules until none is left; each step lowers the monomials."""
        for rule in self._rules:
            quotient, remainder = poly.divide(p, rule)
            if quotient:
                return self._reduce(remainder)
        return p

    # ------------------------------------------------------------------ solving

    def _precedence(self, p: poly.Polynomial) -> int:
        """Equations that are solved first settle most: plain ones, then N % 3 == 0, then D % H == 0."""
        congruence = as_congruence(self._atoms, p)
        if congruence is None:
            return 0
        return 1 if poly.constant_value(congruence.divisor) is not None else 2

    def _add_equation(self, p: poly.Polynomial) -> None:
        while True:
            p = _primitive(self.normal(p))
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
        if p[poly.leading(p)] == 1:
            self._rules.append(p)
            self._normal_atoms.clear()
            if self.normal(p):  # B == C//(A + B) would grow without end: it rewrites the B inside as well
                self._rules.pop()
                self._normal_atoms.clear()

    def _solve_for_name(self, p: poly.Polynomial) -> bool:
        """Use `p == 0` as `name = image` where a name stands alone with coefficient 1 or -1."""
        solutions = [
            (name, poly.scale(poly.add(p, {(name,): p[(name,)]}, -1), -p[(name,)]))
            for name in _lone_names(p)
            if abs(p[(name,)]) == 1
        ]
        if not solutions:
            return False
        # Prefer an image that is seen to be nonnegative: N -> 2*M leaves less to check than M -> N - 1.
        self._assign(*min(solutions, key=lambda solution: min(solution[1].values(), default=0) < 0))
        return True

    def _solve_congruence(self, p: poly.Polynomial) -> bool:
        """Use what `p == 0` says about divisibility; False when that is nothing new."""
        congruence = as_congruence(self._atoms, p)
        if congruence is not None:
            dividend, divisor, remainder = congruence
            modulus = poly.constant_value(divisor)
            if remainder < 0 or (modulus is not None and remainder >= modulus):
                raise Contradiction
            if modulus is not None:
                return self._solve_modulo(poly.add(dividend, poly.constant(remainder), -1), modulus)
            name = _single_name(dividend)
            if name is None or remainder or name in poly.names_of(divisor):
                return False
            primed = self._primed(name, min(self.range_of(name).low or 0, 1))
            self._assign(name, poly.multiply(divisor, poly.variable(primed)))
            return True
        # c*x + rest == 0 means that c divides the rest.
        for name in _lone_names(p):
            modulus = abs(p[(name,)])
            _, rest = poly.divide(p, poly.constant(modulus))
            if self._solve_modulo(rest, modulus):
                return True
        return False

    def _solve_modulo(self, p: poly.Polynomial, modulus: int) -> bool:
        """Use `p % modulus == 0` where p is a*name + b: then name = step*name' + first."""
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

    def _primed(self, name: poly.Name, low: int) -> poly.Name:
        """A new name for the quotient that `name` is solved by; its other bounds follow from the range of `name`."""
        primed = self._atoms.name(name.text + "'")
        self._ranges[primed] = Range(low, None)
        return primed

    def _assign(self, name: poly.Name, image: poly.Polynomial) -> None:
        def replace(atom: poly.Atom) -> poly.Polynomial | None:
            return image if atom is name else None

        self._images = {other: poly.substitute(self._atoms, p, replace) for other, p in self._images.items()}
        self._images[name] = image
        self._normal_atoms.clear()
        waiting, self.equations, self._rules = self.equations, [], []
        for equation in waiting:
            self._add_equation(equation)
        self._image_ranges.append(poly.add(image, poly.constant(self.range_of(name).low or 0), -1))

    def _add_inequality(self, p: poly.Polynomial) -> None:
        p = self.normal(p)
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
        low, high = self.range_of(name)
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
                divided = poly.floor_divide(atoms, quotient.numerator, poly.constant(whole // part))
                readings.append((divided, poly.constant(part)))
            for dividend, divisor in readings:
                # Is `signed` dividend - divisor*(dividend//divisor) - remainder?
                rest = poly.add(dividend, poly.multiply(divisor, poly.variable(quotient)), -1)
                remainder = poly.constant_value(poly.add(rest, signed, -1))
                if remainder is not None:
                    return Congruence(dividend, divisor, remainder)
    return None


def _primitive(p: poly.Polynomial) -> poly.Polynomial:
    """`p` with coefficients without common divisor and a positive leading one; zero where `p` is."""
    if not p:
        return p
    common = poly.content(p)
    common = -common if p[poly.leading(p)] < 0 else common
    return {monomial: coefficient // common for monomial, coefficient in p.items()}


def _linear_in_one_name(p: poly.Polynomial) -> tuple[poly.Name, int, int] | None:
    """(name, a, b) when `p` is a*name + b."""
    monomials = [monomial for monomial in p if monomial]
    if len(monomials) == 1 and len(monomials[0]) == 1 and isinstance(monomials[0][0], poly.Name):
        return monomials[0][0], p[monomials[0]], p.get((), 0)
    return None


def _single_name(p: poly.Polynomial) -> poly.Name | None:
    linear = _linear_in_one_name(p)
    return linear[0] if linear is not None and linear[1:] == (1, 0) else None


def _lone_names(p: poly.Polynomial) -> list[poly.Name]:
    """The names that occur in `p` exactly once, as a term of their own."""
    occurrences = [*poly.names_of(p)]
    return [m[0] for m in p if len(m) == 1 and isinstance(m[0], poly.Name) and occurrences.count(m[0]) == 1]
