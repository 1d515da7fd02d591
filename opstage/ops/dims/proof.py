"""Proofs from the facts: `Prover` answers whether a claim holds for every allowed value, or for none.

An inequality p >= 0 is shown by bounding p over the ranges of its atoms, less up to three known inequalities, each
times a nonnegative term (so K <= T and T <= S give K <= S). A floor quotient q = n//d counts as an atom with a
range of its own and the known inequalities d*q <= n <= d*q + d - 1; a minimum counts as one that is at most each of its
arguments. Claims that this does not prove are split into cases: by the least argument of a minimum, by the remainder of
a name modulo a number, or by the value of a name with few values. Every answer is sound; the method is incomplete.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from itertools import chain

from ..errors import TooComplexError
from . import polynomial as poly
from .facts import Claim, Contradiction, Facts, Range, lower_bound
from .simplification import floor_divide

_MOST_COMBINED = 3  # known inequalities in one proof
_MOST_BOUNDS = 120  # bounds computed to prove one inequality
_MOST_EFFORT = 600  # bounds computed for one claim, in all its cases
_TERMS_OF_A_BOUND = 64  # a polynomial with more, written around the low ends of its names, counts as several bounds
_MOST_CASES = 64
_MOST_VALUES = 400  # checked one by one


class _Effort:
    """The number of bounds that may still be computed for a claim, shared by its cases."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = _MOST_EFFORT


