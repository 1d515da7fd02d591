"""Switches, as ONNX's If."""

from __future__ import annotations

from typing import Any

from ....ops.closed import Body
from ....ops.primitive import Primitive
from ....ops.types import BOOL, INT64, TensorType
from ...branching import SWITCH, branches_of
from .nodes import OnnxValue, Subgraph, prune
from .rules import OnnxRule
from .writer import Writer


def _switch(
    writer: Writer, operands: tuple[OnnxValue, ...], results: tuple[TensorType, ...], /, **static: Any
) -> tuple[str, ...]:
    """Write nested Ifs, one for each branch but the last. Branches read their operands from the outer scope."""
    bodies = branches_of(static)
    index, *outside = operands
    if index.dtype == BOOL:
        return _either(writer, index.name, bodies[1], bodies[0], outside)
    return _among(writer, _in_range(writer, index, len(bodies)), 0, bodies, outside)


def _in_range(writer: Writer, index: OnnxValue, count: int) -> str:
    """Return the index as int64, through a Gather that raises if it is out of range; negative ones are mapped above the
    range."""
    wide = index.name if index.dtype == INT64 else writer.converted(index, INT64)
    negative = writer.node("Less", wide, writer.number(0, INT64))
    place = writer.node("Where", negative, writer.number(count, INT64), wide)
    return writer.node("Gather", writer.ints(*range(count)), place, axis=0)


def _among(
    writer: Writer, index: str, number: int, bodies: tuple[Body, ...], outside: list[OnnxValue]
) -> tuple[str, ...]:
    """Return the results of the branch with this index, among those from `number` on."""
    here = writer.node("Equal", index, writer.number(number, INT64))
    if len(bodies) == 1:  # the index is 0; an If of two equal branches reads it, so that its check is not pruned
        return _either(writer, here, bodies[0], bodies[0], outside)
    if number == len(bodies) - 2:
        return _either(writer, here, bodies[number], bodies[number + 1], outside)
    nodes, writer.nodes = writer.nodes, []
    try:
        names = _among(writer, index, number + 1, bodies, outside)
        types = bodies[0].output_types
        rest = Subgraph(writer.nodes, (), [OnnxValue(name, t, writer) for name, t in zip(names, types)])
    finally:
        writer.nodes = nodes
    return _if(writer, here, _branch(writer, bodies[number], outside), rest)


def _either(writer: Writer, mask: str, yes: Body, no: Body, outside: list[OnnxValue]) -> tuple[str, ...]:
    return _if(writer, mask, _branch(writer, yes, outside), _branch(writer, no, outside))


def _if(writer: Writer, mask: str, yes: Subgraph, no: Subgraph) -> tuple[str, ...]:
    return writer.outputs_of("If", mask, count=len(yes.outputs), then_branch=yes, else_branch=no)


def _branch(writer: Writer, body: Body, outside: list[OnnxValue]) -> Subgraph:
    subgraph = writer.subgraph(body, outside)
    subgraph.outputs = [own(writer, subgraph, ref) for ref in subgraph.outputs]
    subgraph.nodes = prune(subgraph.nodes, {output.name for output in subgraph.outputs})
    return subgraph


def own(writer: Writer, subgraph: Subgraph, ref: OnnxValue) -> OnnxValue:
    """Copy an output of a body by a node in it, since outputs must be distinct results of the body's own nodes."""
    outside, writer.nodes = writer.nodes, subgraph.nodes
    try:
        return OnnxValue(writer.node("Identity", ref), ref.type, writer)
    finally:
        writer.nodes = outside


RULES: dict[Primitive, OnnxRule] = {SWITCH: OnnxRule(_switch)}
