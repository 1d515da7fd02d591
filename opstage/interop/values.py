"""Values on the edges of an imported graph while it runs, and the slices, windows and integers of both libraries."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, Generic, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from ..ops.advanced_indexing import take_along_axis
from ..ops.arrangement import flip, pad
from ..ops.dims import Dim, DimExpr, DimFloat, Verdict, at_most, floor_div, maximum, minimum, prod
from ..ops.errors import UnsupportedError
from ..ops.infix import broadcast_shapes
from ..ops.protocol import Ops, R
from ..ops.types import BOOL, INT32, INT64, DType, Shape, dtype_name


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


BFLOAT16 = np.dtype(np.float32, metadata={"opstage": "bfloat16"})
"""float32 represents all values of bfloat16, so it stands for it with a mark."""


def is_bfloat16(dtype: DType) -> bool:
    """Whether the file declares this float32 as bfloat16; equality ignores the mark."""
    return dict(dtype.metadata or {}) == dict(BFLOAT16.metadata or {})


def spec_dtype(dtype: DType) -> str | None:
    """Return the dtype for the Spec of an input: floats have the program's, short integers are held in int64."""
    if dtype.kind == "f":
        return None
    return dtype_name(dtype) if dtype in (BOOL, INT32) else "int64"


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


# Short integers -------------------------------------------------------------------------------------------------------


def wrapped(ops: Ops[R], x: R, dtype: DType) -> R:
    """Return x modulo 2ⁿ, in the range of an integer type of n bits; x of any other type is unchanged."""
    if dtype.kind not in "iu" or dtype.itemsize > 4 or dtype == np.int32:
        return x
    size, low = 1 << (8 * dtype.itemsize), int(np.iinfo(dtype).min)
    shape = x.shape

    def number(value: int) -> R:
        return ops.full(shape=shape, value=value, dtype="int64")

    if not low:
        return ops.mod(x, number(size))
    return ops.add(ops.mod(ops.sub(x, number(low)), number(size)), number(low))


# Slices ---------------------------------------------------------------------------------------------------------------


def sliced(ops: Any, x: Any, axis: int, start: Dim, end: Dim, step: Dim) -> Any:
    """Return entries start, start + step, … before end, with both clamped to the axis as in NumPy."""
    size = x.shape[axis]
    if not isinstance(step, int) or step == 0:
        raise UnsupportedError(f"its step is {step}; it must be a number that is not 0")
    if step < 0:
        low, high = clamped(start, size, upper=size - 1, lower=-1), clamped(end, size, upper=size - 1, lower=-1)
        first, length = size - 1 - low, low - high
        length = maximum(length, 0)
        length = floor_div(length + (-step - 1), -step)
        return ops.slice(flip(ops, x, axis=axis), axis=axis, start=minimum(first, size), length=length, step=-step)
    low, high = clamped(start, size, upper=size, lower=0), clamped(end, size, upper=size, lower=0)
    length = maximum(high - low, 0)
    if step > 1:
        length = floor_div(length + (step - 1), step)
    return ops.slice(x, axis=axis, start=low, length=length, step=step)


def clamped(place: Dim, size: Dim, *, upper: Dim, lower: int) -> Dim:
    """Return a position on an axis as in NumPy: counted from the end if negative, and clamped."""
    if isinstance(place, int):
        if place >= 2**31 - 1:
            return upper
        if place <= -(2**31) + 1:
            return lower
        if place < 0:
            return maximum(place + size, lower) if not isinstance(size, int) else max(place + size, lower)
        return minimum(place, upper)
    if at_most(0, place) is Verdict.proved:
        return minimum(place, upper)
    if at_most(place, -1) is Verdict.proved:
        return maximum(place + size, lower)
    raise UnsupportedError(
        f"whether its bound {place} is below 0, and so counted from the end, depends on the sizes; say it with where="
    )


# Windows --------------------------------------------------------------------------------------------------------------

Windows = tuple[Sequence[int], Sequence[int], Sequence[int]]
"""The size, stride and dilation of a window along each of the last axes."""


def windows(ops: Ops[R], x: R, sizes: Windows, join: Callable[[R, R], R]) -> R:
    """Combine the cells of each window pairwise, axis by axis; windows may be dilated."""
    for axis, k, s, d in _axes(x, sizes):
        x = reduce(join, _cells(ops, x, axis, k, s, d))
    return x


def maxima(ops: Ops[R], x: R, sizes: Windows, padding: Sequence[Any]) -> tuple[R, R]:
    """Return the maximum of each window and its index in x, flattened over the pooled axes.

    Of equal elements the first, but of nans the last. Padding is never a maximum. PyTorch:
    max_pool2d(return_indices=True).
    """
    rank = len(sizes[0])
    lead, pooled = x.shape[:-rank], x.shape[-rank:]
    count = prod(pooled)
    places = ops.broadcast_to(ops.reshape(ops.iota(shape=(count,)), shape=pooled), shape=x.shape)
    around = [*[(0, 0)] * len(lead), *padding]
    best = pad(ops, ops.detach(x), padding=around, value=-math.inf)
    at = pad(ops, places, padding=around, value=-1)
    # the last axis first, so that the first of equal cells in the order of x is selected
    for axis, k, s, d in reversed(_axes(x, sizes)):
        cells, their = _cells(ops, best, axis, k, s, d), _cells(ops, at, axis, k, s, d)
        best, at = cells[0], their[0]
        for cell, place in zip(cells[1:], their[1:]):
            greater = ops.logical_or(ops.logical_or(ops.less(at, 0), ops.less(best, cell)), ops.isnan(cell))
            taken = ops.logical_and(greater, ops.less(-1, place))
            best, at = ops.select(taken, cell, best), ops.select(taken, place, at)
    flat = ops.reshape(x, shape=(*lead, count))
    values = take_along_axis(ops, flat, ops.reshape(at, shape=(*lead, -1)), axis=len(lead))
    return ops.reshape(values, shape=at.shape), at


