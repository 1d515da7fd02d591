"""Arithmetic and comparisons of values that two functions of the indices enclose, as positions that are cut off are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from ....ops.catalogue import elementwise, logic, rounding
from ....ops.dims import Dim
from ...domain import OpCall
from ..fact import Affine, Between, Position, Value
from ..held import held
from ..regions import Region, both
from ..sizes import alike, as_size, at_most_proved
from .functions import above, at_most, plus, times

if TYPE_CHECKING:
    from .. import Dependence

Ends: TypeAlias = tuple[Affine, Affine]

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
    compared = _compared(call, known)
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


def _compared(call: OpCall, ends: Sequence[Ends]) -> dict[Value, Region]:
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
        return _sum(ends[0], ends[1])
    if primitive is elementwise.SUB:
        return _sum(ends[0], _times(ends[1], -1))
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
