"""Memory: arithmetic and functions of one element. Ufuncs, unless something is said of an op here."""

from __future__ import annotations

from ....ops.catalogue.elementwise import (
    ABS,
    ADD,
    CLAMP,
    COS,
    DIV,
    ERF,
    EXP,
    INV,
    LOG,
    MAXIMUM,
    MINIMUM,
    MUL,
    NEG,
    POW,
    SAFE_LOG,
    SCALE,
    SIGMOID,
    SIN,
    SOFTPLUS,
    SQRT,
    SUB,
    TANH,
)
from ....ops.primitive import Primitive
from .allocation import Allocation, Call, Rule, like_operands, packing, temporaries

_UFUNCS = (ABS, ADD, CLAMP, COS, DIV, EXP, INV, LOG, MAXIMUM, MINIMUM, MUL, NEG, SCALE, SIN, SQRT, SUB, TANH)


def _power(call: Call) -> Allocation:
    """x^-½ is the reciprocal of a root."""
    return like_operands(call, call.outputs[0].nbytes if call.static["exponent"] == -0.5 else 0)


ALLOCATIONS: dict[Primitive, Rule] = {
    **dict.fromkeys(_UFUNCS, like_operands),
    SIGMOID: temporaries(2),
    SOFTPLUS: temporaries(2),
    ERF: lambda call: like_operands(call, call.outputs[0].type.size * 8),  # the floats are objects
    POW: _power,
    SAFE_LOG: temporaries(1),
}

FAST_ALLOCATIONS: dict[Primitive, Rule] = {SIGMOID: like_operands, ERF: packing}
