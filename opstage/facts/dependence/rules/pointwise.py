"""Ops of one element: what any operand reads, numbers that stay numbers, masks, and values as functions of indices."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import product
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from ....ops.catalogue import elementwise, logic, rounding
from ....ops.dims import Dim, DimExpr, DimFloat
from ....ops.primitive import Primitive
from ....ops.types import DType
from ...domain import OpCall
from ..cuts import aligned
from ..fact import NAN, Affine, Fact, Value, by_index, hull, number, reading
from ..held import held
from ..masking import VANISHING, vanishing
from ..regions import ANYWHERE, NONE, NOWHERE, Difference, Region, both, complement, either, in_sizes, region
from ..sizes import as_size, same

if TYPE_CHECKING:
    from .. import Dependence

_MOST_VALUES = 4
_INFINITY: Final = math.inf

_BAD: Final[Sequence[Value]] = (NAN, _INFINITY, -_INFINITY)


class Absorbing(NamedTuple):
    """An operand that is `taken` makes the result `given`, whatever the other one is but for the numbers `unless`."""

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
    "what masks multiply by zero, or add to -inf, is finite (0 * inf and inf - inf are nan), and no masked weight is "
    "divided by zero"
)


PRODUCTS: Final = _ABSORBING[elementwise.MUL]


def pointwise(domain: Dependence, call: OpCall, facts: Sequence[Fact]) -> Sequence[Fact] | None:
    """Every op of the kind POINTWISE."""
    rank = len(call.outputs[0].shape)
    if not facts or any(len(fact.axes) != rank for fact in facts):
        return None
    facts = aligned(facts)
    if call.primitive is logic.SELECT and NOWHERE in (facts[0].region(False), facts[0].region(True)):
        return [facts[2] if facts[0].region(False) == NOWHERE else facts[1]]
    found = _reads(facts)
    values = _values(domain, call, facts)
    function = _AFFINE.get(call.primitive)
    value, masks = (None, {}) if function is None else function(domain, call, facts)
    value = held(domain, value, found.sizes, call.outputs[0].dtype)
    for known, whole in masks.items():
        where = in_sizes(whole, found.sizes)
        values[known] = both(where, values[known]) if known in values else where
    found = found._replace(outside=tuple(list(values.items())[:_MOST_VALUES]), value=value)
    result = reading(found, None if found.whole else dict(found.reads))
    return [result] * len(call.outputs)


def _reads(facts: Sequence[Fact]) -> Fact:
    """The reads of any of these, of tensors with the same indices."""
    first = facts[0]
    inputs, whole = first.inputs, first.whole
    parts = list(first.reads)
    for fact in facts[1:]:
        inputs |= fact.inputs
        whole = whole or fact.whole
        parts += fact.reads
    reads = hull(parts)
    return Fact(first.outer, first.axes, tuple((reads or {}).items()), whole or reads is None, inputs)


# Numbers ------------------------------------------------------------------------------------------------------------


def _values(domain: Dependence, call: OpCall, facts: Sequence[Fact]) -> dict[Value, Region]:
    """The numbers that the result is outside of regions."""
    found: dict[Value, Region] = {}

    def say(value: Value, where: Region) -> None:
        found[value] = both(where, found[value]) if value in found else where

    if call.primitive is logic.SELECT:
        mask, x, y = facts
        no, yes = mask.region(False), mask.region(True)
        for value in dict.fromkeys([*[v for v, _ in x.outside], *[v for v, _ in y.outside]]):
            say(value, either(both(no, x.region(value)), both(yes, y.region(value))))
        return found
    if all(fact.outside for fact in facts):
        dtypes = tuple([type_.dtype for type_ in call.inputs])
        for row in product(*[fact.outside for fact in facts]):
            value = _evaluated(call.primitive, _Static(call.static), dtypes, tuple([value for value, _ in row]))
            if value is not None:
                where = row[0][1]
                for _, other in row[1:]:
                    where = either(where, other)
                say(value, where)
    where = vanishing(call, facts[0])
    if where != ANYWHERE:
        say(0.0, where)
        domain.assume(VANISHING)
    for rule in _ABSORBING.get(call.primitive, ()):
        where = absorbed(rule, facts)
        if where != ANYWHERE:
            say(rule.given, where)
            if rule.unless:
                domain.assume(FINITE)
    if call.primitive in _SHIFTS:
        domain.shifting(call, facts)
    return found


_SHIFTS: Final = frozenset({elementwise.ADD, elementwise.SUB})
"""Ops by which a mask of finite numbers is put on scores."""


def absorbed(rule: Absorbing, facts: Sequence[Fact]) -> Region:
    """The region outside of which the rule decides the result."""
    where, other = facts[rule.operand].region(rule.taken), facts[1 - rule.operand]
    for value in rule.unless:
        if where != ANYWHERE and other.region(value) != ANYWHERE:
            where = either(where, complement(other.region(value)))
    return where


class _Static(dict[str, Any]):
    """Static parameters as a key, where -0.0 is another number than 0.0."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(tuple([value or repr(value) for value in self.values()]))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Static) and list(map(repr, self.items())) == list(map(repr, other.items()))


