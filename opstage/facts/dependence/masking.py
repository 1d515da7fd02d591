"""Masks of finite numbers: what is hidden by being far below what is kept, as far as levels are known.

The maximum of a row does not depend on what is no greater than an element that every row has, and the exponential of a
number that is low enough is 0 in its dtype.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...ops.catalogue import elementwise, transcendental
from ..domain import OpCall
from ..ranges.limits import FloatLimits
from .cuts import recut
from .fact import Fact, plain
from .regions import ANYWHERE, NOWHERE, Region, both
from .rows import Level, floor_of, levels_of
from .sizes import alike

_BASES = {elementwise.EXP: math.e, transcendental.EXP2: 2.0}
_BELOW = 8.0
"""By what factor the least positive number is above a power that is 0: where results are rounded to nearest, where they
are flushed to 0 below the normal numbers, and where an exponential is off by a good part of the last place."""

VANISHING = "an exponential is 0 where it is less than an eighth of the dtype's least positive number"


def levels_at(call: OpCall, fact: Fact, operand: int = 0) -> list[Level]:
    """The levels of an operand by the indices of its fact; in a run without levels those of the numbers that it has."""
    known = call.known.get("levels")
    if known is None:
        return levels_of(plain(()), fact)
    levels: Fact = known[operand]
    return levels_of(levels if alike(levels.axes, fact.axes) else recut(levels, fact.axes), fact)


def vanishing_below(limits: FloatLimits, base: float) -> float:
    """The exponent at which, and below which, a power of the base is 0 in a float dtype."""
    return (math.log(limits.least) - math.log(_BELOW)) / math.log(base)


def vanishing(limits: FloatLimits, call: OpCall, fact: Fact) -> Region:
    """The region outside of which an exponential is 0."""
    found, base = ANYWHERE, _BASES.get(call.primitive)
    if base is None or call.inputs[0].dtype.kind != "f" or "levels" not in call.known:
        return found
    end = vanishing_below(limits, base)
    for level, where in levels_at(call, fact):
        if level.high <= end and not level.nan and not level.plus and where != NOWHERE:
            found = both(where, found)
    return found


def without_dominated(call: OpCall, fact: Fact, gone: Sequence[int]) -> Fact:
    """The fact as far as the maxima of rows along `gone` depend on the elements: what is no greater than an element
    that every row has could as well be -inf."""
    levels = levels_at(call, fact)
    floor = floor_of(fact.sizes, levels, gone)
    where = fact.region(-math.inf)
    for level, region in levels:
        if level.high <= floor and not level.nan and not level.plus and region != NOWHERE:
            where = both(region, where)
    others = [(value, region) for value, region in fact.outside if value != -math.inf]
    return fact if where == ANYWHERE else fact._replace(outside=(*others, (-math.inf, where)))
