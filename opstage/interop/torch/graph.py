"""The content of an exported program as plain values that run without PyTorch: graph, trees, inputs and parameters."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from ...ops.errors import UnsupportedError, UsageError, a_type, nearest
from ...ops.spec import Spec
from ...ops.types import DType
from ..model import argument_name
from ..values import spec_dtype
from .archive import array_of, dtype_of, library, part_dtype

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


# Trees ----------------------------------------------------------------------------------------------------------------


@final
@dataclass(frozen=True)
class TreeLeaf:
    """A leaf of a tree, with its index in PyTorch's order."""

    at: int


def template_of(spec: Any, count: Iterator[int]) -> Any:
    """Return a tree of leaves for PyTorch's TreeSpec; other container classes become dicts or tuples."""
    if spec.is_leaf():
        return TreeLeaf(next(count))
    children = [template_of(child, count) for child in spec.children()]
    kind = spec.type
    if kind is list:
        return children
    if isinstance(kind, type) and issubclass(kind, dict):
        return dict(zip(_keys(spec.context, len(children)), children))
    if isinstance(spec.context, type) and hasattr(spec.context, "_fields"):
        return spec.context(*children)
    if kind is tuple:
        return tuple(children)
    names = _keys(spec.context, len(children))
    return dict(zip(names, children)) if names else tuple(children)


def _keys(context: Any, count: int) -> list[str]:
    """Return the names of a node's children from its context, or an empty list."""
    for found in (context, *(context if isinstance(context, (list, tuple)) else ())):
        if (
            isinstance(found, (list, tuple))
            and len(found) == count
            and all(isinstance(key, (str, int)) for key in found)
        ):
            return [str(key) for key in found]
    return []


def filled(template: Any, value: Callable[[int], Any]) -> Any:
    """Return the tree with values at its leaves."""
    if isinstance(template, TreeLeaf):
        return value(template.at)
    if isinstance(template, dict):
        return {key: filled(child, value) for key, child in template.items()}
    children = [filled(child, value) for child in template]
    if hasattr(template, "_fields"):
        return type(template)(*children)
    return children if isinstance(template, list) else tuple(children)


def leaves(template: Any, tree: Any, name: str) -> Iterator[tuple[int, Any]]:
    """Yield the index and value of each leaf of a tree of that structure. Raises UsageError for another structure."""
    if isinstance(template, TreeLeaf):
        yield template.at, tree
        return
    if isinstance(template, dict):
        if not isinstance(tree, Mapping) or set(tree) != set(template):
            expected = f"a dict of {', '.join(map(str, template))}"
            raise UsageError(f"{name} must be {expected}, as in the module that was exported, but is {_kind(tree)}")
        for key, child in template.items():
            yield from leaves(child, tree[key], f"{name}.{key}")
        return
    if not isinstance(tree, Sequence) or isinstance(tree, str) or len(tree) != len(template):
        expected = f"{a_type(template)} of {len(template)}"
        raise UsageError(f"{name} must be {expected}, as in the module that was exported, but is {_kind(tree)}")
    for i, (child, value) in enumerate(zip(template, tree)):
        yield from leaves(child, value, f"{name}[{i}]")


def _kind(tree: Any) -> str:
    if isinstance(tree, Mapping):
        return f"a dict of {', '.join(map(str, tree)) or 'nothing'}"
    if isinstance(tree, (list, tuple)):
        return f"{a_type(tree)} of {len(tree)}"
    return a_type(tree)


def leaf_names(template: Any, name: str) -> Iterator[tuple[int, str]]:
    """Yield a name for each leaf from its path: hidden_0."""
    if isinstance(template, TreeLeaf):
        yield template.at, name
        return
    fields = getattr(template, "_fields", range(len(template)))
    pairs = template.items() if isinstance(template, dict) else zip(fields, template)
    for key, child in pairs:
        yield from leaf_names(child, f"{name}_{key}" if name else str(key))


def arguments_of(in_spec: Any, names: Sequence[str]) -> dict[str, Any]:
    """Return a template for each argument of a module's forward, by name; leaves are numbered across all of them."""
    positional, keywords = in_spec.children()
    count = iter(range(in_spec.num_leaves))
    templates = [template_of(child, count) for child in positional.children()]
    templates += [template_of(child, count) for child in keywords.children()]
    keys = [*names[: positional.num_children], *(keywords.context or ())]
    if len(keys) != len(templates):
        keys = [f"x{i}" for i in range(positional.num_children)] + list(keywords.context or ())
    if len(set(keys)) != len(keys):
        raise UnsupportedError(f"two arguments are called alike: {', '.join(map(str, keys))}")
    return dict(zip(map(str, keys), templates))


# Inputs, parameters and buffers ---------------------------------------------------------------------------------------

_UNBOUNDED = 2**31 - 1  # a range that ends here or above has no declared end
_SYMBOL = re.compile(r"[A-Za-z_]\w*")


