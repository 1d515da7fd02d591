"""Scalar formulas, each written once for every target that compiles them.

A formula comes from a factory, `silu(real, exp)`, for numbers of type `real` (`numpy.float32`, `numpy.float64`). It is
computed in that type, because its constants are of that type too; a plain `0.5` would promote a float32 computation to
float64. Functions whose best form depends on the target (exp, erf) are parameters. The formulas are plain Python, so
they can also be called directly.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

# Activations ----------------------------------------------------------------------------------------------------------

Function = Callable[..., Any]
Real = Callable[[float], Any]

SQRT_2_OVER_PI = math.sqrt(2 / math.pi)
GELU_CUBIC = 0.044715


def sigmoid(real: Real, exp: Function) -> Function:
    """1/(1 + e⁻ˣ); if e⁻ˣ overflows, the quotient is 0, as it should be."""
    one = real(1)

    def formula(x: Any) -> Any:
        return one / (one + exp(-x))

    return formula


def sigmoid_grad(real: Real) -> Function:
    """g·y·(1 - y), for y = sigmoid(x)."""
    one = real(1)

    def formula(y: Any, g: Any) -> Any:
        return g * (y * (one - y))

    return formula


def tanh_grad(real: Real) -> Function:
    """g·(1 - y²), for y = tanh(x)."""
    one = real(1)

    def formula(y: Any, g: Any) -> Any:
        return g * (one - y * y)

    return formula


def relu(real: Real) -> Function:
    """x where x > 0, else 0; nan where x is nan."""
    zero = real(0)

    def formula(x: Any) -> Any:
        return zero if x <= zero else x

    return formula


def relu_grad(real: Real) -> Function:
    """g where y > 0, else 0; g where y is nan."""
    zero = real(0)

    def formula(y: Any, g: Any) -> Any:
        return zero if y <= zero else g

    return formula


def silu(real: Real, exp: Function) -> Function:
    """x·sigmoid(x)."""
    one = real(1)

    def formula(x: Any) -> Any:
        return x * (one / (one + exp(-x)))

    return formula


def silu_grad(real: Real, exp: Function) -> Function:
    """g·s·(1 + x·(1 - s)), for s = sigmoid(x)."""
    one = real(1)

    def formula(x: Any, g: Any) -> Any:
        s = one / (one + exp(-x))
        return g * (s * (one + x * (one - s)))

    return formula


def gelu_tanh(real: Real, exp: Function) -> Function:
    """½x·(1 + tanh u) = x·sigmoid(2u), for u = √(2/π)·(x + 0.044715·x³)."""
    one, minus_two, cubic = real(1), real(-2 * SQRT_2_OVER_PI), real(GELU_CUBIC)

    def formula(x: Any) -> Any:
        return x * (one / (one + exp(minus_two * (x + cubic * (x * (x * x))))))

    return formula


def gelu_tanh_grad(real: Real, exp: Function) -> Function:
    """g·(s + x·s·(1 - s)·2u'), for s = sigmoid(2u)."""
    one, minus_two = real(1), real(-2 * SQRT_2_OVER_PI)
    cubic, cubic_slope = real(GELU_CUBIC), real(3 * GELU_CUBIC)

    def formula(x: Any, g: Any) -> Any:
        square = x * x
        s = one / (one + exp(minus_two * (x + cubic * (x * square))))
        return g * (s - x * (s * (one - s)) * (minus_two * (one + cubic_slope * square)))

    return formula


def gelu_erf(real: Real, erf: Function) -> Function:
    """½x·(1 + erf(x/√2))."""
    one, half, scale = real(1), real(0.5), real(1 / math.sqrt(2))

    def formula(x: Any) -> Any:
        return half * x * (one + erf(x * scale))

    return formula


def gelu_erf_grad(real: Real, exp: Function, erf: Function) -> Function:
    """g·(Φ(x) + x·φ(x)), with the normal distribution Φ and its density φ."""
    one, half, scale = real(1), real(0.5), real(1 / math.sqrt(2))
    density = real(1 / math.sqrt(2 * math.pi))

    def formula(x: Any, g: Any) -> Any:
        return g * (half * (one + erf(x * scale)) + x * (density * exp(-half * (x * x))))

    return formula


def select(real: Real) -> Function:
    """x where a mask holds, else y."""

    def formula(mask: Any, x: Any, y: Any) -> Any:
        return x if mask != 0 else y

    return formula


# Division -------------------------------------------------------------------------------------------------------------


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


# Draws ----------------------------------------------------------------------------------------------------------------


def splitmix64(word: Callable[[int], Any]) -> Function:
    """The finalizer of `opstage.ops.splitmix`."""
    gamma, first, second = word(0x9E3779B97F4A7C15), word(0xBF58476D1CE4E5B9), word(0x94D049BB133111EB)
    by30, by27, by31 = word(30), word(27), word(31)

    def formula(x: Any) -> Any:
        z = x + gamma
        z = (z ^ (z >> by30)) * first
        z = (z ^ (z >> by27)) * second
        return z ^ (z >> by31)

    return formula


def uniform_integer(word: Callable[[int], Any], mix: Function) -> Function:
    """splitmix64(key + i) >> 40: element i of the stream of `key`, as an integer in [0, 2^24); `mix` is splitmix64."""
    by40 = word(40)

    def formula(key: Any, i: Any) -> Any:
        return mix(key + i) >> by40

    return formula
