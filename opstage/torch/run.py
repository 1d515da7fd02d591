"""Run a graph of ATen ops on an interpreter, node by node."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..imported.problems import LOST, Problem, Unimportable
from ..imported.regions import in_regions
from ..imported.values import TensorValue
from ..ops.errors import LocatedError, OpstageError, UnsupportedError
from ..ops.protocol import Ops
from ..ops.untrusted import brief
from .call import COMPLEX_RULES, RULES, AtenCall
from .complex import as_declared, is_complex
from .graph import AtenGraph, AtenNode, NodeResult
from .rules.sizes import SIZES


@dataclass
class TorchRun:
    """One run of a program.

    train      whether dropout is on and batch normalisation uses the batch's statistics
    flags      by name, the nodes with a training mode, and whether they were exported in it
    buffers    names of the buffers by node of the graph
    values     the values of the buffers by name
    moved      the new values from this step
    problems   collects nodes that cannot be imported; if None, the first one raises
    """

    train: bool
    flags: Mapping[str, bool]
    buffers: Mapping[str, str]
    values: Mapping[str, Any]
    moved: dict[str, Any] = field(default_factory=dict)
    problems: list[Problem] | None = None

    def trains(self, node: AtenNode) -> bool:
        """Whether a node is in training: those exported in training mode, or all if none was."""
        return self.train and (self.flags.get(node.name, True) or not any(self.flags.values()))

    def buffer(self, node: AtenNode, i: int) -> str | None:
        given = node.args[i]
        return self.buffers.get(given.name) if isinstance(given, NodeResult) else None

    def value(self, name: str) -> Any:
        return self.moved.get(name, self.values.get(name))

    def keep(self, name: str, value: Any) -> None:
        if name in self.values:
            self.moved[name] = value

    def graph(self, ops: Ops[Any], graph: AtenGraph, inputs: Sequence[Any]) -> Any:
        return self.nodes(ops, graph, dict(zip(graph.inputs, inputs)))

    def nodes(self, ops: Ops[Any], graph: AtenGraph, around: MutableMapping[str, Any]) -> Any:
        """Return the outputs of a graph whose inputs are in `around`."""

        def run(inner: Ops[Any], node: AtenNode) -> None:
            around[node.name] = self._result(inner, node, around)

        in_regions(ops, [(node.modules, node) for node in graph.nodes], run)
        return _resolved(graph.outputs, around)

    def _result(self, ops: Ops[Any], node: AtenNode, around: Mapping[str, Any]) -> Any:
        if any(around[name] is LOST for name in node.reads):
            return LOST
        try:
            return self._meant(ops, node, around)
        except UnsupportedError as error:
            if isinstance(error, Unimportable) or self.problems is None:
                raise _at(error, node) from None
            self.problems.append(Problem(node.label, error.reason))
            return LOST
        except LocatedError as error:
            raise _at(error, node) from None

    def _meant(self, ops: Ops[Any], node: AtenNode, around: Mapping[str, Any]) -> Any:
        args = _resolved(list(node.args), around)
        try:
            if node.op in SIZES:
                return SIZES[node.op](*args)
            if node.op not in RULES and node.op not in COMPLEX_RULES:
                raise UnsupportedError("the op is not known")
            return self._ruled(AtenCall(ops, node, self), args)
        except OpstageError:
            raise
        except _OF_BAD_NODES as error:
            what = brief(str(error))
            raise UnsupportedError(f"its arguments are none that the op is known to take: {what}") from error

    @staticmethod
    def _ruled(call: AtenCall[Any], args: list[Any]) -> Any:
        node = call.node
        rule = RULES.get(node.op)
        if not node.op.startswith("operator.") and any(map(is_complex, args)):
            if node.op not in COMPLEX_RULES:
                raise UnsupportedError("the op is not known of complex tensors")
            rule = COMPLEX_RULES[node.op]
        if rule is None:
            raise UnsupportedError("the op is known of complex tensors alone")
        zero = lambda x: TensorValue(call.tensor(0.0, x.dtype, x.shape), x.dtype)  # noqa: E731
        return as_declared(rule(call, *args), node.complex_results, zero)


_OF_BAD_NODES = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError)
"""Python errors of a rule that meets unexpected arguments."""


def _resolved(argument: Any, around: Mapping[str, Any]) -> Any:
    """Return the argument with values instead of placeholders."""
    if isinstance(argument, NodeResult):
        return around[argument.name]
    if isinstance(argument, list):
        return [_resolved(each, around) for each in argument]
    return argument


def _at(error: LocatedError, node: AtenNode) -> LocatedError:
    """Attach the node to the error, unless an inner node is already attached."""
    if not getattr(error, "node", None):
        error.node = node  # type: ignore[attr-defined]
        error.add_note(f"in {node.label} of the PyTorch program")
    return error
