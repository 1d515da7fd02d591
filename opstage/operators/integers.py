"""Short integers, which Opstage holds in int64, and the wraparound of their arithmetic."""

from __future__ import annotations

import numpy as np

from ..ops.protocol import Ops, R
from ..ops.types import DType


def wrapped(ops: Ops[R], x: R, dtype: DType) -> R:
    """Return x modulo 2ⁿ, in the range of an integer type of n bits; x of any other type is unchanged."""
    if dtype.kind not in "iu" or dtype.itemsize > 4 or dtype == np.int32:
        return x
    size, low = 1 << (8 * dtype.itemsize), int(np.iinfo(dtype).min)
    shape = x.shape

    def number(value: int) -> R:
        return ops.full(shape=shape, value=value, dtype="int64")

    if not low:
        return ops.mod(x, number(size))
    return ops.add(ops.mod(ops.sub(x, number(low)), number(size)), number(low))
