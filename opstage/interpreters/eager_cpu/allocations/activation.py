"""Memory: activation functions and their fused derivatives."""

from __future__ import annotations

from ....ops.catalogue.activation import (
    GELU,
    GELU_GRAD,
    RELU,
    RELU_GRAD,
    SIGMOID_GRAD,
    SILU,
    SILU_GRAD,
    TANH_GRAD,
)
from ....ops.primitive import Primitive
from .allocation import Allocation, Call, Rule, like_operands, packing, temporaries


def _relu_grad(call: Call) -> Allocation:
    """With a mask of a byte each."""
    return like_operands(call, call.outputs[0].type.size)


ALLOCATIONS: dict[Primitive, Rule] = {
    RELU: like_operands,
    RELU_GRAD: _relu_grad,
    TANH_GRAD: temporaries(1),
    SIGMOID_GRAD: like_operands,  # NumPy multiplies in place where an operand is nobody's
    SILU: temporaries(2),
}

FAST_ALLOCATIONS: dict[Primitive, Rule] = {
    **dict.fromkeys((RELU, RELU_GRAD, TANH_GRAD, SIGMOID_GRAD, SILU, SILU_GRAD), like_operands),
    GELU: packing,
    GELU_GRAD: packing,
}
