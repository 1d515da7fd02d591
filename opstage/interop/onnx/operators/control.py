"""Branches and loops: import and export."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from ....ops.arrangement import flip
from ....ops.body import Body, ScanParameters, WhileParameters
from ....ops.dims import Dim, DimExpr, floor_div, is_zero, maximum, minimum
from ....ops.errors import ShapeError, UnsupportedError
from ....ops.types import BOOL, INT64, TensorType
from ....transforms.cond import SWITCH, get_branches
from ....transforms.scan import SCAN
from ....transforms.while_loop import WHILE
from ...model import LOST
from ...values import KnownValue, TensorValue, Value, known, ref_of
from ..graph import GraphNode, NodeCall, OnnxGraph, rule
from ..writer import OnnxValue, OnnxWriter, Subgraph, exports

# Trip counts ----------------------------------------------------------------------------------------------------------
#
# The condition of a Loop often compares counters with bounds, as exporters of while loops write it. `i < n` in the
# condition and `i + 1` carried mean n iterations, without a trip-count input. tf2onnx writes recurrent layers of Keras
# this way.

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


# Branches and loops ---------------------------------------------------------------------------------------------------


@rule("If")
def _if(call: NodeCall[Any]) -> tuple[Any, ...]:
    """Run the branch that is known to be taken, or choose between both by value."""
    ops, condition = call.ops, call.value(0)
    branches: list[OnnxGraph] = [call.attribute("then_branch"), call.attribute("else_branch")]
    if isinstance(condition, KnownValue):
        taken = branches[0] if bool(condition.array.reshape(-1)[0]) else branches[1]
        return tuple(call.around.graph(ops, taken, []))
    found: list[list[Any]] = []

    def branch(graph: OnnxGraph) -> Any:
        def traced(inner: Any) -> Any:
            values = call.around.body(inner, graph, [])
            found.append(values)
            return tuple(ref_of(inner, value) for value in _tensors(values, "its branches give a sequence"))

        return traced

    try:
        refs = ops.cond(ops.reshape(call.x(), shape=()), *map(branch, branches))
    except _LostError:
        return (LOST,) * len(call.node.outputs)
    except ShapeError as error:
        if error.op != "cond":
            raise
        raise UnsupportedError(f"which branch is taken is not known before a run, and {error.reason}") from None
    if any(one.dtype != other.dtype for one, other in zip(*found)):
        raise UnsupportedError("its branches give different types, and which is taken is not known before a run")
    return tuple(
        one
        if isinstance(one, KnownValue) and isinstance(other, KnownValue) and _same(one, other)
        else TensorValue(ref, one.dtype)
        for ref, one, other in zip(refs, *found)
    )


def _same(one: KnownValue, other: KnownValue) -> bool:
    return one.array.shape == other.array.shape and bool(np.all(one.array == other.array))


class _LostError(Exception):
    """Raised if a node of a body cannot be imported; the problem is recorded."""


class _ByValueError(Exception):
    """Raised if a loop's condition is computed from values."""


@rule("Loop")
def _loop(call: NodeCall[Any]) -> tuple[Any, ...]:
    """Run a loop with a known number of iterations, or one that ends by a value."""
    carried = [call.inputs[i] for i in range(2, len(call))]
    trips = call.value(0) if call.has(0) else None
    first = call.value(1) if call.has(1) else KnownValue(np.array(True), BOOL)
    try:
        if isinstance(first, KnownValue) and bool(first.array.reshape(-1)[0]):
            count = _limited(call, trips, trip_count(call.around, call.attribute("body"), carried))
            if count is not None:
                return _counted(call, count, carried, told=True)
            if isinstance(trips, KnownValue):
                try:
                    return _counted(call, call.number(0, "trip count"), carried)
                except _ByValueError:
                    pass
        return _until(call, trips, first, carried)
    except _LostError:
        return (LOST,) * len(call.node.outputs)


_ENDLESS = 2**31 - 1
"""The trip count that writers use for an unbounded loop."""


def _limited(call: NodeCall[Any], trips: KnownValue | TensorValue[Any] | None, count: Dim | None) -> Dim | None:
    """Return the iterations of the condition, limited by `trips`; None if these depend on values."""
    if trips is None or count is None:
        return count
    if not isinstance(trips, KnownValue):
        return None
    most = call.number(0, "trip count")
    return count if isinstance(most, int) and most >= _ENDLESS else minimum(count, most)


