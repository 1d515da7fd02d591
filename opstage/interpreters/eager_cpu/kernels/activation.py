"""Kernels: activation functions and their fused derivatives."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from ....ops.catalogue.activation import (
    RELU,
    RELU_GRAD,
    SIGMOID_GRAD,
    SILU,
    TANH_GRAD,
)
from ....ops.primitive import Primitive
from ..loops import elementwise as loops
from .elementwise import sigmoid

Array = npt.NDArray[Any]


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


KERNELS: dict[Primitive, Callable[..., Any]] = {
    RELU: relu,
    RELU_GRAD: relu_grad,
    TANH_GRAD: tanh_grad,
    SIGMOID_GRAD: sigmoid_grad,
    SILU: silu,
}


FAST_KERNELS: dict[Primitive, Callable[..., Any]] = {
    RELU: loops.relu,
    RELU_GRAD: loops.relu_grad,
    TANH_GRAD: loops.tanh_grad,
    SIGMOID_GRAD: loops.sigmoid_grad,
    SILU: loops.silu,
}

_ZERO = np.array(Fraction(0), dtype=object)

EXACT_KERNELS: dict[Primitive, Callable[..., Any]] = {
    RELU: lambda x: np.maximum(x, _ZERO),
    RELU_GRAD: lambda y, g: np.where(y > 0, g, _ZERO),
}
