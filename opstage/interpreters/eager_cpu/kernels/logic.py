"""Kernels: masks, casts, constants and random tensors."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from ....ops.host_arrays import number
from ....ops.logic import CAST, DETACH, EQUAL, FULL, IOTA, LESS, LESS_EQUAL, LOGICAL_AND, LOGICAL_NOT, SELECT
from ....ops.primitive import Primitive
from ....ops.random import BERNOULLI_MASK, RAND_UNIFORM
from ....ops.splitmix import iteration_key, stream_key, uniform_bits
from ....ops.types import EXACT, as_dtype
from ..loops import arrays as loops

# Masks, casts and constants -------------------------------------------------------------------------------------------

Array = npt.NDArray[Any]
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
    SELECT: fast_select,
    RAND_UNIFORM: fast_rand_uniform,
    BERNOULLI_MASK: fast_bernoulli_mask,
}

EXACT_KERNELS: dict[Primitive, Callable[..., Any]] = {
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
