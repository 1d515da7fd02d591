"""Arithmetic and comparisons of values that are functions of the indices, as positions and masks made of them are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

from ....ops.catalogue import elementwise, logic, rounding
from ....ops.primitive import Primitive
from ...domain import OpCall
from ..fact import Affine, Between, Columns, Fact, Position, Value
from ..held import held
from ..regions import NONE, NOWHERE, Region, both, either, region
from .enclosed import CUTS, enclosed
from .functions import above, at_most, plus, times

if TYPE_CHECKING:
    from .. import Dependence

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
