"""The writer: an interpreter whose refs are the named tensors of an ONNX model.

It runs a graph op by op. An op with a rule adds that rule's nodes; other composites are written by their decomposition.
Errors name the op and the user's line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias, TypeVar, final

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from ...ops.body import Body
from ...ops.dims import Dim, DimExpr, DimFloat
from ...ops.errors import ProgramError, SourceLine, UnsupportedError, a_type
from ...ops.host_arrays import as_array
from ...ops.primitive import Primitive, Static
from ...ops.types import DType, Shape, TensorType, as_dtype
from ...transforms.interpreter import BaseInterpreter, Typed
from ...transforms.tracer import constants, evaluate
from .sizes import SizeExpressions

# Nodes ----------------------------------------------------------------------------------------------------------------


@final
class OnnxValue(Typed):
    """A ref of the writer: a named tensor of the model, with the type that the op's shape rule inferred."""

    __slots__ = ("name", "type", "ops")

    def __init__(self, name: str, type: TensorType, ops: OnnxWriter):
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


# Rules ----------------------------------------------------------------------------------------------------------------

Says: TypeAlias = "Callable[..., str | tuple[str, ...] | None]"
"""(writer, *operands, **static) -> the name of the output, or the names of outputs and residuals, whose types are
`writer.results`. None falls back to the op's decomposition, where ONNX's operator differs."""


class OnnxRule(NamedTuple):
    """A rule that expresses an op in ONNX.

    says    adds the nodes
    note    behaviour that ONNX leaves undefined and Opstage defines
    """

    says: Says
    note: str = ""


EXPORTS: dict[Primitive, OnnxRule] = {}
"""The rules by op; ops without one are exported by their decomposition."""

S = TypeVar("S", bound=Says)


def exports(*primitives: Primitive, note: str = "") -> Callable[[S], S]:
    """Register a function as the rule of ops."""

    def register(says: S) -> S:
        EXPORTS.update(dict.fromkeys(primitives, OnnxRule(says, note)))
        return says

    return register


def broadcasting(op: str) -> Says:
    """Return the rule of an ONNX operator with broadcasting."""
    return lambda writer, *operands: writer.broadcasting(op, *operands)


def direct(op: str, *statics: str) -> Says:
    """Return the rule of an ONNX operator on the same operands; static parameters named in `statics` become
    attributes."""
    return lambda writer, *operands, **static: writer.node(op, *operands, **{name: static[name] for name in statics})


