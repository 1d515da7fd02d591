"""ONNX models as plain values: nodes, the values between them, and loop bodies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, final

from ....ops.types import TensorType
from ...interpreter import Typed

if TYPE_CHECKING:
    from .writer import Writer


@final
class OnnxValue(Typed):
    """A ref of the writer: a named tensor of the model, with the type that the op's shape rule inferred."""

    __slots__ = ("name", "type", "ops")

    def __init__(self, name: str, type: TensorType, ops: Writer):
        self.name = name
        self.type = type
        self.ops = ops


@dataclass
class OnnxNode:
    """outputs = op(inputs). `doc` names the op of the program that wrote it, and its source line."""

    op: str
    inputs: list[str]
    outputs: list[str]
    attributes: Mapping[str, Any]
    name: str
    doc: str = ""

    def reads(self) -> set[str]:
        """Return the names that it reads, including those that its subgraphs read from the outer scope."""
        inside = [value.reads() for value in self.attributes.values() if isinstance(value, Subgraph)]
        return set(self.inputs).union(*inside)


@dataclass
class Subgraph:
    """The body of a loop or branch: an attribute of a node, which may read every name in the outer scope."""

    nodes: list[OnnxNode] = field(default_factory=list)
    inputs: Sequence[OnnxValue] = ()
    outputs: Sequence[OnnxValue] = ()

    def reads(self) -> set[str]:
        """Return the names that are read in it, including its own, which are unknown elsewhere."""
        return {output.name for output in self.outputs}.union(*[node.reads() for node in self.nodes])


# The position from which on unused outputs may be omitted.
_OPTIONAL_FROM = {"MaxPool": 1, "LayerNormalization": 1}


def prune(nodes: Sequence[OnnxNode], outputs: set[str]) -> list[OnnxNode]:
    """Return the nodes on which `outputs` depend, without unused optional outputs."""
    needed = set(outputs)
    kept: list[OnnxNode] = []
    for node in reversed(nodes):
        if needed.isdisjoint(node.outputs):
            continue
        least = _OPTIONAL_FROM.get(node.op, len(node.outputs))
        while len(node.outputs) > least and node.outputs[-1] not in needed:
            node.outputs.pop()
        needed |= node.reads()
        kept.append(node)
    return kept[::-1]
