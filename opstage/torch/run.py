"""Run a graph of ATen ops on an interpreter, node by node."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from typing_extensions import override

from ..imported.run import ImportedRun
from ..operators.values import TensorValue
from ..ops.errors import UnsupportedError
from ..ops.protocol import Ops
from .call import COMPLEX_RULES, RULES, AtenCall
from .complex import as_declared, is_complex
from .graph import AtenGraph, AtenNode, NodeResult
from .rules.sizes import SIZES


@dataclass(kw_only=True)
class TorchRun(ImportedRun):
    """One run of a program.

    flags      by name, the nodes with a training mode, and whether they were exported in it
    places     names of the buffers by node of the graph
    """

    whole: ClassVar[str] = "PyTorch program"
    flags: Mapping[str, bool]
    places: Mapping[str, str] = field(default_factory=dict)

    def trains(self, node: AtenNode) -> bool:
        """Whether a node is in training: those exported in training mode, or all if none was."""
        return self.train and (self.flags.get(node.name, True) or not any(self.flags.values()))

    def place(self, node: AtenNode, i: int) -> str | None:
        """Return the name of the buffer that is argument i of a node, or None."""
        given = node.args[i]
        return self.places.get(given.name) if isinstance(given, NodeResult) else None

    def graph(self, ops: Ops[Any], graph: AtenGraph, around: MutableMapping[str, Any]) -> Any:
        """Return the outputs of a graph whose inputs are in `around`."""
        outside, self.around = self.around, around
        try:
            self.nodes(ops, graph.nodes)
            return self._given(graph.outputs)
        finally:
            self.around = outside

    def subgraph(self, ops: Ops[Any], graph: AtenGraph, inputs: Sequence[Any]) -> Any:
        """Return the outputs of a subgraph of the program."""
        return self.graph(ops, graph, dict(zip(graph.inputs, inputs)))

    @override
    def named(self, node: AtenNode, results: Any) -> Mapping[str, Any]:
        return {node.name: results}

    @override
    def results(self, ops: Ops[Any], node: AtenNode) -> Any:
        args = self._given(list(node.args))
        if node.op in SIZES:
            return SIZES[node.op](*args)
        rule = RULES.get(node.op)
        if not node.op.startswith("operator.") and any(map(is_complex, args)):
            if node.op not in COMPLEX_RULES:
                raise UnsupportedError("the op is not known of complex tensors")
            rule = COMPLEX_RULES[node.op]
        if rule is None:
            complex_alone = node.op in COMPLEX_RULES
            raise UnsupportedError(
                "the op is known of complex tensors alone" if complex_alone else "the op is not known"
            )
        call = AtenCall(ops, node, self)
        zero = lambda x: TensorValue(call.tensor(0.0, x.dtype, x.shape), x.dtype)  # noqa: E731
        return as_declared(rule(call, *args), node.complex_results, zero)

    def _given(self, argument: Any) -> Any:
        """Return the argument with values instead of placeholders."""
        if isinstance(argument, NodeResult):
            return self.around[argument.name]
        return [self._given(each) for each in argument] if isinstance(argument, list) else argument
