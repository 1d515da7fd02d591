"""Polynomials with integer coefficients, the canonical form of every dim expression.

A polynomial is an immutable dict from monomial to nonzero coefficient. A monomial is a tuple of atoms
sorted by their text, repeated for powers; `()` is the constant. An atom is a name, or a floor quotient or a minimum
that does not simplify (created by `simplification`). Atoms are interned in a table, so equal atoms are one object and
monomials compare by identity. A maximum is written through a minimum: max(a, b) is a + b - min(a, b).

Monomials are ordered by degree, then alphabetically (graded lexicographic order). The order is preserved under
multiplication, so division by one polynomial has a unique remainder, and that makes the quotients canonical.
"""

from __future__ import annotations

import functools
import math
import operator
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping
from fractions import Fraction
from typing import TypeAlias, TypeVar

from ..errors import TooComplexError

# Expressions that people write, and costs of models with many named sizes, are far below these limits. Beyond them
# computation would take seconds and then minutes: terms grow with every product, the text of an atom with every level.
MOST_PRODUCTS = 50_000  # of terms, in one multiplication
MOST_FACTORS = 128  # in a monomial
MOST_BITS = 2048  # of a coefficient
MOST_ARGUMENTS = 64  # of a minimum
LONGEST_ATOM = 400_000  # characters; random expressions of three levels reach 300,000


class NamedDim:
    """A named dim, such as `B`."""

    __slots__ = ("text",)

    def __init__(self, text: str):
        self.text = text

    def __repr__(self) -> str:
        return self.text


class Quotient:
    """The quotient `numerator // denominator` in lowest form; undefined unless the denominator is positive."""

    __slots__ = ("denominator", "numerator", "text")

    def __init__(self, numerator: Polynomial, denominator: Polynomial):
        self.numerator = numerator
        self.denominator = denominator
        self.text = _modest(f"{as_operand(numerator)}//{as_operand(denominator)}")

    def __repr__(self) -> str:
        return self.text


class Minimum:
    """The minimum of `arguments` with natural coefficients, which have neither a common term nor a common factor."""

    __slots__ = ("arguments", "text")

    def __init__(self, arguments: Iterable[Polynomial]):
        shown = sorted([(constant_value(p) is not None, render(p), p) for p in arguments], key=lambda entry: entry[:2])
        self.arguments = tuple([p for _, _, p in shown])
        self.text = _modest(f"min({', '.join([text for _, text, _ in shown])})")

    def __repr__(self) -> str:
        return self.text


Atom: TypeAlias = NamedDim | Quotient | Minimum
Monomial: TypeAlias = tuple[Atom, ...]
Polynomial: TypeAlias = dict[Monomial, int]
_Term = TypeVar("_Term", bound=Hashable)
_Number = TypeVar("_Number", int, Fraction)


class Undefined(ArithmeticError):
    """A quotient was evaluated at a denominator that is not positive."""


class AtomTable:
    """Interns atoms, so that equal atoms are the same object."""

    __slots__ = ("_minima", "_names", "_quotients")

    def __init__(self) -> None:
        self._names: dict[str, NamedDim] = {}
        self._quotients: dict[tuple[frozenset[tuple[Monomial, int]], ...], Quotient] = {}
        self._minima: dict[frozenset[frozenset[tuple[Monomial, int]]], Minimum] = {}

    def name(self, text: str) -> NamedDim:
        """Return the atom of a name."""
        found = self._names.get(text)
        if found is None:
            found = self._names[text] = NamedDim(text)
        return found

    def quotient(self, numerator: Polynomial, denominator: Polynomial) -> Quotient:
        """Return the atom of a quotient in lowest form; `simplification.floor_divide` handles any other."""
        key = (frozenset(numerator.items()), frozenset(denominator.items()))
        found = self._quotients.get(key)
        if found is None:
            found = self._quotients[key] = Quotient(numerator, denominator)
        return found

    def minimum(self, arguments: Iterable[Polynomial]) -> Minimum:
        """Return the atom of a minimum in lowest form; `simplification.minimum` handles any other."""
        arguments = tuple(arguments)
        key = frozenset([frozenset(p.items()) for p in arguments])
        found = self._minima.get(key)
        if found is None:
            found = self._minima[key] = Minimum(arguments)
        return found


def constant(value: int) -> Polynomial:
    """Return the polynomial of an integer."""
    return {(): value} if value else {}


