"""`AtenCall`: a node with its inputs, as seen by the rules of ATen's ops."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, final

from typing_extensions import override

from ..operators.call import OperatorCall
from ..operators.integers import wrapped
from ..operators.table import OPERATORS
from ..operators.values import TensorValue
from ..ops.dims import DimExpr, DimFloat
from ..ops.protocol import Ops, R
from ..ops.types import BOOL, INT32, INT64, DType
from .graph import AtenNode

if TYPE_CHECKING:
    from .run import TorchRun


@final
class AtenCall(OperatorCall[R]):
    """A node with its inputs.

    ops     the interpreter
    node    the node, with the types of its results
    """

    def __init__(self, ops: Ops[R], node: AtenNode, around: TorchRun):
        self.ops = ops
        self.node = node
        self.around = around

    # Types ----------------------------------------------------------------------------------------------------------

    @override
    def dtype(self, i: int = 0) -> DType:
        return self.node.dtype(i)

    @property
    def name(self) -> str:
        """The op without its overload: `aten.add`."""
        return self.node.op.rpartition(".")[0]

    # Operands -------------------------------------------------------------------------------------------------------

    @override
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

    @override
    def static(self, given: tuple[Any, ...], names: Mapping[str, Any]) -> dict[str, Any]:
        return dict(zip(names, given))

    @override
    def reduction(self, x: Any, given: tuple[Any, ...]) -> tuple[tuple[int, ...], bool]:
        axes, keep = (*given, None, None)[:2]
        return self.counted(axes, len(x.shape)), bool(keep)

    @override
    def give(self, ref: R, of: DType | int | None = None) -> TensorValue[R]:
        """Return a result with the element type in the program; short integers wrap around as in PyTorch."""
        given, dtype = super().give(ref, of)
        return TensorValue(wrapped(self.ops, given, dtype), dtype)


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


for _each in OPERATORS:
    rule(*[name if "." in name else f"{name}.default" for name in _each.aten.split()])(_each.rule)


def is_number(value: Any) -> bool:
    """Whether an argument is a number, possibly symbolic."""
    return isinstance(value, (int, float, DimExpr, DimFloat))
