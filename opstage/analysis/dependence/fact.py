"""Facts about a tensor: which source indices its elements may read, and where they are one number for certain.

The axes of a tensor are taken apart into *indices*: an axis that was made of others (B*T) has one for each of them, the
first counting slowest. They are numbered from 0 on, first those of the loops around the tensor, then axis by axis.
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
    alike,
    at_most_proved,
    at_zero,
    both,
    closed,
    either,
    renumber,
    without,
)


class Span(NamedTuple):
    """Sources s with low <= s - by*i <= high, for the index i that it stands with; None is no end."""

    by: int
    low: Dim | None
    high: Dim | None

    def shifted(self, low: Dim, high: Dim) -> Span:
        """Return the span with these distances added to its ends."""
        return Span(
            self.by, None if self.low is None else self.low + low, None if self.high is None else self.high + high
        )


def by_index(terms: Iterable[tuple[int, Dim]]) -> tuple[tuple[int, Dim], ...]:
    """Terms in the order of their indices, each of which has one; sizes have no order."""
    return tuple(sorted(terms, key=lambda term: term[0]))


class Affine(NamedTuple):
    """The value of an element as a function of its indices: constant + Σ coefficient*index, or the absolute of that."""

    constant: Dim
    terms: tuple[tuple[int, Dim], ...]
    absolute: bool = False


class Between(NamedTuple):
    """The value of an element as far as two functions of its indices enclose it, whose values are whole numbers."""

    low: Affine
    high: Affine


class Columns(NamedTuple):
    """The value of an element as a function of its indices: at each place of one of them, `along`, its own."""

    along: int
    values: tuple[Affine, ...]


Position: TypeAlias = Affine | Between | Columns


def each_affine(value: Position | None, change: Callable[[Affine], Affine | None]) -> Position | None:
    """The value with its functions changed; None if one of them is lost."""
    if isinstance(value, Between):
        low, high = change(value.low), change(value.high)
        return None if low is None or high is None else Between(low, high)
    if not isinstance(value, Columns):
        return None if value is None else change(value)
    found = [new for each in value.values if (new := change(each)) is not None]
    return Columns(value.along, tuple(found)) if len(found) == len(value.values) else None


def value_indices(value: Position | None) -> set[int]:
    """The indices of which a value is a function."""
    if isinstance(value, Columns):
        return {value.along}.union(*[value_indices(each) for each in value.values])
    if isinstance(value, Between):
        return value_indices(value.low) | value_indices(value.high)
    return set() if value is None else {index for index, _ in value.terms}


Value: TypeAlias = bool | int | float
"""A number that an element is; 0.0 and -0.0 count as one, and so do all nans, of which `NAN` stands for each."""

NAN: Final = math.nan


def number(value: object) -> Value | None:
    """A static number as a `Value`; None for one that is no number of Python's, such as a size with a name."""
    if isinstance(value, float):
        return NAN if value != value else value + 0.0
    return value if isinstance(value, (bool, int)) else None


