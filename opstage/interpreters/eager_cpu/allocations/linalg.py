"""Memory: products of matrices."""

from __future__ import annotations

from ....ops.catalogue.linalg import BMM, LINEAR, MATMUL
from ....ops.primitive import Primitive
from .allocation import Allocation, Call, Operand, Result, Rule, fresh
from .strides import canonical, elements, full, kept_order, reshaped


def _linear(call: Call) -> Allocation:
    """x as a matrix, a copy where its axes do not lie in memory as they would have to."""
    x = call.operands[-1]
    if len(x.shape) == 2:
        return fresh(call)
    shared, _ = reshaped(x.shape, x.strides, (elements(x.shape[:-1]), x.shape[-1]))
    return fresh(call, 0 if shared else x.nbytes)


def product(x: Operand, y: Operand, out: Operand) -> Result:
    """Of matmul: matrices are row-major, and lie one behind the other in the order of the operands' leading axes."""
    leading = out.shape[:-2]
    outer = kept_order(leading, [(o.shape[:-2], full(o.shape, o.strides)[:-2]) for o in (x, y)])
    matrix = out.shape[-2] * out.shape[-1]
    every = (*[s * matrix for s in full(leading, outer)], out.shape[-1], 1)
    return Result(canonical(out.shape, every))


def _bmm(call: Call) -> Allocation:
    x, y = call.operands
    return Allocation((product(x, y, call.outputs[0]),))


ALLOCATIONS: dict[Primitive, Rule] = {MATMUL: fresh, BMM: _bmm, LINEAR: _linear}
