"""A graph run on an interpreter, node by node."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..imported.problems import LOST, InternalError, Problem, Unimportable
from ..imported.regions import in_regions
from ..ops.errors import LocatedError, OpstageError, UnsupportedError
from ..ops.protocol import Ops
from ..ops.untrusted import brief
from .call import NodeCall
from .file import Foreign
from .graph import GraphNode, OnnxGraph
from .host import fold
from .rules import RULES
from .values import KnownValue, TensorValue, Value

_MOST_INSIDE = 4_000
"""The limit of nodes run in nested graphs. Networks have a few hundred; nested loops are rejected within a second."""


@dataclass
class GraphRun:
    """One run of a model.

    train      whether dropout and updates of running statistics are on
    max_iterations  the bound of loops without one of their own
    buffers    the values of the model's buffers by name
    moved      the new values from this step
    problems   collects nodes that cannot be imported; if None, the first one raises
    """

    train: bool
    buffers: Mapping[str, Any]
    max_iterations: int | None = None
    moved: dict[str, Any] = field(default_factory=dict)
    problems: list[Problem] | None = None
    around: MutableMapping[str, Any] = field(default_factory=dict)
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

    def buffer(self, name: str) -> Any:
        return self.moved.get(name, self.buffers.get(name))

    def keep(self, name: str, value: Any) -> None:
        if name in self.buffers:  # statistics that are not buffers are not updated
            self.moved[name] = value

    def nodes(self, ops: Ops[Any], nodes: Sequence[GraphNode]) -> None:
        """Run nodes in order, grouped into regions by the writer's modules."""
        in_regions(ops, [(_modules(node), node) for node in nodes], self.node)

    def node(self, ops: Ops[Any], node: GraphNode) -> None:
        inputs = [self.around[name] if name else None for name in node.inputs]
        if any(value is LOST for value in inputs):
            self.around.update(dict.fromkeys(filter(None, node.outputs), LOST))
            return
        try:
            results = self._results(NodeCall(ops, node, inputs, self))
        except UnsupportedError as error:
            if isinstance(error, Unimportable) or self.problems is None:
                raise _at(error, node) from None
            problem = Problem(node.label, error.reason)
            if problem not in self.problems:  # a body may be traced twice
                self.problems.append(problem)
            results = [LOST] * len(node.outputs)
        except LocatedError as error:
            raise _at(error, node) from None
        for name, value in zip(node.outputs, results):
            if name:
                self.around[name] = value

    def _results(self, call: NodeCall[Any]) -> Sequence[Any]:
        for value in call.inputs:
            if isinstance(value, Foreign):
                raise UnsupportedError(value.why)
        try:
            folded = _meant(call)
        except OpstageError:
            raise
        except Exception as error:
            if not isinstance(error, _OF_BAD_NODES) or not _raised_by_a_rule(error):
                raise InternalError(call.node.label, error) from error
            what = brief(str(error))
            raise UnsupportedError(f"its inputs and attributes are none that the operator takes: {what}") from error
        results = (
            folded if isinstance(folded, tuple) and not isinstance(folded, (KnownValue, TensorValue)) else (folded,)
        )
        wanted = len([name for name in call.node.outputs if name])
        if len([each for each in results if each is not None]) < wanted:
            raise UnsupportedError(f"{wanted} of its outputs are used, of which only the first are made here")
        return results


_OF_BAD_NODES = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError)
"""Python errors of a rule that meets unexpected kinds of attributes or inputs."""


def _raised_by_a_rule(error: Exception) -> bool:
    """Whether the innermost Opstage frame of an error is a rule. Deeper frames, where ops have validated their
    arguments, indicate a bug in Opstage."""
    innermost, traceback = "", error.__traceback__
    while traceback is not None:
        name = str(traceback.tb_frame.f_globals.get("__name__", ""))
        innermost = name if name.split(".")[0] == _PACKAGE else innermost
        traceback = traceback.tb_next
    return innermost.startswith(_RULES)


_PACKAGE = __name__.partition(".")[0]
_RULES = (f"{_PACKAGE}.onnx.", f"{_PACKAGE}.imported.")


def _meant(call: NodeCall[Any]) -> Any:
    """Return a node's results: computed on the host if all inputs are known, else by its operator's rule."""
    folded = fold(call)
    if folded is None:
        if call.node.op not in RULES:
            raise UnsupportedError("the operator is not known")
        folded = RULES[call.node.op](call)
        call.require_all_heard()
    return folded


def _at(error: LocatedError, node: GraphNode) -> LocatedError:
    """Attach the node to the error, unless an inner node is already attached."""
    if not getattr(error, "node", None):
        error.node = node  # type: ignore[attr-defined]
        error.add_note(f"in {node.label} of the ONNX model")
    return error


def _modules(node: GraphNode) -> tuple[str, ...]:
    """Return the modules in a node's name: `/encoder/layer.0/MatMul` -> encoder, layer.0."""
    if "/" not in node.name:
        return ()
    return tuple(part for part in node.name.split("/")[:-1] if part and part.isprintable())[:16]
