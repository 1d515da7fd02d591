"""Kernels: arithmetic and elementwise functions."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from ....ops.catalogue.elementwise import (
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
from ....ops.primitive import Primitive
from ...host import number, packed
from ..loops import elementwise as loops
from .erf import erf

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
}


# not exp: that of generated code gives 0 for results below twice the smallest normal number
FAST_KERNELS: dict[Primitive, Callable[..., Any]] = {
    SQRT: loops.sqrt,
    INV: loops.inv,
    SIGMOID: loops.sigmoid,
    ERF: loops.erf,
}


def exact_power(x: Array, exponent: Any) -> Array:
    e = number(exponent, x.dtype)
    if e.denominator != 1:
        raise ValueError(f"x^{e} is not rational")
    out: Array = np.power(x, int(e))
    return out


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
}
