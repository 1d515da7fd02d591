"""A validated graph of ONNX nodes, and a node with its inputs as the operator rules see it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING, Any, final

import numpy.typing as npt
from typing_extensions import override

from ...ops.dims import Dim
from ...ops.errors import UnsupportedError, UsageError, brief, nearest
from ...ops.protocol import Ops, R
from ...ops.types import DType, Shape
from ..exact import ExactOps
from ..operators import OPERATORS, Operator, OperatorCall, reduced
from ..values import KnownValue, TensorValue, Value, broadcast, ref_of

if TYPE_CHECKING:
    from .model import GraphRun


# Nodes and graphs -----------------------------------------------------------------------------------------------------


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


@final
class Foreign:
    """A value of an unsupported kind; a node that uses it cannot be imported."""

    def __init__(self, why: str):
        self.why = why


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


# Calls of rules -------------------------------------------------------------------------------------------------------

_WITHOUT_EFFECT = frozenset(
    {
        *("kernel_shape", "hidden_size", "keepdims", "sorted"),  # determined by other attributes or inputs
        *("seed", "saturate", "softmax_precision"),  # about draws, types and a precision that do not exist here
        *("auto_pad", "pads", "strides", "dilations", "axis", "ratio", "noop_with_empty_axes"),  # where others decide
        *("cubic_coeff_a", "nearest_mode", "exclude_outside", "extrapolation_value"),  # of a mode of resizing
        *("antialias", "keep_aspect_ratio_policy", "coordinate_transformation_mode"),
    }
)
"""Attributes that may be present on a node without an effect."""


@final
class NodeCall(OperatorCall[R]):
    """A node with its inputs.

    ops       the interpreter
    inputs    one for each input of the node; None for an omitted one
    version   the version of its operator's domain
    """

    def __init__(self, ops: Ops[R], node: GraphNode, inputs: Sequence[Value | None], around: GraphRun):
        self.ops = ops
        self.node = node
        self.inputs = list(inputs)
        self.version = node.version
        self.around = around
        self._asked: set[str] = set()

    # Attributes -----------------------------------------------------------------------------------------------------

    def attribute(self, name: str, default: Any = None) -> Any:
        """Return an attribute of the node, or `default`."""
        self._asked.add(name)
        value = self.node.attributes.get(name, default)
        if isinstance(value, Foreign):
            raise UnsupportedError(value.why)
        return value

    def require_all_heard(self) -> None:
        """Raise UnsupportedError for an attribute that the rule has not read, since it may change the meaning."""
        for name in self.node.attributes:
            if name not in self._asked and name not in _WITHOUT_EFFECT:
                raise UnsupportedError(f"its attribute {name} is not known")

    def as_op(self, op: str, inputs: Sequence[Value | None]) -> NodeCall[R]:
        """Return the node as a call of another operator with other inputs; attributes read there count as read here."""
        names = tuple(f"input_{i}" for i in range(len(inputs)))
        node = GraphNode(op, self.node.name, names, self.node.outputs, self.node.attributes, self.node.version)
        made = NodeCall(self.ops, node, inputs, self.around)
        made._asked = self._asked
        return made

    # Inputs ---------------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self.inputs)

    def has(self, i: int) -> bool:
        """Whether input i is present."""
        return i < len(self.inputs) and self.inputs[i] is not None

    def value(self, i: int) -> KnownValue | TensorValue[R]:
        """Return input i, a tensor or known value."""
        if not self.has(i):
            raise UnsupportedError(f"its input {i} is missing")
        found = self.inputs[i]
        if not isinstance(found, (KnownValue, TensorValue)):
            raise UnsupportedError(f"its input {i} is a sequence; a tensor is expected")
        return found

    def x(self, i: int = 0) -> R:
        """Return input i as a tensor."""
        return ref_of(self.ops, self.value(i))

    def xs(self) -> list[R]:
        """Return all inputs as tensors."""
        return [self.x(i) for i in range(len(self.inputs))]

    def shape(self, i: int = 0) -> Shape:
        """Return the shape of input i."""
        return self.value(i).shape

    def rank(self, i: int = 0) -> int:
        """Return the number of axes of input i."""
        return len(self.shape(i))

    def dtype(self, i: int = 0) -> DType:
        """Return the element type of input i in the file."""
        return self.value(i).dtype

    def known(self, i: int, what: str) -> npt.NDArray[Any]:
        """Return input i, which must be known before a run."""
        value = self.value(i)
        if isinstance(value, KnownValue):
            return value.array
        raise UnsupportedError(f"{what}, its input {i}, is computed from values; it must be known before a run")

    def ints(self, i: int, what: str) -> list[Dim]:
        """Return known input i as a list of integers and dims."""
        return list(self.known(i, what).ravel().tolist())

    def number(self, i: int, what: str, default: Any = None) -> Any:
        """Return known input i, which must have one element, or `default` if it is omitted."""
        if not self.has(i):
            return default
        array = self.known(i, what)
        if array.size != 1:
            raise UnsupportedError(f"{what}, its input {i}, has {array.size} elements; one is expected")
        return array.reshape(()).item() if array.dtype != object else array.reshape(-1)[0]

    def axes(self, default: Sequence[int] | None, *, attribute: str = "axes", at: int = 1) -> list[int] | None:
        """Return the axes, an attribute in older operators and an input in newer ones, counted from the front."""
        given = self.attribute(attribute)
        if given is None and self.has(at):
            given = self.ints(at, "axes")
        return list(default) if given is None and default is not None else given

    def axis(self, default: int, rank: int | None = None) -> int:
        """Return the attribute `axis`, counted from the front."""
        rank = self.rank() if rank is None else rank
        axis = int(self.attribute("axis", default))
        if not -rank <= axis < max(rank, 1):
            raise UnsupportedError(f"its axis {axis} is not one of {rank}")
        return axis + rank if axis < 0 else axis

    @property
    def is_exact(self) -> bool:
        """Whether all inputs are known, and computed exactly."""
        return isinstance(self.ops, ExactOps)

    # What the shared table reads ------------------------------------------------------------------------------------

    @override
    def static(self, given: tuple[Any, ...], names: Mapping[str, Any]) -> dict[str, Any]:
        return {name: self.attribute(each, default) for name, (each, default) in names.items()}

    @override
    def reduction(self, x: Any, given: tuple[Any, ...]) -> tuple[tuple[int, ...], bool]:
        axes = self.axes(None) or ([] if self.attribute("noop_with_empty_axes", 0) else None)
        return self.counted(axes, len(x.shape), empty_is_all=False), bool(self.attribute("keepdims", 1))

    @override
    def together(self, *values: Any, dtype: DType | None = None) -> tuple[R, ...]:
        types = {str(value.dtype) for value in values}
        if len(types) > 1:
            raise UnsupportedError(f"its inputs are of the types {', '.join(sorted(types))}; they must be of one")
        return super().together(*values, dtype=dtype or values[0].dtype)

    def spread(self, *at: int) -> tuple[R, ...]:
        """Return inputs, by default all, broadcast to a common shape."""
        return broadcast(self.ops, *[self.x(i) for i in at or range(len(self.inputs))])


Rule = Callable[[NodeCall[Any]], "Value | tuple[Value | None, ...]"]
RULES: dict[str, Rule] = {}
HOST_INPUTS: dict[str, frozenset[int]] = {}
"""For each operator, the inputs that must be known or are buffers: an initializer among them is not a weight."""


def rule(*ops: str, known: Sequence[int] = ()) -> Callable[[Rule], Rule]:
    """Register a function as the rule of operators. `known` lists the inputs that are not weights."""

    def register(function: Rule) -> Rule:
        for op in ops:
            RULES[op] = function
            HOST_INPUTS[op] = frozenset(known)
        return function

    return register


def _by_table(operator: Operator) -> Rule:
    def apply(call: NodeCall[Any]) -> Any:
        return operator.rule(call, *[call.value(i) for i in range(len(call)) if call.has(i)])

    return apply


for _each in OPERATORS:
    if _each.onnx:
        rule(_each.onnx, known=(1,) if _each.kind is reduced else ())(_by_table(_each))
