"""Bounds of a program's results over boxes of its arguments, as a program of the interpreter beneath."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...ops.box import Box, map_boxes
from ...ops.cursor import Quietly
from ...ops.errors import ShapeError
from ...ops.trees import Structure, unflatten
from ...ops.types import TensorType, is_float
from ..closing import run_closed
from ..interpreter import Interpreter, Wrapper
from . import rounding
from .interpreter import Interval, Intervals

_LEAKED = "a ref of bounds was used after they were taken; return it from the bounded function instead"


def bounds(ops: Interpreter[Any], f: Callable[..., Any], *trees: Any) -> Any:
    """A tree of boxes for the results of `f(ops', *trees)`, whose arguments hold boxes of refs among refs."""
    intervals = Intervals(ops)
    found, structure = bounded_by(intervals, lambda low, high: intervals.between(*ends(ops, low, high)), f, trees)
    with Quietly(ops.cursor):
        return unflatten(structure, [shown(ops, x) for x in found])


def bounded_by(
    wrapper: Wrapper[Any, Any], box: Callable[[Any, Any], Any], f: Callable[..., Any], trees: tuple[Any, ...]
) -> tuple[list[Any], Structure]:
    """The leaves of `f(wrapper, *trees)`, and their structure; `box` makes a ref of the wrapper of two ends."""
    ops = wrapper.inner

    def operand(leaf: Any) -> Any:
        if not isinstance(leaf, Box):
            return wrapper.wrap(ops.adopt(leaf))
        lower, upper = ops.adopt(leaf.lower), ops.adopt(leaf.upper)
        low, high = (TensorType(end.shape, end.dtype) for end in (lower, upper))
        if low != high:
            raise ShapeError(f"the ends of a box are of one type, but lower is {low} and upper is {high}", op="bounds")
        return box(lower, upper)

    return run_closed(wrapper, f, *[map_boxes(operand, tree) for tree in trees], leaked=_LEAKED)


def ends(ops: Interpreter[Any], lower: Any, upper: Any) -> tuple[Any, Any]:
    """The ends of a box as those of an interval."""
    if not is_float(lower.dtype):
        return lower, upper
    with Quietly(ops.cursor):
        return rounding.ends(ops, lower, upper)


def shown(ops: Interpreter[Any], x: Interval[Any]) -> Box:
    """Both ends, from -inf to inf where nothing is known."""
    if not is_float(x.dtype):
        return Box(x.lower, x.upper)
    known = ops.less_equal(x.lower, x.upper)
    nothing = ops.full(shape=x.shape, value=float("inf"), dtype=x.dtype)
    return Box(ops.select(known, x.lower, ops.neg(nothing)), ops.select(known, x.upper, nothing))
