"""Values on the edges of an imported graph while it runs: known numbers, or a tensor of the interpreter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from ..ops.dims import DimExpr, DimFloat
from ..ops.errors import UnsupportedError
from ..ops.infix import broadcast_shapes
from ..ops.protocol import Ops, R
from ..ops.types import BOOL, INT32, INT64, DType, Shape


class KnownValue(NamedTuple):
    """Numbers that are known without a run: constants, shapes, and results computed from those.

    array    of `dtype`, or of objects if sizes are symbolic, each an integer, a fraction or an expression in dims
    dtype    their element type in the file
    """

    array: npt.NDArray[Any]
    dtype: DType

    @property
    def shape(self) -> Shape:
        """The shape of the array, whose own sizes are never symbolic."""
        return self.array.shape

    @property
    def is_symbolic(self) -> bool:
        """Whether any entry is an expression in dims."""
        return self.array.dtype == object and any(isinstance(e, (DimExpr, DimFloat)) for e in self.array.flat)


class TensorValue(NamedTuple, Generic[R]):
    """A tensor of the interpreter with its element type in the file, which may differ from the dtype that holds it."""

    ref: R
    dtype: DType

    @property
    def shape(self) -> Shape:
        """The shape of the ref."""
        shape: Shape = self.ref.shape
        return shape


Value: TypeAlias = "KnownValue | TensorValue[Any] | list[Any]"
"""A list represents an ONNX sequence."""


def held(dtype: DType, ops: Ops[Any]) -> DType:
    """Return the dtype in which the interpreter holds a foreign element type: floats in the program's, short integers
    in int64."""
    if dtype.kind == "f":
        return ops.dtype
    if dtype in (BOOL, INT32, INT64):
        return dtype
    if dtype.kind in "iu" and dtype != np.uint64:
        return INT64
    raise UnsupportedError(f"elements of type {dtype} have no dtype here")


def known(value: Any, dtype: Any = INT64) -> KnownValue:
    """Return a KnownValue of numbers, dims, or nested lists of them."""
    dtype = np.dtype(dtype)
    array = np.asarray(value, dtype=object)
    if any(isinstance(entry, (DimExpr, DimFloat)) for entry in array.flat):
        return KnownValue(array, dtype)
    return KnownValue(np.asarray(array, dtype) if dtype.kind != "f" else array.astype(np.float64).astype(dtype), dtype)


def ref_of(ops: Ops[R], value: KnownValue | TensorValue[R]) -> R:
    """Return the tensor itself, or known numbers as a tensor."""
    if isinstance(value, TensorValue):
        ref: R = value.ref
        return ref
    target = held(value.dtype, ops)
    if not value.is_symbolic:
        array = value.array if target.kind == "O" else value.array.astype(target)
        return ops.const(array, dtype=target)
    if not value.array.shape:
        return ops.full(shape=(), value=value.array.item(), dtype=target)
    entries = [ops.full(shape=(1,), value=entry, dtype=target) for entry in value.array.flat]
    return ops.reshape(ops.concat(entries, axis=0), shape=value.array.shape)


def broadcast(ops: Ops[R], *refs: R) -> tuple[R, ...]:
    """Broadcast refs to one shape by NumPy's rules."""
    shape = common_shape([ref.shape for ref in refs])
    return tuple(stretched(ops, ref, shape) for ref in refs)


def common_shape(shapes: Sequence[Shape]) -> Shape:
    """Return the shape to which NumPy's rules broadcast tensors of these shapes."""
    shape: Shape = ()
    for each in shapes:
        shape = broadcast_shapes(shape, each)
    return shape


def stretched(ops: Ops[R], ref: R, shape: Shape) -> R:
    """Broadcast the ref to `shape`, or return it if it already has that shape."""
    own: Shape = ref.shape
    same = len(own) == len(shape) and all(a is b or (type(a) is type(b) is int and a == b) for a, b in zip(own, shape))
    return ref if same else ops.broadcast_to(ref, shape=shape)
