"""The backward pass of linear bounds: relations put in, from a result to the boxes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ...ops.types import BOOL, FLOAT64, DType
from ..intervals import Interval
from ..intervals.rounding import TINY, down, eps_of, gamma, overflow

if TYPE_CHECKING:
    from .interpreter import Related, Relaxed


def substituted(relaxed: Relaxed[Any], ref: Related[Any]) -> Interval[Any]:
    """The interval of a ref, no looser than it is, by its relations: one row of coefficients for each element."""
    ops = relaxed.inner
    samples, shape = relaxed.samples, tuple(int(size) for size in ref.shape)
    count = math.prod(shape) // samples
    if not count:
        return ref.interval
    interval = ref.interval

    def row(ops: Any, carry: Any, number: Any) -> Any:
        """The lower bounds of one element of each sample, and of its negative: its upper bound."""
        own = ops.equal(
            ops.iota(shape=(samples, count), axis=1),
            ops.broadcast_to(ops.reshape(number, shape=(1, 1)), shape=(samples, count)),
        )
        own = ops.reshape(own, shape=shape)
        one = ops.full(shape=shape, value=1.0, dtype=ref.dtype)
        chosen = ops.select(own, one, ops.full(shape=shape, value=0.0, dtype=ref.dtype))
        return carry, (lower_bound(ops, samples, ref, chosen), lower_bound(ops, samples, ref, ops.neg(chosen)))

    none = ops.full(shape=(), value=False, dtype=BOOL)
    _, (lower, upper) = ops.scan(row, none, ops.iota(shape=(count,)))
    ends, zero = [], ops.full(shape=shape, value=0.0, dtype=ref.dtype)
    for found, before, choose in ((lower, interval.lower, ops.maximum), (ops.neg(upper), interval.upper, ops.minimum)):
        end = ops.reshape(ops.transpose2d(found), shape=shape)
        finite = ops.equal(overflow(ops, before), zero)  # else a run may overflow before it gets here
        ends.append(ops.select(ops.logical_and(finite, ops.equal(end, end)), choose(before, end), before))
    return Interval(ends[0], ends[1], interval.ops)


def lower_bound(ops: Any, samples: int, ref: Related[Any], coefficients: Any) -> Any:
    """A lower bound of the sum of coefficients times elements of `ref`, for each sample; rounded down."""
    arrived: dict[int, tuple[Any, Any]] = {}
    leaves: list[tuple[Any, Any]] = []
    terms: list[Any] = []

    def deposit(node: Any, a: Any) -> None:
        key = node.serial
        if key in arrived:
            before = arrived[key][1]
            size = ops.clamp(ops.add(ops.abs(before), ops.abs(a)), lo=TINY[a.dtype], hi=float("inf"))
            size = ops.mul(double(ops, size), double(ops, _magnitude(ops, node.interval)))
            terms.append(_summed(ops, samples, ops.scale(size, c=-2 * eps_of(a.dtype)), a.dtype))
            a = ops.add(before, a)
        arrived[key] = node, a

    deposit(ref, coefficients)
    while arrived:
        node, a = arrived.pop(max(arrived))
        relation = node.relation
        if relation is None:
            leaves.append((node, a))
            continue
        if relation.below is not None:
            terms.append(_summed(ops, samples, _at(ops, a, relation.below, relation.above), a.dtype))
        underflow = 0.0 if relation.below is None else TINY[a.dtype] * math.prod(a.shape) / samples
        for source, found in zip(relation.sources, relation.pull(ops, a)):
            if found is not None:
                if underflow:
                    size = double(ops, _magnitude(ops, source.interval))
                    terms.append(_summed(ops, samples, ops.scale(size, c=-underflow), a.dtype))
                if relation.centre is not None:
                    shift = ops.mul(double(ops, ops.neg(found)), double(ops, relation.centre))
                    terms.append(_summed(ops, samples, shift, found.dtype))
                deposit(source, found)
    for node, a in leaves:
        terms.append(_summed(ops, samples, _at(ops, a, node.interval.lower, node.interval.upper), a.dtype))
    total = terms[0]
    for term in terms[1:]:
        total = down(ops, ops.add(total, term), underflows=False)
    if total.dtype == coefficients.dtype:
        return total
    return down(ops, ops.cast(total, dtype=coefficients.dtype), 0)


def _at(ops: Any, a: Any, below: Any, above: Any) -> Any:
    """a times `below` where a is positive, else a times `above`, in float64; nan in either is kept."""
    positive = ops.less(ops.full(shape=a.shape, value=0.0, dtype=a.dtype), a)
    return ops.mul(double(ops, a), double(ops, ops.select(positive, below, above)))


def double(ops: Any, x: Any) -> Any:
    """x in float64, which holds numbers of float32 as they are."""
    return x if x.dtype == FLOAT64 else ops.cast(x, dtype=FLOAT64)


def _magnitude(ops: Any, x: Interval[Any]) -> Any:
    return ops.maximum(ops.abs(x.lower), ops.abs(x.upper))


def _summed(ops: Any, samples: int, x: Any, dtype: DType) -> Any:
    """The sum of a sample's elements, rounded down: axis by axis, so that few roundings follow one another.

    x is in float64. An element may be off by its last digit, as a product of such numbers is, and by what underflow has
    taken from one in `dtype`. Of numbers in float32 products are exact there, so their sum loses next to nothing.
    """
    shape = tuple(int(size) for size in x.shape)
    count = math.prod(shape) // samples
    rows = max(1, round(count**0.5))
    while count % rows:
        rows -= 1
    x = ops.reshape(x, shape=(samples, rows, count // rows))
    g = gamma(x.dtype, rows + count // rows)
    error = ops.scale(ops.abs(x), c=g * (1 + g) + 2 * eps_of(x.dtype))
    x = ops.sub(x, ops.add(error, TINY[dtype]))
    return ops.reduce_sum(ops.reduce_sum(x, axis=2), axis=1)
