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
from .allocation import Allocation, Call, Operand, Result, Rule, fresh, like, packing_bytes, reduced
from .strides import elements, kept_order, reshaped

_LEAST_PLANE = 4  # elements; shorter planes are left to the NumPy kernels


def _like_x(count: int) -> Rule:
    """By NumPy: the first result in memory as x, statistics of rows as what is left of it, and `count` tensors more."""

    def rule(call: Call) -> Allocation:
        x = call.operands[0]
        last = len(x.shape) - 1
        results = [like(x)]
        for out in call.outputs[1:]:
            rows = out.shape == (*x.shape[:-1], 1)
            results.append(reduced(x, out, (last,), keepdims=True) if rows else Result())
        return Allocation(tuple(results), count * x.nbytes)

    return rule


def _by_groups(count: int) -> Rule:
    """By NumPy, on x with an axis of groups: a view, or else a copy, and `count` tensors more."""

    def rule(call: Call) -> Allocation:
        x = call.operands[0]
        groups = call.number(call.static["groups"])
        shape = (x.shape[0], groups, x.shape[1] // groups, *x.shape[2:])
        shared, strides = reshaped(x.shape, x.strides, shape)
        if not shared:
            return fresh(call, (count + 1) * x.nbytes)
        grouped = Operand(x.type, shape, strides)
        axes = tuple(range(2, len(shape)))
        results = [like(x)]
        for out in call.outputs[1:]:
            results.append(reduced(grouped, out, axes) if len(out.shape) == 2 else Result())
        return Allocation(tuple(results), count * x.nbytes)

    return rule


def _rows(call: Call) -> Allocation:
    """By loops over rows of x and of its cotangent, the last operand."""
    x, g = call.operands[0], call.operands[-1]
    return fresh(call, packing_bytes(x, g) if g.shape == x.shape and len(call.operands) > 1 else packing_bytes(x))


def _planes(numbers: int, cotangent: bool, otherwise: Rule) -> Rule:
    """By loops over the planes of x and, for cotangents, of g, with so many numbers for each plane."""

    def rule(call: Call) -> Allocation:
        x = call.operands[0]
        axis = call.static.get("channel_axis", 1)
        if elements(x.shape[axis + 1 :]) < _LEAST_PLANE or not elements(x.shape):
            return otherwise(call)
        read: list[Operand] = [x]
        if cotangent:
            read.append(next(o for o in call.operands[1:] if o.shape == x.shape))
        planes = prod(x.type.shape[: axis + 1]) * x.type.dtype.itemsize
        return fresh(call, packing_bytes(*read) + numbers * planes)

    return rule


def _batch_norm_grad(call: Call) -> Allocation:
    """What is centred, of x, and its product with the cotangent, which becomes the result."""
    x, g = call.operands[0], call.operands[-3]
    both = Result(kept_order(x.shape, [(g.shape, g.strides), (x.shape, x.strides)]))
    return Allocation((both, Result(), Result()), x.nbytes)


ALLOCATIONS: dict[Primitive, Rule] = {
    LAYER_NORM: _like_x(1),
    LAYER_NORM_GRAD: _like_x(2),
    RMS_NORM: _like_x(0),
    RMS_NORM_GRAD: _like_x(2),
    GROUP_NORM: _by_groups(1),
    GROUP_NORM_GRAD: _by_groups(2),
    BATCH_NORM: _like_x(1),
    BATCH_NORM_GRAD: _batch_norm_grad,
    BATCH_NORM_EVAL: _like_x(0),
}

FAST_ALLOCATIONS: dict[Primitive, Rule] = {
    **dict.fromkeys((LAYER_NORM, LAYER_NORM_GRAD, RMS_NORM, RMS_NORM_GRAD), _rows),
    GROUP_NORM: _planes(4, False, ALLOCATIONS[GROUP_NORM]),
    GROUP_NORM_GRAD: _planes(8, True, ALLOCATIONS[GROUP_NORM_GRAD]),
    BATCH_NORM: _planes(0, False, ALLOCATIONS[BATCH_NORM]),
    BATCH_NORM_GRAD: _planes(0, True, ALLOCATIONS[BATCH_NORM_GRAD]),
    BATCH_NORM_EVAL: _planes(0, False, ALLOCATIONS[BATCH_NORM_EVAL]),
}
