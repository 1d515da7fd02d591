"""Arithmetic and comparisons of values that are functions of the indices, or lie between two such functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from ...ops.catalogue import elementwise, logic, rounding
from ...ops.dims import Dim
from ...ops.primitive import Primitive
from ..domain import OpCall
from .cuts import held
from .fact import Affine, Between, Columns, Fact, Position, Value, by_index
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


# Functions of indices: their sums and multiples, and where they are at most a number ----------------------------------


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
    """Where value <= distance, as far as differences of indices say it."""
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
    """Where value >= distance."""
    if value.absolute:
        inside = value._replace(absolute=False)
        return either(above(inside, distance), at_most(inside, -distance))
    negative = times(value, -1)
    assert negative is not None
    return at_most(negative, -distance)


Ends: TypeAlias = tuple[Affine, Affine]

# Values that two functions of the indices enclose, as positions that are cut off are ----------------------------------


CUTS: Final = frozenset({elementwise.MAXIMUM, elementwise.MINIMUM, elementwise.CLAMP, rounding.MOD})
"""Ops by which a value becomes one that functions enclose."""


def number_below(count: Dim) -> Between | None:
    """One of the numbers 0 … count - 1."""
    return Between(Affine(0, ()), Affine(count - 1, ()))


def enclosed(
    domain: Dependence, call: OpCall, values: Sequence[Position | None], sizes: Sequence[Dim]
) -> tuple[Position | None, Mapping[Value, Region]]:
    """The value of a pointwise op's result, and outside of which regions a comparison is which."""
    ends = [_ends(value) for value in values]
    if call.primitive is rounding.MOD and call.inputs[0].dtype.kind == "i":
        return _remainder(ends[1]), {}
    known = [each for each in ends if each is not None]
    if len(known) < len(ends):
        return None, {}
    compared = _compared_of_ends(call, known)
    if compared:
        return None, compared
    found = _result(call, known, sizes)
    dtype = call.outputs[0].dtype
    if found is None or any(held(domain, end, sizes, dtype) is None for end in found):
        return None, {}
    return (found[0] if alike(*found) else Between(*found)), {}


def _ends(value: Position | None) -> Ends | None:
    if isinstance(value, Affine):
        return None if value.absolute else (value, value)
    return (value.low, value.high) if isinstance(value, Between) else None


def _remainder(divisor: Ends | None) -> Between | None:
    """Of a floored division by a number above 0, whatever is divided."""
    if divisor is None or not alike(*divisor) or divisor[0].terms or not at_most_proved(1, divisor[0].constant):
        return None
    return number_below(divisor[0].constant)


def _compared_of_ends(call: OpCall, ends: Sequence[Ends]) -> dict[Value, Region]:
    if call.primitive not in (logic.LESS, logic.LESS_EQUAL, logic.EQUAL):
        return {}
    (x_low, x_high), (y_low, y_high) = ends
    least, most = plus(x_low, y_high, -1), plus(x_high, y_low, -1)  # of the difference
    assert least is not None
    assert most is not None
    if call.primitive is logic.EQUAL:
        return {False: both(at_most(least, 0), above(most, 0))}
    strict = int(call.primitive is logic.LESS)
    return {False: at_most(least, -strict), True: above(most, 1 - strict)}


def _result(call: OpCall, ends: Sequence[Ends], sizes: Sequence[Dim]) -> Ends | None:
    primitive = call.primitive
    if primitive is elementwise.ADD:
        return _sum_of_ends(ends[0], ends[1])
    if primitive is elementwise.SUB:
        return _sum_of_ends(ends[0], _times(ends[1], -1))
    if primitive is elementwise.NEG:
        return _times(ends[0], -1)
    if primitive is elementwise.SCALE:
        return _times(ends[0], call.static["c"])
    if primitive is elementwise.MUL:
        for x, y in (ends, tuple(reversed(ends))):
            if alike(*y) and not y[0].terms:
                return _times(x, y[0].constant)
    if primitive is elementwise.MAXIMUM:
        return _greatest(ends[0], ends[1], sizes)
    if primitive is elementwise.MINIMUM:
        return _times(_greatest(_times(ends[0], -1), _times(ends[1], -1), sizes), -1)
    if primitive is elementwise.CLAMP:
        return _clamped(call, ends[0], sizes)
    if primitive is logic.CAST and all(each.dtype.kind in "if" for each in (call.inputs[0], call.outputs[0])):
        return ends[0]
    return ends[0] if primitive is rounding.FLOOR else None


def _clamped(call: OpCall, x: Ends, sizes: Sequence[Dim]) -> Ends | None:
    lo, hi = as_size(call.static["lo"]), as_size(call.static["hi"])
    if lo is None or hi is None:
        return None
    least, most = Affine(lo, ()), Affine(-hi, ())
    raised = _greatest(x, (least, least), sizes)
    return _times(_greatest(_times(raised, -1), (most, most), sizes), -1)


def _sum_of_ends(x: Ends | None, y: Ends | None) -> Ends | None:
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
    if at_most_proved(0, count):
        return low, high
    return (high, low) if at_most_proved(count, 0) else None


