"""Relations of sizes, asked so that numbers cost nothing; an unproved relation is simply not used."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

from ...ops.dims import UNKNOWN, Dim, DimExpr, DimFloat, Verdict, at_most, equal
from ...ops.dims.polynomial import variable
from ...ops.dims.terms import Opaque


def same(a: Dim, b: Dim) -> bool:
    """Whether two sizes are one polynomial; asks for no condition."""
    if a is b:
        return True
    if a is UNKNOWN or b is UNKNOWN:
        return False
    difference = a - b
    return type(difference) is int and difference == 0


def alike(a: object, b: object) -> bool:
    """Whether two tuples with sizes in them are written alike; `==` of two sizes may be undecided, which raises."""
    return hash(a) == hash(b) and a == b


def at_most_proved(a: Dim, b: Dim) -> bool:
    """Whether a <= b for every allowed size."""
    if type(a) is int and type(b) is int:
        return a <= b
    if a is UNKNOWN or b is UNKNOWN:
        return False
    return at_most(a, b) is Verdict.proved


def largest(size: Dim) -> float:
    """Return the largest value below 2^31 that the constraints on the sizes allow; infinity where there is none."""
    if isinstance(size, int):
        return size
    low, high = 0, 1 << 31
    if not at_most_proved(size, high):
        return math.inf
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if at_most_proved(size, middle) else (middle + 1, high)
    return high


def equal_proved(a: Dim, b: Dim) -> bool:
    """Whether a == b for every allowed size."""
    if a is UNKNOWN or b is UNKNOWN:
        return False
    return equal(a, b) is Verdict.proved


def divided(a: Dim, b: Dim) -> Dim | None:
    """a / b where b, at least 1, divides a as a polynomial; else None."""
    if a is UNKNOWN or b is UNKNOWN or not at_most_proved(1, b):
        return None
    quotient = a // b
    return quotient if same(quotient * b, a) else None


def as_size(value: Any) -> Dim | None:
    """An integer that a static number is, a size in names included; else None."""
    if isinstance(value, bool):
        return None
    if isinstance(value, (int, DimExpr)):
        return None if value is UNKNOWN else value
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) < 2**53 else None
    if isinstance(value, Fraction):
        return value.numerator if value.denominator == 1 else None
    if isinstance(value, DimFloat):
        return _of_real(value)
    return None


def _of_real(real: DimFloat) -> Dim | None:
    """The polynomial that an exact real is, if it is one."""
    total: Dim = 0
    for factors, coefficient in real.terms.items():
        if coefficient.denominator != 1:
            return None
        term: Dim = coefficient.numerator
        for base, twice in factors:
            if twice < 0 or twice % 2:
                return None
            if isinstance(base, Opaque):
                return None
            size: Dim = base if isinstance(base, (int, DimExpr)) else real.scope.intern(variable(base))
            for _ in range(twice // 2):
                term = term * size
        total = total + term
    return total
