"""Ops that combine many elements: reductions, products, running sums, windows, and ops that mix whole axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ...ops import reduction
from ...ops.dims import Dim
from ...ops.types import Shape
from ..domain import OpCall, Rule
from .cuts import common, representable
from .elementwise import FINITE, PRODUCTS, absorbed
from .fact import (
    NAN,
    Affine,
    Fact,
    Position,
    Span,
    Value,
    hull,
    merge_reads,
    narrow,
    normalize,
    plain,
    reading,
    reduce_indices,
    renumber_fact,
    shift_span,
)
from .layout import resized, with_one_index
from .masks import collect_levels, operand_levels, without_dominated
from .positions import number_below, times
from .regions import ANYWHERE, Region, at_most_proved, without

if TYPE_CHECKING:
    from . import Dependence


def drop_axes(fact: Fact, axes: Sequence[int], keepdims: bool = False) -> Fact:
    """Return the fact of a reduction over axes, without those axes or with 1 in their place."""
    gone = [i for axis in axes for i in fact.indices(axis)]
    number: dict[int, int] = {i: i for i in range(len(fact.outer))}
    kept: list[Shape] = []
    at = len(fact.outer)
    for axis, cut in enumerate(fact.axes):
        if axis not in axes:
            number |= {index: at + i for i, index in enumerate(fact.indices(axis))}
            kept.append(cut)
            at += len(cut)
        elif keepdims:
            kept.append((1,))
            at += 1
    return renumber_fact(reduce_indices(fact, gone), fact.outer, tuple(kept), number)


def reduce(domain: Dependence, call: OpCall, facts: Sequence[Fact]) -> Sequence[Fact]:
    (fact,), static = facts, call.static
    axes = static["axes"] if "axes" in static else (static["axis"],)
    if not axes:
        return facts
    domain.reducing(call, fact, operand_levels(call, fact), axes)
    found = drop_axes(fact, axes, static["keepdims"])
    gone = [i for axis in axes for i in fact.indices(axis)]
    if call.primitive is reduction.REDUCE_SUM:
        return [_summed(found, [fact.sizes[i] for i in gone])]
    if call.primitive is reduction.REDUCE_MAX:
        reads = drop_axes(without_dominated(call, fact, gone), axes, static["keepdims"])
        return [normalize(reads._replace(outside=found.outside))]
    return [found._replace(outside=(), value=number_below(call.inputs[0].shape[axes[0]]))]


def order(domain: Dependence, call: OpCall, facts: Sequence[Fact]) -> Sequence[Fact] | None:
    """Return the fact of the sorted order of a row's elements."""
    axis = call.static["axis"]
    found = mixes(lambda call: (axis,))(domain, call, facts)
    return found and [fact._replace(value=number_below(call.inputs[0].shape[axis])) for fact in found]


def multiplied(domain: Dependence, call: OpCall, facts: Sequence[Fact]) -> Sequence[Fact]:
    """Return the fact of a product of (..., m, k) and (..., k, n): elementwise over m, k and n, summed over k."""
    rank = len(call.inputs[0].shape)
    batch = list(range(rank - 2))
    x, y = common(facts, [*[[axis, axis] for axis in batch], [rank - 1, rank - 2]])
    axes = (*x.axes, y.axes[-1])
    start = len(x.outer)
    left = renumber_fact(x, x.outer, axes, {i: i for i in range(len(x.sizes))})
    ahead = sum(map(len, y.axes[:-2]))
    rows = len(x.axes[-2])
    number = {i: i if i < start + ahead else i + rows for i in range(len(y.sizes))}
    right = renumber_fact(y, x.outer, axes, number)
    outside: dict[Value, Region] = {}
    for rule in PRODUCTS:
        where = absorbed(rule, (left, right))
        if where != ANYWHERE:
            narrow(outside, rule.given, where)
            domain.assume(FINITE)
    product = merge_reads(Fact(x.outer, axes, outside=tuple(outside.items())), [left, right])
    domain.reducing(call, product, [*collect_levels(plain(()), product), *collect_levels(plain(()), left)], (rank - 1,))
    return [_summed(drop_axes(product, (rank - 1,)), x.axes[-1])]


def _summed(fact: Fact, sizes: Sequence[Dim]) -> Fact:
    """Return the fact of a sum over indices of these sizes.

    A sum of zeros is 0, and a sum of at least one nan is nan.
    """
    some = all(at_most_proved(1, size) for size in sizes)
    return fact._replace(outside=tuple([(v, where) for v, where in fact.outside if v == 0 or (some and v is NAN)]))


def running(domain: Dependence, call: OpCall, facts: Sequence[Fact]) -> Sequence[Fact]:
    """Return the fact of sums and recurrences along an axis: an element combines those up to it, or after it with
    `reverse`.
    """
    static, axis = call.static, call.static["axis"]
    apart, reverse = int(static.get("exclusive", False)), static["reverse"]
    parts = [with_one_index(fact, axis, call.outputs[0].shape[axis]) for fact in facts]
    parts = common(parts, [[other] * len(parts) for other in range(len(call.outputs[0].shape))])
    first, index = parts[0], parts[0].at(axis)

    def extended(i: int, span: Span) -> tuple[int, Span]:
        if i != index:
            return i, span
        span = shift_span(span, -apart if reverse else apart)
        return i, span._replace(low=None) if (span.by > 0) != reverse else span._replace(high=None)

    where, value = ANYWHERE, None
    if len(parts) == 1:
        where = without(first.region(0), [index])
        value = _count(first.value, index, first.sizes[index], apart, reverse)
        value = representable(domain, value, first.sizes, call.outputs[0].dtype)
    found = Fact(first.outer, first.axes, outside=((0, where),), value=value)
    return [merge_reads(found, [part._replace(reads=tuple([extended(*r) for r in part.reads])) for part in parts])]