def _counted(call: NodeCall[Any], trips: Any, carried: list[Any], *, told: bool = False) -> tuple[Value, ...]:
    """Run a known number of iterations: a given count (`told`), or as long as the condition is constantly true."""
    ops, body = call.ops, call.attribute("body")
    if isinstance(trips, int) and trips <= _UNROLLED:
        return _unrolled(call, body, trips, carried, told)
    types = [
        value.dtype for value in _tensors(carried, "it carries a sequence through more iterations than are written out")
    ]
    made: list[Any] = []

    def step(inner: Any, carry: Any, at: Any) -> tuple[Any, Any]:
        given: list[Value] = [TensorValue(at, INT64), KnownValue(np.array(True), BOOL)]
        given += [TensorValue(ref, dtype) for ref, dtype in zip(carry, types)]
        condition, *rest = _tensors(call.around.body(inner, body, given))
        if not told and (not isinstance(condition, KnownValue) or not condition.array):
            raise _ByValueError
        refs = [ref_of(inner, value) for value in rest]
        made[:] = [value.dtype for value in rest]
        return tuple(refs[: len(carry)]), tuple(refs[len(carry) :])

    start = tuple(ref_of(ops, value) for value in carried)
    last, stacked = ops.scan(step, start, ops.iota(shape=(trips,)))
    return tuple(TensorValue(ref, dtype) for ref, dtype in zip((*last, *stacked), made))


def _until(
    call: NodeCall[Any], trips: KnownValue | TensorValue[Any] | None, first: Any, carried: list[Any]
) -> tuple[Value | None, ...]:
    """Run a loop that ends by a value: the trip count, the condition, or both.

    Known trips also bound it for reverse mode; else the model's bound applies, if one is declared.
    """
    ops, body = call.ops, call.attribute("body")
    if any(call.node.outputs[len(carried) :]):
        raise UnsupportedError(
            "what it stacks has as many rows as it has iterations, and how many those are is not known before a run"
        )
    types = [value.dtype for value in _tensors(carried, "it carries a sequence, and ends by a value")]
    limit = call.around.max_iterations
    if isinstance(trips, KnownValue):
        limit = call.number(0, "trip count")
    count = None if trips is None else ops.reshape(ref_of(ops, trips), shape=())
    endless: list[bool] = []

    def goes_on(inner: Any, carry: Any) -> Any:
        at, go, *_ = carry
        return go if count is None else inner.logical_and(go, inner.less(at, count))

    def step(inner: Any, carry: Any) -> Any:
        at, _, *refs = carry
        given: list[Value] = [TensorValue(at, INT64), KnownValue(np.array(True), BOOL)]
        given += [TensorValue(ref, dtype) for ref, dtype in zip(refs, types)]
        condition, *rest = _tensors(call.around.body(inner, body, given))
        endless.append(isinstance(condition, KnownValue) and bool(condition.array.reshape(-1)[0]))
        new = [ref_of(inner, value) for value in rest[: len(refs)]]
        return (at + 1, inner.reshape(ref_of(inner, condition), shape=()), *new)

    start = (ops.const(0, dtype=INT64), ops.reshape(ref_of(ops, first), shape=()), *[ref_of(ops, v) for v in carried])
    _, _, *last = ops.while_loop(goes_on, step, start, max_iterations=limit)
    if endless[0] and trips is None:
        raise UnsupportedError("nothing ends the loop: it lacks a trip count, and its condition stays true")
    return (
        *[TensorValue(ref, dtype) for ref, dtype in zip(last, types)],
        *[None] * (len(call.node.outputs) - len(last)),
    )


_UNROLLED = 16


def _tensors(values: Any, otherwise: str = "a sequence is carried through its iterations") -> list[Any]:
    if any(value is LOST for value in values):
        raise _LostError
    if any(not isinstance(value, (KnownValue, TensorValue)) for value in values):
        raise UnsupportedError(otherwise)
    return list(values)