def variable(atom: Atom) -> Polynomial:
    """Return the polynomial of a single atom."""
    return {(atom,): 1}


def constant_value(p: Polynomial) -> int | None:
    """Return the integer that `p` equals, or None if it contains an atom."""
    if not p:
        return 0
    return p.get(()) if len(p) == 1 else None


def add(p: dict[_Term, _Number], q: dict[_Term, _Number], factor: int = 1) -> dict[_Term, _Number]:
    """Return `p + factor * q`, of polynomials or of other sums of terms."""
    result = dict(p)
    for monomial, coefficient in q.items():
        total = result.get(monomial, 0) + factor * coefficient
        if total:
            result[monomial] = total
        else:
            result.pop(monomial, None)
    return result


def scale(p: Polynomial, factor: int) -> Polynomial:
    """Return `factor * p`."""
    return {monomial: factor * coefficient for monomial, coefficient in p.items()} if factor else {}


def multiply(p: Polynomial, q: Polynomial) -> Polynomial:
    """Return `p * q`. Raises `TooComplexError`."""
    if len(p) * len(q) > MOST_PRODUCTS:
        raise TooComplexError(f"a product of {len(p):,} terms and {len(q):,} terms")
    result: Polynomial = {}
    for left, a in p.items():
        for right, b in q.items():
            monomial = tuple(sorted(left + right, key=_text)) if left and right else left or right
            result[monomial] = result.get(monomial, 0) + a * b
    return {monomial: coefficient for monomial, coefficient in result.items() if coefficient}


def power(p: Polynomial, exponent: int) -> Polynomial:
    """Return `p ** exponent` for an exponent >= 0. Raises `TooComplexError`."""
    result = constant(1)
    for _ in range(exponent):
        result = require_modest(multiply(result, p))
    return result


def require_modest(p: Polynomial) -> Polynomial:
    """Return `p` itself. Raises `TooComplexError` for huge coefficients or a huge degree."""
    for monomial, coefficient in p.items():
        if len(monomial) > MOST_FACTORS:
            raise TooComplexError(f"a product of {len(monomial):,} names")
        if coefficient.bit_length() > MOST_BITS:
            raise TooComplexError(f"a number of about {int(coefficient.bit_length() * math.log10(2)):,} digits")
    return p


def ordered(p: Polynomial) -> Polynomial:
    """Return `p` with its terms sorted, so that iteration is deterministic however p was computed."""
    return {monomial: p[monomial] for monomial in sorted(p, key=_order)}


def leading(p: Polynomial) -> Monomial:
    """Return the greatest monomial of `p`."""
    return min(p, key=_order)


def content(p: Polynomial) -> int:
    """Return the greatest common divisor of the coefficients; 0 for the zero polynomial."""
    return math.gcd(*p.values())


def without(monomial: Monomial, factor: Monomial) -> Monomial | None:
    """Return `monomial / factor`, or None if the factor does not divide it."""
    rest = list(monomial)
    for atom in factor:
        if atom not in rest:
            return None
        rest.remove(atom)
    return tuple(rest)


def common_factor(*polynomials: Polynomial) -> Monomial:
    """Return the greatest monomial that divides every term of the polynomials."""
    monomials = [Counter(monomial) for p in polynomials for monomial in p]
    common = functools.reduce(operator.and_, monomials) if monomials else Counter[Atom]()
    return tuple(sorted(common.elements(), key=_text))


