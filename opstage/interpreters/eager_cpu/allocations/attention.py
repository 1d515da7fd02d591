"""Memory: scaled dot-product attention and its fused cotangents."""

from __future__ import annotations

from ....ops.catalogue.attention import SCALED_DOT_PRODUCT_ATTENTION, SCALED_DOT_PRODUCT_ATTENTION_GRAD
from ....ops.primitive import Primitive
from .allocation import Allocation, Call, Operand, Rule, fresh, like
from .linalg import product
from .strides import permuted


def _attention(call: Call) -> Allocation:
    """The scaled queries while the weights are made; a mask of them, broadcast; then the result."""
    q = call.operands[0]
    p = call.outputs[1]
    most = call.most(q.nbytes + p.nbytes, p.nbytes + p.type.size) if call.static["has_mask"] else q.nbytes + p.nbytes
    return fresh(call, call.beyond_results(most))


def _numpy_attention(call: Call) -> Allocation:
    """The same, the weights in memory as NumPy's product has them."""
    q, k, v = call.operands[:3]
    out, p = call.outputs
    axes = (*range(len(k.shape) - 2), len(k.shape) - 1, len(k.shape) - 2)
    turned = Operand(k.type, tuple([k.shape[a] for a in axes]), permuted(k.shape, k.strides, axes))
    weights = product(Operand(q.type, q.shape, like(q).strides), turned, p)
    result = product(p._replace(strides=weights.strides), v, out)
    return _attention(call)._replace(results=(result, weights))


def _attention_grad(call: Call) -> Allocation:
    """The cotangents of the weights."""
    return fresh(call, call.operands[3].nbytes)


def _numpy_attention_grad(call: Call) -> Allocation:
    """The same, and their product with the weights while their sum is taken."""
    p = call.operands[3]
    return fresh(call, call.most(p.nbytes, call.beyond_results(2 * p.nbytes)))


ALLOCATIONS: dict[Primitive, Rule] = {
    SCALED_DOT_PRODUCT_ATTENTION: _numpy_attention,
    SCALED_DOT_PRODUCT_ATTENTION_GRAD: _numpy_attention_grad,
}

FAST_ALLOCATIONS: dict[Primitive, Rule] = {
    SCALED_DOT_PRODUCT_ATTENTION: _attention,
    SCALED_DOT_PRODUCT_ATTENTION_GRAD: _attention_grad,
}
