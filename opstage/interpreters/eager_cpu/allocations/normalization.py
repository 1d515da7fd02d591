"""Memory: normalisations and their cotangents. Vectors with an entry for each channel are left out of account."""

from __future__ import annotations

from ....ops.catalogue.normalization import (
    BATCH_NORM,
    BATCH_NORM_EVAL,
    BATCH_NORM_GRAD,
    GROUP_NORM,
    GROUP_NORM_GRAD,
    LAYER_NORM,
    LAYER_NORM_GRAD,
    RMS_NORM,
    RMS_NORM_GRAD,
)
from ....ops.dims import prod
from ....ops.primitive import Primitive
from .allocation import Allocation, Call, Operand, Rule, fresh, packing_bytes
from .strides import elements

_LEAST_PLANE = 4  # elements; shorter planes are left to the NumPy kernels


def _temporaries(count: int) -> Rule:
    """So many tensors of the size of x besides the results."""
    return lambda call: fresh(call, count * call.operands[0].nbytes)


def _rows(call: Call) -> Allocation:
    """By loops over rows of x and of its cotangent, the first and the last operand."""
    x, g = call.operands[0], call.operands[-1]
    return fresh(call, packing_bytes(x, g) if g.shape == x.shape and len(call.operands) > 1 else packing_bytes(x))


def _planes(cotangent: bool, otherwise: Rule) -> Rule:
    """By loops over the planes of x and, for cotangents, of g, for which some numbers each are kept."""

    def rule(call: Call) -> Allocation:
        x = call.operands[0]
        axis = call.static.get("channel_axis", 1)
        if elements(x.shape[axis + 1 :]) < _LEAST_PLANE or not elements(x.shape):
            return otherwise(call)
        read: list[Operand] = [x]
        if cotangent:
            read.append(next(o for o in call.operands[1:] if o.shape == x.shape))
        per_plane = (8 if cotangent else 4) * x.type.dtype.itemsize
        return fresh(call, packing_bytes(*read) + prod(x.type.shape[: axis + 1]) * per_plane)

    return rule


ALLOCATIONS: dict[Primitive, Rule] = {
    LAYER_NORM: _temporaries(1),
    LAYER_NORM_GRAD: _temporaries(2),
    RMS_NORM: _temporaries(0),
    RMS_NORM_GRAD: _temporaries(2),
    GROUP_NORM: _temporaries(1),
    GROUP_NORM_GRAD: _temporaries(2),
    BATCH_NORM: _temporaries(1),
    BATCH_NORM_GRAD: _temporaries(1),
    BATCH_NORM_EVAL: _temporaries(0),
}

FAST_ALLOCATIONS: dict[Primitive, Rule] = {
    **dict.fromkeys((LAYER_NORM, LAYER_NORM_GRAD, RMS_NORM, RMS_NORM_GRAD), _rows),
    GROUP_NORM: _planes(False, ALLOCATIONS[GROUP_NORM]),
    GROUP_NORM_GRAD: _planes(True, ALLOCATIONS[GROUP_NORM_GRAD]),
    BATCH_NORM: _planes(False, ALLOCATIONS[BATCH_NORM]),
    BATCH_NORM_GRAD: _planes(True, ALLOCATIONS[BATCH_NORM_GRAD]),
    BATCH_NORM_EVAL: _planes(False, ALLOCATIONS[BATCH_NORM_EVAL]),
}