def _greatest(x: Ends | None, y: Ends | None, sizes: Sequence[Dim]) -> Ends | None:
    """The greater of two: at least either, and no more than one and that by which the other may be above it."""
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
    """The most that a function of the indices is, each from 0 to below its size."""
    if value is None:
        return None
    most = value.constant
    for index, coefficient in value.terms:
        if at_most_proved(0, coefficient):
            most = most + coefficient * (sizes[index] - 1)
        elif not at_most_proved(coefficient, 0):
            return None
    return most


# Values that are functions of the indices, as positions and masks made of them are ------------------------------------

_Found: TypeAlias = tuple["Affine | None", "dict[Value, Region]"]
"""A value, and outside of which regions a comparison is which."""


Function: TypeAlias = "Callable[[OpCall, Sequence[Affine | None]], _Found]"
"""(call, values of the operands) -> that of the result, and where a comparison is which."""


def positions(domain: Dependence, call: OpCall, facts: Sequence[Fact]) -> tuple[Position | None, dict[Value, Region]]:
    """The value of a pointwise op's result, and the regions outside of which a comparison is False, or True."""
    function = _AFFINE.get(call.primitive)
    values, dtype, sizes = [fact.value for fact in facts], call.outputs[0].dtype, facts[0].sizes
    columns = [value for value in values if isinstance(value, Columns)]
    if not columns and (call.primitive in CUTS or any(isinstance(value, Between) for value in values)):
        value, masks = enclosed(domain, call, values, sizes)
        return value, dict(masks)
    if function is None:
        return None, {}
    if not columns:
        whole, masks = function(call, [_affine(value) for value in values])
        return held(domain, whole, sizes, dtype), masks
    index, count = columns[0].along, len(columns[0].values)
    if any(value.along != index or len(value.values) != count for value in columns):
        return None, {}
    found: list[Affine] = []
    places: list[dict[Value, Region]] = []
    for at in range(count):
        one, masks = function(call, [_affine(v.values[at] if isinstance(v, Columns) else v) for v in values])
        one = held(domain, one, sizes, dtype)
        found += [] if one is None else [one]
        here = region((index, NONE, at), (NONE, index, -at))
        places.append({known: both(here, where) for known, where in masks.items()})
    value = Columns(index, tuple(found)) if len(found) == count else None
    joined: dict[Value, Region] = {}
    for known in places[0]:
        if all(known in masks for masks in places):
            joined[known] = NOWHERE
            for masks in places:
                joined[known] = either(joined[known], masks[known])
    return value, joined


def _affine(value: Position | None) -> Affine | None:
    return value if isinstance(value, Affine) else None


def _sum(sign: int) -> Function:
    return lambda call, values: (plus(values[0], values[1], sign), {})


def _product(call: OpCall, values: Sequence[Affine | None]) -> _Found:
    x, y = values
    if x is not None and not x.terms and not x.absolute:
        x, y = y, x
    return (times(x, y.constant) if y is not None and not y.terms and not y.absolute else None), {}


def _scale(call: OpCall, values: Sequence[Affine | None]) -> _Found:
    return times(values[0], call.static["c"]), {}


def _negated(call: OpCall, values: Sequence[Affine | None]) -> _Found:
    return times(values[0], -1), {}


def _absolute(call: OpCall, values: Sequence[Affine | None]) -> _Found:
    value = values[0]
    return (None if value is None else value._replace(absolute=True)), {}


def _cast(call: OpCall, values: Sequence[Affine | None]) -> _Found:
    dtypes = (call.inputs[0].dtype, call.outputs[0].dtype)
    return (values[0] if all(dtype.kind in "if" for dtype in dtypes) else None), {}


def _compared(strict: int) -> Function:
    """x < y, or x <= y where `strict` is 0."""

    def compare(call: OpCall, values: Sequence[Affine | None]) -> _Found:
        x, y = values
        if x is None or y is None:
            return None, {}
        if x.absolute and not y.absolute and not y.terms:
            return None, {False: at_most(x, y.constant - strict), True: above(x, y.constant + 1 - strict)}
        if y.absolute and not x.absolute and not x.terms:
            return None, {False: above(y, x.constant + strict), True: at_most(y, x.constant - 1 + strict)}
        distance = plus(x, y, -1)
        if distance is None:
            return None, {}
        return None, {False: at_most(distance, -strict), True: above(distance, 1 - strict)}

    return compare


def _equal(call: OpCall, values: Sequence[Affine | None]) -> _Found:
    distance = plus(values[0], values[1], -1)
    if distance is None:
        return None, {}
    return None, {
        False: both(at_most(distance, 0), above(distance, 0)),
        True: either(at_most(distance, -1), above(distance, 1)),
    }


_AFFINE: Final[Mapping[Primitive, Function]] = {
    elementwise.ADD: _sum(1),
    elementwise.SUB: _sum(-1),
    elementwise.MUL: _product,
    elementwise.SCALE: _scale,
    elementwise.NEG: _negated,
    elementwise.ABS: _absolute,
    rounding.FLOOR: lambda call, values: (values[0], {}),
    logic.CAST: _cast,
    logic.LESS: _compared(1),
    logic.LESS_EQUAL: _compared(0),
    logic.EQUAL: _equal,
}