def _count(value: Position | None, index: int, size: Dim, apart: int, reverse: bool) -> Affine | None:
    """Return the running sum of one number along an index: c·(i + 1), or c·(size - i); c less if exclusive."""
    if not isinstance(value, Affine) or value.terms or value.absolute:
        return None
    first = Affine(size - apart, ((index, -1),)) if reverse else Affine(1 - apart, ((index, 1),))
    return times(first, value.constant)


def mixes(
    axes_of: Callable[[OpCall], Sequence[int]],
) -> Callable[[Dependence, OpCall, Sequence[Fact]], Sequence[Fact] | None]:
    """Return a rule for ops whose elements read everything along these axes of all operands, which have one rank.

    Negative axes count from the last. Elements stay separate along the other axes that the result has: those ahead of
    all mixed axes, or all of them in a result of the same rank.
    """

    def rule(domain: Dependence, call: OpCall, facts: Sequence[Fact]) -> Sequence[Fact] | None:
        rank = len(facts[0].axes)
        if any(len(fact.axes) != rank for fact in facts):
            return [domain.top(type_, facts) for type_ in call.outputs]
        axes = [axis % rank for axis in axes_of(call)]
        left = common(
            [drop_axes(fact, axes, keepdims=True) for fact in facts], [[axis] * len(facts) for axis in range(rank)]
        )
        return [_stretched(left, out.shape, axes) for out in call.outputs]

    return rule


def _stretched(parts: Sequence[Fact], shape: Shape, mixed: Sequence[int]) -> Fact:
    """Return the reads of any of these facts in a result of this shape, without terms in the mixed axes."""
    first, rank = parts[0], len(parts[0].axes)
    kept = [axis for axis in range(rank) if axis not in mixed] if len(shape) == rank else list(range(min(mixed)))
    cuts = tuple([first.axes[axis] if axis in kept else (size,) for axis, size in enumerate(shape)])
    # The axes of the result stay in place, each with as many indices as before.
    found, gone = Fact(first.outer, cuts), [i for axis in range(rank) if axis not in kept for i in first.indices(axis)]
    number = {i: i for i in range(len(first.outer))}
    for axis in kept:
        number |= dict(zip(first.indices(axis), found.indices(axis)))
    return merge_reads(found, [renumber_fact(reduce_indices(part, gone), first.outer, cuts, number) for part in parts])


# Windows ------------------------------------------------------------------------------------------------------------


def windowed(
    fact: Fact, old: Shape, shape: Shape, *, steps: Sequence[int], before: Sequence[Dim], cells: Sequence[Dim]
) -> Fact:
    """Return the fact of elements that read windows along the last axes.

    The element at index i reads from steps*i - before to steps*i - before + cells.
    """
    rank = len(steps)
    first = len(fact.axes) - rank
    for axis in range(first, first + rank):
        fact = with_one_index(fact, axis, old[axis])
    place = {fact.at(first + i): i for i in range(rank)}
    entries: list[tuple[int, Span]] = []
    for index, span in fact.reads:
        if index in place:
            i = place[index]
            low, high = span.by * -before[i], span.by * (cells[i] - before[i])
            if span.by < 0:
                low, high = high, low
            span = span.shifted(low, high)._replace(by=span.by * steps[i])
        entries.append((index, span))
    axes = (*fact.axes[:first], *[(size,) for size in shape[len(shape) - rank :]])
    return reading(fact._replace(axes=axes, reads=(), outside=(), value=None), hull(entries))


def convolve(transposed: bool) -> Rule:
    def rule(domain: Dependence, call: OpCall, facts: Sequence[Fact]) -> Sequence[Fact]:
        *weights, x = facts
        if not all(fact.idle for fact in weights):
            return [domain.top(call.outputs[0], facts)]
        static, rank = call.static, len(call.inputs[0].shape) - 2
        channels, out = len(x.axes) - rank - 1, call.outputs[0].shape
        reach = [(size - 1) * d for size, d in zip(call.inputs[0].shape[2:], static["dilation"])]
        found = drop_axes(x, (channels,), keepdims=True)
        if transposed:
            # With a stride an element reads cells at a quotient of its index, which no span expresses.
            strided = [channels + 1 + i for i, step in enumerate(static["stride"]) if step != 1]
            found = drop_axes(found, strided, keepdims=True)
            before = [cells - padding for cells, padding in zip(reach, static["padding"])]
            found = windowed(found, _sizes(found), out, steps=(1,) * rank, before=before, cells=reach)
        else:
            found, shape = with_one_index(found, channels, 1), call.inputs[-1].shape
            found = windowed(found, shape, out, steps=static["stride"], before=static["padding"], cells=reach)
        return [merge_reads(resized(found, channels, out[channels]), [found, *weights])]

    return rule


def _sizes(fact: Fact) -> Shape:
    """Return the shape of a tensor with one index for each axis, or whose split does not matter."""
    return tuple([cut[0] for cut in fact.axes])


def pool(domain: Dependence, call: OpCall, facts: Sequence[Fact]) -> Sequence[Fact]:
    """Return the facts of a pool over windows; max_pool returns positions in the same windows."""
    static = call.static
    found = windowed(
        facts[0],
        call.inputs[0].shape,
        call.outputs[0].shape,
        steps=static["stride"],
        before=static["padding"],
        cells=[size - 1 for size in static["kernel"]],
    )
    return [found] * len(call.outputs)
