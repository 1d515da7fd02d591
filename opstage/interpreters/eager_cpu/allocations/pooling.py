"""Memory: pools. In machine code they need their operands row-major and nothing else."""

from __future__ import annotations

from ....ops.catalogue.pooling import AVG_POOL, AVG_POOL_GRAD, MAX_POOL, MAX_POOL_GATHER, MAX_POOL_SCATTER
from ....ops.dims import Dim, prod
from ....ops.primitive import Primitive
from ..kernels.pooling import _WORTH_A_CALL
from ..loops import pooling as native
from .allocation import Allocation, Call, Rule, fresh, packing
from .strides import elements


def _max_pool(call: Call) -> Allocation:
    """Ranks, in a byte and as the words by which positions are looked up, a cell of every window, what was greater, and
    x within its padding."""
    (x,), best = call.operands, call.outputs[0]
    padding = call.number(call.static["padding"])
    padded: Dim = 0
    if any(padding):
        shape, rank = x.type.shape, len(padding)
        padded = prod((*shape[:-rank], *[n + 2 * p for n, p in zip(shape[-rank:], padding)])) * x.type.dtype.itemsize
    return fresh(call, best.nbytes + best.type.size * (1 + 8 + 1) + padded)


def _positions(call: Call) -> Allocation:
    """The positions in all planes laid end to end."""
    index = call.operands[1]
    return fresh(call, index.nbytes)


def _avg_pool(call: Call) -> Allocation:
    """What has been summed up along the axes before the last."""
    (x,), (out,) = call.operands, call.outputs
    rank = len(call.static["kernel"])
    along: Dim = x.type.size
    if rank > 1:
        along = along // x.type.shape[-rank] * out.type.shape[-rank]
    return fresh(call, along * x.type.dtype.itemsize if rank > 1 else 0)


def _avg_pool_grad(call: Call) -> Allocation:
    """The share of each cell, spread along the last axis before the others."""
    (g,), (out,) = call.operands, call.outputs
    rank = len(call.static["kernel"])
    along = g.type.size
    if rank > 1:
        along = out.type.size // out.type.shape[-rank] * g.type.shape[-rank]
    return fresh(call, along * g.type.dtype.itemsize)


def _fast(primitive: Primitive, numpy: Rule, *, of_result: bool = False) -> Rule:
    def rule(call: Call) -> Allocation:
        cells = (call.outputs if of_result else call.operands)[0]
        rank = len(call.static["kernel"])
        worth = elements(cells.shape) >= _WORTH_A_CALL[primitive] and native.supported(cells.type.dtype.name, rank)
        return packing(call) if worth else numpy(call)

    return rule


ALLOCATIONS: dict[Primitive, Rule] = {
    MAX_POOL: _max_pool,
    MAX_POOL_SCATTER: _positions,
    MAX_POOL_GATHER: _positions,
    AVG_POOL: _avg_pool,
    AVG_POOL_GRAD: _avg_pool_grad,
}

FAST_ALLOCATIONS: dict[Primitive, Rule] = {
    MAX_POOL: _fast(MAX_POOL, _max_pool),
    MAX_POOL_SCATTER: _fast(MAX_POOL_SCATTER, _positions, of_result=True),
    MAX_POOL_GATHER: _fast(MAX_POOL_GATHER, _positions),
    AVG_POOL: _fast(AVG_POOL, _avg_pool),
    AVG_POOL_GRAD: _fast(AVG_POOL, _avg_pool_grad, of_result=True),
}
