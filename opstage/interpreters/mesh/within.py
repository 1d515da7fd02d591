"""A collective among ranks whose values are all in one process: sums, joins and parts of them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

from ...ops.catalogue.collective import ALL_GATHER, ALL_MAX, ALL_REDUCE, ALL_TO_ALL, REDUCE_SCATTER, SHIFT
from ...ops.primitive import Primitive, Static
from .tree import total


def within(ops: Any, primitive: Primitive, xs: Sequence[Any], static: Static) -> Sequence[Any]:
    """Return the result of each rank of one group, by ops on the values that they have."""
    count = len(xs)

    def part(x: Any, dim: int, index: int) -> Any:
        return own_part(ops, x, dim, index, count)

    if primitive is ALL_REDUCE:
        return [_sum(ops, xs)] * count
    if primitive is ALL_MAX:
        return [reduce(ops.maximum, xs)] * count
    if primitive is ALL_GATHER:
        return [ops.concat(xs, axis=static["dim"])] * count
    if primitive is REDUCE_SCATTER:
        return [_sum(ops, [part(x, static["dim"], i) for x in xs]) for i in range(count)]
    if primitive is ALL_TO_ALL:
        return [ops.concat([part(x, static["split"], i) for x in xs], axis=static["join"]) for i in range(count)]
    assert primitive is SHIFT, primitive
    return [xs[(i - static["by"]) % count] for i in range(count)]


def own_part(ops: Any, x: Any, dim: int, index: int, count: int) -> Any:
    """Return the part of a tensor that one of `count` ranks has, which share it equally along an axis."""
    length = x.shape[dim] // count
    return ops.slice(x, axis=dim, start=index * length, length=length)


def _sum(ops: Any, values: Sequence[Any]) -> Any:
    return total(len(values), lambda level, i: None if level else values[i], ops.add)