class Fact(NamedTuple):
    """outer     sizes of the indices of the loops around the tensor
    axes      sizes of the indices that each axis is made of
    reads     by the number of an index the sources that an element may read, in addition to `whole`; NONE stands for
              sources that do not depend on any index
    whole     whether an element may read any source
    inputs    which inputs an element may read anything of, a bit for each
    outside   outside of these regions an element is this number, whatever the sources hold; a region that is not given
              is everywhere
    value     the element as a function of its indices, where that is known
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
        """Whether no element reads a source."""
        return not self.reads and not self.whole

    @property
    def sizes(self) -> list[Dim]:
        """The size of each index."""
        return [*self.outer, *[size for axis in self.axes for size in axis]]

    def indices(self, axis: int) -> range:
        """The numbers of the indices of an axis."""
        start = len(self.outer) + sum([len(sizes) for sizes in self.axes[:axis]])
        return range(start, start + len(self.axes[axis]))

    def at(self, axis: int) -> int:
        """The number of the one index of an axis."""
        (found,) = self.indices(axis)
        return found

    def region(self, value: Value) -> Region:
        """Outside of it an element is `value`."""
        return next((where for other, where in self.outside if other is value or other == value), ANYWHERE)

    @property
    def live(self) -> Region:
        """Where an element may read anything at all."""
        found = ANYWHERE
        for _, where in self.outside:
            found = both(found, where)
        return found


def plain(shape: Shape, outer: Shape = ()) -> Fact:
    """The fact of a tensor that reads nothing, whose axes are indices."""
    return Fact(outer, tuple([(size,) for size in shape]))


def normalize(fact: Fact) -> Fact:
    """The same fact, without what reads nothing: an element that is one number everywhere has no sources."""
    outside = tuple([(value, where) for value, where in fact.outside if where != ANYWHERE])
    if any(where == NOWHERE for _, where in outside):
        return fact._replace(outside=outside, reads=(), whole=False, inputs=0)
    return fact._replace(outside=outside, reads=() if fact.whole else fact.reads)


def lower(a: Dim | None, b: Dim | None) -> Dim | None:
    """The lesser of two low ends; no end where neither is known to be it."""
    if a is None or b is None:
        return None
    return a if at_most_proved(a, b) else b if at_most_proved(b, a) else None


def higher(a: Dim | None, b: Dim | None) -> Dim | None:
    """The greater of two high ends."""
    if a is None or b is None:
        return None
    return b if at_most_proved(a, b) else a if at_most_proved(b, a) else None


Reads: TypeAlias = "dict[int, Span] | None"
"""Spans by index; None for any source."""


def hull(parts: Sequence[tuple[int, Span]]) -> Reads:
    """Spans that contain all of these."""
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
    """The numbers outside of regions that hold of an element of any of these."""
    found = []
    for value, where in facts[0].outside:
        for other in facts[1:]:
            where = either(where, other.region(value))
        found.append((value, where))
    return tuple(found)


def renumber_fact(fact: Fact, outer: Shape, axes: tuple[Shape, ...], number: Mapping[int, int]) -> Fact:
    """The same elements with their indices renumbered; those without a number are gone, and nothing reads by them."""
    reads = {number[i] if i != NONE else NONE: span for i, span in fact.reads}
    value = fact.value if all(i in number for i in value_indices(fact.value)) else None
    value = each_affine(value, lambda v: v._replace(terms=by_index([(number[i], c) for i, c in v.terms])))
    if isinstance(value, Columns):
        value = value._replace(along=number[value.along])
    outside = tuple([(v, renumber(where, number)) for v, where in fact.outside])
    return reading(Fact(outer, axes, (), fact.whole, fact.inputs, outside, value), reads)


def shift_span(span: Span, distance: Dim) -> Span:
    """The span of an index that is greater by `distance` than the one it was said of."""
    return span.shifted(-span.by * distance, -span.by * distance)


def eliminate_index(span: Span, index: int, fact: Fact, gone: Sequence[int]) -> list[tuple[int, Span]] | None:
    """The sources read by `index`, said of the indices that are not `gone`, for all its values where an element reads
    anything; None if nothing bounds them."""
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
    # By preference an index that ends what is read, on either side, then a number that does, then one that starts it.
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
    """The fact of something that is made of all elements along these indices. It still has them in its axes, where no
    read, region or value speaks of them; `outside` is that of the elements all alike."""
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
    """`outside` with its regions changed."""
    return tuple([(value, change(where)) for value, where in fact.outside])


def same_fact(a: Fact, b: Fact) -> bool:
    """Whether two facts are written alike."""
    return alike(a, b)


def at_origin(fact: Fact, indices: Sequence[int]) -> Fact:
    """The fact of the elements whose `indices` are 0, as those along axes of size 1 are; nothing speaks of them."""
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
    """The fact in more loops."""
    more = len(outer) - len(fact.outer)
    if more <= 0:
        return fact
    start = len(fact.outer)
    return renumber_fact(fact, outer, fact.axes, {i: i if i < start else i + more for i in range(len(fact.sizes))})