class Sizes:
    """Names for the size symbols of a program.

    A symbol is named after its torch.export.Dim, if the program still has it; else after the first input and axis with
    that size, `x_0`. `given` maps those names to others.
    """

    def __init__(self, program: Any, given: Mapping[str, str]):
        self.ranges = dict(program.range_constraints)
        self.given = dict(given)
        self.asked: dict[str, None] = {}
        self.names: dict[str, str] = {}

    def entries(self, tensor: Any, name: str) -> tuple[int | str, ...]:
        """Return the sizes of an input, as numbers and texts."""
        sizes: list[int | str] = []
        for axis, size in enumerate(tensor.shape):
            if isinstance(size, int):
                sizes.append(size)
                continue
            expression = size.node.expr
            for symbol in sorted(expression.free_symbols, key=str):
                if str(symbol) not in self.names:
                    self._name(symbol, size.node.shape_env, f"{name}_{axis}")
            sizes.append(self._text(expression))
        return tuple(sizes)

    def _name(self, symbol: Any, shapes: Any, otherwise: str) -> None:
        wanted = _name_of_dim(symbol, shapes) or otherwise
        self.asked[wanted] = None
        wanted = self.given.get(wanted, wanted)
        if not wanted.isidentifier():
            raise UsageError(f"sizes=: {wanted!r} is not a name of a size; a name is like batch")
        self.names[str(symbol)] = argument_name(wanted, set(self.names.values()))

    def _text(self, expression: Any) -> str:
        text = _SYMBOL.sub(lambda found: self.names.get(found[0], found[0]), str(expression))
        return text.replace(" ", "")

    def where(self) -> Iterator[str]:
        """Yield the ranges of the sizes, as constraints."""
        for expression, bounds in self.ranges.items():
            if not all(str(symbol) in self.names for symbol in expression.free_symbols):
                continue
            text, low, high = self._text(expression), _int(bounds.lower), _int(bounds.upper)
            if low is not None and low > 1:
                yield f"{text} >= {low}"
            if high is not None and high < _UNBOUNDED:
                yield f"{text} <= {high}"

    def require_all_known(self) -> None:
        """Raise UsageError for an unknown name in `sizes=`."""
        for name in self.given:
            if name not in self.asked:
                there = ", ".join(self.asked) or "none"
                raise UsageError(f"sizes=: no size is called {name!r}{nearest(name, self.asked)}; there are {there}")


def _int(bound: Any) -> int | None:
    try:
        return int(bound)
    except (TypeError, ValueError, OverflowError, AttributeError):
        return None  # infinite


def _name_of_dim(symbol: Any, shapes: Any) -> str | None:
    """Return the name that the user gave a size; PyTorch keeps it with its places, but files omit it."""
    names = getattr(shapes, "source_name_to_debug_name", None) or {}
    for source in (getattr(shapes, "var_to_sources", None) or {}).get(symbol, ()):
        own = getattr(source, "source_name", None)
        place = getattr(source, "name", None)
        place = place() if callable(place) else place
        found = own or names.get(place)
        if isinstance(found, str) and found.isidentifier():
            return found
    return None


def spec_of(tensor: Any, name: str, sizes: Sizes) -> Spec:
    """Return the Spec of an input."""
    if not hasattr(tensor, "shape"):
        raise UnsupportedError(
            f"the input {name!r} is a number that may change from call to call; export the module with a fixed one"
        )
    return Spec(sizes.entries(tensor, name), spec_dtype(dtype_of(tensor.dtype)))


def arrays_of(tensors: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return arrays by name, one per tensor, and a map from alternative names to the first name of a tensor.

    Raises UnsupportedError for tensors that share part of their memory, since they would be trained separately.
    """
    arrays: dict[str, Any] = {}
    first: dict[tuple[Any, ...], str] = {}
    spans: dict[int, list[tuple[int, int, str]]] = {}
    ties: dict[str, str] = {}
    for name, tensor in tensors.items():
        if tensor.numel():
            key = (tensor.data_ptr(), tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype)
            if key in first:
                ties[name] = first[key]
                continue
            first[key] = name
            _require_apart(name, tensor, spans)
        arrays[name] = array_of(tensor)
    return arrays, ties


def _require_apart(name: str, tensor: Any, spans: dict[int, list[tuple[int, int, str]]]) -> None:
    start = tensor.data_ptr()
    reach = sum((size - 1) * abs(stride) for size, stride in zip(tensor.shape, tensor.stride())) + 1
    end = start + reach * tensor.element_size()
    others = spans.setdefault(tensor.untyped_storage().data_ptr(), [])
    for other_start, other_end, other in others:
        if start < other_end and other_start < end:
            raise UnsupportedError(f"the parameters {other!r} and {name!r} share a part of their memory")
    others.append((start, end, name))


def is_float(array: Any) -> bool:
    """Whether an array has floats."""
    return bool(np.asarray(array).dtype.kind == "f")
