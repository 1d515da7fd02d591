"""A loop that is one op, as ONNX's Scan."""

from __future__ import annotations

from typing import Any

from ....ops.closed import ScanParameters
from ....ops.dims import is_zero
from ....ops.primitive import Primitive
from ....ops.types import INT64, TensorType
from ...structural import SCAN
from .nodes import OnnxValue, Subgraph, prune
from .rules import OnnxRule
from .writer import Writer


def _scan(
    writer: Writer, operands: tuple[OnnxValue, ...], results: tuple[TensorType, ...], /, **static: Any
) -> tuple[str, ...]:
    """The carries are its state, xs its inputs, the y's its outputs.

    What was captured is read from outside. A loop over no xs runs over its iteration numbers. Run in reverse,
    inputs are read from the last to the first, and outputs put in front of each other.
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
    outputs = [_own(writer, subgraph, ref) for ref in subgraph.outputs]
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


def _own(writer: Writer, subgraph: Subgraph, ref: OnnxValue) -> OnnxValue:
    """An output of a body is the result of a node in it, and no other output."""
    outside, writer.nodes = writer.nodes, subgraph.nodes
    try:
        return OnnxValue(writer.node("Identity", ref), ref.type, writer)
    finally:
        writer.nodes = outside


RULES: dict[Primitive, OnnxRule] = {SCAN: OnnxRule(_scan)}