def window_means(
    ops: Ops[R],
    x: R,
    sizes: Windows,
    padding: Sequence[Any],
    behind: Sequence[Any],
    *,
    counted: bool,
    divisor: float | None = None,
) -> R:
    """Return the mean of each window: the sum of its cells by `divisor`, or by the number of those that count.

    Cells of `padding` count if `counted`; those `behind`, which ceil_mode adds, never do.
    """
    (kernel, stride, dilation), rank = (tuple(each) for each in sizes), len(sizes[0])
    sides = even(padding, kernel)
    if sides is not None and not any(b for _, b in behind) and all(d == 1 for d in dilation):
        inside = counted or divisor is not None
        y = ops.avg_pool(x, kernel=kernel, stride=stride, padding=sides, count_include_pad=inside)
        return y if divisor is None else ops.scale(y, c=math.prod(kernel) / divisor)
    lead = [(0, 0)] * (len(x.shape) - rank)
    around, after = [*lead, *padding], [*lead, *behind]
    total = windows(ops, pad(ops, pad(ops, x, padding=around), padding=after), sizes, ops.add)
    if divisor is not None:
        return ops.scale(total, c=1 / divisor)
    ones = ops.full(shape=(*[1] * len(lead), *x.shape[-rank:]), value=1.0)
    ones = pad(ops, pad(ops, ones, padding=around, value=1.0 if counted else 0.0), padding=after)
    return ops.div(total, stretched(ops, windows(ops, ones, sizes, ops.add), total.shape))


def max_pool(ops: Ops[R], x: R, sizes: Windows, padding: Sequence[Any]) -> R:
    """Return the maximum of each window; padding is never a maximum."""
    kernel, stride, dilation = (tuple(each) for each in sizes)
    sides, lead = even(padding, kernel), [(0, 0)] * (len(x.shape) - len(kernel))
    sparse = any(d > 1 for d in dilation)
    if sparse or sides is None:
        x, sides = pad(ops, x, padding=[*lead, *padding], value=-math.inf), (0,) * len(kernel)
    return (
        windows(ops, x, sizes, ops.maximum) if sparse else ops.max_pool(x, kernel=kernel, stride=stride, padding=sides)
    )


def even(padding: Sequence[Any], kernel: Sequence[int] | None = None) -> tuple[int, ...] | None:
    """Return the padding of each axis if it is known and the same on both sides, at most half of `kernel`; else
    None."""
    sides = [a if isinstance(a, int) and isinstance(b, int) and a == b and a >= 0 else None for a, b in padding]
    fits = kernel is None or all(a is not None and 2 * a <= k for a, k in zip(sides, kernel))
    return tuple(a for a in sides if a is not None) if None not in sides and fits else None


def overhang(spatial: Shape, sizes: Windows, padding: Sequence[tuple[Dim, Dim]]) -> list[tuple[int, int]]:
    """Return the cells after each axis that the last window of ceil_mode covers. Raises UnsupportedError for an open
    size, if a stride is above 1."""
    pairs = []
    for size, k, s, d, (a, b) in zip(spatial, *sizes, padding):
        room = size + a + b - d * (k - 1) - 1
        if isinstance(room, int) and isinstance(size, int) and isinstance(a, int):
            count = -(-room // s) + 1
            if (count - 1) * s >= size + a:
                count -= 1  # a window that would start in the padding at the end
            pairs.append((0, (count - 1) * s - room))
        elif s > 1:
            raise UnsupportedError("with ceil_mode and a stride above 1 every size must be known")
        else:
            pairs.append((0, 0))
    return pairs


def padded(ops: Ops[R], x: R, *, padding: Sequence[Any], mode: str = "constant", value: Any = 0) -> R:
    """Pad a tensor of any dtype."""
    if x.dtype.kind == "b":
        return ops.cast(padded(ops, ops.cast(x, dtype="int64"), padding=padding, mode=mode, value=value), dtype="bool")
    return pad(ops, x, padding=padding, mode=mode, value=value if x.dtype.kind == "f" else int(value))


def _axes(x: R, sizes: Windows) -> list[tuple[int, int, int, int]]:
    first = len(x.shape) - len(sizes[0])
    return [(axis, k, s, d) for axis, (k, s, d) in enumerate(zip(*sizes), start=first)]


def _cells(ops: Ops[R], x: R, axis: int, k: int, s: int, d: int) -> list[R]:
    """Return cell j of all windows along an axis, for each j."""
    count = floor_div(x.shape[axis] - d * (k - 1) - 1, s) + 1
    return [ops.slice(x, axis=axis, start=j * d, length=count, step=s) for j in range(k)]