def _unrolled(call: NodeCall[Any], body: OnnxGraph, trips: int, carried: list[Any], told: bool) -> tuple[Value, ...]:
    """Unroll a loop of few iterations."""
    ops, stacked = call.ops, [list[Any]() for _ in body.outputs[1 + len(carried) :]]
    for i in range(trips):
        condition: Any
        condition, *rest = call.around.graph(ops, body, [known(i), KnownValue(np.array(True), BOOL), *carried])
        carried = rest[: len(carried)]
        for column, value in zip(stacked, rest[len(carried) :]):
            column.append(value)
        if condition is LOST:
            raise _LostError
        if not isinstance(condition, KnownValue):
            if not told:
                raise _ByValueError
        elif not bool(condition.array.reshape(-1)[0]):
            break
    columns: list[Value] = []
    for column in stacked:
        if not column:
            raise UnsupportedError("the loop runs zero iterations, so the shapes of its stacked outputs are unknown")
        rows = [ref_of(ops, value) for value in _tensors(column, "it stacks sequences")]
        columns.append(TensorValue(ops.stack(rows, axis=0), column[0].dtype))
    return (*carried, *columns)


@rule("Scan")
def _scan(call: NodeCall[Any]) -> tuple[Any, ...]:
    ops, body, count = call.ops, call.attribute("body"), int(call.attribute("num_scan_inputs"))
    inputs = _tensors(call.inputs if call.version >= 9 else call.inputs[1:])
    if call.version < 9:
        raise UnsupportedError("Scan of a version below 9, over batches, is not known")
    carried, scanned = inputs[: len(inputs) - count], inputs[len(inputs) - count :]
    axes = call.attribute("scan_input_axes", [0] * count)
    directions = call.attribute("scan_input_directions", [0] * count)
    xs = []
    for value, axis, backwards in zip(scanned, axes, directions):
        x = ref_of(ops, value)
        axis = axis % len(x.shape)
        x = ops.permute(x, axes=[axis, *[a for a in range(len(x.shape)) if a != axis]]) if axis else x
        xs.append(flip(ops, x, axis=0) if backwards else x)
    types = [value.dtype for value in carried]
    inner_types = [value.dtype for value in scanned]
    made: list[Any] = []

    def step(inner: Any, carry: Any, at: Any) -> tuple[Any, Any]:
        given = [TensorValue(ref, dtype) for ref, dtype in zip((*carry, *at), (*types, *inner_types))]
        rest = _tensors(call.around.body(inner, body, given))
        made[:] = [value.dtype for value in rest]
        refs = [ref_of(inner, value) for value in rest]
        return tuple(refs[: len(carry)]), tuple(refs[len(carry) :])

    try:
        last, stacked = ops.scan(step, tuple(ref_of(ops, value) for value in carried), tuple(xs))
    except _LostError:
        return (LOST,) * len(call.node.outputs)
    outer = call.attribute("scan_output_axes", [0] * len(stacked))
    turned = call.attribute("scan_output_directions", [0] * len(stacked))
    results = list(last)
    for y, axis, backwards in zip(stacked, outer, turned):
        y = flip(ops, y, axis=0) if backwards else y
        axis = axis % len(y.shape)
        results.append(ops.permute(y, axes=[*range(1, axis + 1), 0, *range(axis + 1, len(y.shape))]) if axis else y)
    return tuple(TensorValue(ref, dtype) for ref, dtype in zip(results, made))


# Switches: export as If -----------------------------------------------------------------------------------------------


@exports(SWITCH)
def _write_switch(writer: OnnxWriter, *operands: OnnxValue, **static: Any) -> tuple[str, ...]:
    """Write nested Ifs, one for each branch but the last. Branches read their operands from the outer scope."""
    bodies = get_branches(static)
    index, *outside = operands
    if index.dtype == BOOL:
        return _write_either(writer, index.name, bodies[1], bodies[0], outside)
    return _write_among(writer, _write_in_range(writer, index, len(bodies)), 0, bodies, outside)


def _write_in_range(writer: OnnxWriter, index: OnnxValue, count: int) -> str:
    """Return the index as int64, through a Gather that raises if it is out of range; negative ones are mapped above the
    range."""
    wide = index.name if index.dtype == INT64 else writer.converted(index, INT64)
    negative = writer.node("Less", wide, writer.number(0, INT64))
    place = writer.node("Where", negative, writer.number(count, INT64), wide)
    return writer.node("Gather", writer.ints(*range(count)), place, axis=0)


