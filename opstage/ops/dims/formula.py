"""Readable amounts: formulas with common factors extracted, numbers with the prefixes of SI and IEC."""

from __future__ import annotations

import math
from collections import Counter

from ..amounts import show_bytes
from . import UNKNOWN, Dim
from .polynomial import Atom, Monomial, Polynomial, Quotient

_PREFIXES = ((10**18, "E"), (10**15, "P"), (10**12, "T"), (10**9, "G"), (10**6, "M"), (10**3, "k"))
_RAISED = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


def show_flops(amount: Dim) -> str:
    """`512 FLOP`, `1.23 GFLOP`; a formula if the amount contains names."""
    if not isinstance(amount, int):
        return show_formula(amount)
    for limit, prefix in _PREFIXES:
        if amount >= limit:
            return f"{_three_digits(amount, limit)} {prefix}FLOP"
    return f"{amount} FLOP"


def show_size(amount: Dim) -> str:
    """`512 bytes`, `3.4 GiB`; a formula if the amount contains names."""
    return show_bytes(amount) if isinstance(amount, int) else show_formula(amount)


def show_formula(amount: Dim) -> str:
    """`16*B*T*(58,275*T + 553,471,328) + 4`: the common factor of all terms but the constant extracted."""
    if isinstance(amount, int):
        return f"{amount:,}"
    if amount is UNKNOWN:
        return "?"
    polynomial = dict(amount.polynomial)
    constant = polynomial.pop((), 0)
    text = _factored(polynomial)
    if not constant:
        return text
    return f"{text} {'+' if constant > 0 else '-'} {abs(constant):,}"


def _factored(polynomial: Polynomial) -> str:
    if len(polynomial) == 1:
        return _terms(polynomial)
    shared: Counter[Atom] | None = None
    for monomial in polynomial:
        shared = Counter(monomial) if shared is None else shared & Counter(monomial)
    if not shared:
        return _terms(polynomial)
    content = math.gcd(*polynomial.values())
    inner: Polynomial = {}
    for monomial, coefficient in polynomial.items():
        rest = Counter(monomial) - shared
        inner[tuple(atom for atom in dict.fromkeys(monomial) for _ in range(rest[atom]))] = coefficient // content
    return f"{_product(tuple(shared.elements()), content)}*({_terms(inner)})"


def _terms(polynomial: Polynomial) -> str:
    """The terms, highest degree first."""
    text = ""
    for monomial in sorted(polynomial, key=lambda m: (-len(m), [atom.text for atom in m])):
        coefficient = polynomial[monomial]
        sign = "-" if coefficient < 0 else "+"
        shown = _product(monomial, abs(coefficient))
        text = f"{text} {sign} {shown}" if text else shown if coefficient > 0 else f"-{shown}"
    return text


def _product(monomial: Monomial, coefficient: int) -> str:
    factors = [f"{coefficient:,}"] if coefficient != 1 or not monomial else []
    for atom, times in Counter(monomial).items():
        text = f"({atom.text})" if isinstance(atom, Quotient) else atom.text
        factors.append(text if times == 1 else text + str(times).translate(_RAISED))
    return "*".join(factors)


def _three_digits(amount: int, limit: int) -> str:
    value = amount / limit
    return f"{value:.0f}" if value >= 99.95 else f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"
