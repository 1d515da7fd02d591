"""Kernels: matrix products."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from ....ops.catalogue.linalg import BMM, LINEAR, MATMUL
from ....ops.primitive import Primitive
from ...host import owner_of
from ...native import multiply

Array = npt.NDArray[Any]


def linear(weight: Array, *rest: Array, has_bias: bool, product: Callable[[Array, Array], Array] = np.matmul) -> Array:
    """Compute one product for all leading axes of x, with the bias added in place."""
    x = rest[-1]
    rows = x if x.ndim == 2 else x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
    out = product(rows, weight.T)
    if has_bias:
        out += rest[0]
    return out if x.ndim == 2 else out.reshape(*x.shape[:-1], weight.shape[0])


def bmm(x: Array, y: Array) -> Array:
    """Compute the products of two stacks. A stack with itself, transposed, is read from a copy: NumPy has the BLAS fill
    half of each product and copies the other half by single elements, which takes up to eight times as long."""
    if x.strides[-1] == y.strides[-2] and x.strides[-2] == y.strides[-1] and owner_of(x) is owner_of(y):
        y = np.array(y)
    return np.matmul(x, y)  # type: ignore[no-any-return]


KERNELS: dict[Primitive, Callable[..., Any]] = {
    MATMUL: np.matmul,
    BMM: bmm,
    LINEAR: linear,
}


FAST_KERNELS: dict[Primitive, Callable[..., Any]] = {
    MATMUL: multiply,
    LINEAR: partial(linear, product=multiply),
}


def exact_matmul(x: Array, y: Array) -> Array:
    """Compute NumPy's product; its empty sum would be the integer 0."""
    return np.matmul(x, y) if x.shape[-1] else np.full((*x.shape[:-1], y.shape[-1]), Fraction(0), dtype=object)


EXACT_KERNELS: dict[Primitive, Callable[..., Any]] = {MATMUL: exact_matmul, BMM: exact_matmul}
