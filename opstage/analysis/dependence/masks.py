"""Rows of a tensor: whether each has an element outside a region, and what follows for its maximum.

The maximum of a row does not depend on elements that are at most another element that every row has. The exponential of
a number that is low enough is 0 in its dtype. So finite masks hide what is far below the unmasked elements.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeAlias, cast

from ...ops import elementwise, transcendental
from ...ops.dims import Dim
from ..domain import OpCall
from ..ranges.fact import FloatLimits, ValueRange
from .cuts import recut
from .fact import NAN, Fact, plain
from .regions import ANYWHERE, NONE, NOWHERE, Region, alike, at_most_proved, both, closed, in_sizes, region

if TYPE_CHECKING:
    from .fact import Value


Level: TypeAlias = tuple[ValueRange, Region]
"""All elements outside the region are in the range."""


def collect_levels(levels: Fact, numbers: Fact) -> list[Level]:
    """Return the levels of a tensor: those of its fact in the domain of levels, and its known numbers."""
    found = [(cast("ValueRange", level), where) for level, where in levels.outside]
    return [*found, *[(_exactly(value), where) for value, where in numbers.outside]]


def _exactly(value: Value) -> ValueRange:
    if value is NAN:
        return ValueRange(nan=True)
    end = float(value)
    return ValueRange(end, end, minus=end == -math.inf, plus=end == math.inf, integral=end.is_integer())


def row_floor(sizes: Sequence[Dim], levels: Iterable[Level], gone: Sequence[int]) -> float:
    """Return a lower bound of some element of every row along the indices `gone`, for rows without nan."""
    return max(
        [level.low for level, where in levels if not level.nan and in_every_row(sizes, where, gone)], default=-math.inf
    )


def in_every_row(sizes: Sequence[Dim], where: Region, gone: Sequence[int]) -> bool:
    """Return whether every row along `gone` has an element outside the region."""
    spoken = [i for i in gone if any(i in d[:2] for part in where for d in part)]
    if not all(at_most_proved(1, sizes[i]) for i in gone if i not in spoken):
        return False
    if where == NOWHERE:
        return True
    if len(spoken) != 1:
        return False
    (index,) = spoken
    return any(_is_outside(sizes, where, index, base, ahead) for base, ahead in _candidates(sizes, where, index))


def _candidates(sizes: Sequence[Dim], where: Region, index: int) -> Iterator[tuple[int, Dim]]:
    """Yield places in a row: each is `ahead` of another index, or of 0."""
    if at_most_proved(1, sizes[index]):
        yield NONE, 0
        yield NONE, sizes[index] - 1
    for d in [d for part in where for d in part if index in d[:2]]:
        # The first place past the end of the region, and the place of the other index itself.
        base, past = (d.b, d.c + 1) if d.a == index else (d.a, -d.c - 1)
        for ahead in (past, 0):
            last = ahead if base == NONE else sizes[base] - 1 + ahead
            if at_most_proved(0, ahead) and at_most_proved(last, sizes[index] - 1):
                yield base, ahead


def _is_outside(sizes: Sequence[Dim], where: Region, index: int, base: int, ahead: Dim) -> bool:
    """Return whether the place with i_index = i_base + ahead is outside the region in every row."""
    for part in where:
        moved = [
            (base if d.a == index else d.a, base if d.b == index else d.b, d.c - ahead if d.a == index else d.c + ahead)
            if index in d[:2]
            else d
            for d in part
        ]
        if in_sizes(region(*moved), sizes) != NOWHERE:
            return False
    return True


def misses_a_row(sizes: Sequence[Dim], where: Region, gone: Sequence[int]) -> bool:
    """Return whether the region lacks an index along `gone` for some row."""
    if where == NOWHERE:
        return True
    if len(where) != 1:
        return False
    for a, b, c in closed(where[0]):
        # i_a <= i_b + c has no i_a for the first i_b; i_b >= i_a - c has no i_b for the last i_a.
        if a in gone and b != NONE and b not in gone and at_most_proved(c, -1):
            return True
        if b in gone and a != NONE and a not in gone and at_most_proved(sizes[b], sizes[a] - 1 - c):
            return True
    return False


# Finite masks: elements far below the unmasked ones are hidden --------------------------------------------------------

_BASES = {elementwise.EXP: math.e, transcendental.EXP2: 2.0}
_BELOW = 8.0
"""The factor by which a power that counts as 0 is below the least positive number. It covers rounding to nearest,
flushing below the normal numbers, and the error of an exponential.
"""

VANISHING = "an exponential is 0 where it is less than an eighth of the dtype's least positive number"


def operand_levels(call: OpCall, fact: Fact, operand: int = 0) -> list[Level]:
    """Return the levels of an operand by the indices of its fact; without the domain of levels, its known numbers."""
    known = call.known.get("levels")
    if known is None:
        return collect_levels(plain(()), fact)
    levels: Fact = known[operand]
    return collect_levels(levels if alike(levels.axes, fact.axes) else recut(levels, fact.axes), fact)


def vanishing_below(limits: FloatLimits, base: float) -> float:
    """Return the exponent at and below which a power of the base is 0 in a float dtype."""
    return (math.log(limits.least) - math.log(_BELOW)) / math.log(base)


def vanishing(limits: FloatLimits, call: OpCall, fact: Fact) -> Region:
    """Return the region outside which an exponential is 0."""
    found, base = ANYWHERE, _BASES.get(call.primitive)
    if base is None or call.inputs[0].dtype.kind != "f" or "levels" not in call.known:
        return found
    end = vanishing_below(limits, base)
    for level, where in operand_levels(call, fact):
        if level.high <= end and not level.nan and not level.plus and where != NOWHERE:
            found = both(where, found)
    return found


def without_dominated(call: OpCall, fact: Fact, gone: Sequence[int]) -> Fact:
    """Return the fact without elements that the maxima of rows along `gone` do not depend on.

    An element that is at most another element that every row has counts as -inf.
    """
    levels = operand_levels(call, fact)
    floor = row_floor(fact.sizes, levels, gone)
    where = fact.region(-math.inf)
    for level, place in levels:
        if level.high <= floor and not level.nan and not level.plus and place != NOWHERE:
            where = both(place, where)
    others = [(value, place) for value, place in fact.outside if value != -math.inf]
    return fact if where == ANYWHERE else fact._replace(outside=(*others, (-math.inf, where)))
