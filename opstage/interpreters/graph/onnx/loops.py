"""Scans and while_loops, as ONNX's Scan and Loop."""

from __future__ import annotations

from typing import Any

from ....ops.closed import ScanParameters, WhileParameters
from ....ops.dims import is_zero
from ....ops.primitive import Primitive
from ....ops.types import BOOL, INT64, TensorType
from ...looping import WHILE
from ...structural import SCAN
from .branches import own
from .nodes import OnnxValue, prune
from .rules import OnnxRule
from .writer import Writer


def _scan(
    writer: Writer, operands: tuple[OnnxValue, ...], results: tuple[TensorType, ...], /, **static: Any
) -> tuple[str, ...]:
    """Write a Scan with the carries as its state, xs as its inputs and ys as its outputs.

    Captured tensors are read from the outer scope. A loop without xs scans its iteration numbers. In reverse, inputs
    are read from last to first, and outputs are prepended.
    """
    loop = ScanParameters(**static)
    split = loop.carries + loop.entries
    if is_zero(loop.length):
        empty = [writer.filled(type_.shape, 0, type_.dtype) for type_ in results[loop.carries :]]
        return (*[ref.name for ref in operands[: loop.carries]], *empty)
    inside = [OnnxValue(writer.unique("entry"), type_, writer) for type_ in loop.body.input_types[:split]]
    subgraph = writer.subgraph(loop.body, (*inside, *operands[split:]))
    xs = [ref.name for ref in operands[loop.carries : split]]
    if not xs:
        count = writer.number(loop.length, INT64)
        xs = [writer.node("Range", writer.number(0, INT64), count, writer.number(1, INT64))]
        inside.append(OnnxValue(writer.unique("entry"), TensorType((), INT64), writer))
    outputs = [own(writer, subgraph, ref) for ref in subgraph.outputs]
    subgraph.inputs, subgraph.outputs = inside, outputs
    subgraph.nodes = prune(subgraph.nodes, {output.name for output in outputs})
    stacked = len(outputs) - loop.carries
    directions: dict[str, Any] = {"scan_input_directions": (int(loop.reverse),) * len(xs)}
    if stacked:
        directions["scan_output_directions"] = (int(loop.reverse),) * stacked
    return writer.outputs_of(
        "Scan",
        *operands[: loop.carries],
        *xs,
        count=len(outputs),
        body=subgraph,
        num_scan_inputs=len(xs),
        **directions,
    )


def _while(
    writer: Writer, operands: tuple[OnnxValue, ...], results: tuple[TensorType, ...], /, **static: Any
) -> tuple[str, ...]:
    """Write a Loop without a trip count: its condition is tested before it and at the end of each iteration.

    An iteration beyond the declared limit gathers an index out of range, which runtimes reject.
    """
    loop = WhileParameters(**static)
    carries = len(results)
    state, captured = operands[:carries], operands[carries:]
    (first,) = writer.write(loop.test, operands)
    number = OnnxValue(writer.unique("iteration"), TensorType((), INT64), writer)
    before = OnnxValue(writer.unique("goes_on"), TensorType((), BOOL), writer)
    inside = [OnnxValue(writer.unique("carry"), type_, writer) for type_ in results]
    subgraph = writer.subgraph(loop.body, (*inside, *captured))
    outer, writer.nodes = writer.nodes, subgraph.nodes
    try:
        after = list(subgraph.outputs)
        if loop.limit is not None:
            over = writer.node("GreaterOrEqual", number, writer.number(loop.limit, INT64))
            zero = writer.node("Gather", writer.ints(0), writer.converted(over, INT64), axis=0)
            after[-1] = OnnxValue(writer.node("Add", after[-1], zero), after[-1].type, writer)
        (again,) = writer.write(loop.test, (*after, *captured))
    finally:
        writer.nodes = outer
    outputs = [own(writer, subgraph, ref) for ref in (again, *after)]
    subgraph.inputs, subgraph.outputs = [number, before, *inside], outputs
    subgraph.nodes = prune(subgraph.nodes, {output.name for output in outputs})
    return writer.outputs_of("Loop", "", first, *state, count=carries, body=subgraph)


RULES: dict[Primitive, OnnxRule] = {SCAN: OnnxRule(_scan), WHILE: OnnxRule(_while)}
