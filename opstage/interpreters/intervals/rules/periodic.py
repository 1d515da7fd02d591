"""Sine and cosine: their ends are at the ends of the operand, or 1 and -1 where a crest or a trough lies between."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from ....ops.catalogue.elementwise import COS, SIN
from ....ops.primitive import Primitive, Static
from ..interpreter import Interval, Intervals
from ..rounding import down, eps_of, up
from .elementwise import filled

Refs = tuple[Interval[Any], ...]
WAVE_ERROR = 4
"""How far a kernel may be off, in ulps of 1."""


def _holds(ops: Any, x: Interval[Any], place: float) -> Any:
    """The mask of elements whose interval may hold place + 2πk for a whole k; True where nothing is known."""
    size = ops.maximum(ops.abs(x.lower), ops.abs(x.upper))
    margin = ops.scale(ops.add(size, 8.0), c=2 * eps_of(x.dtype))

    def turns(end: Any) -> Any:
        return ops.scale(ops.sub(end, filled(ops, end, place)), c=1 / (2 * math.pi))

    before, after = ops.floor(ops.sub(turns(x.lower), margin)), ops.floor(ops.add(turns(x.upper), margin))
    return ops.logical_not(ops.equal(before, after))


def _wave(primitive: Primitive, crest: float) -> Callable[..., Refs]:
    def rule(bounds: Intervals[Any], refs: Refs, static: Static) -> Refs:
        (x,), ops = refs, bounds.inner
        first = ops.bind(primitive, (x.lower,), {})[0]
        last = first if x.point else ops.bind(primitive, (x.upper,), {})[0]
        one = filled(ops, first, 1.0)
        lower, upper = (
            down(ops, ops.minimum(first, last), WAVE_ERROR, of=one),
            up(ops, ops.maximum(first, last), WAVE_ERROR, of=one),
        )
        # inf has a sine of nan, which stays: it is added
        unknown = ops.sub(ops.add(first, last), ops.add(first, last))
        lower = ops.select(_holds(ops, x, crest + math.pi), ops.neg(one), ops.maximum(lower, -1.0))
        upper = ops.select(_holds(ops, x, crest), one, ops.minimum(upper, 1.0))
        return (bounds.between(ops.add(lower, unknown), ops.add(upper, unknown)),)

    return rule


RULES: dict[Primitive, Callable[..., Refs]] = {
    SIN: _wave(SIN, math.pi / 2),
    COS: _wave(COS, 0.0),
}
