"""`AtenCall`: a node with its inputs, as seen by the rules of ATen's ops."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, Protocol, final

from ..imported.integers import wrapped
from ..imported.values import TensorValue, broadcast, common_shape, held, stretched
from ..ops.dims import DimExpr, DimFloat
from ..ops.protocol import Ops, R
from ..ops.types import BOOL, INT32, INT64, DType, Shape
from .graph import AtenGraph, AtenNode


class AroundCall(Protocol):
    """The run that a node is part of, as seen by its rule."""

    def trains(self, node: AtenNode) -> bool:
        """Whether a node with a training mode is in training in this run."""

    def buffer(self, node: AtenNode, i: int) -> str | None:
        """Return the name of the buffer that is argument i of a node, or None."""

    def value(self, name: str) -> Any:
        """Return the value of a buffer."""

    def keep(self, name: str, value: Any) -> None:
        """Set the value of a buffer after this step."""

    def graph(self, ops: Ops[Any], graph: AtenGraph, inputs: Sequence[Any]) -> Any:
        """Return the outputs of a subgraph of the program."""


@final
class AtenCall(Generic[R]):
    """A node with its inputs.

    ops     the interpreter
    node    the node, with the types of its results
    """

    def __init__(self, ops: Ops[R], node: AtenNode, around: AroundCall):
        self.ops = ops
        self.node = node
        self.around = around

    # Types ----------------------------------------------------------------------------------------------------------

    def dtype(self, i: int | None = None) -> DType:
        """Return the element type of the result, or of result i of several."""
        return self.node.dtype(i or 0)

    @property
    def name(self) -> str:
        """The op without its overload: `aten.add`."""
        return self.node.op.rpartition(".")[0]

    # Operands -------------------------------------------------------------------------------------------------------

    def tensor(self, value: Any, dtype: DType | None = None, shape: Shape = ()) -> R:
        """Convert a tensor or number to a tensor in the dtype that holds `dtype`, by default its own."""
        if isinstance(value, TensorValue):
            ref: R = value.ref
            return ref if dtype is None else self._as(ref, held(dtype, self.ops))
        if dtype is None:
            kinds = {bool: BOOL, int: INT64}
            dtype = INT64 if isinstance(value, DimExpr) else kinds.get(type(value), self.ops.dtype)
        target = held(dtype, self.ops)
        if target.kind == "f" and isinstance(value, (int, bool)):
            value = float(value)
        return self.ops.full(shape=shape, value=value, dtype=target)

    def together(self, *values: Any, dtype: DType | None = None) -> tuple[R, ...]:
        """Convert tensors and numbers to one type, by default that of the result, and broadcast them."""
        dtype = self.dtype() if dtype is None else dtype
        shape = common_shape([value.shape for value in values if isinstance(value, TensorValue)])
        return broadcast(
            self.ops,
            *[self.tensor(v, dtype, () if isinstance(v, TensorValue) else shape) for v in values],
        )

    def compared(self, *values: Any) -> tuple[R, ...]:
        """Convert tensors and numbers to the type in which PyTorch compares them, and broadcast them."""
        return self.together(*values, dtype=self.promoted(*values))

    def promoted(self, *values: Any) -> DType:
        """Return the type promotion of PyTorch: a Python number only counts if its kind is above that of all
        tensors."""
        kinds = [self._rank(v) for v in values]
        highest = max(kinds)
        of_tensors = [v.dtype for v in values if isinstance(v, TensorValue) and self._rank(v) == highest]
        if highest == 2:
            return max(of_tensors, key=lambda d: d.itemsize) if of_tensors else self.ops.dtype
        if highest == 0:
            return BOOL
        return INT32 if of_tensors and all(d == INT32 for d in of_tensors) else INT64

    @staticmethod
    def _rank(value: Any) -> int:
        if isinstance(value, TensorValue):
            return {"b": 0, "i": 1, "u": 1}.get(value.dtype.kind, 2)
        return 0 if isinstance(value, bool) else 1 if isinstance(value, (int, DimExpr)) else 2

    def floats(self, value: Any) -> R:
        """Convert a tensor to floats of the program's dtype."""
        return self._as(self.tensor(value), self.ops.dtype)

    def _as(self, ref: R, target: DType) -> R:
        return ref if ref.dtype == target else self.ops.cast(ref, dtype=target)

    def axes(self, given: Any, rank: int, *, empty_is_all: bool = True) -> tuple[int, ...]:
        """Return axes counted from the front; all if none are given."""
        if given is None or (empty_is_all and isinstance(given, (list, tuple)) and not given):
            return tuple(range(rank))
        listed = given if isinstance(given, (list, tuple)) else [given]
        return tuple(int(axis) % rank if rank else 0 for axis in listed)

    # Results --------------------------------------------------------------------------------------------------------

    def give(self, ref: R, i: int | None = None) -> TensorValue[R]:
        """Return a result with the element type in the program; short integers wrap around as in PyTorch."""
        dtype = self.dtype(i)
        ref = self._as(ref, held(dtype, self.ops))
        return TensorValue(wrapped(self.ops, ref, dtype), dtype)

    def full(self, shape: Shape, value: Any) -> TensorValue[R]:
        """Return a result filled with one number."""
        dtype = self.dtype()
        return TensorValue(self.tensor(value, dtype, tuple(shape)), dtype)

    def stretched(self, ref: R, shape: Shape) -> R:
        """Return the ref broadcast to a shape."""
        return stretched(self.ops, ref, shape)


Rule = Callable[..., Any]
RULES: dict[str, Rule] = {}
"""Maps an op with its overload, `aten.add.Tensor`, to a function of the call and the op's arguments in schema order."""
COMPLEX_RULES: dict[str, Rule] = {}
"""The same for ops with a complex argument."""


def rule(*ops: str) -> Callable[[Rule], Rule]:
    """Register a function as the rule of ATen ops, such as `add.Tensor`."""

    def register(function: Rule) -> Rule:
        for op in ops:
            RULES[op if op.count(".") > 1 else f"aten.{op}"] = function
        return function

    return register


def pointwise(table: Mapping[str, Callable[..., Any]]) -> None:
    """Register ops that map to one op with one tensor, in the type of the result."""
    for name, function in table.items():

        def apply(call: AtenCall[Any], x: Any, function: Callable[..., Any] = function) -> Any:
            return call.give(function(call.ops, call.tensor(x, call.dtype())))

        rule(f"{name}.default")(apply)


def is_number(value: Any) -> bool:
    """Whether an argument is a number, possibly symbolic."""
    return isinstance(value, (int, float, DimExpr, DimFloat))
