"""A torch.fx graph converted to nodes of plain values, which run without PyTorch."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..ops.errors import UnsupportedError
from ..ops.types import DType
from ..ops.untrusted import a_type
from .library import library, part_dtype

_WITHOUT_EFFECT = frozenset(
    {
        *("layout", "device", "pin_memory", "memory_format", "non_blocking", "generator"),  # about memory and devices
        *("dtype", "out_dtype", "output_dtype"),  # given by the result
        *("cudnn_enabled", "cudnn_enable", "implicit", "half_to_float", "benchmark", "deterministic", "allow_tf32"),
    }
)
"""Arguments of ATen's ops that are not passed to rules."""


@dataclass(frozen=True)
class NodeResult:
    """A placeholder in arguments for the result of another node."""

    name: str


@dataclass(frozen=True, eq=False)
class AtenNode:
    """One node.

    op        `aten.add.Tensor`, `operator.add`, `higher_order.cond`
    args      in the order of the op's schema: NodeResults, numbers, texts, lists of them, and graphs
    dtypes    the element type of each result, or the reason why there is none; for a complex one the type of its parts
    complex_results   which results are complex
    used      which of several results are used
    label     its description in messages: name, op, module, and the user's line
    modules   the modules that contain it, outermost first
    """

    op: str
    name: str
    args: tuple[Any, ...]
    dtypes: tuple[DType | str | None, ...]
    complex_results: frozenset[int]
    used: frozenset[int]
    label: str
    modules: tuple[str, ...]
    inputs: tuple[str, ...]

    def dtype(self, i: int) -> DType:
        """Return the element type of result i. Raises UnsupportedError."""
        found = self.dtypes[i] if i < len(self.dtypes) else None
        if isinstance(found, str):
            raise UnsupportedError(found)
        if found is None:
            raise UnsupportedError("the program does not say the type of its result")
        return found


@dataclass(frozen=True, eq=False)
class AtenGraph:
    """Nodes in order, the names of the inputs, and the outputs as arguments."""

    inputs: tuple[str, ...]
    nodes: tuple[AtenNode, ...]
    outputs: Any


def graph_of(module: Any) -> AtenGraph:
    """Return the graph of a torch.fx.GraphModule."""
    inputs, nodes = [], []
    graphs: dict[str, AtenGraph] = {}
    outputs: Any = ()
    for node in module.graph.nodes:
        if node.op == "placeholder":
            inputs.append(node.name)
        elif node.op == "get_attr":
            inner = getattr(module, node.target)
            if not hasattr(inner, "graph"):
                raise UnsupportedError(f"the node {node.name!r} is {a_type(inner)} of the module")
            graphs[node.name] = graph_of(inner)
        elif node.op == "output":
            outputs = _argument(node.args[0], graphs)
        else:
            nodes.append(_node(node, graphs))
    return AtenGraph(tuple(inputs), tuple(nodes), outputs)


def op_of(node: Any) -> str:
    """Return the name of the function that a torch.fx node calls."""
    target, torch = node.target, library()
    if isinstance(target, torch._ops.OpOverload):
        return str(target)
    if isinstance(target, torch._ops.HigherOrderOperator):
        return f"higher_order.{target.name()}"
    module = getattr(target, "__module__", "") or ""
    return f"{module.removeprefix('_')}.{getattr(target, '__name__', target)}"


def _node(node: Any, graphs: Mapping[str, AtenGraph]) -> AtenNode:
    values = node.meta.get("val")
    several = values if isinstance(values, (list, tuple)) else [values]
    used = [user.args[1] for user in node.users if op_of(user) == "operator.getitem"]
    return AtenNode(
        op_of(node),
        str(node.name),
        tuple(_argument(each, graphs) for each in _ordered(node)),
        tuple(_dtype(each) for each in several),
        frozenset(i for i, each in enumerate(several) if getattr(getattr(each, "dtype", None), "is_complex", False)),
        frozenset(each for each in used if isinstance(each, int)),
        _label(node),
        _modules(node),
        tuple(each.name for each in node.all_input_nodes if each.name not in graphs),
    )


def _dtype(value: Any) -> DType | str | None:
    if not hasattr(value, "dtype"):
        return None
    try:
        return part_dtype(value.dtype)
    except UnsupportedError as error:
        return error.reason


def _ordered(node: Any) -> list[Any]:
    """Return the arguments in schema order, with defaults filled in, without those that have no effect."""
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return [*node.args, *node.kwargs.values()]
    values = []
    for i, argument in enumerate(schema.arguments):
        if argument.name in _WITHOUT_EFFECT:
            continue
        default = argument.default_value if argument.has_default_value() else None
        values.append(node.args[i] if i < len(node.args) else node.kwargs.get(argument.name, default))
    return values


def _argument(value: Any, graphs: Mapping[str, AtenGraph]) -> Any:
    """Return an argument as plain values."""
    if isinstance(value, library().fx.Node):
        return graphs[value.name] if value.name in graphs else NodeResult(str(value.name))
    if isinstance(value, (list, tuple)):
        return [_argument(each, graphs) for each in value]
    if isinstance(value, (bool, int, float, complex, str, type(None))):
        return value
    return str(value)  # a dtype, device or layout


# Source locations of nodes --------------------------------------------------------------------------------------------


def _label(node: Any) -> str:
    path = ["", *_stack(node)][-1]
    line = _line(node)
    return f"node {node.name!r} ({op_of(node)}){f' in {path}' if path else ''}{f' ({line})' if line else ''}"


def _stack(node: Any) -> list[str]:
    """Return the paths of the modules around a node, outermost first."""
    stack = node.meta.get("nn_module_stack") or {}
    paths = [entry[0] for entry in stack.values() if isinstance(entry, tuple) and isinstance(entry[0], str)]
    return [path for path in paths if path and not path.startswith("_empty_nn_module")]


def _modules(node: Any) -> tuple[str, ...]:
    """Return the modules that contain a node, each named relative to its parent: encoder, layers.0, norm."""
    names: list[str] = []
    before = ""
    for path in _stack(node):
        name = path.removeprefix(f"{before}.") if before else path
        before = path
        if name and name.isprintable():
            names.append(name)
    return tuple(names[:16])


_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')


def _line(node: Any) -> str:
    """Return the innermost source line of a node outside of PyTorch."""
    frames = _FRAME.findall(node.meta.get("stack_trace") or "")
    own = [frame for frame in frames if not re.search(r"(^|[/\\])torch[/\\]", frame[0])]
    return f"{own[-1][0]}:{own[-1][1]}, in {own[-1][2]}" if own else ""
