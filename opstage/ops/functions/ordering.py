"""Sorting, top-k, binning, and sums by index: programs over other ops."""

from __future__ import annotations

from ..dims import Dim, is_zero, prod
from ..protocol import Ops, R
from ..rules import require_rank, same_shape
from ..types import BOOL, INT64, require_integer, require_same_dtype, show_shape
from .tools import at_most, axis_of, dim_of, dtype_error, equal_sizes, error, placed, type_of, whole, zeros


def sort(ops: Ops[R], x: R, /, *, axis: int = -1, descending: bool = False) -> tuple[R, R]:
    """The elements of an axis in sorted order, and their original indices; equal elements keep their order.

    nan counts as larger than any number. Gradients go to the original elements. PyTorch: torch.sort(stable=True).
    NumPy: np.sort, np.argsort.

    Raises:
        ShapeError: no such axis; an invalid argument.
    """
    axis = axis_of(ops, "sort", axis, len(x.shape))
    places = ops.argsort(x, axis=axis, descending=descending)
    return _picked(ops, x, places, axis), places


def top_k(ops: Ops[R], x: R, /, *, k: Dim, axis: int = -1, largest: bool = True) -> tuple[R, R]:
    """The k largest elements of an axis in descending order, and their indices; the smallest with largest=False.

    Equal elements keep their order; nan counts as larger than any number. k is at most the size of the axis.
    PyTorch: torch.topk, which does not specify the choice among equal elements. ONNX: TopK.

    Raises:
        ShapeError: no such axis; an invalid argument; operands that do not fit each other.
    """
    axis = axis_of(ops, "top_k", axis, len(x.shape))
    k, length = dim_of(ops, "top_k", "k", k), x.shape[axis]
    if isinstance(k, int) and k < 0:
        raise error(ops, "top_k", f"k must be at least 0 but is {k}")
    at_most(
        ops, "top_k", k, length, lambda: f"x is {show_shape(x.shape)}: axis {axis} has no {k} elements but {length}"
    )
    places = ops.argsort(x, axis=axis, descending=largest)
    places = ops.slice(places, axis=axis, start=0, length=k)
    return _picked(ops, x, places, axis), places


def searchsorted(ops: Ops[R], ordered: R, values: R, /, *, right: bool = False) -> R:
    """For each value, the number of elements of the sorted `ordered` (n) that are less, or <= with right=True; int64.

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
    """The count of each of 0 … size - 1 in x, integers of any shape; or the sum of weights, of x's shape.

    (size), int64 or of the weights' dtype. A number outside of [0, size) is a RangeError. NumPy: np.bincount. PyTorch:
    torch.bincount, where the size is a minimum.

    Raises:
        DtypeError: x not an integer tensor.
        RangeError: an index out of range, when it runs.
        ShapeError: an invalid argument; no such shape.
    """
    op = "bincount"
    placed(ops, op, lambda: require_integer(type_of(x), "x"))
    size, count = dim_of(ops, op, "size", size), prod(x.shape)
    if weights is None:
        added = whole(ops, (count,), 1)
    else:
        given = weights
        placed(ops, op, lambda: same_shape(x.shape, given.shape, "x", "weights"))
        added = ops.reshape(given, shape=(count,))
    start = ops.full(shape=(size,), value=0, dtype=added.dtype)
    return ops.scatter_add_vec(start, added, ops.reshape(x, shape=(count,)))


def segment_sum(ops: Ops[R], x: R, segments: R, /, *, count: Dim) -> R:
    """Σ x[i] over the rows i with segments[i] = s, for s in 0 … count - 1: x (n, *d), segments (n) in any order.

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
    return dim_of(ops, op, "count", count)


def unique(ops: Ops[R], x: R, /, *, size: Dim, fill: float = 0) -> tuple[R, R, R]:
    """The distinct elements of x in order, at most `size`; their counts; and their number.

    Values (size), filled up with `fill`; counts (size) int64, filled up with 0; and an int64 scalar. More than
    `size` distinct elements are a RangeError at run time. All nan are equal. x has numbers, in any shape. PyTorch:
    torch.unique. NumPy: np.unique.

    Raises:
        DtypeError: x a mask.
        RangeError: an index out of range, when it runs.
        ShapeError: an invalid argument; no such shape.
    """
    op = "unique"
    size, count = dim_of(ops, op, "size", size), prod(x.shape)
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
