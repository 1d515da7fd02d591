"""Memory: masks, dtypes, and tensors made from nothing."""

from __future__ import annotations

from ....ops.catalogue.logic import (
    CAST,
    DETACH,
    EQUAL,
    FULL,
    IOTA,
    LESS,
    LESS_EQUAL,
    LOGICAL_AND,
    LOGICAL_NOT,
    SELECT,
)
from ....ops.primitive import Primitive
from .allocation import Allocation, Call, Result, Rule, fresh, like_operands, view
from .strides import canonical


def _iota(call: Call) -> Allocation:
    """One line, seen in all places; it is counted up in 8 bytes each and then cast."""
    (out,) = call.outputs
    axis = call.static["axis"]
    line = out.type.shape[axis]
    steps = [1 if i == axis else 0 for i in range(len(out.shape))]
    own = line * out.type.dtype.itemsize
    return Allocation((Result(canonical(out.shape, steps), nbytes=own),), line * 8)


ALLOCATIONS: dict[Primitive, Rule] = {
    **dict.fromkeys((CAST, EQUAL, LESS, LESS_EQUAL, LOGICAL_AND, LOGICAL_NOT, SELECT), like_operands),
    DETACH: lambda call: view(call, call.operands[0].strides),
    FULL: fresh,
    IOTA: _iota,
}
