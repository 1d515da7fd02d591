"""ONNX models as plain values: nodes, the values between them, and the bodies of loops."""

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
    """A ref of the writer: a named tensor of the model, its type as the op's own shape rule says it."""

    __slots__ = ("name", "type", "ops")

    def __init__(self, name: str, type: TensorType, ops: Writer):
        self.name = name
        self.type = type
        self.ops = ops


@dataclass
class OnnxNode:
    """outputs = op(inputs). `doc` says which op of the program wrote it, and where that stands."""

    op: str
    inputs: list[str]
    outputs: list[str]
    attributes: Mapping[str, Any]
    name: str
    doc: str = ""

    def reads(self) -> set[str]:
        """The names that it needs, those that bodies inside of it take from outside among them."""
        inside = [value.reads() for value in self.attributes.values() if isinstance(value, Subgraph)]
        return set(self.inputs).union(*inside)


@dataclass
class Subgraph:
    """The body of a loop: an attribute of a node, which may read every name outside of it."""

    nodes: list[OnnxNode] = field(default_factory=list)
    inputs: Sequence[OnnxValue] = ()
    outputs: Sequence[OnnxValue] = ()

    def reads(self) -> set[str]:
        """The names that are read in it; its own are among them, and are known nowhere else."""
        return {output.name for output in self.outputs}.union(*[node.reads() for node in self.nodes])


# Outputs that may be left out when nobody reads them, from this position on.
_OPTIONAL_FROM = {"MaxPool": 1, "LayerNormalization": 1}


def prune(nodes: Sequence[OnnxNode], outputs: set[str]) -> list[OnnxNode]:
    """The nodes on which `outputs` depend, without the optional outputs that nobody reads."""
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