@lru_cache(4096)
def _evaluated(primitive: Primitive, static: _Static, dtypes: tuple[DType, ...], values: tuple[Value, ...]) -> Any:
    """The op of these numbers, as eager_cpu computes it; None where that is no number."""
    if any(isinstance(value, (DimExpr, DimFloat)) for value in static.values()) or any(d.kind == "O" for d in dtypes):
        return None
    from ....interpreters.registry import make_interpreter
    from ....options import Options

    ops = make_interpreter(Options())
    try:
        with np.errstate(all="ignore"):
            refs = tuple([ops.const(np.array([v], dtype), dtype=dtype) for v, dtype in zip(values, dtypes)])
            found = np.asarray(ops.get(ops.bind(primitive, refs, dict(static))[0]))[0].item()
    except Exception:  # the op refuses the number, which says nothing of its results
        return None
    return number(found)


# Values that are functions of the indices -----------------------------------------------------------------------------


def _plus(x: Affine | None, y: Affine | None, sign: int = 1) -> Affine | None:
    if x is None or y is None or x.absolute or y.absolute:
        return None
    terms = dict(x.terms)
    for index, coefficient in y.terms:
        terms[index] = terms.get(index, 0) + sign * coefficient
    kept = by_index([(i, c) for i, c in terms.items() if not same(c, 0)])
    return Affine(x.constant + sign * y.constant, kept)


def _times(x: Affine | None, factor: Any) -> Affine | None:
    count = as_size(factor)
    if x is None or x.absolute or count is None:
        return None
    return Affine(count * x.constant, () if same(count, 0) else tuple([(i, c * count) for i, c in x.terms]))


_Found = tuple["Affine | None", "dict[Value, Region]"]


def _sum(sign: int) -> Callable[[Dependence, OpCall, Sequence[Fact]], _Found]:
    return lambda domain, call, facts: (_plus(facts[0].value, facts[1].value, sign), {})


def _product(domain: Dependence, call: OpCall, facts: Sequence[Fact]) -> _Found:
    x, y = (fact.value for fact in facts)
    if x is not None and not x.terms and not x.absolute:
        x, y = y, x
    return (_times(x, y.constant) if y is not None and not y.terms and not y.absolute else None), {}


def _scale(domain: Dependence, call: OpCall, facts: Sequence[Fact]) -> _Found:
    return _times(facts[0].value, call.static["c"]), {}


def _negated(domain: Dependence, call: OpCall, facts: Sequence[Fact]) -> _Found:
    return _times(facts[0].value, -1), {}


def _absolute(domain: Dependence, call: OpCall, facts: Sequence[Fact]) -> _Found:
    value = facts[0].value
    return (None if value is None else value._replace(absolute=True)), {}


def _cast(domain: Dependence, call: OpCall, facts: Sequence[Fact]) -> _Found:
    dtypes = (call.inputs[0].dtype, call.outputs[0].dtype)
    return (facts[0].value if all(dtype.kind in "if" for dtype in dtypes) else None), {}


def _at_most(value: Affine, distance: Dim) -> Region:
    """Where value <= distance, as far as differences of indices say it."""
    if value.absolute:
        inside = value._replace(absolute=False)
        negative = _times(inside, -1)
        assert negative is not None
        return both(_at_most(inside, distance), _at_most(negative, distance))
    bound, terms = distance - value.constant, value.terms
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


def _above(value: Affine, distance: Dim) -> Region:
    """Where value >= distance."""
    if value.absolute:
        inside = value._replace(absolute=False)
        return either(_above(inside, distance), _at_most(inside, -distance))
    negative = _times(value, -1)
    assert negative is not None
    return _at_most(negative, -distance)


def _compared(strict: int) -> Callable[[Dependence, OpCall, Sequence[Fact]], _Found]:
    """x < y, or x <= y where `strict` is 0."""

    def compare(domain: Dependence, call: OpCall, facts: Sequence[Fact]) -> _Found:
        x, y = (fact.value for fact in facts)
        if x is None or y is None:
            return None, {}
        if x.absolute and not y.absolute and not y.terms:
            return None, {False: _at_most(x, y.constant - strict), True: _above(x, y.constant + 1 - strict)}
        if y.absolute and not x.absolute and not x.terms:
            return None, {False: _above(y, x.constant + strict), True: _at_most(y, x.constant - 1 + strict)}
        distance = _plus(x, y, -1)
        if distance is None:
            return None, {}
        return None, {False: _at_most(distance, -strict), True: _above(distance, 1 - strict)}

    return compare


def _equal(domain: Dependence, call: OpCall, facts: Sequence[Fact]) -> _Found:
    distance = _plus(facts[0].value, facts[1].value, -1)
    if distance is None:
        return None, {}
    return None, {
        False: both(_at_most(distance, 0), _above(distance, 0)),
        True: either(_at_most(distance, -1), _above(distance, 1)),
    }


_AFFINE: Final[Mapping[Primitive, Callable[[Dependence, OpCall, Sequence[Fact]], _Found]]] = {
    elementwise.ADD: _sum(1),
    elementwise.SUB: _sum(-1),
    elementwise.MUL: _product,
    elementwise.SCALE: _scale,
    elementwise.NEG: _negated,
    elementwise.ABS: _absolute,
    rounding.FLOOR: lambda domain, call, facts: (facts[0].value, {}),
    logic.CAST: _cast,
    logic.LESS: _compared(1),
    logic.LESS_EQUAL: _compared(0),
    logic.EQUAL: _equal,
}
