"""Functions of one element that only rise, or only fall, and the numbers that their values never leave.

Bounds, executed ones and those that are proved for every size, follow from it: the ends of a result are those of the
operand. How far a kernel may be off is no matter of the function, and stands with the interpreters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from ..primitive import Primitive, Static
from .activation import (
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
from .elementwise import CLAMP, ERF, EXP, LOG, NEG, SAFE_LOG, SCALE, SIGMOID, SOFTPLUS, SQRT, TANH
from .rounding import CEIL, FLOOR, ROUND, SIGN, TRUNC
from .transcendental import ACOS, ACOSH, ASIN, ASINH, ATAN, ATANH, EXP2, EXPM1, LOG1P, LOG2, LOG10, SINH

INFINITY = float("inf")
_QUARTER_TURN = 1.5707963267948966


class Monotone(NamedTuple):
    """How a function goes.

    least     its values, and those of its kernels, are never below it, greatest: or above, rounded to the dtype
    rises     whether it rises, else falls, by its static parameters; None where these make it do neither
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
