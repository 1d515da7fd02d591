"""Kernels: elementwise arithmetic, rounding, powers, logarithms and activation functions."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from ....ops.activation import RELU, RELU_GRAD, SIGMOID_GRAD, SILU, TANH_GRAD
from ....ops.elementwise import (
    ABS,
    ADD,
    CLAMP,
    COS,
    DIV,
    ERF,
    EXP,
    INV,
    LOG,
    MAXIMUM,
    MINIMUM,
    MUL,
    NEG,
    POW,
    POWER,
    SAFE_LOG,
    SCALE,
    SIGMOID,
    SIN,
    SOFTPLUS,
    SQRT,
    SUB,
    TANH,
)
from ....ops.host_arrays import number, packed
from ....ops.primitive import Primitive
from ....ops.rounding import (
    BITWISE_AND,
    BITWISE_OR,
    BITWISE_XOR,
    FLOOR,
    FLOOR_DIVIDE,
    LEFT_SHIFT,
    MOD,
    RIGHT_SHIFT,
    ROUND,
)
from ....ops.transcendental import ATAN, EXP2, LOG2, LOG10
from ..loops import arrays as loops

# The error function ---------------------------------------------------------------------------------------------------

_erf = np.frompyfunc(math.erf, 1, 1)


def erf(x: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Compute erf with the accuracy of the C library, element by element; the compiled loop replaces it if allowed."""
    out: npt.NDArray[Any] = np.asarray(_erf(x), dtype=x.dtype)
    return out


# Arithmetic -----------------------------------------------------------------------------------------------------------

Array = npt.NDArray[Any]


def scale(x: Array, c: Any) -> Array:
    out: Array = np.multiply(x, number(c, x.dtype))
    return out


def sigmoid(x: Array) -> Array:
    """Compute 1/(1 + e⁻ˣ) from e^-|x|, which cannot overflow."""
    z = np.exp(-np.abs(x))
    out: Array = np.where(x >= 0, 1, z)
    out /= 1 + z
    return out


def softplus(x: Array) -> Array:
    out: Array = np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))
    return out


def power(x: Array, exponent: Any) -> Array:
    e = number(exponent, x.dtype)
    if e == 2:
        return np.multiply(x, x)
    if e == -1:
        return np.reciprocal(x)
    if e == 0.5:
        return np.sqrt(x)
    if e == -0.5:
        return np.reciprocal(np.sqrt(x))
    if e in (3, 4):
        square = np.multiply(x, x)
        return np.multiply(square, x if e == 3 else square)
    out: Array = np.power(x, e)
    return out


def powers(x: Array, y: Array) -> Array:
    """Compute C's pow. NumPy uses a square root if all of y is a single 0.5 in memory, which differs at -inf and -0."""
    out: Array = np.power(x.reshape(x.shape or 1), np.ascontiguousarray(y))
    return out.reshape(x.shape)


def clamp(x: Array, lo: Any, hi: Any) -> Array:
    return np.clip(x, number(lo, x.dtype), number(hi, x.dtype))


def extremum(of: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    """Return a maximum or minimum that writes a view of one element out: NumPy has vectors for packed arrays alone."""

    def kernel(x: Array, y: Array) -> Array:
        return of(x if any(x.strides) else packed(x), y if any(y.strides) else packed(y))

    return kernel


def safe_log(x: Array, eps: Any) -> Array:
    out: Array = np.log(np.maximum(x, number(eps, x.dtype)))
    return out


# not exp: that of generated code gives 0 for results below twice the smallest normal number


def exact_power(x: Array, exponent: Any) -> Array:
    e = number(exponent, x.dtype)
    if e.denominator != 1:
        raise ValueError(f"x^{e} is not rational")
    out: Array = np.power(x, int(e))
    return out


# Activations ----------------------------------------------------------------------------------------------------------


def relu(x: Array) -> Array:
    return np.maximum(x, 0)


def relu_grad(y: Array, g: Array) -> Array:
    return np.where(y <= 0, 0, g)  # not a product: 0 · inf would be nan


def tanh_grad(y: Array, g: Array) -> Array:
    out: Array = g * (1 - y * y)
    return out


def sigmoid_grad(y: Array, g: Array) -> Array:
    out: Array = 1 - y
    out *= y
    out *= g
    return out


def silu(x: Array) -> Array:
    return np.multiply(x, sigmoid(x))


_ZERO = np.array(Fraction(0), dtype=object)


# Tables ---------------------------------------------------------------------------------------------------------------

KERNELS: dict[Primitive, Callable[..., Any]] = {
    ADD: np.add,
    SUB: np.subtract,
    MUL: np.multiply,
    DIV: np.divide,
    MAXIMUM: extremum(np.maximum),
    MINIMUM: extremum(np.minimum),
    NEG: np.negative,
    SCALE: scale,
    ABS: np.abs,
    SQRT: np.sqrt,
    EXP: np.exp,
    LOG: np.log,
    INV: np.reciprocal,
    SIN: np.sin,
    COS: np.cos,
    TANH: np.tanh,
    SIGMOID: sigmoid,
    SOFTPLUS: softplus,
    ERF: erf,
    POW: power,
    POWER: powers,
    CLAMP: clamp,
    SAFE_LOG: safe_log,
    RELU: relu,
    RELU_GRAD: relu_grad,
    TANH_GRAD: tanh_grad,
    SIGMOID_GRAD: sigmoid_grad,
    SILU: silu,
    FLOOR: np.floor,
    ROUND: np.rint,
    FLOOR_DIVIDE: np.floor_divide,
    MOD: np.remainder,
    BITWISE_AND: np.bitwise_and,
    BITWISE_OR: np.bitwise_or,
    BITWISE_XOR: np.bitwise_xor,
    LEFT_SHIFT: np.left_shift,
    RIGHT_SHIFT: np.right_shift,
    EXP2: np.exp2,
    LOG2: np.log2,
    LOG10: np.log10,
    ATAN: np.arctan,
}

FAST_KERNELS: dict[Primitive, Callable[..., Any]] = {
    SQRT: loops.sqrt,
    INV: loops.inv,
    SIGMOID: loops.sigmoid,
    ERF: loops.erf,
    RELU: loops.relu,
    RELU_GRAD: loops.relu_grad,
    TANH_GRAD: loops.tanh_grad,
    SIGMOID_GRAD: loops.sigmoid_grad,
    SILU: loops.silu,
}

EXACT_KERNELS: dict[Primitive, Callable[..., Any]] = {
    ADD: np.add,
    SUB: np.subtract,
    MUL: np.multiply,
    DIV: np.divide,
    MAXIMUM: np.maximum,
    MINIMUM: np.minimum,
    NEG: np.negative,
    SCALE: scale,
    ABS: np.abs,
    INV: lambda x: Fraction(1) / x,
    POW: exact_power,
    RELU: lambda x: np.maximum(x, _ZERO),
    RELU_GRAD: lambda y, g: np.where(y > 0, g, _ZERO),
}
