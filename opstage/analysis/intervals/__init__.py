"""Interval bounds over any interpreter: each ref is a pair of refs, a lower and an upper bound.

`bounds` turns a program into one that returns boxes, as a program of the inner interpreter. A rule is a program over
that interpreter, `(bounds, refs, static) -> refs`. An op without a rule takes its decomposition, so composites need a
rule only if their parts would lose the relation between operands (silu, softmax).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from ...ops.dispatch import Quietly
from ...ops.errors import ShapeError
from ...ops.primitive import Primitive
from ...ops.transform import Box, map_boxes
from ...ops.trees import Structure, unflatten
from ...ops.types import TensorType, is_float
from ...transforms.interpreter import Interpreter, Wrapper, run_closed
from . import control, elementwise, reduction
from .interpreter import Interval, Intervals, rounded_ends

_LEAKED = "a ref of bounds was used after they were taken; return it from the bounded function instead"


def bounds(ops: Interpreter[Any], f: Callable[..., Any], *trees: Any) -> Any:
    """Return a tree of boxes for the results of `f(ops', *trees)`, whose arguments are trees of boxes and refs."""
    intervals = Intervals(ops)
    found, structure = bound_leaves(intervals, lambda low, high: intervals.between(*ends(ops, low, high)), f, trees)
    with Quietly(ops.cursor):
        return unflatten(structure, [shown(ops, x) for x in found])


def bound_leaves(
    wrapper: Wrapper[Any, Any], box: Callable[[Any, Any], Any], f: Callable[..., Any], trees: tuple[Any, ...]
) -> tuple[list[Any], Structure]:
    """Return the leaves of `f(wrapper, *trees)`, and their structure; `box` creates a ref of the wrapper from two
    ends.
    """
    ops = wrapper.inner

    def operand(leaf: Any) -> Any:
        if not isinstance(leaf, Box):
            return wrapper.wrap(ops.adopt(leaf))
        lower, upper = ops.adopt(leaf.lower), ops.adopt(leaf.upper)
        low, high = (TensorType(end.shape, end.dtype) for end in (lower, upper))
        if low != high:
            raise ShapeError(f"expected ends of a box with one type, got lower {low} and upper {high}", op="bounds")
        return box(lower, upper)

    return run_closed(wrapper, f, *[map_boxes(operand, tree) for tree in trees], leaked=_LEAKED)


def ends(ops: Interpreter[Any], lower: Any, upper: Any) -> tuple[Any, Any]:
    """Return the ends of a box as those of an interval."""
    if not is_float(lower.dtype):
        return lower, upper
    with Quietly(ops.cursor):
        return rounded_ends(ops, lower, upper)


def shown(ops: Interpreter[Any], x: Interval[Any]) -> Box:
    """Return the box of an interval, from -inf to inf if nothing is known."""
    if not is_float(x.dtype):
        return Box(x.lower, x.upper)
    known = ops.less_equal(x.lower, x.upper)
    nothing = ops.full(shape=x.shape, value=float("inf"), dtype=x.dtype)
    return Box(ops.select(known, x.lower, ops.neg(nothing)), ops.select(known, x.upper, nothing))


# Rules by primitive ---------------------------------------------------------------------------------------------------

Rule: TypeAlias = Callable[..., Sequence[Any]]

RULES: dict[Primitive, Rule] = {**elementwise.RULES, **control.RULES, **reduction.RULES}

EXACT: frozenset[Primitive] = elementwise.EXACT | control.EXACT | reduction.EXACT
"""Ops whose results are elements of their operands, or decided by them, without rounding: points give points."""

OPEN_INTEGERS: frozenset[Primitive] = control.OPEN_INTEGERS | reduction.OPEN_INTEGERS
"""Ops whose rules accept integers and masks that are not points."""
