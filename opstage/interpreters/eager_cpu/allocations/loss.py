"""Memory: losses and their fused derivatives."""

from __future__ import annotations

from ....ops.catalogue.loss import CROSS_ENTROPY, CROSS_ENTROPY_GRAD, MSE_LOSS
from ....ops.dims import Dim
from ....ops.primitive import Primitive
from ....ops.types import INT64
from .allocation import Allocation, Call, Operand, Rule, fresh, packing_bytes


def _labels(labels: Operand) -> Dim:
    """Which are ignored, 0 in their place, and some numbers for each position."""
    return labels.type.size * (1 + 8 + 4 * 8)


def _cross_entropy(call: Call) -> Allocation:
    """The logits less their greatest; exp takes its place."""
    logits, labels = call.operands
    return fresh(call, logits.nbytes + _labels(labels))


def _cross_entropy_grad(call: Call) -> Allocation:
    return fresh(call, _labels(call.operands[1]))


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
