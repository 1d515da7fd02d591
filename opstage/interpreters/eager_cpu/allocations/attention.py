"""Memory: scaled dot-product attention and its fused cotangents. What stays in the cache is decided at numbers."""

from __future__ import annotations

from ....ops.catalogue.attention import SCALED_DOT_PRODUCT_ATTENTION, SCALED_DOT_PRODUCT_ATTENTION_GRAD
from ....ops.primitive import Primitive
from ..kernels.attention import different_blocks
from .allocation import Allocation, Call, Rule, fresh
from .strides import Sizes, elements


class _Weights:
    """What a call works with: the weights of one block after the other."""

    def __init__(self, call: Call):
        q, k, _, *rest = call.operands
        self.shape: Sizes = (*q.shape[:-1], k.shape[-2])
        self.item, self.causal = q.type.dtype.itemsize, bool(call.static["causal"])
        self.blocks = [block.shape for block in different_blocks(self.shape, self.causal, self.item)]
        self.count = max(map(elements, self.blocks))
        self.depth = q.shape[-1]
        self.width = max(x.shape[-1] for x in call.operands[:3])
        self.mask = rest[0] if call.static["has_mask"] else None

    @property
    def queries_bytes(self) -> int:
        """Of the scaled queries of a block."""
        return max(elements(shape[:-1]) for shape in self.blocks) * self.depth * self.item

    @property
    def mask_bytes(self) -> int:
        """Of the part of a mask that they see, unless it lies in memory as a loop reads it."""
        if self.mask is None:
            return 0
        every_key = all(shape[-1] == self.shape[-1] for shape in self.blocks)
        in_place = elements(self.mask.shape) == elements(self.shape) and self.mask.strides is None
        return 0 if in_place and every_key else self.count

    @property
    def forbidden_bytes(self) -> int:
        """Of what NumPy is told not to allow: where the mask does not, then where the order does not, twice."""
        among = 2 * min(self.count, elements(self.shape[-2:])) if self.causal else 0
        return max(self.count if self.mask is not None else 0, among)

    @property
    def sums_bytes(self) -> int:
        """Of what one block adds to the cotangents of its keys, then of its values, where several add to them."""
        if all(shape[-2:] == self.shape[-2:] for shape in self.blocks):
            return 0
        return max(elements(shape[:-2]) * shape[-1] for shape in self.blocks) * self.width * self.item


def _attention(call: Call) -> Allocation:
    weights = _Weights(call)
    return fresh(call, weights.count * weights.item + max(weights.mask_bytes, weights.queries_bytes))


def _numpy_attention(call: Call) -> Allocation:
    weights = _Weights(call)
    return fresh(call, weights.count * weights.item + max(weights.forbidden_bytes, weights.queries_bytes))


def _attention_grad(call: Call) -> Allocation:
    """The weights and their cotangents."""
    weights = _Weights(call)
    return fresh(call, 2 * weights.count * weights.item + max(weights.mask_bytes, weights.sums_bytes))


def _numpy_attention_grad(call: Call) -> Allocation:
    weights = _Weights(call)
    return fresh(call, 2 * weights.count * weights.item + max(weights.forbidden_bytes, weights.sums_bytes))


ALLOCATIONS: dict[Primitive, Rule] = {
    SCALED_DOT_PRODUCT_ATTENTION: _numpy_attention,
    SCALED_DOT_PRODUCT_ATTENTION_GRAD: _numpy_attention_grad,
}

FAST_ALLOCATIONS: dict[Primitive, Rule] = {
    SCALED_DOT_PRODUCT_ATTENTION: _attention,
    SCALED_DOT_PRODUCT_ATTENTION_GRAD: _attention_grad,
}