def divide(p: Polynomial, divisor: Polynomial) -> tuple[Polynomial, Polynomial]:
    """Return the unique (q, r) with `p = q * divisor + r` and r reduced.

    Every coefficient in r of a multiple of the divisor's leading monomial lies in [0, |c|), c its coefficient there.
    """
    lead = leading(divisor)
    if divisor[lead] < 0:
        quotient, remainder = divide(p, scale(divisor, -1))
        return scale(quotient, -1), remainder
    lead_coefficient = divisor[lead]
    quotient, remainder = {}, {}
    work = dict(p)
    while work:
        monomial = leading(work)
        factor = without(monomial, lead)
        if factor is not None and (times := work[monomial] // lead_coefficient):
            quotient[factor] = times
            work = add(work, multiply({factor: times}, divisor), -1)
        left = work.pop(monomial, 0)
        if left:
            remainder[monomial] = left
    return quotient, remainder


def strip(p: Polynomial, factor: Monomial) -> Polynomial:
    """Return `p / factor` for a factor of every term."""
    return {rest: c for m, c in p.items() if (rest := without(m, factor)) is not None}


def parts(atom: Atom) -> tuple[Polynomial, ...]:
    """Return the polynomials within an atom; none for a name."""
    if isinstance(atom, NamedDim):
        return ()
    return atom.arguments if isinstance(atom, Minimum) else (atom.numerator, atom.denominator)


def iterate_names(p: Polynomial) -> Iterator[NamedDim]:
    """Yield every name in `p`, inside other atoms too, with repetitions."""
    for monomial in p:
        for atom in monomial:
            if isinstance(atom, NamedDim):
                yield atom
            else:
                for part in parts(atom):
                    yield from iterate_names(part)


def evaluate(p: Polynomial, values: Mapping[str, int]) -> int:
    """Return the value of `p`; KeyError for a name without a value, `Undefined` for a divisor that is not positive."""
    total = 0
    for monomial, coefficient in p.items():
        for atom in monomial:
            coefficient *= values[atom.text] if isinstance(atom, NamedDim) else _evaluate_atom(atom, values)
        total += coefficient
    return total


def _evaluate_atom(atom: Quotient | Minimum, values: Mapping[str, int]) -> int:
    if isinstance(atom, Minimum):
        return min([evaluate(argument, values) for argument in atom.arguments])
    denominator = evaluate(atom.denominator, values)
    if denominator <= 0:
        raise Undefined(f"{atom.text} divides by {denominator}")
    return evaluate(atom.numerator, values) // denominator


def render(p: Polynomial) -> str:
    """Return the canonical text, such as `B*T + 1`; parsing it returns the same polynomial."""
    if not p:
        return "0"
    p = _with_maxima(p)
    order = sorted(p, key=_order)
    if p[order[0]] < 0:  # `3 - N` reads better than `-N + 3`
        first = next((index for index, monomial in enumerate(order) if p[monomial] > 0), 0)
        order.insert(0, order.pop(first))
    text = _render_term(order[0], p[order[0]])
    for monomial in order[1:]:
        coefficient = p[monomial]
        text += (
            f" + {_render_term(monomial, coefficient)}"
            if coefficient > 0
            else f" - {_render_term(monomial, -coefficient)}"
        )
    return text


def _render_term(monomial: Monomial, coefficient: int) -> str:
    if not monomial:
        return str(coefficient)
    if len(monomial) == 1 and coefficient == 1:
        return monomial[0].text
    factors = [] if coefficient in (1, -1) else [str(coefficient)]
    for atom in dict.fromkeys(monomial):
        text = f"({atom.text})" if isinstance(atom, Quotient) else atom.text
        times = monomial.count(atom)
        factors.append(text if times == 1 else f"{text}**{times}")
    return ("-" if coefficient == -1 else "") + "*".join(factors)


def _with_maxima(p: Polynomial) -> Polynomial:
    """Return `p` with `max(T, 8)` instead of minima if that saves terms: T + 8 - min(T, 8)."""
    for monomial, coefficient in p.items():
        minima = [atom for atom in monomial if isinstance(atom, Minimum)]
        if len(minima) != 1:
            continue
        # With c the greatest coefficient of each monomial, min(arguments) = c - max(c - arguments).
        arguments = minima[0].arguments
        highest: Polynomial = {}
        for argument in arguments:
            highest |= {m: max(c, highest.get(m, 0)) for m, c in argument.items()}
        cofactor = {without(monomial, tuple(minima)) or (): coefficient}
        rest = add(add(p, {monomial: coefficient}, -1), multiply(cofactor, highest))
        if len(rest) + 1 < len(p):
            greatest = NamedDim("max" + Minimum(add(highest, argument, -1) for argument in arguments).text[3:])
            return _with_maxima(add(rest, multiply(cofactor, variable(greatest)), -1))
    return p


def as_operand(p: Polynomial) -> str:
    """Return the text of `p` as an operand: in parentheses unless it is a name, a natural number or a minimum."""
    text = render(p)
    is_minimum = any(p == variable(atom) for atom in next(iter(p), ()) if isinstance(atom, Minimum))
    return text if text.isidentifier() or text.isdecimal() or is_minimum else f"({text})"


def _modest(text: str) -> str:
    if len(text) > LONGEST_ATOM:
        raise TooComplexError(f"its text has {len(text):,} characters")
    return text


def _text(atom: Atom) -> str:
    return atom.text


def _order(monomial: Monomial) -> tuple[int, list[str]]:
    return -len(monomial), [atom.text for atom in monomial]
