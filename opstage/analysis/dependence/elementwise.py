"""Elementwise ops: reads of any operand, numbers that stay numbers, masks, and values as functions of indices."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import product
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from ...ops import elementwise, logic
from ...ops.dims import DimExpr, DimFloat
from ...ops.primitive import Primitive
from ...ops.types import DType
from ..domain import OpCall
from ..ranges.fact import FloatLimits
from .cuts import align
from .fact import NAN, Fact, Value, merge_reads, narrow, number
from .masks import VANISHING, vanishing
from .positions import positions
from .regions import ANYWHERE, NOWHERE, Region, both, complement, either, in_sizes

if TYPE_CHECKING:
    from . import Dependence


_MOST_VALUES = 4
_INFINITY: Final = math.inf

_BAD: Final[Sequence[Value]] = (NAN, _INFINITY, -_INFINITY)


class Absorbing(NamedTuple):
    """An operand equal to `taken` makes the result `given`, unless the other operand is one of the numbers `unless`."""

    operand: int
    taken: Value
    given: Value
    unless: Sequence[Value]


def _either(taken: Value, given: Value, unless: Sequence[Value]) -> list[Absorbing]:
    return [Absorbing(operand, taken, given, unless) for operand in (0, 1)]


_NANS = _either(NAN, NAN, ())
_ABSORBING: Final[Mapping[Primitive, Sequence[Absorbing]]] = {
    elementwise.MUL: [*_either(0, 0, _BAD), *_NANS],
    elementwise.DIV: [Absorbing(0, 0, 0, (NAN, 0)), *_NANS],
    elementwise.ADD: [
        *_either(-_INFINITY, -_INFINITY, (NAN, _INFINITY)),
        *_either(_INFINITY, _INFINITY, (NAN, -_INFINITY)),
        *_NANS,
    ],
    elementwise.SUB: [
        Absorbing(0, -_INFINITY, -_INFINITY, (NAN, -_INFINITY)),
        Absorbing(0, _INFINITY, _INFINITY, (NAN, _INFINITY)),
        Absorbing(1, _INFINITY, -_INFINITY, (NAN, _INFINITY)),
        Absorbing(1, -_INFINITY, _INFINITY, (NAN, -_INFINITY)),
        *_NANS,
    ],
    elementwise.MAXIMUM: _either(_INFINITY, _INFINITY, (NAN,)),
    elementwise.MINIMUM: _either(-_INFINITY, -_INFINITY, (NAN,)),
    logic.LOGICAL_AND: _either(False, False, ()),
}
FINITE = (
    "operands that masks multiply by zero, or add to -inf, are finite (0 * inf and inf - inf are nan), and masked "
    "weights are not divided by zero"
)


PRODUCTS: Final = _ABSORBING[elementwise.MUL]


def pointwise(domain: Dependence, call: OpCall, facts: Sequence[Fact]) -> Sequence[Fact] | None:
    """Return the facts of an op of the kind POINTWISE."""
    rank = len(call.outputs[0].shape)
    if not facts or any(len(fact.axes) != rank for fact in facts):
        return None
    facts = align(facts)
    if call.primitive is logic.SELECT and NOWHERE in (facts[0].region(False), facts[0].region(True)):
        return [facts[2] if facts[0].region(False) == NOWHERE else facts[1]]
    first, values = facts[0], _values(domain, call, facts)
    value, masks = positions(domain, call, facts)
    for known, where in masks.items():
        narrow(values, known, in_sizes(where, first.sizes))
    outside = tuple(list(values.items())[:_MOST_VALUES])
    return [merge_reads(Fact(first.outer, first.axes, outside=outside, value=value), facts)] * len(call.outputs)


# Numbers --------------------------------------------------------------------------------------------------------------


def _values(domain: Dependence, call: OpCall, facts: Sequence[Fact]) -> dict[Value, Region]:
    """Return the numbers of the result outside regions."""
    found: dict[Value, Region] = {}
    if call.primitive is logic.SELECT:
        mask, x, y = facts
        no, yes = mask.region(False), mask.region(True)
        for value in dict.fromkeys([*[v for v, _ in x.outside], *[v for v, _ in y.outside]]):
            narrow(found, value, either(both(no, x.region(value)), both(yes, y.region(value))))
        return found
    if all(fact.outside for fact in facts):
        dtypes = tuple([type_.dtype for type_ in call.inputs])
        read_in = domain.dtype_limits(call.outputs[0].dtype)
        for row in product(*[fact.outside for fact in facts]):
            value = _evaluated(
                call.primitive, _Static(call.static), dtypes, tuple([value for value, _ in row]), read_in
            )
            if value is not None:
                where = row[0][1]
                for _, other in row[1:]:
                    where = either(where, other)
                narrow(found, value, where)
    where = vanishing(domain.dtype_limits(call.inputs[0].dtype), call, facts[0])
    if where != ANYWHERE:
        narrow(found, 0.0, where)
        domain.assume(VANISHING)
    for rule in _ABSORBING.get(call.primitive, ()):
        where = absorbed(rule, facts)
        if where != ANYWHERE:
            narrow(found, rule.given, where)
            if rule.unless:
                domain.assume(FINITE)
    if call.primitive in _SHIFTS:
        domain.shifting(call, facts)
    return found


_SHIFTS: Final = frozenset({elementwise.ADD, elementwise.SUB})
"""Ops that apply a finite mask to scores."""


def absorbed(rule: Absorbing, facts: Sequence[Fact]) -> Region:
    """Return the region outside which the rule decides the result."""
    where, other = facts[rule.operand].region(rule.taken), facts[1 - rule.operand]
    for value in rule.unless:
        if where != ANYWHERE and other.region(value) != ANYWHERE:
            where = either(where, complement(other.region(value)))
    return where


class _Static(dict[str, Any]):
    """Static parameters as a key, in which -0.0 differs from 0.0."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(tuple([value or repr(value) for value in self.values()]))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Static) and list(map(repr, self.items())) == list(map(repr, other.items()))


@lru_cache(4096)
def _evaluated(
    primitive: Primitive, static: _Static, dtypes: tuple[DType, ...], values: tuple[Value, ...], limits: FloatLimits
) -> Any:
    """Return the op of these numbers, as eager_cpu computes it, rounded to the checked dtype.

    None if that is not a number, or depends on whether the op's static numbers are rounded too.
    """
    found = _computed(primitive, static, dtypes, values)
    if type(found) is not float:
        return found
    held = _Static({name: limits.nearest(c) if type(c) is float else c for name, c in static.items()})
    if held != static:
        other = _computed(primitive, held, dtypes, values)
        if type(other) is not float or not (other == found or other is found is NAN):
            return None
    return number(limits.nearest(found))


def _computed(primitive: Primitive, static: _Static, dtypes: tuple[DType, ...], values: tuple[Value, ...]) -> Any:
    if any(isinstance(value, (DimExpr, DimFloat)) for value in static.values()) or any(d.kind == "O" for d in dtypes):
        return None
    from ...interpreters.registry import make_interpreter
    from ...options import Options

    ops = make_interpreter(Options())
    try:
        with np.errstate(all="ignore"):
            refs = tuple([ops.const(np.array([v], dtype), dtype=dtype) for v, dtype in zip(values, dtypes)])
            found = np.asarray(ops.get(ops.bind(primitive, refs, dict(static))[0]))[0].item()
    except Exception:  # the op refuses the number, so its result is unknown
        return None
    return number(found)