class Prover:
    """Decides claims from `facts`, with a cache of answers."""

    def __init__(self, facts: Facts, within: Prover | None = None, cases: int = _MOST_CASES):
        """Allow at most `cases` cases in one proof; `within` is the prover that this one is a case of."""
        self.facts = facts
        self._within = within
        self._effort: _Effort = _Effort() if within is None else within._effort
        self._most_cases = cases
        self._ranges: dict[poly.Quotient | poly.Minimum, Range] = {}
        self._proved = {claim.key: True for claim in facts.claims}
        self._proved |= {Claim(True, poly.scale(c.polynomial, -1)).key: True for c in facts.claims if c.is_zero}
        self._cases: dict[Hashable, Prover | None] = {}

    def always(self, claim: Claim) -> bool:
        """Return whether the claim is proved to hold for every allowed value."""
        key = claim.key
        found = self._proved.get(key)
        if found is None:
            if self._within is None:
                self._effort.left = _MOST_EFFORT
            try:
                found = self._always(claim)
            except TooComplexError:
                if self._within is not None:  # giving up a case gives up the proof
                    raise
                found = False
            self._proved[key] = found
        return found

    def _always(self, claim: Claim) -> bool:
        p = poly.ordered(self.facts.normal(claim.polynomial))
        if self._is_shown(claim.is_zero, p, _MOST_COMBINED) or self._holds_by_cases(Claim(claim.is_zero, p)):
            return True
        either = claim.is_zero and self._within is None
        return either and self.always(Claim(False, p)) and self.always(Claim(False, poly.scale(p, -1)))

    def at_once(self, claim: Claim) -> bool:
        """Return whether the claim follows from the ranges of the names alone, or was proved before."""
        found = self._proved.get(claim.key)
        if found is not None:
            return found
        try:
            return self._is_shown(claim.is_zero, self.facts.normal(claim.polynomial), 0)
        except TooComplexError:
            return False

    def never(self, claim: Claim) -> bool:
        """Return whether the claim is proved to fail for every allowed value."""
        p = claim.polynomial
        below = Claim(False, poly.add(poly.scale(p, -1), poly.constant(1), -1))
        if self.always(below):
            return True
        return claim.is_zero and (
            self.always(Claim(False, poly.add(p, poly.constant(1), -1))) or _has_no_root(self.facts.normal(p))
        )

    # ------------------------------------------------------------------ cases

    def _holds_by_cases(self, claim: Claim) -> bool:
        """Return whether the claim, in normal form, holds in each case of an exhaustive split."""
        found = self._holds_at_all_values(claim)
        if found is not None:
            return found
        for count, cases in self._splits(claim.polynomial):
            if count <= self._most_cases:
                return all(case is None or case.always(claim) for case in cases)
        return False

    def _holds_at_all_values(self, claim: Claim) -> bool | None:
        """Return whether a claim about few values holds at each of them that the facts allow; None if there are too
        many."""
        names = list(dict.fromkeys(poly.iterate_names(claim.polynomial)))
        ranges = [self.facts.get_range(name) for name in names]
        values = [range(low, high + 1) for low, high in ranges if low is not None and high is not None]
        if len(values) < len(names) or math.prod(map(len, values)) > _MOST_VALUES:
            return None
        known = [Claim(False, p) for p in self.facts.inequalities] + [Claim(True, p) for p in self.facts.equations]
        known = [fact for fact in known if set(names).issuperset(poly.iterate_names(fact.polynomial))]
        for point in itertools.product(*values):
            sizes = {name.text: value for name, value in zip(names, point, strict=True)}
            if claim.holds(sizes) is False and all(fact.holds(sizes) for fact in known):
                return False
        return True

    def _splits(self, p: poly.Polynomial) -> Iterator[tuple[int, Iterator[Prover | None]]]:
        """Yield numbers of cases with the provers that assume them; None for an impossible case."""
        compounds = _compounds(p)
        moduli: dict[poly.NamedDim, int] = {}
        for atom in compounds:
            divisor = poly.constant_value(atom.denominator) if isinstance(atom, poly.Quotient) else None
            if divisor is not None:
                for monomial, coefficient in poly.parts(atom)[0].items():
                    for name in monomial:
                        if isinstance(name, poly.NamedDim):
                            modulus = divisor // math.gcd(divisor, coefficient)
                            moduli[name] = math.lcm(moduli.get(name, 1), modulus)
        for name, modulus in sorted(moduli.items(), key=lambda item: item[1]):
            yield modulus, (self._where_remainder(name, modulus, remainder) for remainder in range(modulus))
        for atom in compounds:
            if isinstance(atom, poly.Minimum):
                count = len(atom.arguments)
                yield count, (self._where_least(atom, index) for index in range(count))
        for name in dict.fromkeys(poly.iterate_names(p)):
            low, high = self.facts.get_range(name)
            if low is not None and high is not None:
                yield high - low + 1, (self._where_value(name, value, high - low + 1) for value in range(low, high + 1))

    def _where_least(self, atom: poly.Minimum, index: int) -> Prover | None:
        least = atom.arguments[index]
        others = (argument for argument in atom.arguments if argument is not least)
        claims = [Claim(False, poly.add(other, least, -1)) for other in others]
        return self._case((atom, index), claims, len(atom.arguments), (atom, least))

    def _where_remainder(self, name: poly.NamedDim, modulus: int, remainder: int) -> Prover | None:
        variable, divisor = poly.variable(name), poly.constant(modulus)
        quotient = floor_divide(self.facts.atoms, variable, divisor)
        rest = poly.add(variable, poly.multiply(divisor, quotient), -1)
        claim = Claim(True, poly.add(rest, poly.constant(remainder), -1))
        return self._case((name, modulus, remainder), [claim], modulus)

    def _where_value(self, name: poly.NamedDim, value: int, count: int) -> Prover | None:
        claim = Claim(True, poly.add(poly.variable(name), poly.constant(value), -1))
        return self._case((name, value), [claim], count)

    def _case(
        self, key: Hashable, claims: list[Claim], of: int, least: tuple[poly.Minimum, poly.Polynomial] | None = None
    ) -> Prover | None:
        if key not in self._cases:
            try:
                self._cases[key] = Prover(self.facts.assuming(claims, least), self, self._most_cases // of)
            except Contradiction:
                self._cases[key] = None
        return self._cases[key]

    # ------------------------------------------------------------------ inequalities

    def _is_shown(self, is_zero: bool, p: poly.Polynomial, most_combined: int) -> bool:
        return self._is_nonnegative(p, most_combined) and (
            not is_zero or self._is_nonnegative(poly.scale(p, -1), most_combined)
        )

    def _is_nonnegative(self, p: poly.Polynomial, most_combined: int) -> bool:
        value = poly.constant_value(p)
        if value is not None:
            return value >= 0
        known: list[poly.Polynomial] = []
        if most_combined:
            known += self.facts.inequalities
            known += [poly.scale(equation, sign) for equation in self.facts.equations for sign in (1, -1)]
            known += [inequality for atom in _compounds(p, *known) for inequality in _defining_inequalities(atom)]
        enough = self._effort.left - _MOST_BOUNDS

        def show(q: poly.Polynomial, multiple: int, to_combine: int) -> bool:
            """Return whether q > -multiple; since `multiple * p >= q` and p is an integer, p >= 0 follows."""
            if to_combine == 0:
                self._effort.left -= 1 + _terms_around_low_ends(q) // _TERMS_OF_A_BOUND
                least = lower_bound(q, self._find_range)
                return least is not None and least > -multiple
            for times, inequality, factor in self._eliminations(q, known):
                rest = poly.add(poly.scale(q, times), poly.multiply(factor, inequality), -1)
                if show(rest, times * multiple, to_combine - 1):
                    return True
                if self._effort.left <= max(enough, 0):
                    return False
            return False

        if any(show(p, 1, to_combine) for to_combine in range(most_combined + 1)):
            return True
        return most_combined == _MOST_COMBINED and any(
            self._is_nonnegative(equivalent, _MOST_COMBINED - 1) for equivalent in _expand_products(p)
        )

    def _eliminations(
        self, p: poly.Polynomial, known: list[poly.Polynomial]
    ) -> Iterator[tuple[int, poly.Polynomial, poly.Polynomial]]:
        """Yield the (times, inequality, factor) for which `times*p - factor*inequality` lacks a term of p, worst terms
        first."""
        for monomial, coefficient in sorted(p.items(), key=lambda term: term[1] > 0):
            if not monomial:
                continue
            for inequality in known:
                for other, c in inequality.items():
                    if not other or c * coefficient <= 0:
                        continue
                    cofactor = poly.without(monomial, other)
                    if cofactor is not None and all(self._low(atom) >= 0 for atom in cofactor):
                        common = math.gcd(c, coefficient)
                        yield abs(c) // common, inequality, {cofactor: abs(coefficient) // common}
                    elif (
                        cofactor is None and coefficient < 0 and (surplus := poly.without(other, monomial)) is not None
                    ):
                        # B*T <= 4096 and 8 <= B give 8*T <= 4096
                        least = math.prod(self._low(atom) for atom in surplus)
                        if least > 0 and all(self._low(atom) > 0 for atom in surplus):
                            common = math.gcd(c * least, coefficient)
                            yield abs(c) * least // common, inequality, {(): abs(coefficient) // common}

    def _low(self, atom: poly.Atom) -> int:
        """Return a lower end of the atom's range; -1 if unknown."""
        low = self._find_range(atom).low
        return -1 if low is None else low

    def _find_range(self, atom: poly.Atom) -> Range:
        if isinstance(atom, poly.NamedDim):
            return self.facts.get_range(atom)
        found = self._ranges.get(atom)
        if found is None:
            found = self._minimum_range(atom) if isinstance(atom, poly.Minimum) else self._quotient_range(atom)
            self._ranges[atom] = found
        return found

    def _minimum_range(self, minimum: poly.Minimum) -> Range:
        ranges = [self._range_of_polynomial(argument) for argument in minimum.arguments]
        lows = [low for low, _ in ranges if low is not None]
        highs = [high for _, high in ranges if high is not None]
        return Range(min(lows) if len(lows) == len(ranges) else None, min(highs, default=None))

    def _quotient_range(self, quotient: poly.Quotient) -> Range:
        """Return the range of q = n//d from those of n and of d >= 1, and from the facts."""
        n_low, n_high = self._range_of_polynomial(quotient.numerator)
        d_low, d_high = self._range_of_polynomial(quotient.denominator)
        d_low = max(d_low or 1, 1)
        d_high = None if d_high is None else max(d_high, d_low)
        low, high = n_low, n_high
        if n_low is not None:
            low = n_low // d_low if n_low < 0 else 0 if d_high is None else n_low // d_high
        if n_high is not None:
            high = n_high // d_low if n_high >= 0 else -1 if d_high is None else n_high // d_high
        # n >= k*d means q >= k, and n < k*d means q < k. This range is used while both are computed.
        self._ranges[quotient] = Range(low, high)
        for k in (-1, 0, 1):
            if (low is None or low < k) and self._is_nonnegative(_minus_times(quotient, k), 1):
                low = k
        for k in (0, 1):
            below = poly.add(poly.constant(-1), _minus_times(quotient, k), -1)
            if (high is None or high >= k) and self._is_nonnegative(below, 1):
                high = k - 1
        return Range(low, high)

    def _range_of_polynomial(self, p: poly.Polynomial) -> Range:
        low = lower_bound(p, self._find_range)
        high = lower_bound(poly.scale(p, -1), self._find_range)
        return Range(None if low is None else math.ceil(low), None if high is None else -math.ceil(high))


def _terms_around_low_ends(p: poly.Polynomial) -> int:
    """Return the approximate number of terms in `lower_bound`: a product of n names has 2^n once each is low + t."""
    return sum([1 << min(len(set(monomial)), 12) for monomial in p])


def _compounds(*polynomials: poly.Polynomial) -> list[poly.Quotient | poly.Minimum]:
    """Return the quotients and minima that are atoms of the polynomials, including nested ones."""
    found: dict[poly.Quotient | poly.Minimum, None] = {}
    waiting = list(polynomials)
    while waiting:
        for atom in chain.from_iterable(waiting.pop()):
            if not isinstance(atom, poly.NamedDim) and atom not in found:
                found[atom] = None
                waiting += poly.parts(atom)
    return list(found)


def _defining_inequalities(atom: poly.Quotient | poly.Minimum) -> list[poly.Polynomial]:
    """Return n - d*q >= 0 and d*q + d - 1 - n >= 0 for a quotient; a - m >= 0 for each argument of a minimum."""
    if isinstance(atom, poly.Minimum):
        return [poly.add(argument, poly.variable(atom), -1) for argument in atom.arguments]
    product = poly.multiply(atom.denominator, poly.variable(atom))
    rest = poly.add(atom.numerator, product, -1)
    return [rest, poly.add(poly.add(atom.denominator, poly.constant(1), -1), rest, -1)]


def _expand_products(p: poly.Polynomial) -> Iterator[poly.Polynomial]:
    """Yield polynomials that are nonnegative exactly where `p` is: n//d >= k is n >= k*d, and n//d <= k is n < (k +
    1)*d."""
    for monomial, coefficient in p.items():
        atom = monomial[0] if len(monomial) == 1 else None
        if not isinstance(atom, poly.Quotient) or coefficient not in (1, -1):
            continue
        if poly.constant_value(atom.denominator) is not None:
            continue  # its two inequalities are equivalent
        rest = poly.multiply(poly.add(p, {monomial: coefficient}, -1), atom.denominator)
        if coefficient == 1:
            yield poly.add(rest, atom.numerator)
        else:
            below = poly.add(poly.add(rest, atom.denominator), atom.numerator, -1)
            yield poly.add(below, poly.constant(1), -1)


def _minus_times(quotient: poly.Quotient, k: int) -> poly.Polynomial:
    """Return n - k*d."""
    return poly.add(quotient.numerator, quotient.denominator, -k)


def _has_no_root(p: poly.Polynomial) -> bool:
    """Return whether p is never 0, because the gcd of all other coefficients does not divide the constant one."""
    others = poly.content({monomial: coefficient for monomial, coefficient in p.items() if monomial})
    return others > 0 and p.get((), 0) % others != 0


# A deterministic search for allowed values at which a claim fails (or holds) ------------------------------------------

# The search runs over the names that the solved facts leave free, so that N % 1009 == 7 needs no luck; every
# candidate is checked against the declared claims. Small distinct values come first (M=2, N=3), then everything near
# the low ends, then ranges' ends, powers of two and pseudo-random mixtures of these. A result is then minimised.

_PRIMES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53)
_MOST_SMALL = 256  # points near the low ends
_MOST_MIXED = 600  # points mixed from the ladders
_LARGEST_POWER = 40
_SMALL_ENOUGH = 16  # values up to here are not reduced: M=2, N=3 is more informative than M=1, N=2