@final
class OnnxWriter(BaseInterpreter[OnnxValue]):
    """An interpreter that adds ONNX nodes.

    initializers   constants by name
    types          the types of all results of the program's ops outside of loops
    results        the types of outputs and residuals of the op whose rule runs
    """

    def __init__(self, rules: Mapping[Primitive, OnnxRule], dtype: DType, seed: int):
        super().__init__(dtype, seed)
        self.rules = rules
        self.nodes: list[OnnxNode] = []
        self.initializers: dict[str, npt.NDArray[Any]] = {}
        self.types: dict[str, TensorType] = {}
        self.results: tuple[TensorType, ...] = ()
        self.sizes = SizeExpressions(self)
        self._inputs: set[str] = set()
        self._root = self.nodes
        self._names: dict[str, int] = {}
        self._known: dict[Any, str] = {}
        self._narrow: dict[str, str] = {}  # a broadcast value -> the value before broadcasting
        self._lines: Mapping[int, SourceLine | None] = {}
        self._op: Primitive | None = None

    @property
    def out(self) -> TensorType:
        """The type of the first result of the op whose rule runs."""
        return self.results[0]

    # Names ----------------------------------------------------------------------------------------------------------

    def unique(self, name: str) -> str:
        """Return `name`, with a number appended if it is taken."""
        taken = self._names.get(name)
        self._names[name] = 0 if taken is None else taken + 1
        return name if taken is None else self.unique(f"{name}_{taken + 1}")

    def input(self, name: str, type: TensorType) -> OnnxValue:
        """Add an input to the model; its sizes are available to size expressions."""
        value = OnnxValue(self.unique(name), type, self)
        self._inputs.add(value.name)
        self.sizes.learn(value)
        return value

    # Nodes ----------------------------------------------------------------------------------------------------------

    def node(self, op: str, *inputs: OnnxValue | str, at_root: bool = False, **attributes: Any) -> str:
        """Add a node with one output, and return its name. With `at_root`, it is outside of all loops."""
        return self.outputs_of(op, *inputs, count=1, at_root=at_root, **attributes)[0]

    def outputs_of(
        self, op: str, *inputs: OnnxValue | str, count: int, at_root: bool = False, **attributes: Any
    ) -> tuple[str, ...]:
        """Add a node with `count` outputs, and return their names."""
        regions = [each for each, _ in self.cursor.region.path]
        name = self.unique("/".join([*regions, op]))
        outputs = [name] if count == 1 else [self.unique(f"{name}:{i}") for i in range(count)]
        names = [i if isinstance(i, str) else i.name for i in inputs]
        (self._root if at_root else self.nodes).append(OnnxNode(op, names, outputs, attributes, name, self._origin()))
        return tuple(outputs)

    def once(self, key: Any, x: OnnxValue, make: Callable[[], str]) -> str:
        """Return the name of the node that `make` adds, a function of x. If x is an input, it is added once, outside of
        loops."""
        if x.name not in self._inputs:
            return make()
        if key not in self._known:
            with self.into(self._root):
                self._known[key] = make()
        return self._known[key]

    def _origin(self) -> str:
        if self._op is None:
            return ""
        line = self._lines.get(self.cursor.ordinal)
        return f"{self._op.name} at {line}" if line is not None else self._op.name

    # Constants, sizes, numbers --------------------------------------------------------------------------------------

    def constant(self, value: Any, dtype: DType | None = None) -> str:
        """Return the name of a constant; small constants are deduplicated."""
        array = np.asarray(value, dtype)
        key = (array.dtype, array.shape, array.tobytes()) if array.size <= 64 else None
        name = self._known.get(key) if key is not None else None
        if name is None:
            name = self.unique("constant")
            self.initializers[name] = array
            if key is not None:
                self._known[key] = name
        return name

    def ints(self, *values: int) -> str:
        """Return a constant int64 vector."""
        return self.constant(values, np.dtype(np.int64))

    def dims(self, dims: Sequence[Dim]) -> str:
        """Return an int64 vector of sizes; symbolic ones are computed from the inputs."""
        return self.sizes.vector(dims)

    def number(self, value: Any, dtype: DType) -> str:
        """Return a scalar of `dtype`, rounded once; an expression in sizes is computed from the inputs."""
        if isinstance(value, (DimExpr, DimFloat)):
            return self.sizes.scalar(value, dtype)
        return self.constant(plain(value, dtype), dtype)

    # Helpers of rules -----------------------------------------------------------------------------------------------

    def reshaped(self, x: OnnxValue | str, before: Shape, shape: Shape) -> str:
        """Reshape x from the shape `before`."""
        if same(before, shape):
            return x if isinstance(x, str) else x.name
        symbolic = [axis for axis, d in enumerate(shape) if not isinstance(d, int)]
        copied = [axis for axis in symbolic if axis < len(before) and before[axis] is shape[axis]]
        # ONNX infers one size (-1) and copies unchanged ones (0).
        open_axis = next((axis for axis in symbolic if axis not in copied), symbolic[0] if symbolic else None)
        if set(symbolic) <= {*copied, open_axis}:
            entries = [-1 if a == open_axis else 0 if a in copied else d for a, d in enumerate(shape)]
            return self.node("Reshape", x, self.dims(entries))
        return self.node("Reshape", x, self.dims(shape))

    def expanded(self, x: OnnxValue | str, before: Shape, shape: Shape) -> str:
        """Broadcast x from the shape `before` to `shape` by NumPy's rules."""
        if same(before, shape):
            return x if isinstance(x, str) else x.name
        added = len(shape) - len(before)
        entries = [1 if a >= added and before[a - added] is d else d for a, d in enumerate(shape)]
        wide, narrow = self.node("Expand", x, self.dims(entries)), x if isinstance(x, str) else x.name
        self._narrow[wide] = self._narrow.get(narrow, narrow)
        return wide

    def filled(self, shape: Shape, value: Any, dtype: DType) -> str:
        """Return a tensor of one repeated number."""
        if not shape or isinstance(value, (DimExpr, DimFloat)):
            return self.expanded(self.number(value, dtype), (), shape)
        entry = np.asarray([plain(value, dtype)], dtype)
        wide = self.node("ConstantOfShape", self.dims(shape), value=entry)
        self._narrow[wide] = self.number(value, dtype)
        return wide

    def broadcasting(self, op: str, *operands: OnnxValue) -> str:
        """Add a broadcasting operator, on operands before explicit broadcasts; one keeps the shape of the result."""
        names = [operand.name for operand in operands]
        wide = next((name for name in names if name not in self._narrow), names[0])
        return self.node(op, *[name if name == wide else self._narrow.get(name, name) for name in names])

    def converted(self, x: OnnxValue | str, dtype: DType) -> str:
        """Cast x to another dtype."""
        return self.node("Cast", x, to=dtype)

    # The seam -------------------------------------------------------------------------------------------------------

    def write(self, body: Body, inputs: Sequence[OnnxValue]) -> tuple[OnnxValue, ...]:
        """Add the nodes of a body's ops, and return its outputs."""
        outside = self._lines, self._op
        self._lines, self._op = body.lines, None
        try:
            return evaluate(self, body, inputs, constants(self, body))
        finally:
            self._lines, self._op = outside

    @contextmanager
    def into(self, nodes: list[OnnxNode]) -> Iterator[list[OnnxNode]]:
        """Add nodes to another list within."""
        outside, self.nodes = self.nodes, nodes
        try:
            yield nodes
        finally:
            self.nodes = outside

    def subgraph(self, body: Body, inputs: Sequence[OnnxValue]) -> Subgraph:
        """Write a body into a subgraph, which `closed` completes."""
        with self.into([]) as nodes:
            return Subgraph(nodes, (), self.write(body, inputs))

    def closed(self, subgraph: Subgraph, inputs: Sequence[OnnxValue] = ()) -> Subgraph:
        """Return a subgraph with these inputs, whose outputs are distinct results of its own nodes, and without nodes
        that nothing reads."""
        with self.into(subgraph.nodes):
            outputs = [OnnxValue(self.node("Identity", ref), ref.type, self) for ref in subgraph.outputs]
        return Subgraph(prune(subgraph.nodes, {output.name for output in outputs}), inputs, outputs)

    @override
    def bind(self, primitive: Primitive, refs: tuple[OnnxValue, ...], static: Static, /) -> tuple[OnnxValue, ...]:
        outermost = self._op is None
        if outermost:
            self._op = primitive
        try:
            return self._bind(primitive, refs, static)
        except UnsupportedError as error:
            if outermost:  # report the op that the user called, not a part of it
                error.place(primitive.name, self.cursor.region.name)
            raise
        finally:
            if outermost:
                self._op = None

    def _bind(self, primitive: Primitive, refs: tuple[OnnxValue, ...], static: Static) -> tuple[OnnxValue, ...]:
        types = primitive.infer(tuple([ref.type for ref in refs]), static, self.cursor.region.name)
        rule = self.rules.get(primitive)
        if rule is None:
            if primitive.decomposition is None:
                raise UnsupportedError(
                    f"ONNX cannot express {primitive}: it has neither a rule nor a decomposition; give it one, or "
                    "leave it out of the program"
                )
            return self.decompose(primitive, refs, static)
        if all(map(is_empty, types)):
            names: str | tuple[str, ...] | None = tuple([self.filled(t.shape, 0, t.dtype) for t in types])
        else:
            outside, self.results = self.results, types
            try:
                names = rule.says(self, *refs, **static)
            finally:
                self.results = outside
        if names is None:
            return self.decompose(primitive, refs, static)
        names = (names,) if isinstance(names, str) else names
        if self.nodes is self._root:
            self.types.update(zip(names, types))
        return tuple([OnnxValue(name, type_, self) for name, type_ in zip(names, types, strict=True)])

    @override
    def adopt(self, ref: Any, /) -> OnnxValue:
        if type(ref) is OnnxValue and ref.ops is self:
            return ref
        raise ProgramError(f"an op got {a_type(ref)} where it needs a ref of this model")

    @override
    def const(self, value: Any, /, *, dtype: str | DType | None = None) -> OnnxValue:
        array = as_array(value, self.dtype if dtype is None else as_dtype(dtype), force=dtype is not None)
        return OnnxValue(self.constant(array), TensorType(array.shape, array.dtype), self)

    @override
    def put(self, value: Any, /) -> OnnxValue:
        return self.const(value)

    @override
    def get(self, ref: OnnxValue, /) -> Any:
        raise ProgramError("a model that is being written has not been computed")


def plain(value: Any, dtype: DType) -> int | float:
    """Return a static number that NumPy can round to `dtype`, which a Fraction is not."""
    return int(value) if dtype.kind in "iub" else float(value)


def is_empty(type: TensorType) -> bool:
    """Return whether a tensor is empty. Such results become constants, since runtimes differ on empty operands."""
    return any(isinstance(d, int) and d == 0 for d in type.shape)


def same(a: Shape, b: Shape) -> bool:
    """Return whether two shapes are written alike; sizes with the same text are one object."""
    return len(a) == len(b) and all(x is y or (type(x) is type(y) is int and x == y) for x, y in zip(a, b))
