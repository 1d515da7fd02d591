"""Monotone elementwise functions, and bounds of their values.

Interval bounds, both executed and proved for every size, follow from them: the ends of a result are the images of the
operand's ends, rounded outward by the error of kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Final, NamedTuple, TypeVar

from ..ops.activation import (
    CELU,
    ELU,
    HARDSIGMOID,
    HARDTANH,
    LEAKY_RELU,
    LOG_SIGMOID,
    RELU,
    SELU,
    SOFTSHRINK,
    SOFTSIGN,
    TANHSHRINK,
)
from ..ops.elementwise import CLAMP, ERF, EXP, LOG, NEG, SAFE_LOG, SCALE, SIGMOID, SOFTPLUS, SQRT, TANH
from ..ops.primitive import Primitive, Static
from ..ops.rounding import CEIL, FLOOR, ROUND, SIGN, TRUNC
from ..ops.transcendental import ACOS, ACOSH, ASIN, ASINH, ATAN, ATANH, EXP2, EXPM1, LOG1P, LOG2, LOG10, SINH

INFINITY = float("inf")
_QUARTER_TURN = 1.5707963267948966


class Monotone(NamedTuple):
    """The monotonicity and range of a function, and the largest error of its kernels, on every interpreter.

    least     a lower bound of its values, and of its kernels' values; `greatest` is an upper bound, rounded to the
              dtype
    ulps      0 for kernels with exact results
    absolute  the error is relative to max(|operand|, 1), where cancellation leaves no relative error
    rises     whether it increases or decreases, by its static parameters; None if these make it neither
    """

    least: float = -INFINITY
    greatest: float = INFINITY
    ulps: float = 0.0
    absolute: bool = False
    rises: Callable[[Static], bool | None] = lambda static: True


MONOTONE: Final[Mapping[Primitive, Monotone]] = {
    NEG: Monotone(rises=lambda static: False),
    RELU: Monotone(least=0.0),
    **dict.fromkeys((CLAMP, HARDTANH, FLOOR, CEIL, ROUND, TRUNC), Monotone()),
    SIGN: Monotone(-1.0, 1.0),
    SCALE: Monotone(ulps=1, rises=lambda static: static["c"] >= 0),
    SQRT: Monotone(least=0.0, ulps=1),
    **dict.fromkeys((EXP, EXP2), Monotone(least=0.0, ulps=4)),
    EXPM1: Monotone(least=-1.0, ulps=6),
    **dict.fromkeys((LOG, LOG2, LOG10, SAFE_LOG, SOFTSIGN), Monotone(ulps=4)),
    LOG1P: Monotone(ulps=6),
    **dict.fromkeys((TANH, ERF), Monotone(-1.0, 1.0, ulps=4)),
    SIGMOID: Monotone(0.0, 1.0, ulps=6),
    SOFTPLUS: Monotone(least=0.0, ulps=8),
    LOG_SIGMOID: Monotone(greatest=0.0, ulps=8),
    ATAN: Monotone(-_QUARTER_TURN, _QUARTER_TURN, ulps=4),
    **dict.fromkeys((ASIN, TANHSHRINK), Monotone(ulps=8, absolute=True)),
    ACOS: Monotone(ulps=8, absolute=True, rises=lambda static: False),
    **dict.fromkeys((SINH, ASINH, ACOSH, ATANH), Monotone(ulps=16, absolute=True)),
    LEAKY_RELU: Monotone(ulps=1, rises=lambda static: static["negative_slope"] >= 0 or None),
    ELU: Monotone(ulps=8, rises=lambda static: static["alpha"] >= 0 or None),
    SELU: Monotone(ulps=10),
    CELU: Monotone(ulps=10, rises=lambda static: static["alpha"] > 0 or None),
    HARDSIGMOID: Monotone(least=0.0, ulps=6, absolute=True),
    SOFTSHRINK: Monotone(ulps=2, absolute=True),
}
"""Tests check the errors against exact values, on each interpreter; they leave room for those of a GPU."""


# The ends of an interval's image, in any arithmetic: of numbers for ranges, of tensors for bounds ---------------------

# Where a function of two intervals is monotone in either operand, its extremes are at corners; where it rises with
# the magnitude, they are at the least and the greatest one. Rounding is the caller's.

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
