"""`NodeCall`: a node with its inputs, as seen by the operator rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, final

import numpy.typing as npt
from typing_extensions import override

from ...ops.dims import Dim
from ...ops.errors import UnsupportedError
from ...ops.protocol import Ops, R
from ...ops.types import DType, Shape
from ..exact import ExactOps
from ..operators import OPERATORS, Operator, OperatorCall, reduced
from ..values import KnownValue, TensorValue, Value, broadcast, ref_of
from .file import Foreign
from .graph import GraphNode

if TYPE_CHECKING:
    from .model import GraphRun


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
