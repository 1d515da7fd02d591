"""Kernels: elementwise arithmetic, rounding, powers, logarithms and activation functions; comparisons, masks, casts,
constants and random tensors."""

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
from ....ops.logic import CAST, DETACH, EQUAL, FULL, IOTA, LESS, LESS_EQUAL, LOGICAL_AND, LOGICAL_NOT, SELECT
from ....ops.primitive import Primitive
from ....ops.random import BERNOULLI_MASK, RAND_UNIFORM
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
from ....ops.splitmix import iteration_key, stream_key, uniform_bits
from ....ops.transcendental import ATAN, EXP2, LOG2, LOG10
from ....ops.types import EXACT, as_dtype
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


# Masks, casts and constants -------------------------------------------------------------------------------------------

_to_fraction = np.frompyfunc(Fraction, 1, 1)


def cast(x: Array, dtype: str) -> Array:
    target = as_dtype(dtype)
    if target == EXACT:
        return np.asarray(_to_fraction(x.astype(int) if x.dtype.kind == "b" else x), dtype=object)
    return x.astype(target)


def full(shape: Any, value: Any, dtype: str) -> Array:
    """Return a view of one element: most ops read it as fast as a number."""
    target = as_dtype(dtype)
    return np.broadcast_to(np.full((), number(value, target), dtype=target), shape)


def iota(shape: Any, axis: int, dtype: str) -> Array:
    target = as_dtype(dtype)
    along: Array = np.arange(shape[axis])
    line = cast(along, dtype) if target == EXACT else along.astype(target)
    line = line.reshape([-1 if i == axis else 1 for i in range(len(shape))])
    return np.broadcast_to(line, shape)


def comparison(compare: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    """Return a comparison with a boolean result; on arrays of fractions NumPy returns objects."""
    return lambda x, y: np.asarray(compare(x, y), dtype=np.bool_)


def fast_select(mask: Array, x: Array, y: Array) -> Array:
    """Select by vectors: NumPy branches at each element, which takes 20 times as long where masks are irregular."""
    return loops.select(mask, x, y) if x.dtype.kind == "f" else np.where(mask, x, y)


# Draws ----------------------------------------------------------------------------------------------------------------


def _key(step: Array, iterations: tuple[Array, ...], seed: int, site: int) -> int:
    key = stream_key(seed, int(step), site)
    for iteration in iterations:
        key = iteration_key(key, int(iteration))
    return key


def rand_uniform(step: Array, *iterations: Array, shape: tuple[int, ...], seed: int, site: int, dtype: str) -> Array:
    key = _key(step, iterations, seed, site)
    return uniform_bits(key, math.prod(shape), as_dtype(dtype)).reshape(shape)


def fast_rand_uniform(
    step: Array, *iterations: Array, shape: tuple[int, ...], seed: int, site: int, dtype: str
) -> Array:
    storage = as_dtype(dtype)
    if storage == EXACT:
        return rand_uniform(step, *iterations, shape=shape, seed=seed, site=site, dtype=dtype)
    out = np.empty(shape, storage)
    loops.uniform(np.uint64(_key(step, iterations, seed, site)), out.reshape(-1))
    return out


def fast_bernoulli_mask(
    keep_prob: Array, step: Array, *iterations: Array, shape: tuple[int, ...], seed: int, site: int
) -> Array:
    out = np.empty(shape, keep_prob.dtype)
    loops.bernoulli(np.uint64(_key(step, iterations, seed, site)), keep_prob[()], out.reshape(-1))
    return out


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
    LESS: np.less,
    LESS_EQUAL: np.less_equal,
    EQUAL: np.equal,
    LOGICAL_AND: np.logical_and,
    LOGICAL_NOT: np.logical_not,
    SELECT: np.where,
    CAST: cast,
    DETACH: lambda x: x,
    FULL: full,
    IOTA: iota,
    RAND_UNIFORM: rand_uniform,
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
    SELECT: fast_select,
    RAND_UNIFORM: fast_rand_uniform,
    BERNOULLI_MASK: fast_bernoulli_mask,
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
    LESS: comparison(np.less),
    LESS_EQUAL: comparison(np.less_equal),
    EQUAL: comparison(np.equal),
    LOGICAL_AND: np.logical_and,
    LOGICAL_NOT: np.logical_not,
    SELECT: np.where,
    CAST: cast,
    DETACH: lambda x: x,
    FULL: full,
    IOTA: iota,
    RAND_UNIFORM: rand_uniform,
}
