"""Activation functions of one number, and the product of a cotangent g with their derivatives.

Each factory takes the type of number and the functions that its formula needs; see the package.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

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
