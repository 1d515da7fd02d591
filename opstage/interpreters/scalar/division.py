"""Division of floats rounded down, and its remainder, as in NumPy.

Each factory takes the type of number and the functions that its formula needs; see the package.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Function = Callable[..., Any]
Real = Callable[[float], Any]


def mod(real: Real, fmod: Function) -> Function:
    """x - y·⌊x/y⌋: C's remainder, adjusted to the sign of y, of a 0 too."""
    zero = real(0)

    def formula(x: Any, y: Any) -> Any:
        rest = fmod(x, y)
        if rest == zero:
            return zero if y > zero else -zero
        apart = (rest < zero and y > zero) or (rest > zero and y < zero)
        return rest + y if apart else rest

    return formula


def floor_divide(real: Real, fmod: Function, floor: Function) -> Function:
    """⌊x/y⌋ from the exact remainder, since x/y itself may round up to a whole number; IEEE's quotient by 0.

    A result of 0 has the sign of x/y.
    """
    zero, one, half = real(0), real(1), real(0.5)

    def formula(x: Any, y: Any) -> Any:
        rest = fmod(x, y)
        apart = (rest < zero and y > zero) or (rest > zero and y < zero)
        quotient = (x - rest) / y
        quotient = quotient - one if apart else quotient
        down = floor(quotient)
        down = down + one if quotient - down > half else down
        if y == zero:
            return x / y
        return zero * (x / y) if down == zero else down

    return formula
