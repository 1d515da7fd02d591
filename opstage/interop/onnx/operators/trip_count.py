"""The trip count of a Loop with a condition that compares counters with bounds, as exporters of while loops write it.

For example, `i < n` in the condition and `i + 1` carried mean n iterations, without a trip-count input. tf2onnx writes
recurrent layers of Keras this way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from ....ops.dims import Dim, DimExpr, floor_div, maximum, minimum
from ...values import KnownValue
from ..graph import GraphNode, OnnxGraph

_Line: TypeAlias = tuple[Any, int]
"""(a, s) stands for the value a + s·i in iteration i, counted from 0; a is an int or a dim."""

_FORWARD = ("Identity", "Cast", "Squeeze", "Unsqueeze", "Reshape")
"""Operators that do not change a single number."""

_WIDE = (1, 6, 7, 11)
"""Element types to which a count casts without a change: float (below 2²⁴), int32, int64, double."""

_AS_LESS = {"Less": (0, 1, 0), "LessOrEqual": (0, 1, 1), "Greater": (1, 0, 0), "GreaterOrEqual": (1, 0, 1)}
"""The comparison in the form x < y + k: the positions of x and y, and k."""

_DEEPEST = 50


def trip_count(around: Any, body: OnnxGraph, carried: Sequence[Any]) -> Dim | None:
    """Return the number of iterations of a loop whose first condition holds; None if unknown or dependent on values."""
    return _Condition(around, body, carried).count(body.outputs[0].name, 0)


class _Condition:
    """The condition of a body, as linear functions of the iteration number."""

    def __init__(self, around: Any, body: OnnxGraph, carried: Sequence[Any]):
        self.around = around
        self.body = body
        self.makers = {name: node for node in body.nodes for name in node.outputs if name}
        names = [each.name for each in body.inputs]
        self.number = names[0] if names else ""
        self.carried = dict(zip(names[2:], carried))
        self.next = dict(zip(names[2:], [each.name for each in body.outputs[1:]]))

    def count(self, name: str, depth: int) -> Dim | None:
        """Return the number of iterations until the condition `name` is false."""
        node = self.makers.get(name)
        if node is None or depth > _DEEPEST:
            return None
        if node.op in _FORWARD:
            return self.count(node.inputs[0], depth + 1)
        if node.op == "And":
            both = [self.count(each, depth + 1) for each in node.inputs[:2]]
            return None if None in both else minimum(*(each for each in both if each is not None))
        return self._compared(node, depth) if node.op in _AS_LESS else None

    def _compared(self, node: GraphNode, depth: int) -> Dim | None:
        left, right, more = _AS_LESS[node.op]
        x, y = (self.line(node.inputs[at], depth + 1) for at in (left, right))
        if x is None or y is None or x[1] <= y[1]:
            return None
        step, room = x[1] - y[1], y[0] + more - x[0]
        return maximum(floor_div(room + (step - 1), step) if step > 1 else room, 0) + 1

    def line(self, name: str, depth: int) -> _Line | None:
        """Return the integer `name` as a linear function, or None."""
        if depth > _DEEPEST:
            return None
        if name == self.number:
            return 0, 1
        if name in self.carried:
            step = self._step(self.next[name], name, depth + 1)
            start = _whole(self.carried[name])
            return None if step is None or start is None else (start, step)
        node = self.makers.get(name)
        if node is None:
            array = self.body.initializers.get(name)
            value = self.around.outer(name) if array is None else KnownValue(array, array.dtype)
            start = _whole(value)
            return None if start is None else (start, 0)
        if _keeps(node):
            return self.line(node.inputs[0], depth + 1)
        if node.op == "Constant":
            start = _whole(_constant(node))
            return None if start is None else (start, 0)
        if node.op in ("Add", "Sub"):
            x, y = (self.line(each, depth + 1) for each in node.inputs[:2])
            sign = 1 if node.op == "Add" else -1
            return None if x is None or y is None else (x[0] + sign * y[0], x[1] + sign * y[1])
        return None

    def _step(self, name: str, start: str, depth: int) -> int | None:
        """Return the constant that an iteration adds to the carried `start` to get `name`, or None."""
        if name == start:
            return 0
        node = self.makers.get(name)
        if node is None or depth > _DEEPEST:
            return None
        if _keeps(node):
            return self._step(node.inputs[0], start, depth + 1)
        if node.op not in ("Add", "Sub"):
            return None
        first, second = node.inputs[:2]
        before = self._step(first, start, depth + 1)
        if before is None and node.op == "Add":
            first, second = second, first
            before = self._step(first, start, depth + 1)
        more = self._constant(second, depth + 1)
        if before is None or more is None:
            return None
        return before + (more if node.op == "Add" else -more)

    def _constant(self, name: str, depth: int) -> int | None:
        """Return the integer of a name that is loop-invariant, or None."""
        if name in self.carried and self.next[name] != name:
            return None
        found = self.line(name, depth)
        return found[0] if found is not None and found[1] == 0 and isinstance(found[0], int) else None


def _keeps(node: GraphNode) -> bool:
    return node.op in _FORWARD and (node.op != "Cast" or node.attributes.get("to") in _WIDE)


def _constant(node: GraphNode) -> Any:
    return next((each for each in node.attributes.values()), None)


def _whole(value: Any) -> Any:
    """Return the single element of a known value if it is an integer or a size, else None."""
    array = value.array if isinstance(value, KnownValue) else value
    size = getattr(array, "size", 1)
    if size != 1:
        return None
    entry = array.reshape(-1)[0] if hasattr(array, "reshape") else array
    entry = entry.item() if hasattr(entry, "item") else entry
    if isinstance(entry, bool) or not isinstance(entry, (int, float, DimExpr)):
        return None
    if isinstance(entry, float):
        return int(entry) if entry.is_integer() else None
    return entry
