"""`NodeCall`: a node on its inputs, as the rules of operators see it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, Protocol, final

import numpy.typing as npt

from ..ops.dims import Dim
from ..ops.errors import UnsupportedError
from ..ops.protocol import Ops, R
from ..ops.types import BOOL, INT64, DType, Shape
from .file import Foreign
from .graph import GraphNode, OnnxGraph
from .integers import wrapped
from .values import KnownValue, TensorValue, Value, broadcast, held, ref_of


class AroundNode(Protocol):
    """The run around a node, of which it may ask these."""

    train: bool
    max_iterations: int | None

    def body(self, ops: Ops[Any], graph: OnnxGraph, inputs: Sequence[Value]) -> list[Value]:
        """Those of one that is traced as a body of a loop or a branch, where no buffer may move."""

    def graph(self, ops: Ops[Any], graph: OnnxGraph, inputs: Sequence[Value]) -> list[Value]:
        """The outputs of a graph of the node's."""

    def outer(self, name: str) -> Any:
        """The value of a name that a graph of the node's takes from around it; None where there is none."""

    def buffer(self, name: str) -> Any:
        """The value of a buffer, such as a running mean."""

    def keep(self, name: str, value: Any) -> None:
        """Its value after this step."""


_WITHOUT_EFFECT = frozenset(
    {
        *("kernel_shape", "hidden_size", "keepdims", "sorted"),  # said by what else there is
        *("seed", "saturate", "softmax_precision"),  # of draws, of types and of a precision that are not here
        *("auto_pad", "pads", "strides", "dilations", "axis", "ratio", "noop_with_empty_axes"),  # where others decide
        *("cubic_coeff_a", "nearest_mode", "exclude_outside", "extrapolation_value"),  # of a mode of resizing
        *("antialias", "keep_aspect_ratio_policy", "coordinate_transformation_mode"),
    }
)
"""Attributes that may stand at a node and mean nothing there."""


