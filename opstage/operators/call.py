"""`OperatorCall`: a node with its inputs, as the rules of either importer see it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Generic

from ..ops.dims import DimExpr
from ..ops.protocol import Ops, R
from ..ops.types import BOOL, INT64, DType, Shape
from .integers import wrapped
from .values import KnownValue, TensorValue, broadcast, common_shape, held, ref_of, stretched


class OperatorCall(ABC, Generic[R]):
    """A node with its inputs.

    ops     the interpreter
    """

    ops: Ops[R]

    @abstractmethod
    def dtype(self, i: int = 0) -> DType:
        """Return the element type of the result, or of result i of several."""

    def compared(self, *values: Any) -> tuple[R, ...]:
        """Convert operands to the type in which they are compared, and broadcast them."""
        return self.together(*values)

    @abstractmethod
    def static(self, given: tuple[Any, ...], names: Mapping[str, Any]) -> dict[str, Any]:
        """Return the static parameters of an operator of the table."""

    @abstractmethod
    def reduction(self, x: Any, given: tuple[Any, ...]) -> tuple[tuple[int, ...], bool]:
        """Return the axes of a reduction, counted from the front, and whether they are kept."""

    # Operands -------------------------------------------------------------------------------------------------------

    def tensor(self, value: Any, dtype: DType | None = None, shape: Shape = ()) -> R:
        """Convert a tensor or number to a tensor in the dtype that holds `dtype`, by default its own."""
        if isinstance(value, (KnownValue, TensorValue)):
            ref: R = ref_of(self.ops, value)
            return ref if dtype is None else self.as_dtype(ref, held(dtype, self.ops))
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
        tensors = (KnownValue, TensorValue)
        shape = common_shape([value.shape for value in values if isinstance(value, tensors)])
        return broadcast(self.ops, *[self.tensor(v, dtype, () if isinstance(v, tensors) else shape) for v in values])

    def masks(self, *values: Any) -> tuple[R, ...]:
        """Convert operands to masks of their elements that are not zero, and broadcast them."""
        refs = [self.tensor(value) for value in values]
        return broadcast(
            self.ops, *[x if x.dtype == BOOL else self.ops.logical_not(self.ops.equal(x, 0)) for x in refs]
        )

    def floats(self, value: Any) -> R:
        """Convert a tensor to floats of the program's dtype."""
        return self.as_dtype(self.tensor(value), self.ops.dtype)

    def as_dtype(self, ref: R, target: DType) -> R:
        """Cast a ref to a dtype unless it is of it."""
        return ref if ref.dtype == target else self.ops.cast(ref, dtype=target)

    def stretched(self, ref: R, shape: Shape) -> R:
        """Return the ref broadcast to a shape."""
        return stretched(self.ops, ref, shape)

    def counted(self, given: Any, rank: int, *, empty_is_all: bool = True) -> tuple[int, ...]:
        """Return axes counted from the front; all if none are given."""
        if given is None or (empty_is_all and isinstance(given, (list, tuple)) and not given):
            return tuple(range(rank))
        listed = given if isinstance(given, (list, tuple)) else [given]
        return tuple(int(axis) % rank if rank else 0 for axis in listed)

    # Results --------------------------------------------------------------------------------------------------------

    def give(self, ref: R, of: DType | int | None = None) -> TensorValue[R]:
        """Return a result with the element type of result i, or with another one."""
        dtype = self.dtype(of or 0) if of is None or isinstance(of, int) else of
        return TensorValue(self.as_dtype(ref, held(dtype, self.ops)), dtype)

    def wrap(self, ref: R, of: DType | int | None = None) -> TensorValue[R]:
        """Do the same as `give` for a result of arithmetic that may overflow short integers, which wrap around."""
        given, dtype = self.give(ref, of)
        return TensorValue(wrapped(self.ops, given, dtype), dtype)

    def mask(self, ref: R) -> TensorValue[R]:
        """Return a result of bools."""
        return self.give(ref, BOOL)

    def index(self, ref: R) -> TensorValue[R]:
        """Return a result of int64."""
        return self.give(ref, INT64)

    def full(self, shape: Shape, value: Any) -> TensorValue[R]:
        """Return a result filled with one number."""
        dtype = self.dtype()
        return TensorValue(self.tensor(value, dtype, tuple(shape)), dtype)
