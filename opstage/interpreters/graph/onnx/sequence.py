"""Cumulative sums, linear recurrences, products, and argsort."""

from __future__ import annotations

from ....ops.catalogue import sequence
from ....ops.primitive import Primitive
from ....ops.types import BOOL, INT32, TensorType
from .nodes import OnnxValue, Subgraph
from .reduction import reduced_by
from .rules import OnnxRule
from .writer import Writer, is_empty


def _cumsum(
    writer: Writer,
    operands: tuple[OnnxValue, ...],
    results: tuple[TensorType, ...],
    /,
    *,
    axis: int,
    exclusive: bool,
    reverse: bool,
) -> tuple[str, ...]:
    (x,), (out,) = operands, results
    if is_empty(x.type):
        return (writer.filled(out.shape, 0, out.dtype),)
    name = x.name if x.dtype == out.dtype else writer.converted(x, out.dtype)
    place = writer.constant(axis, INT32)
    return (writer.node("CumSum", name, place, exclusive=int(exclusive), reverse=int(reverse)),)


def _argsort(
    writer: Writer,
    operands: tuple[OnnxValue, ...],
    results: tuple[TensorType, ...],
    /,
    *,
    axis: int,
    descending: bool,
) -> tuple[str, ...]:
    """Write a TopK of the whole axis, which puts the lower index first among equal elements."""
    (x,), (out,) = operands, results
    if is_empty(x.type):
        return (writer.filled(out.shape, 0, out.dtype),)
    name = writer.converted(x, INT32) if x.dtype == BOOL else x.name
    length = writer.dims([x.shape[axis]])
    return (writer.outputs_of("TopK", name, length, count=2, axis=axis, largest=int(descending), sorted=1)[1],)


def _linear_recurrence(
    writer: Writer,
    operands: tuple[OnnxValue, ...],
    results: tuple[TensorType, ...],
    /,
    *,
    axis: int,
    reverse: bool,
) -> tuple[str, ...]:
    """Write a Scan along the axis, whose state is the previous result."""
    (a, b), (out,) = operands, results
    if is_empty(out):
        return (writer.filled(out.shape, 0, out.dtype),)
    entry = TensorType((*out.shape[:axis], *out.shape[axis + 1 :]), out.dtype)
    before = writer.filled(entry.shape, 0, entry.dtype)
    inside = [OnnxValue(writer.unique("entry"), entry, writer) for _ in range(3)]
    outside, writer.nodes = writer.nodes, []
    value = writer.node("Add", writer.node("Mul", inside[1], inside[0]), inside[2])
    names = [writer.node("Identity", value) for _ in range(2)]
    body, writer.nodes = Subgraph(writer.nodes, inside, [OnnxValue(name, entry, writer) for name in names]), outside
    return (
        writer.outputs_of(
            "Scan",
            before,
            a,
            b,
            count=2,
            body=body,
            num_scan_inputs=2,
            scan_input_axes=(axis, axis),
            scan_input_directions=(int(reverse),) * 2,
            scan_output_axes=(axis,),
            scan_output_directions=(int(reverse),),
        )[1],
    )


RULES: dict[Primitive, OnnxRule] = {
    sequence.CUMSUM: OnnxRule(_cumsum),
    sequence.LINEAR_RECURRENCE: OnnxRule(_linear_recurrence),
    sequence.REDUCE_PROD: OnnxRule(reduced_by("ReduceProd")),
    sequence.ARGSORT: OnnxRule(_argsort, "ONNX leaves the result for nan undefined"),
}
