"""Random tensors: drawn by seed and site, not with PyTorch's bits."""

from __future__ import annotations

from typing import Any

from ...ops.errors import UnsupportedError
from ..call import AtenCall, rule


@rule("rand.default", "rand_like.default", "randn.default", "randn_like.default")
def _drawn(call: AtenCall[Any], given: Any) -> Any:
    shape = given.shape if "like" in call.name else tuple(given)
    return call.give((call.ops.rand_normal if "randn" in call.name else call.ops.rand_uniform)(shape=shape))


@rule("bernoulli.default", "bernoulli.p")
def _bernoulli(call: AtenCall[Any], x: Any, p: Any = None) -> Any:
    ops = call.ops
    chance = x.ref if p is None else ops.full(shape=x.shape, value=float(p))
    return call.give(ops.less(ops.rand_uniform(shape=x.shape), chance))


@rule("randint.default", "randint.low", "randint_like.default", "randint_like.low_dtype")
def _randint(call: AtenCall[Any], *given: Any) -> Any:
    ops = call.ops
    if "like" in call.name:
        shape, bounds = given[0].shape, given[1:]
    else:
        shape, bounds = tuple(given[-1]), given[:-1]
    low, high = (0, *bounds) if len(bounds) == 1 else bounds
    if not (isinstance(low, int) and isinstance(high, int)):
        raise UnsupportedError("its bounds must be numbers")
    whole = ops.floor(ops.scale(ops.rand_uniform(shape=shape), c=high - low))
    return call.give(ops.add(ops.cast(ops.minimum(whole, float(high - low - 1)), dtype="int64"), low))


@rule("normal.float_float")
def _normal(call: AtenCall[Any], mean: float, deviation: float, shape: Any) -> Any:
    ops = call.ops
    return call.give(ops.add(ops.scale(ops.rand_normal(shape=tuple(shape)), c=deviation), mean))
