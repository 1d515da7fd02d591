"""Memory: reductions along axes, and the normalised exponentials."""

from __future__ import annotations

from ....ops.catalogue.reduction import (
    ARGMAX,
    LOG_SOFTMAX,
    LOG_SOFTMAX_GRAD,
    REDUCE_MAX,
    REDUCE_MEAN,
    REDUCE_SUM,
    SOFTMAX,
    SOFTMAX_GRAD,
    SUM,
)
from ....ops.primitive import Primitive
from .allocation import Allocation, Call, Rule, fresh, like, like_operands, packing, reduced


def _reduced(call: Call) -> Allocation:
    return Allocation(
        (reduced(call.operands[0], call.outputs[0], call.static["axes"], keepdims=call.static["keepdims"]),)
    )


def _argmax(call: Call) -> Allocation:
    """NumPy brings the axis to the end, in a copy unless it is there already."""
    x = call.operands[0]
    last = call.static["axis"] == len(x.shape) - 1 and x.strides is None
    return fresh(call, 0 if last else x.nbytes)


def _along_rows(otherwise: Rule) -> Rule:
    """A loop along the last axis, which reads rows; along another axis, the NumPy kernel."""

    def rule(call: Call) -> Allocation:
        last = call.static["axis"] == len(call.operands[0].shape) - 1
        return packing(call) if last else otherwise(call)

    return rule


def _log_softmax_grad(call: Call) -> Allocation:
    """What exp makes of the result of log_softmax becomes the cotangent."""
    return Allocation((like(call.operands[0]),))


def _twice(call: Call) -> Allocation:
    return like_operands(call, call.outputs[0].nbytes)


ALLOCATIONS: dict[Primitive, Rule] = {
    SUM: fresh,
    REDUCE_SUM: _reduced,
    REDUCE_MEAN: lambda call: _reduced(call)._replace(workspace=call.outputs[0].nbytes),
    REDUCE_MAX: _reduced,
    ARGMAX: _argmax,
    SOFTMAX: like_operands,
    SOFTMAX_GRAD: like_operands,
    LOG_SOFTMAX: _twice,
    LOG_SOFTMAX_GRAD: _log_softmax_grad,
}

FAST_ALLOCATIONS: dict[Primitive, Rule] = {
    SOFTMAX: _along_rows(like_operands),
    SOFTMAX_GRAD: _along_rows(like_operands),
    LOG_SOFTMAX: _along_rows(_twice),
    LOG_SOFTMAX_GRAD: _along_rows(_log_softmax_grad),
}
