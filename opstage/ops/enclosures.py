"""The ends of an interval's image, in any arithmetic: of numbers, as ranges have them, or of tensors, as bounds do.

Where a function of two intervals is monotone in either operand, its extremes are at corners; where it rises with the
magnitude, they are at the least and the greatest one. Rounding is the caller's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import TypeVar

T = TypeVar("T")


def corners(f: Callable[[T, T], T], xs: Sequence[T], ys: Sequence[T]) -> list[T]:
    """Return f at every pair of ends: the extremes of x·y and x/y, y ≠ 0, are among these."""
    return [f(x, y) for x in xs for y in ys]


def magnitudes(neg: Callable[[T], T], maximum: Callable[[T, T], T], low: T, high: T, zero: T) -> tuple[T, T]:
    """Return the greatest and the least |x| for low ≤ x ≤ high: max(-low, high) and max(low, -high, 0)."""
    return maximum(neg(low), high), maximum(maximum(low, neg(high)), zero)


def is_even(exponent: Fraction) -> bool:
    """Return whether x ↦ x^exponent is even: whether the exponent is a whole number that 2 divides."""
    return exponent.denominator == 1 and exponent.numerator % 2 == 0


def power_operands(exponent: Fraction, low: T, high: T, sizes: Callable[[], tuple[T, T]]) -> tuple[T, T]:
    """Return where x^exponent is least and greatest for low ≤ x ≤ high, for an exponent above 0.

    An even power rises with the magnitude; `sizes` gives the greatest and the least. Others rise with x, where they are
    defined.
    """
    if is_even(exponent):
        greatest, least = sizes()
        return least, greatest
    return low, high
