"""Radicals, the algebra of `DimFloat`: sums of rational multiples of products of bases with half-integer exponents.

A base is an atom, a dim expression of several terms in lowest form, a natural number under a root, or a whole sum that
cannot be split. A base is paired with twice its exponent, an int: (N, 2) is N and (N, -1) is 1/sqrt(N). Products of dim
expressions are multiplied out and exact quotients cancel, so that (n - 1)/n + 1/n is 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from ..errors import ShapeError, TooComplexError
from . import polynomial as poly
from .expression import DimExpr
from .polynomial import add as add

if TYPE_CHECKING:
    from .scope import DimScope


class Opaque:
    """A sum under a root or a fraction bar as a whole, such as 1 + 1/sqrt(N); compared by its text."""

    __slots__ = ("terms", "text")

    def __init__(self, terms: Terms):
        self.terms = terms
        self.text = render(terms)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Opaque) and other.text == self.text

    def __hash__(self) -> int:
        return hash(self.text)


Base: TypeAlias = poly.Atom | DimExpr | int | Opaque
Factors: TypeAlias = tuple[tuple[Base, int], ...]
Terms: TypeAlias = dict[Factors, Fraction]

_MOST_PRODUCTS = 4000  # of terms, in one multiplication
_ONE = Fraction(1)
_UNIT: Terms = {(): _ONE}


class _Split(NamedTuple):
    """A sum as `outside * inside`: one term multiplied by a polynomial in lowest form with a positive leading
    coefficient."""

    outside: Terms
    inside: poly.Polynomial


def of_number(value: int | float | Fraction) -> Terms:
    """Return the terms of a rational number or a finite float."""
    return {(): Fraction(value)} if value else {}


def of_polynomial(p: poly.Polynomial) -> Terms:
    """Return the terms of a polynomial."""
    return {
        _factors([(atom, 2 * monomial.count(atom)) for atom in dict.fromkeys(monomial)]): Fraction(coefficient)
        for monomial, coefficient in p.items()
    }


def multiply(a: Terms, b: Terms) -> Terms:
    """Return `a * b`. Raises `TooComplexError`."""
    if a == _UNIT:
        return b
    if b == _UNIT:
        return a
    if len(a) * len(b) > _MOST_PRODUCTS:
        raise TooComplexError(f"a product of {len(a):,} terms and {len(b):,} terms")
    result: Terms = {}
    for left, c in a.items():
        for right, d in b.items():
            exponents = dict(left)
            for base, twice in right:
                exponents[base] = exponents.get(base, 0) + twice
            result = add(result, _term(c * d, exponents))
    return result


def power(scope: DimScope, a: Terms, twice: int) -> Terms:
    """Return `a ** (twice/2)`. Raises `ShapeError` for 1/0 and for the root of a negative number."""
    if twice % 2:
        return multiply(power(scope, a, twice - 1), _root(scope, a))
    if twice < 0:
        a = _inverse(scope, a)
    result = _UNIT
    for _ in range(abs(twice) // 2):
        result = multiply(result, a)
    return result


def cancelled(a: Terms) -> Terms:
    """Return `a` with every exact division carried out: (N*M + M)/(N + 1) is M."""
    if not any(isinstance(base, DimExpr) and twice < 0 for factors in a for base, twice in factors):
        return a
    groups: dict[Factors, Terms] = {}
    for factors, coefficient in a.items():
        outer = tuple(factor for factor in factors if not _is_atom(factor[0]))
        inner = tuple(factor for factor in factors if _is_atom(factor[0]))
        groups.setdefault(outer, {})[inner] = coefficient
    result: Terms = {}
    changed = False
    for outer, inner_terms in groups.items():
        for base, twice in outer:
            if not isinstance(base, DimExpr) or twice > 0 or (split := _split(inner_terms)) is None:
                continue
            quotient, remainder = poly.divide(split.inside, base.polynomial)
            if not remainder:
                changed = True
                inner_terms = multiply(split.outside, of_polynomial(quotient))
                outer = tuple((b, t + 2 if b is base else t) for b, t in outer)
                break
        result = add(result, multiply(inner_terms, _term(_ONE, dict(outer))))
    return cancelled(result) if changed else result


def divisors(a: Terms) -> list[tuple[poly.Polynomial, str]]:
    """Return the dims under a fraction bar or root, each with its text."""
    found: dict[str, poly.Polynomial] = {}
    for factors in a:
        for base, twice in factors:
            if (twice < 0 or twice % 2) and not isinstance(base, (int, Opaque)):
                found[_base_text(base)] = base.polynomial if isinstance(base, DimExpr) else poly.variable(base)
    return [(p, text) for text, p in found.items()]


def evaluate(a: Terms, values: Mapping[str, int]) -> float:
    """Return the value, rounded once unless it has a root. Raises `ShapeError` for 1/0 and roots of negative
    numbers."""
    exact = Fraction(0)
    rounded: list[float] = []
    for factors, coefficient in a.items():
        under_root = _ONE
        for base, twice in factors:
            value = _value(base, values)
            if (twice < 0 and not value) or (twice % 2 and value < 0):
                raise ShapeError(f"{render(a)} is undefined where {_base_text(base)} is {value}")
            coefficient *= value ** (twice // 2)
            if twice % 2:
                under_root *= value
        if under_root == 1:
            exact += coefficient
        else:
            rounded.append(math.copysign(math.sqrt(coefficient * coefficient * under_root), coefficient))
    return math.fsum([float(exact), *rounded]) if rounded else float(exact)


def _value(base: Base, values: Mapping[str, int]) -> Fraction:
    if isinstance(base, int):
        return Fraction(base)
    if isinstance(base, Opaque):
        return Fraction(evaluate(base.terms, values))
    return Fraction(poly.evaluate(base.polynomial if isinstance(base, DimExpr) else poly.variable(base), values))


# ---------------------------------------------------------------------- normal form


def _term(coefficient: Fraction, exponents: dict[Base, int]) -> Terms:
    """Return one product in normal form: numbers join the coefficient or one root, whole powers of sums are
    expanded."""
    factors: list[tuple[Base, int]] = []
    expanded = _UNIT
    radicand = 1
    for base, twice in exponents.items():
        if abs(twice) > 2 * poly.MOST_FACTORS:
            raise TooComplexError(f"a power of {abs(twice) // 2:,}")
        if isinstance(base, int):
            coefficient *= Fraction(base) ** (twice // 2)
            radicand *= base if twice % 2 else 1
            continue
        if isinstance(base, (DimExpr, Opaque)) and twice >= 2:
            whole = of_polynomial(base.polynomial) if isinstance(base, DimExpr) else base.terms
            for _ in range(twice // 2):
                expanded = multiply(expanded, whole)
            twice %= 2
        if twice:
            factors.append((base, twice))
    if max(coefficient.numerator.bit_length(), coefficient.denominator.bit_length()) > poly.MOST_BITS:
        raise TooComplexError("a number of hundreds of digits")
    if radicand != 1:
        root = math.isqrt(radicand)
        if root * root == radicand:
            coefficient *= root
        else:
            factors.append((radicand, 1))
    return multiply({_factors(factors): coefficient}, expanded)


def _factors(factors: Iterable[tuple[Base, int]]) -> Factors:
    return tuple(sorted(factors, key=lambda factor: _base_text(factor[0])))


def _is_atom(base: Base) -> bool:
    return isinstance(base, (poly.NamedDim, poly.Quotient, poly.Minimum))


def _inverse(scope: DimScope, a: Terms) -> Terms:
    if not a:
        raise ShapeError("an expression of sizes is divided by 0")
    if len(a) == 1:
        ((factors, coefficient),) = a.items()
        return _term(1 / coefficient, {base: -twice for base, twice in factors})
    split = _split(a)
    if split is None:
        return {((Opaque(a), -2),): _ONE}
    return multiply(_inverse(scope, split.outside), {((_expression(scope, split.inside), -2),): _ONE})


def _root(scope: DimScope, a: Terms) -> Terms:
    if not a:
        return a
    if len(a) > 1:
        split = _split(a)
        if split is None:
            return {((Opaque(a), 1),): _ONE}
        outside, inside = split
        if next(iter(outside.values())) < 0:  # sqrt(3 - T), not the product of two impossible roots
            outside, inside = add({}, outside, -1), poly.scale(inside, -1)
        return multiply(_root(scope, outside), {((_expression(scope, inside), 1),): _ONE})
    ((factors, coefficient),) = a.items()
    uncertain = [twice for base, twice in factors if not isinstance(base, (poly.NamedDim, int))]
    if coefficient < 0 and not uncertain:
        raise ShapeError(f"the square root of {render(a)} is not real")
    if (
        coefficient < 0
        or len(uncertain) > 1
        or any(twice % 4 == 0 for twice in uncertain)
        or any(t % 2 for _, t in factors)
    ):
        return {((Opaque(a), 1),): _ONE}  # sqrt(x*y) is not sqrt(x)*sqrt(y) where x and y may be negative
    number = coefficient.numerator * coefficient.denominator  # sqrt(n/d) = sqrt(n*d)/d
    exponents: dict[Base, int] = {base: twice // 2 for base, twice in factors}
    return _term(Fraction(1, coefficient.denominator), exponents | {number: 1})


def _split(a: Terms) -> _Split | None:
    """Return a sum as one term times a polynomial, over a common denominator, or None."""
    denominator: dict[Base, int] = {}
    for factors in a:
        for base, twice in factors:
            if isinstance(base, DimExpr) and twice % 2 == 0:
                denominator[base] = max(denominator.get(base, 0), -twice)
    for base, twice in denominator.items():
        a = multiply(a, {((base, twice),): _ONE})
    lowest: dict[Base, int] = {}
    for base in {base: None for factors in a for base, _ in factors}:
        lowest[base] = min(dict(factors).get(base, 0) for factors in a)
    common = math.lcm(*(coefficient.denominator for coefficient in a.values()))
    inside: poly.Polynomial = {}
    for factors, coefficient in a.items():
        exponents = dict(factors)
        atoms: list[poly.Atom] = []
        for base, least in lowest.items():
            times, odd = divmod(exponents.get(base, 0) - least, 2)
            if isinstance(base, (poly.NamedDim, poly.Quotient, poly.Minimum)):
                atoms += [base] * times
            elif times:
                return None
            if odd:
                return None
        inside = poly.add(inside, {tuple(sorted(atoms, key=lambda atom: atom.text)): int(coefficient * common)})
    divisor = poly.content(inside)
    divisor = -divisor if inside[poly.leading(inside)] < 0 else divisor
    inside = {monomial: coefficient // divisor for monomial, coefficient in inside.items()}
    outside = _term(Fraction(divisor, common), lowest | {base: -twice for base, twice in denominator.items()})
    return _Split(outside, inside)


def _expression(scope: DimScope, p: poly.Polynomial) -> DimExpr:
    expression = scope.intern(p)
    assert isinstance(expression, DimExpr)
    return expression


# ---------------------------------------------------------------------- text


def render(a: Terms) -> str:
    """Return the text of a sum, such as `1 - 1/N` or `1/sqrt(H)`."""
    texts = sorted((-_degree(factors), _term_text(factors, abs(c)), c) for factors, c in a.items())
    first = next((index for index, term in enumerate(texts) if term[2] > 0), 0)
    texts.insert(0, texts.pop(first))
    text = ("-" if texts[0][2] < 0 else "") + texts[0][1]
    return text + "".join(f" - {term}" if sign < 0 else f" + {term}" for _, term, sign in texts[1:])


def _degree(factors: Factors) -> int:
    """Return the degree of a product in the sizes, so that 1 sorts before 1/N."""
    degree = 0
    for base, twice in factors:
        if not isinstance(base, (int, Opaque)):
            degree += twice * (len(poly.leading(base.polynomial)) if isinstance(base, DimExpr) else 1)
    return degree


def _term_text(factors: Factors, coefficient: Fraction) -> str:
    above: list[str] = []
    below: list[str] = []
    if coefficient.denominator > 1024 and Fraction(float(coefficient)) == coefficient:
        above.append(repr(float(coefficient)))  # a converted float
    else:
        above += [str(coefficient.numerator)] if coefficient.numerator != 1 else []
        below += [str(coefficient.denominator)] if coefficient.denominator != 1 else []
    for base, twice in factors:
        text, side = _base_text(base), above if twice > 0 else below
        whole, odd = divmod(abs(twice), 2)
        if whole:
            side.append(text if whole == 1 else f"{text}**{whole}")
        if odd:
            side.append(f"sqrt{text}" if text.startswith("(") else f"sqrt({text})")
    quotient = "*".join(above) or "1"
    if not below:
        return quotient
    return f"{quotient}/{below[0]}" if len(below) == 1 else f"{quotient}/({'*'.join(below)})"


def _base_text(base: Base) -> str:
    if isinstance(base, int):
        return str(base)
    text = str(base) if isinstance(base, DimExpr) else base.text
    return text if isinstance(base, (poly.NamedDim, poly.Minimum)) else f"({text})"
