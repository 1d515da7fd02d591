"""Interval rules by primitive: how the bounds of an op's results follow from those of its operands.

A rule is a program over the inner interpreter, `(bounds, refs, static) -> refs`. An op without one takes its
decomposition, so composites need a rule only where their parts would forget how operands hang together (silu, softmax).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from ....ops.primitive import Primitive
from . import activation, attention, bilinear, control, elementwise, logic, loss, monotone, periodic, reduction, sums

Rule: TypeAlias = Callable[..., Sequence[Any]]

_FAMILIES = (monotone, elementwise, activation, periodic, logic, bilinear, sums, reduction, attention, loss, control)

RULES: dict[Primitive, Rule] = {}
for _family in _FAMILIES:
    RULES |= _family.RULES

EXACT: frozenset[Primitive] = frozenset().union(*[getattr(family, "EXACT", ()) for family in _FAMILIES])
"""Ops whose results are elements of their operands, or decided by them, without rounding: of points they are points."""

OPEN_INTEGERS: frozenset[Primitive] = frozenset(logic.OPEN_INTEGERS | reduction.OPEN_INTEGERS | control.OPEN_INTEGERS)
"""Ops whose rules take integers and masks that are no points."""
