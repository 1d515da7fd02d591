"""Memory: losses and their fused derivatives."""

from __future__ import annotations

from ....ops.catalogue.loss import CROSS_ENTROPY, CROSS_ENTROPY_GRAD, MSE_LOSS, class_axis
from ....ops.dims import Dim
from ....ops.primitive import Primitive
from ....ops.types import INT64
from .allocation import Allocation, Call, Result, Rule, fresh, like, packing_bytes, reduced


def _labels(call: Call, numbers: int) -> Dim:
    """Which are ignored, labels with 0 in their place, and so many numbers for each position."""
    logits, labels = call.operands[:2]
    return labels.type.size * (1 + labels.type.dtype.itemsize + numbers * logits.type.dtype.itemsize)


def _cross_entropy(call: Call) -> Allocation:
    """The logits less their greatest; exp takes its place."""
    logits = call.operands[0]
    loss, *kept = call.outputs
    axis = class_axis(len(logits.shape))
    each = Result() if not loss.shape else reduced(logits, loss, (axis,))
    return Allocation(
        (each, *[reduced(logits, number, (axis,), keepdims=True) for number in kept]),
        logits.nbytes + _labels(call, 7 if call.static["label_smoothing"] else 4),
    )


def _cross_entropy_grad(call: Call) -> Allocation:
    return Allocation((like(call.operands[0]),), _labels(call, 3))


def _fast(numpy: Rule) -> Rule:
    """By a loop over rows of logits, with a number for each; other ranks by the NumPy kernel."""

    def rule(call: Call) -> Allocation:
        logits, labels = call.operands[:2]
        if len(logits.shape) > 2:
            return numpy(call)
        words = 0 if labels.type.dtype == INT64 else labels.type.size * 8
        return fresh(call, packing_bytes(logits, labels) + words + 2 * labels.type.size * logits.type.dtype.itemsize)

    return rule


ALLOCATIONS: dict[Primitive, Rule] = {
    MSE_LOSS: lambda call: fresh(call, 2 * call.operands[0].nbytes),  # the difference and its square
    CROSS_ENTROPY: _cross_entropy,
    CROSS_ENTROPY_GRAD: _cross_entropy_grad,
}

FAST_ALLOCATIONS: dict[Primitive, Rule] = {
    CROSS_ENTROPY: _fast(_cross_entropy),
    CROSS_ENTROPY_GRAD: _fast(_cross_entropy_grad),
}
