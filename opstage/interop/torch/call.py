"""`AtenCall`: a node with its inputs, as seen by the rules of ATen's ops, and complex tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, final

from typing_extensions import override

from ...ops.dims import DimExpr, DimFloat
from ...ops.errors import UnsupportedError
from ...ops.protocol import Ops, R
from ...ops.types import BOOL, INT32, INT64, DType, Shape
from ..operators import OPERATORS, OperatorCall
from ..values import TensorValue, wrapped
from .graph import AtenNode

if TYPE_CHECKING:
    from .program import TorchRun


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


# Complex tensors ------------------------------------------------------------------------------------------------------


class ComplexValue(NamedTuple):
    """A complex tensor or number as its real and imaginary part."""

    re: TensorValue[Any]
    im: TensorValue[Any]

    @property
    def shape(self) -> Shape:
        """The shape of either part."""
        return self.re.shape

    @property
    def dtype(self) -> DType:
        """The element type of either part."""
        return self.re.dtype


def is_complex(value: Any) -> bool:
    """Whether an argument is complex, or a list with a complex entry."""
    if isinstance(value, list):
        return any(is_complex(each) for each in value)
    return isinstance(value, (ComplexValue, complex))


def parts(value: Any) -> tuple[Any, Any]:
    """Return the real and imaginary part of a tensor or number, which may be real, as tensors or numbers."""
    if isinstance(value, ComplexValue):
        return value.re, value.im
    if isinstance(value, complex):
        return value.real, value.imag
    return value, 0.0


def part_of(value: Any, i: int) -> Any:
    """Return part i of complex values, also in lists, and other values unchanged."""
    if isinstance(value, list):
        return [part_of(each, i) for each in value]
    return parts(value)[i] if isinstance(value, (ComplexValue, complex)) else value


def joined(re: Any, im: Any) -> Any:
    """Combine real and imaginary results, single or several, to complex ones."""
    if isinstance(re, (list, tuple)) and not isinstance(re, TensorValue):
        return [joined(a, b) for a, b in zip(re, im, strict=True)]
    return ComplexValue(re, im)


def as_declared(
    value: Any, complex_results: frozenset[int], zero: Callable[[TensorValue[Any]], TensorValue[Any]]
) -> Any:
    """Return the results of a node, complex if the program declares them so. Raises UnsupportedError if that fails."""
    several = isinstance(value, list)
    found = list(value) if several else [value]
    for i, each in enumerate(found):
        if i in complex_results and isinstance(each, TensorValue):
            found[i] = ComplexValue(each, zero(each))
        elif i not in complex_results and isinstance(each, ComplexValue):
            raise UnsupportedError("its result is real, and it is not known of complex tensors")
    return found if several else found[0]
