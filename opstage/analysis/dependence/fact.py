"""Facts about a tensor: which source indices its elements may read, and where they are known numbers.

Each axis is split into *indices*: an axis of several factors (B*T) has one for each, the slowest first. Indices are
numbered from 0: first those of the loops around the tensor, then axis by axis.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from ...ops.dims import Dim
from ...ops.types import Shape
from .regions import (
    ANYWHERE,
    NONE,
    NOWHERE,
    Region,
    at_most_proved,
    at_zero,
    both,
    closed,
    either,
    renumber,
    without,
)


class Span(NamedTuple):
    """Sources s with low <= s - by*i <= high, for the index i of its entry; None for an unknown end."""

    by: int
    low: Dim | None
    high: Dim | None

    def shifted(self, low: Dim, high: Dim) -> Span:
        """Return the span with these distances added to its ends."""
        return Span(
            self.by, None if self.low is None else self.low + low, None if self.high is None else self.high + high
        )


def by_index(terms: Iterable[tuple[int, Dim]]) -> tuple[tuple[int, Dim], ...]:
    """Return terms in the order of their indices, since sizes have no order."""
    return tuple(sorted(terms, key=lambda term: term[0]))


class Affine(NamedTuple):
    """The value of an element as a function of its indices: constant + Σ coefficient*index, or the magnitude of
    that.
    """

    constant: Dim
    terms: tuple[tuple[int, Dim], ...]
    absolute: bool = False


class Between(NamedTuple):
    """The value of an element between two functions of its indices; a whole number."""

    low: Affine
    high: Affine


class Columns(NamedTuple):
    """The value of an element as a function of its indices: another one at each place along the index `along`."""

    along: int
    values: tuple[Affine, ...]


Position: TypeAlias = Affine | Between | Columns


def each_affine(value: Position | None, change: Callable[[Affine], Affine | None]) -> Position | None:
    """Return the value with its functions changed; None if one of them is lost."""
    if isinstance(value, Between):
        low, high = change(value.low), change(value.high)
        return None if low is None or high is None else Between(low, high)
    if not isinstance(value, Columns):
        return None if value is None else change(value)
    found = [new for each in value.values if (new := change(each)) is not None]
    return Columns(value.along, tuple(found)) if len(found) == len(value.values) else None


def value_indices(value: Position | None) -> set[int]:
    """Return the indices on which a value depends."""
    if isinstance(value, Columns):
        return {value.along}.union(*[value_indices(each) for each in value.values])
    if isinstance(value, Between):
        return value_indices(value.low) | value_indices(value.high)
    return set() if value is None else {index for index, _ in value.terms}


Value: TypeAlias = bool | int | float
"""A number of an element; 0.0 and -0.0 count as one, and so do all nans, which `NAN` represents."""

NAN: Final = math.nan


def number(value: object) -> Value | None:
    """Return a static number as a `Value`; None for anything else, such as a symbolic size."""
    if isinstance(value, float):
        return NAN if value != value else value + 0.0
    return value if isinstance(value, (bool, int)) else None


class Fact(NamedTuple):
    """A fact of the dependence domain.

    outer     sizes of the indices of the loops around the tensor
    axes      sizes of the indices of each axis
    reads     by index: the sources that an element may read, in addition to `whole`; NONE for sources of no index
    whole     an element may read any source
    inputs    a bit for each input of which an element may read anything
    outside   an element outside these regions is this number, for all sources; a region that is missing is everywhere
    value     the element as a function of its indices, if known
    """

    outer: Shape
    axes: tuple[Shape, ...]
    reads: tuple[tuple[int, Span], ...] = ()
    whole: bool = False
    inputs: int = 0
    outside: tuple[tuple[Value, Region], ...] = ()
    value: Position | None = None

    @property
    def idle(self) -> bool:
        """Return whether no element reads a source."""
        return not self.reads and not self.whole

    @property
    def sizes(self) -> list[Dim]:
        """Return the size of each index."""
        return [*self.outer, *[size for axis in self.axes for size in axis]]

    def indices(self, axis: int) -> range:
        """Return the indices of an axis."""
        start = len(self.outer) + sum([len(sizes) for sizes in self.axes[:axis]])
        return range(start, start + len(self.axes[axis]))

    def at(self, axis: int) -> int:
        """Return the only index of an axis."""
        (found,) = self.indices(axis)
        return found

    def region(self, value: Value) -> Region:
        """Return the region outside which an element is `value`."""
        return next((where for other, where in self.outside if other is value or other == value), ANYWHERE)

    @property
    def live(self) -> Region:
        """Return the region in which an element may read anything."""
        found = ANYWHERE
        for _, where in self.outside:
            found = both(found, where)
        return found


def plain(shape: Shape, outer: Shape = ()) -> Fact:
    """Return the fact of a tensor that reads nothing, with one index for each axis."""
    return Fact(outer, tuple([(size,) for size in shape]))


def normalize(fact: Fact) -> Fact:
    """Return the same fact without void reads: an element that is one number everywhere has no sources."""
    outside = tuple([(value, where) for value, where in fact.outside if where != ANYWHERE])
    if any(where == NOWHERE for _, where in outside):
        return fact._replace(outside=outside, reads=(), whole=False, inputs=0)
    return fact._replace(outside=outside, reads=() if fact.whole else fact.reads)


def lower(a: Dim | None, b: Dim | None) -> Dim | None:
    """Return the lesser of two low ends; None if neither is proved to be it."""
    if a is None or b is None:
        return None
    return a if at_most_proved(a, b) else b if at_most_proved(b, a) else None


def higher(a: Dim | None, b: Dim | None) -> Dim | None:
    """Return the greater of two high ends; None if neither is proved to be it."""
    least = lower(a, b)
    return None if least is None else b if least is a else a


Reads: TypeAlias = "dict[int, Span] | None"
"""Spans by index; None for any source."""


def hull(parts: Sequence[tuple[int, Span]]) -> Reads:
    """Return spans that contain all of these."""
    found: dict[int, Span] = {}
    for index, span in parts:
        other = found.get(index)
        if other is not None and other.by != span.by:
            return None
        found[index] = (
            span if other is None else Span(span.by, lower(span.low, other.low), higher(span.high, other.high))
        )
    return None if any(span.low is None and span.high is None for span in found.values()) else found


def reading(fact: Fact, reads: Reads) -> Fact:
    """Return the fact with these reads in addition to `whole`."""
    if reads is None:
        return normalize(fact._replace(reads=(), whole=True))
    return normalize(fact._replace(reads=tuple(sorted(reads.items(), key=lambda entry: entry[0]))))


def merge_reads(fact: Fact, parts: Iterable[Fact]) -> Fact:
    """Return the fact with the reads and the inputs of all parts, whose indices have the same numbers."""
    inputs, whole, reads = 0, False, list[tuple[int, Span]]()
    for part in parts:
        inputs |= part.inputs
        whole = whole or part.whole
        reads += part.reads
    return reading(fact._replace(reads=(), whole=whole, inputs=inputs), hull(reads))


def narrow(outside: dict[Value, Region], value: Value, where: Region) -> None:
    """Record that an element is `value` outside of a region, in addition to what is recorded of that number."""
    outside[value] = both(where, outside[value]) if value in outside else where


def merge_outside(facts: Sequence[Fact]) -> tuple[tuple[Value, Region], ...]:
    """Return the numbers outside regions that hold for an element of any of these."""
    found = []
    for value, where in facts[0].outside:
        for other in facts[1:]:
            where = either(where, other.region(value))
        found.append((value, where))
    return tuple(found)


def renumber_fact(fact: Fact, outer: Shape, axes: tuple[Shape, ...], number: Mapping[int, int]) -> Fact:
    """Return the fact of the same elements with renumbered indices; indices without a number are dropped."""
    reads = {number[i] if i != NONE else NONE: span for i, span in fact.reads}
    value = fact.value if all(i in number for i in value_indices(fact.value)) else None
    value = each_affine(value, lambda v: v._replace(terms=by_index([(number[i], c) for i, c in v.terms])))
    if isinstance(value, Columns):
        value = value._replace(along=number[value.along])
    outside = tuple([(v, renumber(where, number)) for v, where in fact.outside])
    return reading(Fact(outer, axes, (), fact.whole, fact.inputs, outside, value), reads)


def shift_span(span: Span, distance: Dim) -> Span:
    """Return the span for an index that is greater by `distance`."""
    return span.shifted(-span.by * distance, -span.by * distance)


def eliminate_index(span: Span, index: int, fact: Fact, gone: Sequence[int]) -> list[tuple[int, Span]] | None:
    """Return the sources read by `index` in terms of the indices that are not `gone`; None without bounds.

    The result holds for all values of `index` at which an element reads anything.
    """
    for where in dict.fromkeys([fact.live, *[where for _, where in fact.outside]]):
        found = [_eliminate(span, index, closed(part), gone) for part in where]
        bounded = [entry for entry in found if entry is not None]
        if len(bounded) == len(found):
            return bounded
    return None


def _eliminate(
    span: Span, index: int, part: Sequence[tuple[int, int, Dim]], gone: Sequence[int]
) -> tuple[int, Span] | None:
    above: dict[int, Dim] = {}
    below: dict[int, Dim] = {}
    for a, b, c in part:
        if a == index and b not in gone:
            above[b] = c
        elif b == index and a not in gone:
            below[a] = -c
    # Prefer an index with both ends or an upper one, then an upper bound by a number, then a lower one.
    candidates = sorted({*above, *below}, key=lambda i: (i not in above, i == NONE, i not in below, i))
    if NONE in candidates and NONE not in above:
        candidates.remove(NONE)
    if not candidates:
        return None
    to = candidates[0]
    # low and high of by*(index - to)
    least = span.by * below[to] if to in below else None
    most = span.by * above[to] if to in above else None
    if to == NONE and least is None:
        least = 0 if span.by >= 0 else None
    if span.by < 0:
        least, most = most, least
        if to == NONE and most is None:
            most = 0
    low = None if least is None or span.low is None else span.low + least
    high = None if most is None or span.high is None else span.high + most
    if low is None and high is None:
        return None
    return to, Span(0 if to == NONE else span.by, low, high)


def reduce_indices(fact: Fact, gone: Sequence[int]) -> Fact:
    """Return the fact of a reduction over all elements along these indices.

    The indices stay in its axes, but reads, regions and values have no terms in them. `outside` holds if it holds for
    all elements of the reduction.
    """
    kept = [(i, span) for i, span in fact.reads if i not in gone]
    whole = fact.whole
    for i, span in fact.reads:
        if i in gone:
            entries = eliminate_index(span, i, fact, gone)
            whole = whole or entries is None
            kept += entries or []
    outside = tuple([(value, without(where, gone)) for value, where in fact.outside])
    return reading(fact._replace(reads=(), whole=whole, outside=outside, value=None), hull(kept))


def each_region(fact: Fact, change: Callable[[Region], Region]) -> tuple[tuple[Value, Region], ...]:
    """Return `outside` with its regions changed."""
    return tuple([(value, change(where)) for value, where in fact.outside])


def at_origin(fact: Fact, indices: Sequence[int]) -> Fact:
    """Return the fact of the elements whose `indices` are 0, as along axes of size 1; it has no terms in them."""
    if not indices:
        return fact
    parts = [(NONE, Span(0, span.low, span.high)) if i in indices else (i, span) for i, span in fact.reads]
    outside = fact.outside
    for index in indices:
        outside = tuple([(v, at_zero(where, index)) for v, where in outside])
    value = fact.value
    if isinstance(value, Columns) and value.along in indices:
        value = value.values[0]
    value = each_affine(value, lambda v: v._replace(terms=tuple([(i, c) for i, c in v.terms if i not in indices])))
    return reading(fact._replace(reads=(), outside=outside, value=value), hull(parts))


def lift(fact: Fact, outer: Shape) -> Fact:
    """Return the fact inside more loops."""
    more = len(outer) - len(fact.outer)
    if more <= 0:
        return fact
    start = len(fact.outer)
    return renumber_fact(fact, outer, fact.axes, {i: i if i < start else i + more for i in range(len(fact.sizes))})
