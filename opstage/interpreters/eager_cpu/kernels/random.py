"""NumPy kernels: random tensors."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy.typing as npt

from ....ops.catalogue.random import RAND_UNIFORM
from ....ops.primitive import Primitive
from ....ops.splitmix import iteration_key, stream_key, uniform_bits
from ....ops.types import as_dtype

Array = npt.NDArray[Any]


def rand_uniform(step: Array, *iterations: Array, shape: tuple[int, ...], seed: int, site: int, dtype: str) -> Array:
    key = stream_key(seed, int(step), site)
    for iteration in iterations:
        key = iteration_key(key, int(iteration))
    return uniform_bits(key, math.prod(shape), as_dtype(dtype)).reshape(shape)


KERNELS: dict[Primitive, Callable[..., Any]] = {RAND_UNIFORM: rand_uniform}

EXACT_KERNELS: dict[Primitive, Callable[..., Any]] = KERNELS
