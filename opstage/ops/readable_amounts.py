"""Readable amounts: memory such as `24GiB`, arithmetic such as `1.2 GFLOP`, and formulas in named dims."""

from __future__ import annotations

import math
import re
from collections import Counter
from fractions import Fraction

from .dims import UNKNOWN, Dim
from .dims.polynomial import Atom, Monomial, Polynomial, Quotient
from .errors import UsageError, brief, nearest

# Bytes ----------------------------------------------------------------------------------------------------------------

_UNITS: dict[str, int] = {"B": 1}
for _power, _prefix in enumerate("KMGT", 1):
    _UNITS |= {f"{_prefix}B": 10 ** (3 * _power), f"{_prefix}iB": 2 ** (10 * _power)}
_AMOUNT = re.compile(r"\s*(\d{1,30}(?:\.\d{1,30})?|\.\d{1,30})\s*([A-Za-z]*)\s*")
_EXAMPLES = "write 24GiB, 1.5GB or 800MB; MiB are 1024² bytes, MB are 1000²"


def parse_bytes(amount: str | int) -> int:
    """Return the number of bytes in a text: a whole number, or a number with a unit B, KB, MB, GB, TB, KiB … TiB.

    Raises UsageError for any other text, and for amounts below 1 byte.
    """
    if isinstance(amount, str):
        found = _AMOUNT.fullmatch(amount)
        if found is None:
            raise UsageError(f"an amount of memory is a number and a unit, not {brief(amount)}; {_EXAMPLES}")
        number = int(Fraction(found[1]) * _factor(found[2], amount))
    elif isinstance(amount, int) and not isinstance(amount, bool):
        number = amount
    else:
        raise UsageError(f"an amount of memory is text or a number of bytes, not {brief(amount)}; {_EXAMPLES}")
    if number < 1:
        raise UsageError(f"an amount of memory must be at least 1 byte but is {amount}; {_EXAMPLES}")
    return number


def _factor(unit: str, amount: str) -> int:
    """Return the bytes of a unit, ignoring case."""
    if not unit:
        return 1
    for name, factor in _UNITS.items():
        if unit.lower() == name.lower():
            return factor
    raise UsageError(f"unknown unit {unit!r} in {amount!r}{nearest(unit, _UNITS)}; {_EXAMPLES}")


def show_bytes(number: int) -> str:
    """Format bytes: `512 bytes`, `8.0 KiB`, `1.5 GiB`."""
    for name in ("TiB", "GiB", "MiB", "KiB"):
        if number >= _UNITS[name]:
            return f"{number / _UNITS[name]:.1f} {name}"
    return f"{number} bytes"


# Sizes and arithmetic: numbers, or formulas with common factors extracted ---------------------------------------------

_PREFIXES = ((10**18, "E"), (10**15, "P"), (10**12, "T"), (10**9, "G"), (10**6, "M"), (10**3, "k"))
_RAISED = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


def show_flops(amount: Dim) -> str:
    """Format `512 FLOP`, `1.23 GFLOP`; a formula if the amount contains names."""
    if not isinstance(amount, int):
        return show_formula(amount)
    for limit, prefix in _PREFIXES:
        if amount >= limit:
            return f"{_three_digits(amount, limit)} {prefix}FLOP"
    return f"{amount} FLOP"


def show_size(amount: Dim) -> str:
    """Format `512 bytes`, `3.4 GiB`; a formula if the amount contains names."""
    return show_bytes(amount) if isinstance(amount, int) else show_formula(amount)


def show_formula(amount: Dim) -> str:
    """Format `16*B*T*(58,275*T + 553,471,328) + 4`: the common factor of all terms but the constant extracted."""
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
    """Return the terms, highest degree first."""
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
