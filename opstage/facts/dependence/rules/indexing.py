"""Rows read at indices, and added to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ....ops.dims import prod
from ....ops.types import Shape
from ...domain import OpCall
from ..cuts import common
from ..fact import Affine, Fact, Span, Value, by_index, hull, moved_span, reading, reduced, relayed
from ..regions import NONE, Region, mirrored, moved, renumbered
from ..sizes import same
from .layout import with_one_index
from .positions import plus, times

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


def _taken_apart(x: Fact, idx: Fact) -> Fact | None:
    """The rows of an axis that was made of several, at indices put together of as many: b*T + t is the row (b, t)."""
    rows, value = x.indices(0), idx.value
    if (
        len(rows) < 2
        or not isinstance(value, Affine)
        or value.absolute
        or not same(value.constant, 0)
        or len(value.terms) != len(rows)
    ):
        return None
    sizes, theirs = x.axes[0], idx.sizes
    ahead, start = sum(map(len, idx.axes)), len(x.outer)
    number = {i: i if i < start else i + ahead - len(rows) for i in range(len(x.sizes)) if i not in rows}
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