def find_witness(facts: Facts, claim: Claim, wanted: bool, most: int | None = None) -> dict[str, int] | None:
    """Return allowed values of the claim's names (and of related ones) at which the claim is `wanted`.

    Returns None if the search, of at most `most` points, finds none; that proves nothing.
    """
    names, relevant = _connected(claim, facts.claims)
    images = {name: facts.get_image(name) for name in names}
    free = sorted({name for image in images.values() for name in poly.iterate_names(image)}, key=lambda name: name.text)
    ranges = [facts.get_range(name) for name in free]

    def attempt(point: Sequence[int]) -> dict[str, int] | None:
        chosen = {name.text: value for name, value in zip(free, point, strict=True)}
        try:
            values = {name.text: poly.evaluate(image, chosen) for name, image in images.items()}
        except poly.Undefined:
            return None
        if any(values[name.text] < (facts.get_range(name).low or 0) for name in names):
            return None
        if claim.holds(values) is not wanted or not all(fact.holds(values) for fact in relevant):
            return None
        return values

    constants = sorted({c for fact in (claim, *relevant) for c in _constants(fact.polynomial)})
    for point in itertools.islice(_points(ranges, constants), most):
        if attempt(point) is not None:
            return attempt(_shrink(point, ranges, lambda candidate: attempt(candidate) is not None))
    return None


