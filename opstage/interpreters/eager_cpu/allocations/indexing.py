"""Memory: reading entries at indices, and adding to them."""

from __future__ import annotations

from ....ops.catalogue.indexing import (
    GATHER_ROW,
    GATHER_ROWS,
    GATHER_SCALAR,
    GATHER_VEC,
    SCATTER_ADD_ROW,
    SCATTER_ADD_ROWS,
    SCATTER_ADD_SCALAR,
    SCATTER_ADD_VEC,
)
from ....ops.dims import Dim
from ....ops.primitive import Primitive
from ....ops.types import INT64
from .allocation import Allocation, Call, Operand, Result, Rule, fresh, packing_bytes
from .strides import canonical, full


def _as_int64(idx: Operand) -> Dim:
    """Bytes of the indices as words, where they are not words already."""
    return 0 if idx.type.dtype == INT64 else idx.type.size * 8


def _gather(call: Call) -> Allocation:
    """NumPy takes from a row-major copy. With mode="zero" rows are taken first, and then chosen among."""
    x, idx = call.operands
    taken = packing_bytes(x) + _as_int64(idx)
    if call.static["mode"] == "raise":
        return fresh(call, taken)
    # which are valid, and those with 0 in the place of the others
    return fresh(call, taken + call.outputs[0].nbytes + idx.type.size * (1 + 8))


def _scatter_add(call: Call) -> Allocation:
    """A word for the place of each number that is added."""
    _, v, idx = call.operands
    kept: Dim = 0
    if call.static["mode"] != "raise":
        kept = v.nbytes + idx.nbytes + idx.type.size
    return fresh(call, kept + v.type.size * 8 + packing_bytes(v) + idx.type.size * 8)


def _row(call: Call) -> Allocation:
    """A view of x, or zeros; of a vector a number, which is copied."""
    x = call.operands[0]
    index = call.number(call.static["index"])
    if len(x.shape) < 2 or not 0 <= index < x.shape[0]:
        return fresh(call)
    return Allocation((Result(canonical(x.shape[1:], full(x.shape, x.strides)[1:]), 0),))


def _fast_scatter_add_rows(call: Call) -> Allocation:
    _, v, idx = call.operands
    return fresh(call, packing_bytes(v, idx) + _as_int64(idx))


ALLOCATIONS: dict[Primitive, Rule] = {
    GATHER_ROWS: _gather,
    GATHER_VEC: _gather,
    GATHER_ROW: _row,
    GATHER_SCALAR: _row,
    SCATTER_ADD_ROWS: _scatter_add,
    SCATTER_ADD_VEC: _scatter_add,
    SCATTER_ADD_ROW: fresh,
    SCATTER_ADD_SCALAR: fresh,
}

FAST_ALLOCATIONS: dict[Primitive, Rule] = {SCATTER_ADD_ROWS: _fast_scatter_add_rows}
