"""Monotone elementwise functions, and bounds of their values.

Interval bounds, both executed and proved for every size, follow from them: the ends of a result are the images of the
operand's ends. The error of kernels is not a property of the function, and is defined by the interpreters.
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
    """The monotonicity and range of a function.

    least     a lower bound of its values, and of its kernels' values; `greatest` is an upper bound, rounded to the
              dtype
    rises     whether it increases or decreases, by its static parameters; None if these make it neither
    """

    least: float = -INFINITY
    greatest: float = INFINITY
    rises: Callable[[Static], bool | None] = lambda static: True


_FALLS = Monotone(rises=lambda static: False)
_RISES = Monotone()

MONOTONE: Final[Mapping[Primitive, Monotone]] = {
    NEG: _FALLS,
    RELU: Monotone(least=0.0),
    CLAMP: _RISES,
    HARDTANH: _RISES,
    FLOOR: _RISES,
    CEIL: _RISES,
    ROUND: _RISES,
    TRUNC: _RISES,
    SIGN: Monotone(-1.0, 1.0),
    SCALE: Monotone(rises=lambda static: static["c"] >= 0),
    SQRT: Monotone(least=0.0),
    EXP: Monotone(least=0.0),
    EXP2: Monotone(least=0.0),
    EXPM1: Monotone(least=-1.0),
    LOG: _RISES,
    LOG1P: _RISES,
    LOG2: _RISES,
    LOG10: _RISES,
    SAFE_LOG: _RISES,
    TANH: Monotone(-1.0, 1.0),
    SIGMOID: Monotone(0.0, 1.0),
    SOFTPLUS: Monotone(least=0.0),
    LOG_SIGMOID: Monotone(greatest=0.0),
    ERF: Monotone(-1.0, 1.0),
    ATAN: Monotone(-_QUARTER_TURN, _QUARTER_TURN),
    ASIN: _RISES,
    ACOS: _FALLS,
    SINH: _RISES,
    ASINH: _RISES,
    ACOSH: _RISES,
    ATANH: _RISES,
    LEAKY_RELU: Monotone(rises=lambda static: static["negative_slope"] >= 0 or None),
    ELU: Monotone(rises=lambda static: static["alpha"] >= 0 or None),
    SELU: _RISES,
    CELU: Monotone(rises=lambda static: static["alpha"] > 0 or None),
    HARDSIGMOID: Monotone(least=0.0),
    SOFTSHRINK: _RISES,
    SOFTSIGN: _RISES,
    TANHSHRINK: _RISES,
}


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
