"""A graph run on an interpreter, node by node."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from typing_extensions import override

from ..imported.exact import LARGEST, ExactOps, NotExact, known_again
from ..imported.problems import LOST
from ..imported.run import ImportedRun
from ..operators.values import KnownValue, TensorValue, Value
from ..ops.errors import UnsupportedError
from ..ops.protocol import Ops
from .call import NodeCall
from .file import Foreign
from .graph import GraphNode, OnnxGraph
from .rules import RULES

_MOST_INSIDE = 4_000
"""The limit of nodes run in nested graphs. Networks have a few hundred; nested loops are rejected within a second."""


@dataclass(kw_only=True)
class GraphRun(ImportedRun):
    """One run of a model.

    max_iterations  the bound of loops without one of their own
    """

    whole: ClassVar[str] = "ONNX model"
    max_iterations: int | None = None
    inner: Mapping[tuple[OnnxGraph, str], Any] = field(default_factory=dict)
    """The parameters in subgraphs of nodes, by graph and name there."""
    inside: int = 0
    """The number of nodes run in subgraphs so far, counting unrolled iterations."""

    def graph(self, ops: Ops[Any], graph: OnnxGraph, inputs: Sequence[Value]) -> list[Value]:
        """Return the outputs of a subgraph, which also reads enclosing values."""
        own: dict[str, Any] = {each.name: value for each, value in zip(graph.inputs, inputs)}
        for name, array in graph.initializers.items():
            if isinstance(array, Foreign):
                own[name] = array
            elif (graph, name) in self.inner:
                own[name] = TensorValue(self.inner[graph, name], array.dtype)
            else:
                own[name] = KnownValue(array, array.dtype)
        self.inside += len(graph.nodes)
        if self.inside > _MOST_INSIDE:  # nested loops: a small file could be an enormous program
            raise UnsupportedError(f"with loops written out its graphs have more than {_MOST_INSIDE:,} nodes")
        outside, self.around = self.around, ChainMap(own, self.around)
        try:
            self.nodes(ops, graph.nodes)
            return [self.around[each.name] for each in graph.outputs]
        finally:
            self.around = outside

    def body(self, ops: Ops[Any], graph: OnnxGraph, inputs: Sequence[Value]) -> list[Value]:
        """Return the outputs of `graph`, traced as the body of a loop or a branch."""
        before = dict(self.moved)
        outputs = self.graph(ops, graph, inputs)
        if self.moved.keys() != before.keys() or any(self.moved[name] is not before[name] for name in before):
            self.moved = before
            raise UnsupportedError(
                "a running statistic moves in its body, and cannot leave it; run it with train=False"
            )
        return outputs

    def outer(self, name: str) -> Any:
        return self.around.get(name)

    @override
    def named(self, node: GraphNode, results: Any) -> Mapping[str, Any]:
        if results is LOST:
            results = [LOST] * len(node.outputs)
        return {name: value for name, value in zip(node.outputs, results) if name}

    @override
    def results(self, ops: Ops[Any], node: GraphNode) -> Any:
        inputs = [self.around[name] if name else None for name in node.inputs]
        for value in inputs:
            if isinstance(value, Foreign):
                raise UnsupportedError(value.why)
        if node.op not in RULES:
            raise UnsupportedError("the operator is not known")
        found = self._exact(node, inputs) or _meant(NodeCall(ops, node, inputs, self))
        wanted = len([name for name in node.outputs if name])
        if len([each for each in found if each is not None]) < wanted:
            raise UnsupportedError(f"{wanted} of its outputs are used, of which only the first are made here")
        return found

    def _exact(self, node: GraphNode, inputs: Sequence[Any]) -> tuple[Any, ...] | None:
        """Return the results of a node with known inputs on exact numbers, or None if it has none."""
        known = [value for value in inputs if value is not None]
        if node.graphs or not all(isinstance(value, KnownValue) for value in known):
            return None
        if sum(value.array.size for value in known) > LARGEST:
            return None
        try:
            return tuple(map(known_again, _meant(NodeCall(ExactOps(), node, inputs, self))))
        except NotExact:
            return None


def _meant(call: NodeCall[Any]) -> tuple[Any, ...]:
    """Return a node's results by its operator's rule."""
    found = RULES[call.node.op](call)
    call.require_all_heard()
    return found if isinstance(found, tuple) and not isinstance(found, (KnownValue, TensorValue)) else (found,)
