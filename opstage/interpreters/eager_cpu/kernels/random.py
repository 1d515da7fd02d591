"""Kernels: random tensors."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from ....ops.catalogue.random import BERNOULLI_MASK, RAND_UNIFORM
from ....ops.primitive import Primitive
from ....ops.splitmix import iteration_key, stream_key, uniform_bits
from ....ops.types import EXACT, as_dtype
from ..loops import random as loops

Array = npt.NDArray[Any]


def _key(step: Array, iterations: tuple[Array, ...], seed: int, site: int) -> int:
    key = stream_key(seed, int(step), site)
    for iteration in iterations:
        key = iteration_key(key, int(iteration))
    return key


def rand_uniform(step: Array, *iterations: Array, shape: tuple[int, ...], seed: int, site: int, dtype: str) -> Array:
    key = _key(step, iterations, seed, site)
    return uniform_bits(key, math.prod(shape), as_dtype(dtype)).reshape(shape)


KERNELS: dict[Primitive, Callable[..., Any]] = {RAND_UNIFORM: rand_uniform}


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


FAST_KERNELS: dict[Primitive, Callable[..., Any]] = {
    RAND_UNIFORM: fast_rand_uniform,
    BERNOULLI_MASK: fast_bernoulli_mask,
}

EXACT_KERNELS: dict[Primitive, Callable[..., Any]] = KERNELS
