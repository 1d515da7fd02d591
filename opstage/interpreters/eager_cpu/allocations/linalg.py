"""Memory: products of matrices."""

from __future__ import annotations

from ....ops.catalogue.linalg import BMM, LINEAR, MATMUL
from ....ops.primitive import Primitive
from .allocation import Allocation, Call, Rule, fresh
from .strides import reshaped


def _linear(call: Call) -> Allocation:
    """x as a matrix, a copy where its axes do not lie in memory as they would have to."""
    x = call.operands[-1]
    if len(x.shape) < 3 or not len(x.shape):
        return fresh(call)
    rows = 1
    for n in x.shape[:-1]:
        rows *= n
    shared, _ = reshaped(x.shape, x.strides, (rows, x.shape[-1]))
    return fresh(call, 0 if shared else x.nbytes)


ALLOCATIONS: dict[Primitive, Rule] = {MATMUL: fresh, BMM: fresh, LINEAR: _linear}
