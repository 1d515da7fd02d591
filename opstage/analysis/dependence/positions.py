"""Arithmetic and comparisons of values that are functions of the indices, or lie between two such functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from ...ops import elementwise, logic, rounding
from ...ops.dims import Dim
from ...ops.primitive import Primitive
from ..domain import OpCall
from .cuts import representable
from .fact import Affine, Between, Columns, Fact, Position, Value, by_index, each_affine
from .regions import (
    ANYWHERE,
    NONE,
    NOWHERE,
    Difference,
    Region,
    alike,
    as_size,
    at_most_proved,
    both,
    either,
    region,
    same,
)

if TYPE_CHECKING:
    from . import Dependence


# Functions of indices: their sums and multiples, and regions in which they are at most a number -----------------------


def plus(x: Affine | None, y: Affine | None, sign: int = 1) -> Affine | None:
    if x is None or y is None or x.absolute or y.absolute:
        return None
    terms = dict(x.terms)
    for index, coefficient in y.terms:
        terms[index] = terms.get(index, 0) + sign * coefficient
    kept = by_index([(i, c) for i, c in terms.items() if not same(c, 0)])
    return Affine(x.constant + sign * y.constant, kept)


def times(x: Affine | None, factor: Any) -> Affine | None:
    count = as_size(factor)
    if x is None or x.absolute or count is None:
        return None
    return Affine(count * x.constant, () if same(count, 0) else tuple([(i, c * count) for i, c in x.terms]))


def at_most(value: Affine, distance: Dim) -> Region:
    """Return where value <= distance, as far as differences of indices express it."""
    if value.absolute:
        inside = value._replace(absolute=False)
        negative = times(inside, -1)
        assert negative is not None
        return both(at_most(inside, distance), at_most(negative, distance))
    bound, terms = distance - value.constant, value.terms
    if at_most_proved(bound, -1) and all(at_most_proved(0, c) for _, c in terms):
        return NOWHERE
    if not terms:
        return region((NONE, NONE, bound))
    coefficients = [c for _, c in terms if isinstance(c, int)]
    if len(coefficients) < len(terms):
        return ANYWHERE
    if coefficients == [1]:
        return region((terms[0][0], NONE, bound))
    if coefficients == [-1]:
        return region((NONE, terms[0][0], bound))
    if sorted(coefficients) == [-1, 1]:
        (first, sign), (second, _) = terms
        return region(Difference(first, second, bound) if same(sign, 1) else Difference(second, first, bound))
    return ANYWHERE


def above(value: Affine, distance: Dim) -> Region:
    """Return where value >= distance."""
    if value.absolute:
        inside = value._replace(absolute=False)
        return either(above(inside, distance), at_most(inside, -distance))
    negative = times(value, -1)
    assert negative is not None
    return at_most(negative, -distance)


# Values that are functions of the indices, or lie between two of them, as clamped positions do ------------------------


Ends: TypeAlias = tuple[Affine, Affine]
"""The least and the largest value; one function if it is exact."""
Function: TypeAlias = "Callable[[OpCall, Sequence[Position | None], Sequence[Dim]], Position | None]"
"""(call, values of the operands, sizes of the indices) -> the value of the result."""


def positions(domain: Dependence, call: OpCall, facts: Sequence[Fact]) -> tuple[Position | None, dict[Value, Region]]:
    """Return the value of a pointwise op's result, and the regions outside which a comparison is False, or True."""
    values, sizes = [fact.value for fact in facts], facts[0].sizes
    columns = [value for value in values if isinstance(value, Columns)]
    if not columns:
        return _at_place(domain, call, values, sizes)
    index, count = columns[0].along, len(columns[0].values)
    if any(value.along != index or len(value.values) != count for value in columns):
        return None, {}
    places = [
        _at_place(domain, call, [v.values[at] if isinstance(v, Columns) else v for v in values], sizes)
        for at in range(count)
    ]
    found = [value for value, _ in places if isinstance(value, Affine)]
    joined: dict[Value, Region] = {}
    for known in places[0][1]:
        if all(known in masks for _, masks in places):
            joined[known] = NOWHERE
            for at, (_, masks) in enumerate(places):
                here = region((index, NONE, at), (NONE, index, -at))
                joined[known] = either(joined[known], both(here, masks[known]))
    return Columns(index, tuple(found)) if len(found) == count else None, joined


def _at_place(
    domain: Dependence, call: OpCall, values: Sequence[Position | None], sizes: Sequence[Dim]
) -> tuple[Position | None, dict[Value, Region]]:
    if call.primitive in _STRICT:
        return None, _compared(call, values)
    function = _FUNCTIONS.get(call.primitive)
    value = None if function is None else function(call, values, sizes)
    return each_affine(value, lambda each: representable(domain, each, sizes, call.outputs[0].dtype)), {}


def _ends(value: Position | None) -> Ends | None:
    if isinstance(value, Affine):
        return None if value.absolute else (value, value)
    return (value.low, value.high) if isinstance(value, Between) else None


def _compared(call: OpCall, values: Sequence[Position | None]) -> dict[Value, Region]:
    x, y = values
    strict = _STRICT[call.primitive]
    if strict is not None and isinstance(x, Affine) and isinstance(y, Affine):
        if x.absolute and not y.absolute and not y.terms:
            return {False: at_most(x, y.constant - strict), True: above(x, y.constant + 1 - strict)}
        if y.absolute and not x.absolute and not x.terms:
            return {False: above(y, x.constant + strict), True: at_most(y, x.constant - 1 + strict)}
    one, other = _ends(x), _ends(y)
    if one is None or other is None:
        return {}
    least, most = plus(one[0], other[1], -1), plus(one[1], other[0], -1)  # of the difference
    assert least is not None
    assert most is not None
    if strict is not None:
        return {False: at_most(least, -strict), True: above(most, 1 - strict)}
    found: dict[Value, Region] = {False: both(at_most(least, 0), above(most, 0))}
    return {**found, True: either(at_most(least, -1), above(least, 1))} if alike(least, most) else found


