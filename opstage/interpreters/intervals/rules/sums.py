"""Sums of elements, with factors that are not negative: each end is the sum of ends, less its rounding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ....ops.catalogue.indexing import (
    GATHER_ROW,
    GATHER_ROWS,
    GATHER_SCALAR,
    GATHER_VEC,
    SCATTER_ADD_ROW,
    SCATTER_ADD_ROWS,
    SCATTER_ADD_SCALAR,
    SCATTER_ADD_VEC,
)
from ....ops.catalogue.pooling import AVG_POOL, AVG_POOL_GRAD, MAX_POOL_GATHER, MAX_POOL_SCATTER
from ....ops.catalogue.reduction import REDUCE_SUM
from ....ops.catalogue.sequence import CUMSUM
from ....ops.dims import prod
from ....ops.primitive import Primitive, Static
from ....ops.types import is_float
from ..interpreter import Interval, Intervals
from ..rounding import eps_of, gamma, overflow

Refs = tuple[Interval[Any], ...]

TERMS: dict[Primitive, Callable[[Refs, Static], Any]] = {
    REDUCE_SUM: lambda refs, static: prod([refs[0].shape[axis] for axis in static["axes"]]),
    CUMSUM: lambda refs, static: refs[0].shape[static["axis"]],
    AVG_POOL: lambda refs, static: prod(static["kernel"]) + 2,
    AVG_POOL_GRAD: lambda refs, static: prod(static["kernel"]) + 2,
    MAX_POOL_SCATTER: lambda refs, static: prod(static["kernel"]) + 1,
    SCATTER_ADD_ROW: lambda refs, static: 2,
    SCATTER_ADD_SCALAR: lambda refs, static: 2,
    SCATTER_ADD_ROWS: lambda refs, static: prod(refs[2].shape) + 1,
    SCATTER_ADD_VEC: lambda refs, static: prod(refs[2].shape) + 1,
}
"""How many terms there are at most in an element of the result."""

GATHERS = (GATHER_ROW, GATHER_ROWS, GATHER_SCALAR, GATHER_VEC, MAX_POOL_GATHER)


def _sum(primitive: Primitive) -> Callable[..., Refs]:
    def rule(bounds: Intervals[Any], refs: Refs, static: Static) -> Refs:
        ops, dtype = bounds.inner, refs[0].dtype
        terms = int(TERMS[primitive](refs, static))
        g = 2 * gamma(dtype, terms) + 2 * eps_of(dtype)
        divisor = terms if primitive is AVG_POOL else 1

        def f(ends: list[Any]) -> Any:
            return ops.bind(primitive, tuple(ends), static)[0]

        def end(values: list[Any]) -> tuple[Any, Any]:
            sizes = [ops.abs(x) if is_float(x.dtype) else x for x in values]
            size = f(sizes)
            return f(values), ops.add(ops.scale(size, c=g * (1 + g)), overflow(ops, size, divisor * (1 + 2 * g)))

        total, error = end([x.lower for x in refs])
        lower = ops.sub(total, error)
        if not all(x.point for x in refs):
            total, error = end([x.upper for x in refs])
        return (bounds.between(lower, ops.add(total, error)),)

    return rule


def _gather(primitive: Primitive) -> Callable[..., Refs]:
    def rule(bounds: Intervals[Any], refs: Refs, static: Static) -> Refs:
        lower = bounds.inner.bind(primitive, tuple([x.lower for x in refs]), static)[0]
        upper = bounds.inner.bind(primitive, tuple([x.upper for x in refs]), static)[0]
        return (bounds.between(lower, upper),)

    return rule


RULES: dict[Primitive, Callable[..., Refs]] = {
    **{primitive: _sum(primitive) for primitive in TERMS},
    **{primitive: _gather(primitive) for primitive in GATHERS},
}
EXACT = frozenset(GATHERS)