def _constants(p: poly.Polynomial) -> Iterator[int]:
    """Yield the constants in a polynomial, inside its atoms too."""
    for monomial, coefficient in p.items():
        yield abs(coefficient)
        for atom in monomial:
            for part in poly.parts(atom):
                yield from _constants(part)


def _connected(claim: Claim, declared: Sequence[Claim]) -> tuple[list[poly.NamedDim], list[Claim]]:
    """Return the claim's names with all that the declared claims relate to them, and those claims."""
    names = dict.fromkeys(poly.iterate_names(claim.polynomial))
    waiting = [(fact, dict.fromkeys(poly.iterate_names(fact.polynomial))) for fact in declared]
    relevant: list[Claim] = []
    while touching := [entry for entry in waiting if not names.keys().isdisjoint(entry[1])]:
        waiting = [entry for entry in waiting if names.keys().isdisjoint(entry[1])]
        for fact, its_names in touching:
            relevant.append(fact)
            names.update(its_names)
    return sorted(names, key=lambda name: name.text), relevant


def _points(ranges: Sequence[Range], constants: Iterable[int]) -> Iterator[tuple[int, ...]]:
    distinct = [_PRIMES[index % len(_PRIMES)] for index in range(len(ranges))]
    yield tuple(_clip(value, r) for value, r in zip(distinct, ranges, strict=True))
    near = [[_clip((r.low or 0) + step, r) for step in range(6)] for r in ranges]
    yield from itertools.islice(itertools.product(*(dict.fromkeys(values) for values in near)), _MOST_SMALL)
    ladders = [_ladder(r, constants) for r in ranges]
    bases = [tuple(values[0] for values in ladders), tuple(values[-1] for values in ladders)]
    for index, values in enumerate(ladders):
        for base in bases:
            for value in values:
                yield (*base[:index], value, *base[index + 1 :])
    source = random.Random(0)
    for _ in range(_MOST_MIXED if ranges else 0):
        yield tuple(source.choice(values) for values in ladders)


def _ladder(r: Range, constants: Iterable[int]) -> list[int]:
    """Return values in a range from its low end up, near its ends, powers of two and the given constants."""
    low = r.low or 0
    steps = {low + step for step in range(8)} | {2**k + d for k in range(_LARGEST_POWER) for d in (-1, 0, 1)}
    steps |= {c + d for c in constants for d in (-1, 0, 1)}
    if r.high is not None:
        steps |= {r.high - step for step in range(4)}
    return sorted(value for value in steps if low <= value and (r.high is None or value <= r.high))


def _shrink(
    point: tuple[int, ...], ranges: Sequence[Range], works: Callable[[tuple[int, ...]], bool]
) -> tuple[int, ...]:
    """Lower one coordinate after the other by bisection, while the point still works."""
    for index, r in enumerate(ranges):
        too_low = (r.low or 0) - 1
        while point[index] > max(too_low + 1, _SMALL_ENOUGH):
            middle = (too_low + point[index]) // 2
            candidate = (*point[:index], middle, *point[index + 1 :])
            if works(candidate):
                point = candidate
            else:
                too_low = middle
    return point


def _clip(value: int, r: Range) -> int:
    value = max(value, r.low or 0)
    return value if r.high is None else min(value, r.high)
