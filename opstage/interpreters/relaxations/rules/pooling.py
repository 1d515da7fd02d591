"""Pools of maxima: below by the cell whose lower end is the greatest, above by a number, or that cell where it wins."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ....ops.catalogue.pooling import MAX_POOL
from ....ops.primitive import Primitive, Static
from ....ops.types import TensorType
from ...intervals import Interval
from ..interpreter import Relaxed
from .linear import ForwardCall


def _max_pool(relaxed: Relaxed[Any], refs: Any, static: Static, intervals: Sequence[Interval[Any]]) -> Any:
    (x,), ops = refs, relaxed.inner
    interval = relaxed.tightened(x)
    lower, index = ops.bind(MAX_POOL, (interval.lower,), static)
    upper = ops.bind(MAX_POOL, (interval.upper,), static)[0]
    zero = ops.full(shape=lower.shape, value=0.0, dtype=lower.dtype)
    wins = ops.full(shape=lower.shape, value=False, dtype="bool")
    if tuple(static["stride"]) == tuple(static["kernel"]) and not any(static["padding"]):
        own = ops.max_pool_scatter(
            ops.full(shape=lower.shape, value=1.0, dtype=lower.dtype),
            index,
            shape=x.shape[-len(static["kernel"]) :],
            **static,
        )
        least = ops.full(shape=own.shape, value=-float("inf"), dtype=own.dtype)
        others = ops.select(ops.less(ops.full(shape=own.shape, value=0.0, dtype=own.dtype), own), least, interval.upper)
        wins = ops.less_equal(ops.bind(MAX_POOL, (others,), static)[0], lower)
    vjp = MAX_POOL.vjp
    assert vjp is not None
    types = (
        (TensorType(x.shape, x.dtype),),
        (TensorType(lower.shape, lower.dtype), TensorType(index.shape, index.dtype)),
    )
    call = ForwardCall((True,), (index,), *types)

    def pull(ops: Any, a: Any) -> Sequence[Any]:
        positive = ops.less(ops.full(shape=a.shape, value=0.0, dtype=a.dtype), a)
        kept = ops.select(ops.logical_or(positive, wins), a, ops.full(shape=a.shape, value=0.0, dtype=a.dtype))
        return list(vjp(ops, call, (kept,), **static))

    above = ops.select(wins, zero, upper)
    out = relaxed.intervals.between(lower, upper)
    return (relaxed.related(out, [x], pull, zero, above),)


RULES: dict[Primitive, Callable[..., Any]] = {MAX_POOL: _max_pool}