def _write_among(
    writer: OnnxWriter, index: str, number: int, bodies: tuple[Body, ...], outside: list[OnnxValue]
) -> tuple[str, ...]:
    """Return the results of the branch with this index, among those from `number` on."""
    here = writer.node("Equal", index, writer.number(number, INT64))
    if len(bodies) == 1:  # the index is 0; an If of two equal branches reads it, so that its check is not pruned
        return _write_either(writer, here, bodies[0], bodies[0], outside)
    if number == len(bodies) - 2:
        return _write_either(writer, here, bodies[number], bodies[number + 1], outside)
    with writer.into([]) as nodes:
        names = _write_among(writer, index, number + 1, bodies, outside)
    rest = Subgraph(nodes, (), [OnnxValue(name, t, writer) for name, t in zip(names, bodies[0].output_types)])
    return _write_if(writer, here, _write_branch(writer, bodies[number], outside), rest)


def _write_either(writer: OnnxWriter, mask: str, yes: Body, no: Body, outside: list[OnnxValue]) -> tuple[str, ...]:
    return _write_if(writer, mask, _write_branch(writer, yes, outside), _write_branch(writer, no, outside))


def _write_if(writer: OnnxWriter, mask: str, yes: Subgraph, no: Subgraph) -> tuple[str, ...]:
    return writer.outputs_of("If", mask, count=len(yes.outputs), then_branch=yes, else_branch=no)


def _write_branch(writer: OnnxWriter, body: Body, outside: list[OnnxValue]) -> Subgraph:
    return writer.closed(writer.subgraph(body, outside))


# Loops: export as Scan and Loop ---------------------------------------------------------------------------------------


@exports(SCAN)
def _write_scan(writer: OnnxWriter, *operands: OnnxValue, **static: Any) -> tuple[str, ...]:
    """Write a Scan with the carries as its state, xs as its inputs and ys as its outputs.

    Captured tensors are read from the outer scope. A loop without xs scans its iteration numbers. In reverse, inputs
    are read from last to first, and outputs are prepended.
    """
    loop = ScanParameters(**static)
    split = loop.carries + loop.entries
    if is_zero(loop.length):
        empty = [writer.filled(type_.shape, 0, type_.dtype) for type_ in writer.results[loop.carries :]]
        return (*[ref.name for ref in operands[: loop.carries]], *empty)
    inside = [OnnxValue(writer.unique("entry"), type_, writer) for type_ in loop.body.input_types[:split]]
    subgraph = writer.subgraph(loop.body, (*inside, *operands[split:]))
    xs = [ref.name for ref in operands[loop.carries : split]]
    if not xs:
        xs = [writer.node("Range", *(writer.number(n, INT64) for n in (0, loop.length, 1)))]
        inside.append(OnnxValue(writer.unique("entry"), TensorType((), INT64), writer))
    body = writer.closed(subgraph, inside)
    count = len(body.outputs)
    stacked = count - loop.carries
    directions: dict[str, Any] = {"scan_input_directions": (int(loop.reverse),) * len(xs)}
    if stacked:
        directions["scan_output_directions"] = (int(loop.reverse),) * stacked
    return writer.outputs_of(
        "Scan", *operands[: loop.carries], *xs, count=count, body=body, num_scan_inputs=len(xs), **directions
    )


@exports(WHILE)
def _write_while(writer: OnnxWriter, *operands: OnnxValue, **static: Any) -> tuple[str, ...]:
    """Write a Loop without a trip count: its condition is tested before it and at the end of each iteration.

    An iteration beyond the declared limit gathers an index out of range, which runtimes reject.
    """
    loop = WhileParameters(**static)
    results = writer.results
    carries = len(results)
    state, captured = operands[:carries], operands[carries:]
    (first,) = writer.write(loop.test, operands)
    number = OnnxValue(writer.unique("iteration"), TensorType((), INT64), writer)
    before = OnnxValue(writer.unique("goes_on"), TensorType((), BOOL), writer)
    inside = [OnnxValue(writer.unique("carry"), type_, writer) for type_ in results]
    subgraph = writer.subgraph(loop.body, (*inside, *captured))
    with writer.into(subgraph.nodes):
        after = list(subgraph.outputs)
        if loop.limit is not None:
            over = writer.node("GreaterOrEqual", number, writer.number(loop.limit, INT64))
            zero = writer.node("Gather", writer.ints(0), writer.converted(over, INT64), axis=0)
            after[-1] = OnnxValue(writer.node("Add", after[-1], zero), after[-1].type, writer)
        (again,) = writer.write(loop.test, (*after, *captured))
    body = writer.closed(Subgraph(subgraph.nodes, (), (again, *after)), [number, before, *inside])
    return writer.outputs_of("Loop", "", first, *state, count=carries, body=body)
