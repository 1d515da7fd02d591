"""Bounds by few kernels: a rule, or a part of one, is traced once as a composite and run as one op.

A rule of one element makes up to twenty passes over memory, that of a softmax as many, and a norm takes the rules of
its parts. An interpreter that `fuses` gets the same program as one composite, and makes as many passes as its loops.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from ...ops.catalogue import own
from ...ops.kinds import Kind
from ...ops.primitive import Primitive, Static, distinct
from ..fused_call import Program, fused_call
from ..interpreter import Interpreter, Variable
from ..tracer import Tracer

if TYPE_CHECKING:
    from .interpreter import Interval, Intervals

Rule: TypeAlias = "Callable[[Intervals[Any], tuple[Interval[Any], ...], Static], Sequence[Interval[Any]]]"

_LEAST_SIZE = 1 << 12
"""Elements of the largest operand; for fewer no interpreter fuses, and so nothing is traced."""


def by_one_kernel(
    ops: Interpreter[Any], key: Hashable, name: str, program: Program, refs: Sequence[Any]
) -> tuple[tuple[Any, ...], Any] | None:
    """`fused_call` on operands that are large enough."""
    if max([math.prod(ref.shape) for ref in refs], default=0) < _LEAST_SIZE:
        return None
    return fused_call(ops, key, name, program, refs)


def bounds_at_once(
    bounds: Intervals[Any], primitive: Primitive, refs: Sequence[Interval[Any]], static: Static, rule: Rule
) -> tuple[Interval[Any], ...] | None:
    """`rule(bounds, refs, static)` by one kernel; None where the interpreter beneath has none for it."""
    if not bounds.inner.fuses or primitive.kind is Kind.LAYOUT or primitive.effects or primitive not in own():
        return None
    apart = list({id(ref): ref for ref in refs}.values())
    places = {id(ref): at for at, ref in enumerate(apart)}
    operands = tuple([places[id(ref)] for ref in refs])  # a rule may ask which of them are one ref
    points = tuple([ref.point for ref in apart])

    def program(tracer: Tracer[Any], ends: Sequence[Variable]) -> tuple[list[Variable], tuple[bool, ...]]:
        inner, given = type(bounds)(tracer), iter(ends)
        pairs = [inner.between(low, low if point else next(given)) for point, low in zip(points, given)]
        found = rule(inner, tuple([pairs[at] for at in operands]), static)
        return _ends(found), tuple([each.point for each in found])

    key = (primitive, operands, points, bounds.dtype, *static.values(), *distinct(static))
    done = by_one_kernel(bounds.inner, key, f"{primitive.name}_bounds", program, _ends(apart))
    if done is None:
        return None
    results = iter(done[0])
    return tuple([bounds.between(low, low if point else next(results)) for point, low in zip(done[1], results)])


def _ends(refs: Sequence[Interval[Any]]) -> list[Any]:
    """Both ends of each ref in turn, one of a point."""
    return [end for ref in refs for end in ((ref.lower,) if ref.point else (ref.lower, ref.upper))]
