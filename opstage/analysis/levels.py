"""Levels: ranges of parts of a tensor, which show how far a finite mask separates masked elements from others.

A mask of -1e9 is an ordinary number, so `score + mask` still reads the masked scores. If the scores have bounds, the
sum has one range where it is masked and another one elsewhere. A row with an unmasked position then has a maximum far
above all masked elements. So exp(masked - maximum) is exactly 0, and the dependence ends there.

A level states that all elements outside a region are in a range. Its regions are those of the dependence domain, which
follows the numbers of masks; its ranges follow from the rules of the ranges domain.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import ClassVar, cast, final

from typing_extensions import override

from ..ops import layout, logic, reduction, slicing
from ..ops.dims import Dim
from ..ops.primitive import Kind, Primitive
from ..ops.types import TensorType, is_float
from .dependence import Nested
from .dependence.cuts import align
from .dependence.fact import Fact, Value, plain
from .dependence.layout import broadcast_to, permute, reshape, slice_, unchanged
from .dependence.masks import Level, collect_levels, row_floor
from .dependence.reduction import drop_axes
from .dependence.regions import ANYWHERE, NOWHERE, Region, alike, either, in_sizes
from .domain import OpCall, Rule
from .ranges import Ranges, ValueRange
from .ranges.fact import meet

_MOST = 6
"""The most levels of a tensor; further ones are dropped."""


@final
class Levels(Nested):
    """Facts without sources, whose `outside` contains ranges in place of numbers; layout rules never read them.

    ranges  the domain of ranges of the same run
    """

    name = "levels"
    asks = ("dependence", "ranges")
    rules: ClassVar[Mapping[Primitive, Rule]]
    kinds: ClassVar[Mapping[Kind, Rule]]

    def __init__(self, ranges: Ranges):
        super().__init__()
        self.ranges = ranges

    @override
    def anything(self, type: TensorType) -> Fact:
        return plain(type.shape, self.outer)

    @override
    def join(self, a: Fact, b: Fact) -> Fact:
        return b if alike(a, b) else self.alone(b)

    @override
    def alone(self, fact: Fact) -> Fact:
        return Fact(self.outer, fact.axes)

    # Loops: levels of an iteration's results do not carry to the next one.

    @override
    def entry(self, fact: Fact, type: TensorType, length: Dim) -> Fact:
        return plain(type.shape[1:], self.outer)

    @override
    def stacked(self, fact: Fact, length: Dim) -> Fact:
        return Fact(self.outer, ((length,), *fact.axes))


# Rules --------------------------------------------------------------------------------------------------------------


def _add_levels(fact: Fact, levels: Iterable[Level]) -> Fact:
    """Return the fact with these levels; levels of one region are intersected."""
    found: list[Level] = []
    for level, where in levels:
        if where == ANYWHERE:
            continue
        at = next((i for i, (_, other) in enumerate(found) if alike(other, where)), None)
        if at is None:
            found.append((level.alone, where))
        else:
            found[at] = meet(found[at][0], level).alone, where
    return fact._replace(outside=cast("tuple[tuple[Value, Region], ...]", tuple(found[:_MOST])))


def pointwise(domain: Levels, call: OpCall, facts: Sequence[Fact]) -> Sequence[Fact] | None:
    """Apply the rule of ranges to every combination of levels of the operands."""
    rule, rank = Ranges.rules.get(call.primitive), len(call.outputs[0].shape)
    if rule is None:
        return None
    numbers: Sequence[Fact] = call.known["dependence"]
    wholes = [(known.alone, NOWHERE) for known in call.known["ranges"]]
    if (
        len(call.outputs) != 1
        or _is_narrower(domain, call)
        or any(len(fact.axes) != rank for fact in facts)
        or not any(fact.outside for fact in (*facts, *numbers))
    ):
        return [domain.top(type_, facts) for type_ in call.outputs]
    every = align([*facts, *numbers])
    own, numbers = every[: len(facts)], every[len(facts) :]
    rows: list[list[Level]] = [[whole, *collect_levels(*pair)] for whole, *pair in zip(wholes, own, numbers)]
    chosen: list[Level] = []
    if call.primitive is logic.SELECT:
        no, yes = numbers[0].region(False), numbers[0].region(True)
        chosen = [(level, either(no, where)) for level, where in rows[2]]
        chosen += [(level, either(yes, where)) for level, where in rows[1]]
        rows[0] = [(level, where) for level, where in rows[0] if level.low == level.high]
    for row in product(*rows):
        where: Region = NOWHERE
        for _, other in row:
            where = either(where, other)
        if where != ANYWHERE and list(row) != wholes:
            level = _applied(domain, rule, call, [level for level, _ in row])
            if level is not None:
                chosen.append((level, in_sizes(where, every[0].sizes)))
    return [_add_levels(Fact(every[0].outer, every[0].axes), chosen)]


def _applied(domain: Levels, rule: Rule, call: OpCall, levels: Sequence[ValueRange]) -> ValueRange | None:
    """Return the result of the rule of ranges for these levels, without its remarks."""
    found: list[ValueRange] = []
    domain.ranges.holds(lambda: found.extend(rule(domain.ranges, call, levels) or ()))
    return found[0] if found else None


def _is_narrower(domain: Levels, call: OpCall) -> bool:
    """Return whether the op rounds more coarsely than the dtype of the ranges."""
    least = 2 if domain.ranges.limits.epsilon > 2.0**-23 else 4 if domain.ranges.limits.epsilon > 2.0**-52 else 8
    return any(is_float(type_.dtype) and type_.dtype.itemsize < least for type_ in (*call.inputs, *call.outputs))


def peak(domain: Levels, call: OpCall, facts: Sequence[Fact]) -> Sequence[Fact]:
    """Return the levels of a maximum: at least the low end of a level that every row has an element of."""
    static = call.static
    axes = static["axes"]
    (fact, numbers), (known,) = align([facts[0], call.known["dependence"][0]]), call.known["ranges"]
    levels = collect_levels(fact, numbers)
    left = drop_axes(_add_levels(fact, levels), axes, static["keepdims"]) if axes else _add_levels(fact, levels)
    low = row_floor(fact.sizes, levels, [i for axis in axes for i in fact.indices(axis)])
    high = min([known.high, *[level.high for level, where in levels if where == NOWHERE]])
    own = collect_levels(left, plain(()))
    if low > known.low and not _is_narrower(domain, call):
        own.insert(0, (known.alone._replace(low=low, high=max(low, high), minus=False), NOWHERE))
    return [_add_levels(left, own)]


Levels.rules = {
    logic.DETACH: unchanged,
    layout.PERMUTE: permute,
    layout.RESHAPE: reshape,
    layout.BROADCAST_TO: broadcast_to,
    slicing.SLICE: slice_,
    reduction.REDUCE_MAX: peak,
}
Levels.kinds = {Kind.POINTWISE: pointwise}
