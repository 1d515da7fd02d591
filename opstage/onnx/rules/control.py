"""Branches, loops, and sequences of tensors."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...ops.errors import UnsupportedError
from ...ops.functions.arrange import flip
from ...ops.types import BOOL, INT64
from ..call import NodeCall, rule
from ..graph import OnnxGraph
from ..values import KnownValue, TensorValue, Value, known, ref_of, stretched


@rule("If")
def _if(call: NodeCall[Any]) -> tuple[Value, ...]:
    """The branch that is known to be taken, or both, of whose results those of the one are selected."""
    ops, condition = call.ops, call.value(0)
    branches: list[OnnxGraph] = [call.attribute("then_branch"), call.attribute("else_branch")]
    if isinstance(condition, KnownValue):
        taken = branches[0] if bool(condition.array.reshape(-1)[0]) else branches[1]
        return tuple(call.around.graph(ops, taken, []))
    found = [call.around.graph(ops, branch, []) for branch in branches]
    mask = ops.reshape(call.x(), shape=())
    results: list[Value] = []
    for one, other in zip(*found):
        if not isinstance(one, (KnownValue, TensorValue)) or not isinstance(other, (KnownValue, TensorValue)):
            raise UnsupportedError("its branches give sequences, and which is taken is not known before a run")
        x, y = ref_of(ops, one), ref_of(ops, other)
        if len(x.shape) != len(y.shape) or one.dtype != other.dtype:
            raise UnsupportedError("its branches give different types, and which is taken is not known before a run")
        results.append(TensorValue(ops.select(stretched(ops, mask, x.shape), x, y), one.dtype))
    return tuple(results)


@rule("Loop")
def _loop(call: NodeCall[Any]) -> tuple[Value, ...]:
    """A loop of a number of iterations that is known, whose condition stays true."""
    ops, body = call.ops, call.attribute("body")
    if not call.has(0) or not isinstance(call.value(0), KnownValue):
        raise UnsupportedError("how often it runs is not known before a run")
    trips = call.number(0, "trip count")
    if call.has(1) and not (isinstance(call.value(1), KnownValue) and bool(call.number(1, "condition"))):
        raise UnsupportedError("whether it runs at all is computed from values")
    carried = [call.inputs[i] for i in range(2, len(call))]
    if isinstance(trips, int) and trips <= _UNROLLED:
        return _unrolled(call, body, trips, carried)
    types = [value.dtype for value in carried if isinstance(value, (KnownValue, TensorValue))]
    if len(types) < len(carried):
        raise UnsupportedError("it carries a sequence through more iterations than are written out")
    made: list[Any] = []

    def step(inner: Any, carry: Any, at: Any) -> tuple[Any, Any]:
        given: list[Value] = [TensorValue(at, INT64), KnownValue(np.array(True), BOOL)]
        given += [TensorValue(ref, dtype) for ref, dtype in zip(carry, types)]
        condition, *rest = call.around.graph(inner, body, given)
        if not isinstance(condition, KnownValue) or not condition.array:
            raise UnsupportedError("whether it goes on is computed from values")
        refs = [ref_of(inner, value) for value in _tensors(rest)]
        made[:] = [value.dtype for value in _tensors(rest)]
        return tuple(refs[: len(carry)]), tuple(refs[len(carry) :])

    first = tuple(ref_of(ops, value) for value in _tensors(carried))
    last, stacked = ops.scan(step, first, ops.iota(shape=(trips,)))
    return tuple(TensorValue(ref, dtype) for ref, dtype in zip((*last, *stacked), made))


_UNROLLED = 16


def _tensors(values: Any) -> list[Any]:
    if any(not isinstance(value, (KnownValue, TensorValue)) for value in values):
        raise UnsupportedError("a sequence is carried through its iterations")
    return list(values)


def _unrolled(call: NodeCall[Any], body: OnnxGraph, trips: int, carried: list[Any]) -> tuple[Value, ...]:
    """A loop of few iterations, one after the other."""
    ops, stacked = call.ops, [list[Any]() for _ in body.outputs[1 + len(carried) :]]
    for i in range(trips):
        condition, *rest = call.around.graph(ops, body, [known(i), KnownValue(np.array(True), BOOL), *carried])
        carried = rest[: len(carried)]
        for column, value in zip(stacked, rest[len(carried) :]):
            column.append(value)
        if not isinstance(condition, KnownValue):
            raise UnsupportedError("whether it goes on is computed from values")
        if not bool(condition.array.reshape(-1)[0]):
            break
    columns: list[Value] = []
    for column in stacked:
        if not column:
            raise UnsupportedError("it has no iterations, so what it stacks has no shape")
        columns.append(TensorValue(ops.stack([ref_of(ops, value) for value in column], axis=0), column[0].dtype))
    return (*carried, *columns)


@rule("Scan")
def _scan(call: NodeCall[Any]) -> tuple[Value, ...]:
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
        rest = _tensors(call.around.graph(inner, body, given))
        made[:] = [value.dtype for value in rest]
        refs = [ref_of(inner, value) for value in rest]
        return tuple(refs[: len(carry)]), tuple(refs[len(carry) :])

    last, stacked = ops.scan(step, tuple(ref_of(ops, value) for value in carried), tuple(xs))
    outer = call.attribute("scan_output_axes", [0] * len(stacked))
    turned = call.attribute("scan_output_directions", [0] * len(stacked))
    results = list(last)
    for y, axis, backwards in zip(stacked, outer, turned):
        y = flip(ops, y, axis=0) if backwards else y
        axis = axis % len(y.shape)
        results.append(ops.permute(y, axes=[*range(1, axis + 1), 0, *range(axis + 1, len(y.shape))]) if axis else y)
    return tuple(TensorValue(ref, dtype) for ref, dtype in zip(results, made))


# Sequences, which are lists of values while the model runs -----------------------------------------------------------


def _sequence(call: NodeCall[Any]) -> list[Any]:
    value = call.inputs[0]
    if not isinstance(value, list):
        raise UnsupportedError("its first input is no sequence")
    return value


@rule("SequenceEmpty")
def _empty(call: NodeCall[Any]) -> tuple[Any]:
    return ([],)


@rule("SequenceConstruct")
def _construct(call: NodeCall[Any]) -> tuple[Any]:
    return (list(call.inputs),)


@rule("SequenceLength")
def _length(call: NodeCall[Any]) -> Value:
    return known(len(_sequence(call)))


def _place(call: NodeCall[Any], i: int, count: int) -> int:
    place = call.number(i, "position")
    if not isinstance(place, int) or not -count <= place <= count:
        raise UnsupportedError(f"its position {place} is not one of {count}")
    return place + count if place < 0 else place


@rule("SequenceAt", known=(1,))
def _at(call: NodeCall[Any]) -> Value:
    entries = _sequence(call)
    found: Value = entries[_place(call, 1, len(entries))]
    return found


@rule("SequenceInsert", known=(2,))
def _insert(call: NodeCall[Any]) -> tuple[Any]:
    entries = list(_sequence(call))
    entries.insert(_place(call, 2, len(entries)) if call.has(2) else len(entries), call.inputs[1])
    return (entries,)


@rule("SequenceErase", known=(1,))
def _erase(call: NodeCall[Any]) -> tuple[Any]:
    entries = list(_sequence(call))
    del entries[_place(call, 1, len(entries)) if call.has(1) else -1]
    return (entries,)


@rule("ConcatFromSequence")
def _concat(call: NodeCall[Any]) -> Value:
    values = _tensors(_sequence(call))
    refs = [ref_of(call.ops, value) for value in values]
    axis = int(call.attribute("axis"))
    joined = call.ops.stack(refs, axis=axis) if call.attribute("new_axis", 0) else call.ops.concat(refs, axis=axis)
    return TensorValue(joined, values[0].dtype)


@rule("SplitToSequence", known=(1,))
def _split(call: NodeCall[Any]) -> tuple[Any]:
    ops, x, axis = call.ops, call.x(), call.axis(0)
    size = x.shape[axis]
    if not isinstance(size, int):
        raise UnsupportedError("how many parts there are is not known before a run")
    keep = bool(call.attribute("keepdims", 1))
    if call.has(1) and call.rank(1) == 1:
        sizes = call.ints(1, "split")
    else:
        each = int(call.number(1, "split", 1))
        sizes = [min(each, size - at) for at in range(0, size, each)]
    parts = ops.split(x, sizes=sizes, axis=axis)
    if not keep and not call.has(1):
        parts = tuple(ops.squeeze(part, axis=axis) for part in parts)
    return ([call.give(part) for part in parts],)