def of_ends(function: Callable[..., Ends | None]) -> Function:
    """Return the function of values whose ends are `function(call, sizes, *ends of the operands)`."""

    def value(call: OpCall, values: Sequence[Position | None], sizes: Sequence[Dim]) -> Position | None:
        known = [ends for each in values if (ends := _ends(each)) is not None]
        found = function(call, sizes, *known) if len(known) == len(values) else None
        return None if found is None else found[0] if alike(*found) else Between(*found)

    return value


def number_below(count: Dim) -> Between | None:
    """Return the value of a number from 0 to count - 1."""
    return Between(Affine(0, ()), Affine(count - 1, ()))


def _remainder(call: OpCall, values: Sequence[Position | None], sizes: Sequence[Dim]) -> Between | None:
    """Return the value of a remainder by a positive divisor, for any dividend."""
    divisor = _ends(values[1])
    if call.inputs[0].dtype.kind != "i" or divisor is None or not alike(*divisor) or divisor[0].terms:
        return None
    return number_below(divisor[0].constant) if at_most_proved(1, divisor[0].constant) else None


def _product(call: OpCall, sizes: Sequence[Dim], x: Ends, y: Ends) -> Ends | None:
    for one, other in ((x, y), (y, x)):
        if alike(*other) and not other[0].terms:
            return _times(one, other[0].constant)
    return None


def _absolute(call: OpCall, values: Sequence[Position | None], sizes: Sequence[Dim]) -> Affine | None:
    value = values[0]
    return value._replace(absolute=True) if isinstance(value, Affine) else None


def _cast(call: OpCall, values: Sequence[Position | None], sizes: Sequence[Dim]) -> Position | None:
    return values[0] if all(each.dtype.kind in "if" for each in (call.inputs[0], call.outputs[0])) else None


def _clamped(call: OpCall, sizes: Sequence[Dim], x: Ends) -> Ends | None:
    lo, hi = as_size(call.static["lo"]), as_size(call.static["hi"])
    if lo is None or hi is None:
        return None
    least, most = Affine(lo, ()), Affine(-hi, ())
    raised = _greatest(x, (least, least), sizes)
    return _times(_greatest(_times(raised, -1), (most, most), sizes), -1)


def _sum(x: Ends | None, y: Ends | None) -> Ends | None:
    if x is None or y is None:
        return None
    low, high = plus(x[0], y[0]), plus(x[1], y[1])
    return None if low is None or high is None else (low, high)


def _times(x: Ends | None, factor: Any) -> Ends | None:
    count = as_size(factor)
    if x is None or count is None:
        return None
    low, high = times(x[0], count), times(x[1], count)
    if low is None or high is None:
        return None
    if at_most_proved(0, count) or alike(*x):
        return low, high
    return (high, low) if at_most_proved(count, 0) else None


def _greatest(x: Ends | None, y: Ends | None, sizes: Sequence[Dim]) -> Ends | None:
    """Return the ends of a maximum: at least either operand, at most one plus the excess of the other over it."""
    if x is None or y is None:
        return None
    for first, second, exactly in ((x, y, True), (y, x, True), (x, y, False), (y, x, False)):
        excess = _most(plus(second[1], first[1], -1), sizes)
        if excess is None or (exactly and not isinstance(excess, int)):
            continue
        if at_most_proved(excess, 0):
            return (second[0] if _never_less(second[0], first[0], sizes) else first[0]), first[1]
        if at_most_proved(0, excess):
            high = plus(first[1], Affine(excess, ()))
            assert high is not None
            return first[0], high
    return None


def _never_less(x: Affine, y: Affine, sizes: Sequence[Dim]) -> bool:
    most = _most(plus(y, x, -1), sizes)
    return most is not None and at_most_proved(most, 0)


def _most(value: Affine | None, sizes: Sequence[Dim]) -> Dim | None:
    """Return the largest value of a function of the indices, each from 0 to below its size."""
    if value is None:
        return None
    most = value.constant
    for index, coefficient in value.terms:
        if at_most_proved(0, coefficient):
            most = most + coefficient * (sizes[index] - 1)
        elif not at_most_proved(coefficient, 0):
            return None
    return most


_STRICT: Final[Mapping[Primitive, int | None]] = {logic.LESS: 1, logic.LESS_EQUAL: 0, logic.EQUAL: None}
"""The least difference y - x where the comparison holds."""

_FUNCTIONS: Final[Mapping[Primitive, Function]] = {
    elementwise.ADD: of_ends(lambda call, sizes, x, y: _sum(x, y)),
    elementwise.SUB: of_ends(lambda call, sizes, x, y: _sum(x, _times(y, -1))),
    elementwise.MUL: of_ends(_product),
    elementwise.SCALE: of_ends(lambda call, sizes, x: _times(x, call.static["c"])),
    elementwise.NEG: of_ends(lambda call, sizes, x: _times(x, -1)),
    elementwise.MAXIMUM: of_ends(lambda call, sizes, x, y: _greatest(x, y, sizes)),
    elementwise.MINIMUM: of_ends(lambda call, sizes, x, y: _times(_greatest(_times(x, -1), _times(y, -1), sizes), -1)),
    elementwise.CLAMP: of_ends(_clamped),
    elementwise.ABS: _absolute,
    rounding.FLOOR: lambda call, values, sizes: values[0],
    rounding.MOD: _remainder,
    logic.CAST: _cast,
}
