"""Rows read at indices, and added to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ....ops.dims import prod
from ....ops.types import Shape
from ...domain import OpCall
from ..cuts import common
from ..fact import (
    Affine,
    Between,
    Fact,
    Position,
    Span,
    Value,
    by_index,
    hull,
    moved_span,
    reading,
    reduced,
    relayed,
)
from ..regions import NONE, Region, mirrored, moved, renumbered
from ..sizes import alike, at_most_proved, same
from .functions import plus, times
from .layout import with_one_index

if TYPE_CHECKING:
    from .. import Dependence


def gather_rows(domain: Dependence, call: OpCall, facts: Sequence[Fact]) -> Sequence[Fact]:
    """The result has the axes of the indices, then those of a row."""
    apart = _taken_apart(*facts)
    if apart is not None and call.static["mode"] == "raise":
        return [apart]
    x, idx = with_one_index(facts[0], 0, call.inputs[0].shape[0]), facts[1]
    start, row = len(x.outer), x.at(0)
    ahead = sum(map(len, idx.axes))
    axes: tuple[Shape, ...] = (*idx.axes, *x.axes[1:])
    value = idx.value if isinstance(idx.value, Affine) else None
    number = {i: i if i < start else i + ahead - 1 for i in range(len(x.sizes)) if i != row}
    entries: list[tuple[int, Span]] = list(idx.reads)
    outside: tuple[tuple[Value, Region], ...] = ()
    to, coefficient = value.terms[0] if value is not None and len(value.terms) == 1 else (NONE, 0)
    if value is not None and not value.absolute and len(value.terms) <= 1 and isinstance(coefficient, int):
        # Row constant + coefficient*i, or one and the same row for all.
        for i, span in x.reads:
            if i == row:
                here = moved_span(span, -value.constant)
                entries.append((to, Span(span.by * coefficient, here.low, here.high)))
            else:
                entries.append((number.get(i, NONE), span))
        if coefficient == 1:
            outside = tuple(
                [(v, renumbered(moved(w, row, -value.constant), {**number, row: to})) for v, w in x.outside]
            )
        elif coefficient == -1:
            outside = tuple(
                [(v, renumbered(mirrored(w, row, value.constant), {**number, row: to})) for v, w in x.outside]
            )
        whole = x.whole
    elif isinstance(idx.value, Between) and (near := _near(x, row, idx.value, number)) is not None:
        entries += near
        whole = x.whole
    else:
        x = reduced(x, [row])
        entries += [(number.get(i, NONE), span) for i, span in x.reads]
        outside = tuple([(v, renumbered(where, number)) for v, where in x.outside])
        whole = x.whole
    if call.static["mode"] == "zero":  # a row that is not there reads as zeros
        outside = tuple([(v, where) for v, where in outside if v == 0])
    read = _read_at(facts[0], value, row, number) if call.static["mode"] == "raise" else None
    found = Fact(idx.outer, axes, (), whole or idx.whole, x.inputs | idx.inputs, outside, read)
    return [reading(found, hull(entries))]


def _near(x: Fact, row: int, place: Between, number: Mapping[int, int]) -> list[tuple[int, Span]] | None:
    """The reads of rows whose place is somewhere between two, each of which goes by one index at most."""
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


def _read_at(x: Fact, place: Affine | None, row: int, number: Mapping[int, int]) -> Affine | None:
    """The value of rows that are read at a place; indices of x but that of its rows get another number."""
    value = x.value
    if place is None or not isinstance(value, Affine) or value.absolute:
        return None
    terms = dict(value.terms)
    along = terms.pop(row, 0)
    rest = Affine(value.constant, by_index([(number[i], c) for i, c in terms.items()]))
    return plus(times(place, along), rest)


def scatter_add_rows(domain: Dependence, call: OpCall, facts: Sequence[Fact]) -> Sequence[Fact]:
    """A row is its own and what is added to it, whichever indices name it."""
    x, v, idx = facts
    leading = len(idx.axes)
    rows = list(range(1, len(x.axes)))
    x, v = common([with_one_index(x, 0, call.inputs[0].shape[0]), v], [[axis, axis - 1 + leading] for axis in rows])
    start = len(x.outer)
    v = reduced(v, range(start, start + sum(map(len, v.axes[:leading]))))
    shift = 1 - sum(map(len, v.axes[:leading]))
    entries = [*x.reads, *[(i if i < start else i + shift, span) for i, span in v.reads]]
    found = Fact(x.outer, x.axes, (), x.whole or v.whole or not idx.idle, x.inputs | v.inputs | idx.inputs)
    return [reading(found, hull(entries))]


def _leading(value: Position | None, sizes: Shape) -> Affine | None:
    """b*T + t of a place among these sizes, or of one between b*T and b*T + T - 1 the b*T; else None."""
    if isinstance(value, Affine):
        return value if same(value.constant, 0) and not value.absolute and len(value.terms) == len(sizes) else None
    if not isinstance(value, Between) or not alike(value.low.terms, value.high.terms):
        return None
    last = prod(sizes[len(value.low.terms) :]) - 1
    if not at_most_proved(0, value.low.constant) or not at_most_proved(value.high.constant, last):
        return None
    return value.low._replace(constant=0)


def _taken_apart(x: Fact, idx: Fact) -> Fact | None:
    """The rows of an axis that was made of several, at indices put together of as many: b*T + t is the row (b, t)."""
    rows, sizes, theirs = x.indices(0), x.axes[0], idx.sizes
    value = _leading(idx.value, sizes)
    if len(rows) < 2 or value is None or not value.terms or len(value.terms) > len(rows):
        return None
    if len(value.terms) < len(rows):  # anywhere along the last of them
        x = reduced(x, rows[len(value.terms) :])
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
    moved_on = relayed(x, idx.outer, (*idx.axes, *x.axes[1:]), number)
    whole = moved_on.whole or idx.whole
    inputs = moved_on.inputs | idx.inputs
    return reading(moved_on._replace(reads=(), whole=whole, inputs=inputs), hull([*moved_on.reads, *idx.reads]))
