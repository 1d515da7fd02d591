"""Random tensors: element i of a stream is a function of the stream's key and i."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...host import Array
from ...native.inlined import Function, inlined
from ...scalar import random
from .jit import loop


@inlined()
def splitmix64(word: Any) -> Function:
    """Return the finalizer of one word."""
    return random.splitmix64(np.uint64)


@inlined()
def uniform_integer(word: Any) -> Function:
    """Return the function of element i in the stream of a key, as an integer in [0, 2^24)."""
    return random.uniform_integer(np.uint64, splitmix64)


@loop()
def uniform(key: Any, out: Array) -> None:
    unit = out.dtype.type(2.0**-24)
    for i in range(out.size):
        # converting signed integers is a vector instruction
        out[i] = out.dtype.type(np.int64(uniform_integer(key, np.uint64(i)))) * unit


@loop()
def bernoulli(key: Any, keep_prob: Any, out: Array) -> None:
    """Write 1 where the draw is less than keep_prob, else 0."""
    real = out.dtype.type
    unit = real(2.0**-24)
    for i in range(out.size):
        drawn = real(np.int64(uniform_integer(key, np.uint64(i)))) * unit
        out[i] = real(1) if drawn < keep_prob else real(0)
