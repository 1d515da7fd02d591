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


KERNELS: dict[Primitive, Callable[..., Any]] = {
    MATMUL: np.matmul,
    BMM: np.matmul,
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
