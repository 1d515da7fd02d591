"""Layout ops: axes permuted, merged, repeated, concatenated, sliced and padded, and rows gathered at indices."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ...ops.dims import Dim, prod
from ...ops.types import Shape
from ..domain import OpCall
from .cuts import common, recut, representable, reshaped, stored
from .fact import (
    Affine,
    Between,
    Columns,
    Fact,
    Position,
    Span,
    Value,
    at_origin,
    by_index,
    each_affine,
    each_region,
    hull,
    merge_reads,
    plain,
    reading,
    reduce_indices,
    renumber_fact,
    shift_span,
)
from .positions import plus, times
from .regions import (
    NONE,
    Region,
    alike,
    as_size,
    at_most_proved,
    both,
    either,
    mirror,
    region,
    renumber,
    same,
    shift,
)

if TYPE_CHECKING:
    from . import Dependence


def unchanged(domain: Dependence, call: OpCall, facts: Sequence[Fact]) -> Sequence[Fact]:
    """Return the facts of the operands."""
    return facts


def permute(domain: Dependence, call: OpCall, facts: Sequence[Fact]) -> Sequence[Fact]:
    (fact,), order = facts, call.static["axes"]
    places = {i: i for i in range(len(fact.outer))}
    at = len(fact.outer)
    for axis in order:
        for index in fact.indices(axis):
            places[index] = at
            at += 1
    return [renumber_fact(fact, fact.outer, tuple([fact.axes[axis] for axis in order]), places)]


def reshape(domain: Dependence, call: OpCall, facts: Sequence[Fact]) -> Sequence[Fact]:
    return [reshaped(facts[0], call.outputs[0].shape)]


def broadcast_to(domain: Dependence, call: OpCall, facts: Sequence[Fact]) -> Sequence[Fact]:
    """Return the fact of repeated elements: along axes of size 1, and along new leading axes."""
    (fact,), shape = facts, call.outputs[0].shape
    ahead = len(shape) - len(fact.axes)
    axes: list[Shape] = [(size,) for size in shape[:ahead]]
    start = len(fact.outer)
    places = {i: i for i in range(start)}
    grounded: list[int] = []
    at = start + ahead
    for axis, size in enumerate(shape[ahead:]):
        indices = fact.indices(axis)
        if same(call.inputs[0].shape[axis], size):
            places |= {index: at + i for i, index in enumerate(indices)}
            axes.append(fact.axes[axis])
        else:
            grounded += indices
            axes.append((size,))
        at += len(axes[-1])
    return [renumber_fact(at_origin(fact, grounded), fact.outer, tuple(axes), places)]


def with_one_index(fact: Fact, axis: int, size: Dim) -> Fact:
    """Return the fact with a single index for an axis."""
    return recut(fact, (*fact.axes[:axis], (size,), *fact.axes[axis + 1 :]))


def slice_(domain: Dependence, call: OpCall, facts: Sequence[Fact]) -> Sequence[Fact]:
    (fact,), static = facts, call.static
    axis, start, step, length = static["axis"], static["start"], static["step"], static["length"]
    if step == 1 and same(call.inputs[0].shape[axis], length):
        return facts
    fact = with_one_index(fact, axis, call.inputs[0].shape[axis])
    return [resized(strided(fact, axis, start, step), axis, length)]


def resized(fact: Fact, axis: int, size: Dim) -> Fact:
    return fact._replace(axes=(*fact.axes[:axis], (size,), *fact.axes[axis + 1 :]))


def strided(fact: Fact, axis: int, start: Dim, step: int) -> Fact:
    """Return the fact of the elements at index start + step*i along the axis, in terms of i."""
    index = fact.at(axis)
    reads = {i: shift_span(s, -start)._replace(by=s.by * step) if i == index else s for i, s in fact.reads}
    if step == 1:
        outside = each_region(fact, lambda where: shift(where, index, -start))
    else:
        keeps = {i: i for i in range(len(fact.sizes)) if i != index}
        outside = each_region(fact, lambda where: renumber(where, keeps))
    value = _stride_position(fact.value, index, start, step)
    return reading(fact._replace(reads=(), outside=outside, value=value), None if fact.whole else reads)


def _stride_position(value: Position | None, index: int, start: Dim, step: int) -> Position | None:
    """Return a value, whose `index` is start + step*i, as a function of i."""
    if isinstance(value, Columns) and value.along == index:
        if not isinstance(start, int) or not 0 <= start < len(value.values):
            return None
        value = value._replace(values=value.values[start::step])
    return each_affine(value, lambda each: _stride_affine(each, index, start, step))


def _stride_affine(value: Affine, index: int, start: Dim, step: int) -> Affine:
    along = dict(value.terms).get(index, 0)
    terms = tuple([(i, c * step if i == index else c) for i, c in value.terms if step or i != index])
    return Affine(value.constant + along * start, terms, value.absolute)


def pad(domain: Dependence, call: OpCall, facts: Sequence[Fact]) -> Sequence[Fact]:
    fact, static = facts[0], call.static
    filled = stored(domain, static["value"], call.outputs[0].dtype)
    for axis, ((before, _), between) in enumerate(zip(static["padding"], static["interior"])):
        old, new = call.inputs[0].shape[axis], call.outputs[0].shape[axis]
        if same(old, new) and between == 0:
            continue
        fact = with_one_index(fact, axis, old)
        index = fact.at(axis)
        if between:  # interior padding moves entries apart, by a factor that no span expresses
            fact = resized(reduce_indices(fact, [index]), axis, new)
            fact = fact._replace(outside=tuple([(v, where) for v, where in fact.outside if v is filled or v == filled]))
            continue
        inside = region((-1, index, -before), (index, -1, before + old - 1))
        fact = resized(_placed(fact, axis, before, inside, filled), axis, new)
    return [fact]


def _placed(fact: Fact, axis: int, before: Dim, inside: Region, filled: Value | None) -> Fact:
    """Return the fact of the elements after `before` others along an axis; outside `inside` they are `filled`."""
    index = fact.at(axis)
    moved_on = strided(fact, axis, -before, 1)
    outside: list[tuple[Value, Region]] = []
    for value in dict.fromkeys([*[v for v, _ in moved_on.outside], *([] if filled is None else [filled])]):
        where = both(inside, moved_on.region(value))
        if value is not filled and value != filled:
            size = fact.axes[axis][0]
            where = either(either(where, region((index, -1, before - 1))), region((-1, index, -(before + size))))
        outside.append((value, where))
    return moved_on._replace(outside=tuple(outside), value=None)


def concat(domain: Dependence, call: OpCall, facts: Sequence[Fact]) -> Sequence[Fact]:
    axis, out = call.static["axis"], call.outputs[0].shape
    single = [with_one_index(fact, axis, type_.shape[axis]) for fact, type_ in zip(facts, call.inputs)]
    others = [other for other in range(len(out)) if other != axis]
    parts = common(single, [[other] * len(single) for other in others])
    start: Dim = 0
    placed: list[tuple[Fact, Region]] = []
    for part, type_ in zip(parts, call.inputs):
        index, size = part.at(axis), type_.shape[axis]
        inside = region((-1, index, -start), (index, -1, start + size - 1))
        placed.append((strided(part, axis, -start, 1), inside))
        start = start + size
    outside: list[tuple[Value, Region]] = []
    for value in dict.fromkeys([v for part, _ in placed for v, _ in part.outside]):
        where: Region = ()
        for part, inside in placed:
            where = either(where, both(inside, part.region(value)))
        outside.append((value, where))
    first = resized(placed[0][0], axis, out[axis])
    first = first._replace(outside=tuple(outside), value=_concat_values(parts, axis, call))
    return [merge_reads(first, [part for part, _ in placed])]


def _common_affine(parts: Sequence[Fact], axis: int, call: OpCall) -> Affine | None:
    """Return the function of the indices that all parts share; a part of one entry has one value of it."""
    start: Dim = 0
    wide: list[Affine] = []
    single: list[tuple[Dim, Affine]] = []
    for part, type_ in zip(parts, call.inputs):
        index, size = part.at(axis), type_.shape[axis]
        if not isinstance(part.value, Affine):
            return None
        if same(size, 1):
            single.append((start, _stride_affine(part.value, index, 0, 0)))
        else:
            wide.append(_stride_affine(part.value, index, -start, 1))
        start = start + size
    if not wide or not all(alike(each, wide[0]) for each in wide):
        return None
    index = parts[0].at(axis)
    return wide[0] if all(alike(_stride_affine(wide[0], index, at, 0), value) for at, value in single) else None


_MOST_COLUMNS = 8


def _concat_values(parts: Sequence[Fact], axis: int, call: OpCall) -> Position | None:
    """Return the value of concatenated parts.

    It is one function that continues over all parts, such as -1 and 0, 1, …; or one for each place along the axis, as
    for tuples of positions.
    """
    whole = _common_affine(parts, axis, call)
    if whole is not None:
        return whole
    size = call.outputs[0].shape[axis]
    if not isinstance(size, int) or not 0 < size <= _MOST_COLUMNS:
        return None
    found: list[Affine] = []
    for part, type_ in zip(parts, call.inputs):
        index, length = part.at(axis), type_.shape[axis]
        for at in range(length if isinstance(length, int) else 0):
            value = at_origin(strided(part, axis, at, 1), [index]).value
            if not isinstance(value, Affine):
                return None
            found.append(value)
    return Columns(parts[0].at(axis), tuple(found)) if len(found) == size else None


# Ops without operands -------------------------------------------------------------------------------------------------


def full(domain: Dependence, call: OpCall, facts: Sequence[Fact]) -> Sequence[Fact]:
    fact = plain(call.outputs[0].shape, domain.outer)
    dtype = call.outputs[0].dtype
    filled, size = stored(domain, call.static["value"], dtype), as_size(call.static["value"])
    outside = () if filled is None else ((filled, ()),)
    value: Position | None = None
    if size is not None:
        value = representable(domain, Affine(size, ()), fact.sizes, dtype)
    elif isinstance(filled, float) and math.isfinite(filled):
        ends = [
            representable(domain, Affine(end, ()), fact.sizes, dtype) for end in (math.floor(filled), math.ceil(filled))
        ]
        value = None if ends[0] is None or ends[1] is None else Between(ends[0], ends[1])
    return [fact._replace(outside=outside, value=value)]


def iota(domain: Dependence, call: OpCall, facts: Sequence[Fact]) -> Sequence[Fact]:
    fact = plain(call.outputs[0].shape, domain.outer)
    value = Affine(0, ((fact.at(call.static["axis"]), 1),))
    return [fact._replace(value=representable(domain, value, fact.sizes, call.outputs[0].dtype))]


def draw(domain: Dependence, call: OpCall, facts: Sequence[Fact]) -> Sequence[Fact]:
    """Return the fact of random samples, which depend on the step and on their position only."""
    return [domain.top(call.outputs[0], facts)]


# Gather and scatter of rows -------------------------------------------------------------------------------------------


def gather_rows(domain: Dependence, call: OpCall, facts: Sequence[Fact]) -> Sequence[Fact]:
    """Return the fact of gathered rows: with the axes of the indices, then those of a row."""
    apart = _gather_split_rows(*facts)
    if apart is not None and call.static["mode"] == "raise":
        return [apart]
    x, idx = with_one_index(facts[0], 0, call.inputs[0].shape[0]), facts[1]
    start, row = len(x.outer), x.at(0)
    ahead = sum(map(len, idx.axes))
    axes: tuple[Shape, ...] = (*idx.axes, *x.axes[1:])
    value = idx.value if isinstance(idx.value, Affine) and not idx.value.absolute else None
    place = idx.value if value is None else Between(value, value)
    number = {i: i if i < start else i + ahead - 1 for i in range(len(x.sizes)) if i != row}
    near = _gather_enclosed(x, row, place, number) if isinstance(place, Between) else None
    anywhere = reduce_indices(x, [row])
    entries: list[tuple[int, Span]] = (
        near if near is not None else [(number.get(i, NONE), span) for i, span in anywhere.reads]
    )
    outside = tuple([(v, renumber(where, number)) for v, where in anywhere.outside])
    to, sign = value.terms[0] if value is not None and len(value.terms) == 1 else (NONE, 0)
    if value is not None and isinstance(sign, int) and abs(sign) == 1:
        own = [
            (v, shift(w, row, -value.constant) if sign == 1 else mirror(w, row, value.constant)) for v, w in x.outside
        ]
        outside = tuple([(v, renumber(where, {**number, row: to})) for v, where in own])
    whole = anywhere.whole if near is None else x.whole
    if call.static["mode"] == "zero":  # a row out of range reads as zeros
        outside = tuple([(v, where) for v, where in outside if v == 0])
    read = _gather_value(facts[0], value, row, number) if call.static["mode"] == "raise" else None
    found = Fact(idx.outer, axes, (), whole or idx.whole, x.inputs | idx.inputs, outside, read)
    return [reading(found, hull([*idx.reads, *entries]))]


def _gather_enclosed(x: Fact, row: int, place: Between, number: Mapping[int, int]) -> list[tuple[int, Span]] | None:
    """Return the reads of rows at a place between two functions, each in terms of at most one index; None without
    bounds.
    """
    ends = [end for end in (place.high, place.low) if len(end.terms) <= 1]
    found: list[tuple[int, Span]] = []
    for i, span in x.reads:
        if i != row:
            found.append((number.get(i, NONE), span))
            continue
        # s - by·r is between low and high, and r between its ends: s - by·c·i has a low end by one, a high by the other
        below, above = (place.low, place.high) if span.by >= 0 else (place.high, place.low)
        together = alike(below.terms, above.terms)
        for end in ends[:1] if together else ends:
            to, coefficient = end.terms[0] if end.terms else (NONE, 0)
            low = span.low if together or end is below else None
            high = span.high if together or end is above else None
            if isinstance(coefficient, int) and (low is not None or high is not None):
                first = None if low is None else low + span.by * below.constant
                last = None if high is None else high + span.by * above.constant
                found.append((to, Span(span.by * coefficient, first, last)))
                break
        else:
            return None
    return found


def _gather_value(x: Fact, place: Affine | None, row: int, number: Mapping[int, int]) -> Affine | None:
    """Return the value of rows gathered at a place; the other indices of x are renumbered."""
    value = x.value
    if place is None or not isinstance(value, Affine) or value.absolute:
        return None
    terms = dict(value.terms)
    along = terms.pop(row, 0)
    rest = Affine(value.constant, by_index([(number[i], c) for i, c in terms.items()]))
    return plus(times(place, along), rest)


def scatter_add_rows(domain: Dependence, call: OpCall, facts: Sequence[Fact]) -> Sequence[Fact]:
    """Return the fact of rows, each of itself and of all that may be added to it."""
    x, v, idx = facts
    leading = len(idx.axes)
    rows = list(range(1, len(x.axes)))
    x, v = common([with_one_index(x, 0, call.inputs[0].shape[0]), v], [[axis, axis - 1 + leading] for axis in rows])
    start = len(x.outer)
    v = reduce_indices(v, range(start, start + sum(map(len, v.axes[:leading]))))
    shift = 1 - sum(map(len, v.axes[:leading]))
    entries = [*x.reads, *[(i if i < start else i + shift, span) for i, span in v.reads]]
    found = Fact(x.outer, x.axes, (), x.whole or v.whole or not idx.idle, x.inputs | v.inputs | idx.inputs)
    return [reading(found, hull(entries))]


def _leading(value: Position | None, sizes: Shape) -> Affine | None:
    """Return the leading terms of a place: b*T + t for an exact one, b*T for one between b*T and b*T + T - 1; else
    None.
    """
    if isinstance(value, Affine):
        return value if same(value.constant, 0) and not value.absolute and len(value.terms) == len(sizes) else None
    if not isinstance(value, Between) or not alike(value.low.terms, value.high.terms):
        return None
    last = prod(sizes[len(value.low.terms) :]) - 1
    if not at_most_proved(0, value.low.constant) or not at_most_proved(value.high.constant, last):
        return None
    return value.low._replace(constant=0)


def _gather_split_rows(x: Fact, idx: Fact) -> Fact | None:
    """Return the rows of an axis of several indices, gathered at flat places of as many: b*T + t is the row (b, t)."""
    rows, sizes, theirs = x.indices(0), x.axes[0], idx.sizes
    value = _leading(idx.value, sizes)
    if len(rows) < 2 or value is None or not value.terms or len(value.terms) > len(rows):
        return None
    if len(value.terms) < len(rows):  # any place along the last of them
        x = reduce_indices(x, rows[len(value.terms) :])
        rows = rows[: len(value.terms)]
    ahead, start = sum(map(len, idx.axes)), len(x.outer)
    number = {i: i if i < start else i + ahead - len(sizes) for i in range(len(x.sizes)) if i not in x.indices(0)}
    for at, row in enumerate(rows):
        weight = prod(sizes[at + 1 :])
        found = [i for i, c in value.terms if same(c, weight) and same(theirs[i], sizes[at])]
        if len(found) != 1:
            return None
        number[row] = found[0]
    if len(set(number.values())) < len(number):
        return None
    moved_on = renumber_fact(x, idx.outer, (*idx.axes, *x.axes[1:]), number)
    return merge_reads(moved_on, [moved_on, idx])