@final
class NodeCall(Generic[R]):
    """A node on its inputs.

    ops       the interpreter
    inputs    one for each that the node names; None for one left out
    version   that of its operator's domain
    """

    def __init__(self, ops: Ops[R], node: GraphNode, inputs: Sequence[Value | None], around: AroundNode):
        self.ops = ops
        self.node = node
        self.inputs = list(inputs)
        self.version = node.version
        self.around = around
        self._asked: set[str] = set()

    # Attributes -----------------------------------------------------------------------------------------------------

    def attribute(self, name: str, default: Any = None) -> Any:
        """The node's own, or `default`."""
        self._asked.add(name)
        value = self.node.attributes.get(name, default)
        if isinstance(value, Foreign):
            raise UnsupportedError(value.why)
        return value

    def require_all_heard(self) -> None:
        """Raise UnsupportedError for an attribute that nothing has asked for: it may change what the node means."""
        for name in self.node.attributes:
            if name not in self._asked and name not in _WITHOUT_EFFECT:
                raise UnsupportedError(f"its attribute {name} is not known")

    def as_op(self, op: str, inputs: Sequence[Value | None]) -> NodeCall[R]:
        """The node as one of another operator on other inputs; what that asks of its attributes, this one has asked."""
        names = tuple(f"input_{i}" for i in range(len(inputs)))
        node = GraphNode(op, self.node.name, names, self.node.outputs, self.node.attributes, self.node.version)
        made = NodeCall(self.ops, node, inputs, self.around)
        made._asked = self._asked
        return made

    # Inputs ---------------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self.inputs)

    def has(self, i: int) -> bool:
        """Whether input i is given."""
        return i < len(self.inputs) and self.inputs[i] is not None

    def value(self, i: int) -> KnownValue | TensorValue[R]:
        """Input i, a tensor or known."""
        if not self.has(i):
            raise UnsupportedError(f"its input {i} is missing")
        found = self.inputs[i]
        if not isinstance(found, (KnownValue, TensorValue)):
            raise UnsupportedError(f"its input {i} is a sequence; a tensor is expected")
        return found

    def x(self, i: int = 0) -> R:
        """Input i as a tensor."""
        return ref_of(self.ops, self.value(i))

    def xs(self) -> list[R]:
        """All inputs as tensors."""
        return [self.x(i) for i in range(len(self.inputs))]

    def shape(self, i: int = 0) -> Shape:
        """The shape of input i."""
        return self.value(i).shape

    def rank(self, i: int = 0) -> int:
        """The number of its axes."""
        return len(self.shape(i))

    def dtype(self, i: int = 0) -> DType:
        """The element type that the file gives input i."""
        return self.value(i).dtype

    def known(self, i: int, what: str) -> npt.NDArray[Any]:
        """Input i, which must be known before anything runs."""
        value = self.value(i)
        if isinstance(value, KnownValue):
            return value.array
        raise UnsupportedError(f"{what}, its input {i}, is computed from values; it must be known before a run")

    def ints(self, i: int, what: str) -> list[Dim]:
        """Known input i as a list of integers and dims."""
        return list(self.known(i, what).ravel().tolist())

    def number(self, i: int, what: str, default: Any = None) -> Any:
        """Known input i, of one element; `default` where it is left out."""
        if not self.has(i):
            return default
        array = self.known(i, what)
        if array.size != 1:
            raise UnsupportedError(f"{what}, its input {i}, has {array.size} elements; one is expected")
        return array.reshape(()).item() if array.dtype != object else array.reshape(-1)[0]

    def axes(self, default: Sequence[int] | None, *, attribute: str = "axes", at: int = 1) -> list[int] | None:
        """Axes, which operators took as an attribute before they took them as an input, counted from the front."""
        given = self.attribute(attribute)
        if given is None and self.has(at):
            given = self.ints(at, "axes")
        return list(default) if given is None and default is not None else given

    def axis(self, default: int, rank: int | None = None) -> int:
        """The attribute `axis`, counted from the front."""
        rank = self.rank() if rank is None else rank
        axis = int(self.attribute("axis", default))
        if not -rank <= axis < max(rank, 1):
            raise UnsupportedError(f"its axis {axis} is not one of {rank}")
        return axis + rank if axis < 0 else axis

    # Results --------------------------------------------------------------------------------------------------------

    def give(self, ref: R, dtype: DType | None = None) -> TensorValue[R]:
        """A result of the element type of the first input, or another one. Short integers wrap around as the file's
        do, whatever dtype holds them."""
        dtype = self.dtype() if dtype is None else dtype
        target = held(dtype, self.ops)
        if ref.dtype != target:
            ref = self.ops.cast(ref, dtype=target)
        return TensorValue(ref, dtype)

    def wrap(self, ref: R, dtype: DType | None = None) -> TensorValue[R]:
        """`give` for a result of arithmetic, which may leave the range of short integers."""
        dtype = self.dtype() if dtype is None else dtype
        given = self.give(ref, dtype)
        return TensorValue(wrapped(self.ops, given.ref, dtype), dtype)

    def mask(self, ref: R) -> TensorValue[R]:
        """A result of bools."""
        return TensorValue(ref, BOOL)

    def index(self, ref: R) -> TensorValue[R]:
        """A result of int64."""
        return self.give(ref, INT64)

    def spread(self, *at: int) -> tuple[R, ...]:
        """Inputs, by default all, stretched to one shape."""
        return broadcast(self.ops, *[self.x(i) for i in at or range(len(self.inputs))])


Rule = Callable[[NodeCall[Any]], "Value | tuple[Value | None, ...]"]
RULES: dict[str, Rule] = {}
HOST_INPUTS: dict[str, frozenset[int]] = {}
"""By operator, which inputs must be known, or are buffers: an initializer among them is not a weight."""


def rule(*ops: str, known: Sequence[int] = ()) -> Callable[[Rule], Rule]:
    """Register a function as what operators mean. `known` are the inputs that are no weights."""

    def register(function: Rule) -> Rule:
        for op in ops:
            RULES[op] = function
            HOST_INPUTS[op] = frozenset(known)
        return function

    return register


def pointwise(table: Mapping[str, Callable[..., Any]]) -> None:
    """Register operators that are one op of one tensor each."""
    for name, function in table.items():

        def apply(call: NodeCall[Any], function: Callable[..., Any] = function) -> Value:
            return call.wrap(function(call.ops, call.x()))

        rule(name)(apply)
