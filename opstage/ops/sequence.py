# mypy: disable-error-code=empty-body
"""Ops along an ordered axis: cumulative sums and products, linear recurrences, sorting, binning."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .dims import Dim, is_zero, prod, ratio
from .method import Calls
from .primitive import Context, Ints, Linearity, Primitive, R, Row, Some, Types
from .reduction import flops_per_element, reduced_shape
from .rule_helpers import (
    add_all,
    at_most,
    dtype_error,
    equal_sizes,
    error,
    full_like,
    placed,
    read_axis,
    read_dim,
    require_rank,
    same_shape,
    same_type,
    type_of,
    whole,
    zeros,
)
from .static_arguments import Axes, Axis
from .types import BOOL, INT64, TensorType, is_float, require_integer, require_number, require_same_dtype, show_shape

if TYPE_CHECKING:
    from .protocol import Ops


def _cumsum_shape(x: TensorType, *, axis: int, exclusive: bool, reverse: bool) -> Types:
    require_number(x, "x")
    return (TensorType(x.shape, INT64 if x.dtype.kind == "i" else x.dtype),)


def _cumsum_vjp(
    ops: Ops[R], ctx: Context[R], cotangents: Row[R], /, *, axis: int, exclusive: bool, reverse: bool
) -> Some[R]:
    """Sum from the other end, since an element is in the sums of all later ones."""
    return (ops.cumsum(cotangents[0], axis=axis, exclusive=exclusive, reverse=not reverse),)


CUMSUM = Primitive(shape=_cumsum_shape, vjp=_cumsum_vjp, jvp=Linearity.JOINT, flops=flops_per_element(1))


def _argsort_shape(x: TensorType, *, axis: int, descending: bool) -> Types:
    return (TensorType(x.shape, INT64),)


def _argsort_flops(inputs: Types, outputs: Types, /, *, axis: int, **_: bool) -> Dim:
    """Count a comparison per element and merge pass; one pass for symbolic sizes, which have no closed formula."""
    length = inputs[0].shape[axis]
    return outputs[0].size * (max(1, length.bit_length()) if isinstance(length, int) else 1)


ARGSORT = Primitive(shape=_argsort_shape, differentiable=False, flops=_argsort_flops)

# Recurrences --------------------------------------------------------------------------------------------------------


def _linear_recurrence_shape(a: TensorType, b: TensorType, *, axis: int, reverse: bool) -> Types:
    require_number(a, "a")
    return (same_type(a, b, "a", "b"),)


def _shifted(ops: Ops[R], x: R, axis: int, *, onward: bool, first: int = 0) -> R:
    """Replace each element by the previous one, or with onward=False by the next one, and by `first` at the end."""
    sides = [(0, 0)] * len(x.shape)
    sides[axis] = (1, 0) if onward else (0, 1)
    return ops.slice(ops.pad(x, padding=sides, value=first), axis=axis, start=0 if onward else 1, length=x.shape[axis])


def _linear_recurrence_vjp(ops: Ops[R], ctx: Context[R], cotangents: Row[R], /, *, axis: int, reverse: bool) -> Some[R]:
    """Return the cotangents. That of b is s[k] = g[k] + a[k + 1]·s[k + 1], a recurrence from the other end; that of a
    is s[k]·out[k - 1]."""
    (g,), (a, out) = cotangents, ctx.saved
    s = ops.linear_recurrence(_shifted(ops, a, axis, onward=reverse), g, axis=axis, reverse=not reverse)
    return ops.mul(s, _shifted(ops, out, axis, onward=not reverse)) if ctx.needs[0] else None, s


def _linear_recurrence_jvp(
    ops: Ops[R], primals: Row[R], outputs: Row[R], tangents: Some[R], /, *, axis: int, reverse: bool
) -> tuple[R | None]:
    (a, _), (out,), (t_a, t_b) = primals, outputs, tangents
    moved = ops.mul(t_a, _shifted(ops, out, axis, onward=not reverse)) if t_a is not None else None
    total = add_all(ops, moved, t_b)
    return (None if total is None else ops.linear_recurrence(a, total, axis=axis, reverse=reverse),)


LINEAR_RECURRENCE = Primitive(
    shape=_linear_recurrence_shape,
    vjp=_linear_recurrence_vjp,
    jvp=_linear_recurrence_jvp,
    saves={"a": ("a", "b"), "out": ("a",)},
    flops=flops_per_element(2),
)


def _cumprod_decomposition(ops: Ops[R], x: R, /, *, axis: int, exclusive: bool, reverse: bool) -> Row[R]:
    """Run a recurrence with a given first element, so that its derivative does not divide and is correct at zeros."""
    if not is_float(x.dtype):
        x = ops.cast(x, dtype=INT64)
    if exclusive:
        x = _shifted(ops, x, axis, onward=not reverse, first=1)
    places = ops.iota(shape=x.shape, axis=axis)
    start = x.shape[axis] - 1 if reverse else 0
    first = ops.equal(
        places, ops.full(shape=x.shape, value=start if isinstance(start, int) else ratio(start, 1), dtype=INT64)
    )
    # -0.0 + y is y, also for y = -0.0
    zero = full_like(ops, x, -0.0 if is_float(x.dtype) else 0)
    a, b = ops.select(first, zero, x), ops.select(first, x, zero)
    return (ops.linear_recurrence(a, b, axis=axis, reverse=reverse),)


CUMPROD = Primitive(shape=_cumsum_shape, decomposition=_cumprod_decomposition, flops=flops_per_element(1))


def _reduce_prod_shape(x: TensorType, *, axes: Ints, keepdims: bool) -> Types:
    require_number(x, "x")
    shape = reduced_shape(x.shape, axes, keepdims)
    return (TensorType(shape, INT64 if x.dtype.kind == "i" else x.dtype),)


def _reduce_prod_decomposition(ops: Ops[R], x: R, /, *, axes: Ints, keepdims: bool) -> Row[R]:
    """Return the last cumulative product of all elements after a 1."""
    kept = [axis for axis in range(len(x.shape)) if axis not in axes]
    leading, length = [x.shape[axis] for axis in kept], prod(x.shape[axis] for axis in axes)
    rows = ops.reshape(ops.permute(x, axes=(*kept, *axes)), shape=(*leading, length))
    last = len(leading)
    products = ops.cumprod(ops.pad(rows, padding=[*[(0, 0)] * last, (1, 0)], value=1), axis=last)
    out = ops.slice(products, axis=last, start=length, length=1)
    return (ops.reshape(out, shape=reduced_shape(x.shape, axes, keepdims)),)


REDUCE_PROD = Primitive(shape=_reduce_prod_shape, decomposition=_reduce_prod_decomposition, flops=flops_per_element(1))


# The methods of Ops ------------------------------------------------------------------------------------------


class SequenceOps(Calls[R]):
    __slots__ = ()

    @CUMSUM.method
    def cumsum(self, x: R, /, *, axis: Axis = -1, exclusive: bool = False, reverse: bool = False) -> R:
        """Return the cumulative sums along an axis; integers are summed in int64. PyTorch: torch.cumsum.

        out[k] = Σ x[i] over i <= k; with exclusive=True over i < k, so that the first is 0; with reverse=True over
        i >= k. ONNX: CumSum.

        Raises:
            DtypeError: x a mask.
            ShapeError: no such axis; an invalid argument.
        """

    @ARGSORT.method
    def argsort(self, x: R, /, *, axis: Axis = -1, descending: bool = False) -> R:
        """Return the indices that sort x along an axis, int64; equal elements keep their order. PyTorch: torch.argsort.

        No gradient. nan counts as larger than any number: last, or first with descending=True.

        Raises:
            ShapeError: no such axis; an invalid argument.
        """

    @LINEAR_RECURRENCE.method
    def linear_recurrence(self, a: R, b: R, /, *, axis: Axis = -1, reverse: bool = False) -> R:
        """Return out[k] = a[k]·out[k - 1] + b[k] along an axis, starting from 0; with reverse=True from the end.

        a and b have one shape. With a = 1 it is a cumulative sum, with b = 0 after the first a cumulative product.
        Elements are computed in sequence, so rounding does not depend on later elements.

        Raises:
            DtypeError: a a mask; dtypes differ.
            ShapeError: shapes differ; no such axis; an invalid argument.
        """

    @CUMPROD.method
    def cumprod(self, x: R, /, *, axis: Axis = -1, exclusive: bool = False, reverse: bool = False) -> R:
        """Return the cumulative products along an axis; integers are multiplied in int64. PyTorch: torch.cumprod.

        With exclusive=True of the elements before each one, so that the first is 1; with reverse=True from each one
        on. Its derivative does not divide, so it is correct where elements are 0.

        Raises:
            DtypeError: x a mask.
            ShapeError: no such axis; an invalid argument.
        """

    @REDUCE_PROD.method
    def reduce_prod(self, x: R, /, *, axis: Axes = None, keepdims: bool = False) -> R:
        """Return the product over axes, or all for None; 1 over an empty axis. PyTorch: torch.prod.

        Integers are multiplied in int64. Its derivative does not divide, so it is correct where elements are 0.

        Raises:
            DtypeError: x a mask.
            ShapeError: no such axis; an invalid argument.
        """


# Functions: sorting, top-k, binning, and sums by index ----------------------------------------------------------------


def sort(ops: Ops[R], x: R, /, *, axis: int = -1, descending: bool = False) -> tuple[R, R]:
    """Return the elements of an axis in sorted order, and their original indices; equal elements keep their order.

    nan counts as larger than any number. Gradients go to the original elements. PyTorch: torch.sort(stable=True).
    NumPy: np.sort, np.argsort.

    Raises:
        ShapeError: no such axis; an invalid argument.
    """
    axis = read_axis(ops, "sort", axis, len(x.shape))
    places = ops.argsort(x, axis=axis, descending=descending)
    return _picked(ops, x, places, axis), places


def top_k(ops: Ops[R], x: R, /, *, k: Dim, axis: int = -1, largest: bool = True) -> tuple[R, R]:
    """Return the k largest elements of an axis in descending order, and their indices; the smallest with largest=False.

    Equal elements keep their order; nan counts as larger than any number. k is at most the size of the axis.
    PyTorch: torch.topk, which does not specify the choice among equal elements. ONNX: TopK.

    Raises:
        ShapeError: no such axis; an invalid argument; operands that do not fit each other.
    """
    axis = read_axis(ops, "top_k", axis, len(x.shape))
    k, length = read_dim(ops, "top_k", "k", k), x.shape[axis]
    if isinstance(k, int) and k < 0:
        raise error(ops, "top_k", f"k must be at least 0 but is {k}")
    at_most(
        ops,
        "top_k",
        k,
        length,
        lambda: f"x is {show_shape(x.shape)}: axis {axis} has {length} elements, fewer than k={k}",
    )
    places = ops.argsort(x, axis=axis, descending=largest)
    places = ops.slice(places, axis=axis, start=0, length=k)
    return _picked(ops, x, places, axis), places


def searchsorted(ops: Ops[R], ordered: R, values: R, /, *, right: bool = False) -> R:
    """Return, for each value, the number of elements of the sorted `ordered` (n) that are less, or <= with right=True;
    int64.

    This is the insertion point before or after equal elements; the result has values' shape. Sorted rows
    (*B, n) are searched for the values (*B, m) of the same row. nan counts as larger than any number. Every value is
    compared with every element. NumPy: np.searchsorted. PyTorch: torch.searchsorted.

    Raises:
        DtypeError: x a mask; dtypes differ.
        ShapeError: ordered of another shape.
    """
    op = "searchsorted"
    batch = ordered.shape[:-1]
    placed(ops, op, lambda: require_rank(type_of(ordered), len(values.shape) if batch else 1, "ordered"))
    placed(ops, op, lambda: require_same_dtype(type_of(ordered), type_of(values), "ordered", "values"))
    if batch:
        placed(ops, op, lambda: same_shape(batch, values.shape[:-1], "ordered", "values"))
    shape = (*values.shape, ordered.shape[-1])
    x = ops.broadcast_to(ops.unsqueeze(ordered, axis=len(batch)) if batch else ordered, shape=shape)
    v = ops.broadcast_to(ops.unsqueeze(values, axis=len(values.shape)), shape=shape)
    if right:  # all except those that are greater
        before = ops.logical_not(_less(ops, v, x))
    else:
        before = _less(ops, x, v)
    return ops.reduce_sum(ops.cast(before, dtype=INT64), axis=-1)


def bincount(ops: Ops[R], x: R, /, *, size: Dim, weights: R | None = None) -> R:
    """Return the count of each of 0 … size - 1 in x, integers of any shape; or the sum of weights, of x's shape.

    (size), int64 or of the weights' dtype. A number outside of [0, size) is a RangeError. NumPy: np.bincount. PyTorch:
    torch.bincount, where the size is a minimum.

    Raises:
        DtypeError: x not an integer tensor.
        RangeError: an index out of range, when it runs.
        ShapeError: an invalid argument; no such shape.
    """
    op = "bincount"
    placed(ops, op, lambda: require_integer(type_of(x), "x"))
    size, count = read_dim(ops, op, "size", size), prod(x.shape)
    if weights is None:
        added = whole(ops, (count,), 1)
    else:
        given = weights
        placed(ops, op, lambda: same_shape(x.shape, given.shape, "x", "weights"))
        added = ops.reshape(given, shape=(count,))
    start = ops.full(shape=(size,), value=0, dtype=added.dtype)
    return ops.scatter_add_vec(start, added, ops.reshape(x, shape=(count,)))


def segment_sum(ops: Ops[R], x: R, segments: R, /, *, count: Dim) -> R:
    """Return Σ x[i] over the rows i with segments[i] = s, for s in 0 … count - 1: x (n, *d), segments (n) in any order.

    (count, *d), with zeros for empty segments; a segment outside of [0, count) is a RangeError. PyTorch:
    torch.zeros(count, *d).index_add(0, segments, x). JAX: jax.ops.segment_sum.

    Raises:
        DtypeError: x a mask; index not an integer tensor.
        RangeError: an index out of range, when it runs.
        ShapeError: an invalid argument; no such shape; segments of another shape; operands that do not fit each
            other.
    """
    shape = (segment_count(ops, "segment_sum", x, segments, count), *x.shape[1:])
    add = ops.scatter_add_vec if len(shape) == 1 else ops.scatter_add_row
    return add(zeros(ops, x, shape), x, segments)


def segment_count(ops: Ops[R], op: str, x: R, segments: R, count: Dim) -> Dim:
    """Return the number of segments, after checking that each row of x has one."""
    placed(ops, op, lambda: require_rank(type_of(segments), 1, "segments"))
    if not x.shape:
        raise error(ops, op, "x must have rows but is a scalar")
    equal_sizes(
        ops,
        op,
        x.shape[0],
        segments.shape[0],
        lambda: f"x is {show_shape(x.shape)} but segments are {show_shape(segments.shape)}: one of each row is needed",
    )
    return read_dim(ops, op, "count", count)


def unique(ops: Ops[R], x: R, /, *, size: Dim, fill: float = 0) -> tuple[R, R, R]:
    """Return the distinct elements of x in order, at most `size`; their counts; and their number.

    Values (size), filled up with `fill`; counts (size) int64, filled up with 0; and an int64 scalar. More than
    `size` distinct elements are a RangeError at run time. All nan are equal. x has numbers, in any shape. PyTorch:
    torch.unique. NumPy: np.unique.

    Raises:
        DtypeError: x a mask.
        RangeError: an index out of range, when it runs.
        ShapeError: an invalid argument; no such shape.
    """
    op = "unique"
    size, count = read_dim(ops, op, "size", size), prod(x.shape)
    if x.dtype == BOOL:
        raise dtype_error(ops, op, "x must be a tensor of numbers but is bool; cast it with ops.cast(…, dtype=…)")
    ordered = sort(ops, ops.reshape(x, shape=(count,)))[0]
    if is_zero(count):
        first = ops.full(shape=(count,), value=False, dtype=BOOL)
    else:
        before = ops.slice(ordered, axis=0, start=0, length=count - 1)
        behind = ops.slice(ordered, axis=0, start=1, length=count - 1)
        changes = ops.logical_not(_alike(ops, before, behind))
        first = ops.concat([ops.full(shape=(1,), value=True, dtype=BOOL), changes], axis=0)
    counted = ops.cast(first, dtype=INT64)
    places = ops.sub(ops.cumsum(counted), whole(ops, (count,), 1))
    found = ops.reduce_sum(counted)
    none = whole(ops, (size,), 0)
    counts = ops.scatter_add_vec(none, whole(ops, (count,), 1), places)
    values = ops.scatter_add_vec(zeros(ops, x, (size,)), ops.select(first, ordered, zeros(ops, ordered)), places)
    rest = ops.equal(counts, none)
    return ops.select(rest, ops.full(shape=(size,), value=fill, dtype=x.dtype), values), counts, found


def _picked(ops: Ops[R], x: R, places: R, axis: int) -> R:
    """Gather x along an axis: out[…, i, …] = x[…, places[…, i, …], …]. All places are in range."""
    rank = len(x.shape)
    last = [*range(axis), *range(axis + 1, rank), axis]
    rows, places = ops.permute(x, axes=last), ops.permute(places, axes=last)
    shape, length = places.shape, x.shape[axis]
    count, size = prod(x.shape), prod(shape[:-1])
    starts = ops.reshape(ops.mul(ops.iota(shape=(size,)), whole(ops, (size,), length)), shape=(*shape[:-1], 1))
    cells = ops.add(places, ops.broadcast_to(starts, shape=shape))
    found = ops.gather_vec(ops.reshape(rows, shape=(count,)), cells)
    return ops.permute(found, axes=[*range(axis), rank - 1, *range(axis, rank - 1)])


def _alike(ops: Ops[R], x: R, y: R) -> R:
    """Return where x and y are equal, or both nan."""
    both = ops.logical_and(ops.logical_not(ops.equal(x, x)), ops.logical_not(ops.equal(y, y)))
    return ops.logical_not(ops.logical_and(ops.logical_not(ops.equal(x, y)), ops.logical_not(both)))


def _less(ops: Ops[R], x: R, y: R) -> R:
    """Return x < y, where nan counts as larger than any number: not x >= y, and x not nan."""
    number, beyond = ops.equal(x, x), ops.logical_not(ops.equal(y, y))
    either = ops.logical_and(ops.logical_not(ops.less(x, y)), ops.logical_not(beyond))
    return ops.logical_and(number, ops.logical_not(either))
