"""A validated graph of ONNX nodes: every value is defined once, before it is read."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from typing import Any

import numpy.typing as npt

from ...ops.errors import UsageError, nearest
from ...ops.types import DType
from ...ops.untrusted import brief


@dataclass(frozen=True, eq=False)
class GraphNode:
    """One node.

    op           its operator, with the domain if that is not ONNX's own: `Conv`, `com.microsoft.Gelu`
    attributes   numbers, texts, arrays, Graphs, and lists of them
    version      the opset version of its domain, which determines the meaning of `op`
    """

    op: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]
    version: int

    @property
    def label(self) -> str:
        """The name in messages."""
        return f"node {self.name!r} ({self.op})" if self.name else f"the {self.op} that gives {self.outputs[0]!r}"

    @property
    def modules(self) -> tuple[str, ...]:
        """The modules in its name: `/encoder/layer.0/MatMul` -> encoder, layer.0."""
        path = self.name.split("/")[:-1]
        return tuple(part for part in path if part and part.isprintable())[:16]

    @property
    def graphs(self) -> list[OnnxGraph]:
        """The graphs among its attributes."""
        lists = [value if isinstance(value, list) else [value] for value in self.attributes.values()]
        return [each for values in lists for each in values if isinstance(each, OnnxGraph)]

    def reads(self) -> set[str]:
        """Return the values that it reads, including those captured by its subgraphs."""
        return {name for name in self.inputs if name}.union(*[graph.captured for graph in self.graphs])


@dataclass(frozen=True, eq=False)
class Declared:
    """An input or output: its name, element type and sizes; None for a size, or a shape, that the file does not
    declare."""

    name: str
    dtype: DType | None
    shape: tuple[int | str | None, ...] | None
    problem: str = ""
    """The reason if its type is not supported."""


@dataclass(frozen=True, eq=False)
class OnnxGraph:
    """Nodes in topological order."""

    name: str
    inputs: tuple[Declared, ...]
    outputs: tuple[Declared, ...]
    initializers: Mapping[str, npt.NDArray[Any]]
    nodes: tuple[GraphNode, ...]

    @cached_property
    def captured(self) -> frozenset[str]:
        """The values that it captures from enclosing graphs."""
        given = {*[each.name for each in self.inputs], *self.initializers}
        given.update(name for node in self.nodes for name in node.outputs)
        return frozenset({each.name for each in self.outputs}.union(*[node.reads() for node in self.nodes]) - given)

    def leading_to(self, names: Collection[str]) -> OnnxGraph:
        """Return the graph of these outputs alone. Raises UsageError for a name that is not an output."""
        by_name = {each.name: each for each in self.outputs}
        for name in names:
            if name not in by_name:
                others = ", ".join(by_name)
                raise UsageError(f"no output is called {name!r}{nearest(name, by_name)}; there are {others}")
        needed, nodes = set(names), list[GraphNode]()
        for node in reversed(self.nodes):
            if needed.intersection(node.outputs):
                needed.update(node.reads())
                nodes.append(node)
        kept = {name: array for name, array in self.initializers.items() if name in needed}
        outputs = tuple([by_name[name] for name in names])
        return replace(self, outputs=outputs, initializers=kept, nodes=tuple(reversed(nodes)))

    def within(self) -> Iterator[OnnxGraph]:
        """Yield this graph and all graphs nested in its nodes."""
        yield self
        for node in self.nodes:
            for graph in node.graphs:
                yield from graph.within()


def all_nodes(graph: OnnxGraph) -> list[GraphNode]:
    """Return the nodes of a graph and of all graphs nested in them."""
    return [node for each in graph.within() for node in each.nodes]


def in_order(nodes: Iterable[GraphNode], given: set[str], where: str, *, inner: bool) -> tuple[GraphNode, ...]:
    """Sort nodes topologically; `given` are the values defined before. An inner graph may also read values of enclosing
    graphs.

    Raises UsageError for a value defined twice or not at all, and for a cycle.
    """
    nodes = list(nodes)
    givers: dict[str, int] = {}
    for i, node in enumerate(nodes):
        for name in filter(None, node.outputs):
            if name in givers or name in given:
                raise UsageError(f"{where}: {node.label} gives {brief(name)}, which is given already")
            givers[name] = i
    before: list[set[int]] = []
    for node in nodes:
        reads = node.reads()
        before.append({givers[name] for name in reads if name in givers})
        missing = sorted(reads - givers.keys() - given)
        if missing and not inner:
            raise UsageError(
                f"{where}: {node.label} reads {brief(missing[0])}, which nothing gives: no input, initializer or node"
            )
    if all(giver < i for i, givers_of in enumerate(before) for giver in givers_of):
        return tuple(nodes)
    try:
        return tuple(nodes[i] for i in TopologicalSorter(dict(enumerate(before))).static_order())
    except CycleError as error:
        stuck = nodes[error.args[1][0]]
        raise UsageError(f"{where}: {stuck.label} reads what is computed from its own result") from None
