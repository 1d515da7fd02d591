"""Gather and scatter at positions given as data, along an axis or by multi-axis indices, and the positions of a mask.

As in the ops that these consist of, a negative index is out of range; an index out of range is a RangeError, or with
mode="zero" reads zeros and writes nothing. Updates of one position are combined in a fixed order, so results are
reproducible bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from .arrangement import moveaxis
from .dims import Dim, prod
from .errors import nearest
from .primitive import R
from .rule_helpers import dtype_error, equal_sizes, error, known, read_axis, read_dim, read_int, whole, zeros
from .types import INT64, show_shape

if TYPE_CHECKING:
    from .protocol import Ops


REDUCTIONS = ("set", "add", "mul", "max", "min")
MODES = ("raise", "zero")


def take_along_axis(ops: Ops[R], x: R, idx: R, /, *, axis: int, mode: str = "raise") -> R:
    """Return out[…, i, …] = x[…, idx[…, i, …], …] along an axis; idx and the result have x's shape except on that axis.

    PyTorch: torch.gather, where idx may be smaller on other axes; slice x instead. NumPy:
    np.take_along_axis. ONNX: GatherElements. TensorFlow: tf.gather with batch_dims.

    Raises:
        DtypeError: an operand of another dtype.
        RangeError: an index out of range, when it runs.
        ShapeError: no such axis; an invalid argument; operands that do not fit each other.
    """
    op = "take_along_axis"
    axis = read_axis(ops, op, axis, len(x.shape))
    _same_but(ops, op, x, idx, axis)
    cells = _cell_numbers(ops, op, x.shape, idx, axis, mode)
    return ops.gather_vec(ops.reshape(x, shape=(prod(x.shape),)), cells, mode=mode)


def put_along_axis(ops: Ops[R], x: R, idx: R, v: R, /, *, axis: int, reduce: str = "set", mode: str = "raise") -> R:
    """Return x with v at […, idx[…, i, …], …] along an axis; idx and v have x's shape except on that axis.

    With `reduce` "set" the last update of a position in row-major order wins; "add", "mul", "max" and "min" combine all
    updates with x. For the last three the number of updates must be a number. Gradients go to the elements of x and
    v that the result depends on; equal maxima share them. PyTorch: torch.scatter, torch.scatter_reduce. NumPy:
    np.put_along_axis. ONNX: ScatterElements.

    Raises:
        DtypeError: an operand of another dtype.
        RangeError: an index out of range, when it runs.
        ShapeError: no such axis; an invalid argument; operands that do not fit each other.
    """
    op = "put_along_axis"
    axis = read_axis(ops, op, axis, len(x.shape))
    _same_but(ops, op, x, idx, axis)
    _require_shape(ops, op, v, idx.shape)
    cells = _cell_numbers(ops, op, x.shape, idx, axis, mode)
    flat = [ops.reshape(a, shape=(prod(a.shape),)) for a in (x, cells, v)]
    return ops.reshape(_written(ops, op, flat[0], flat[1], flat[2], reduce, mode), shape=x.shape)


def gather_nd(ops: Ops[R], x: R, idx: R, /, *, batch: int = 0, mode: str = "raise") -> R:
    """Return x[idx[…, 0], …, idx[…, k - 1]], where the last axis of idx indexes k axes: (*B, *I, k) gives (*B, *I,
    *rest).

    x is (*B, n1, …, nk, *rest), with `batch` common axes B. ONNX: GatherND. TensorFlow: tf.gather_nd.

    Raises:
        DtypeError: an operand of another dtype.
        RangeError: an index out of range, when it runs.
        ShapeError: an invalid argument; operands that do not fit each other.
    """
    op = "gather_nd"
    batch = read_int(ops, op, "batch", batch, 0)
    k = _depth(ops, op, x, idx, batch)
    for axis in range(batch):
        a, b = x.shape[axis], idx.shape[axis]
        equal_sizes(ops, op, a, b, lambda: f"{_both(x, idx)}: axis {axis}, of the batch, differs")
    cells = _cells(ops, op, x.shape, idx, k, batch, mode)
    rest = x.shape[batch + k :]
    return ops.gather_rows(ops.reshape(x, shape=(prod(x.shape[: batch + k]), *rest)), cells, mode=mode)


def scatter_nd(ops: Ops[R], x: R, idx: R, v: R, /, *, reduce: str = "set", mode: str = "raise") -> R:
    """Return x (n1, …, nk, *rest) with v (*I, *rest) at the indices idx (*I, k), combined as in put_along_axis.

    ONNX: ScatterND. TensorFlow: tf.tensor_scatter_nd_update. PyTorch: x[idx[:, 0], …] = v, index_put.

    Raises:
        DtypeError: an operand of another dtype.
        RangeError: an index out of range, when it runs.
        ShapeError: an invalid argument; operands that do not fit each other.
    """
    op = "scatter_nd"
    k = _depth(ops, op, x, idx, 0)
    rest, places = x.shape[k:], idx.shape[:-1]
    _require_shape(ops, op, v, (*places, *rest))
    cells = ops.reshape(_cells(ops, op, x.shape, idx, k, 0, mode), shape=(prod(places),))
    rows = ops.reshape(x, shape=(prod(x.shape[:k]), *rest))
    updates = ops.reshape(v, shape=(prod(places), *rest))
    return ops.reshape(_written(ops, op, rows, cells, updates, reduce, mode), shape=x.shape)


def index_add(ops: Ops[R], x: R, idx: R, v: R, /, *, axis: int, mode: str = "raise") -> R:
    """Return x with v added at the entries idx (m) of an axis; v has x's shape with m there. PyTorch: torch.index_add.

    Raises:
        DtypeError: x a mask; index not an integer tensor; dtypes differ.
        RangeError: an index out of range, when it runs.
        ShapeError: no such axis; an invalid argument; operands that do not fit each other.
    """
    op = "index_add"
    axis = read_axis(ops, op, axis, len(x.shape))
    if len(idx.shape) != 1:
        raise error(ops, op, f"idx must be a vector but is {show_shape(idx.shape)}")
    _require_shape(ops, op, v, (*x.shape[:axis], idx.shape[0], *x.shape[axis + 1 :]))
    rows, added = moveaxis(ops, x, source=axis, target=0), moveaxis(ops, v, source=axis, target=0)
    return moveaxis(ops, ops.scatter_add_row(rows, added, idx, mode=mode), source=0, target=axis)


def nonzero(ops: Ops[R], mask: R, /, *, size: Dim, fill: int = -1) -> tuple[R, R]:
    """Return the indices of True elements of a mask, in row-major order, at most `size`; and their number.

    (size, rank) int64, filled up with rows of `fill` (-1 is out of range everywhere); and an int64 scalar.
    More than `size` are a RangeError at run time. PyTorch: torch.nonzero. NumPy: np.argwhere. JAX:
    jnp.nonzero(size=).

    Raises:
        DtypeError: a number that the dtype does not hold; an operand of another dtype.
        RangeError: an index out of range, when it runs.
        ShapeError: an invalid argument; no such shape.
    """
    places, found, size = _true(ops, "nonzero", mask, size)
    count = prod(mask.shape)
    along = [ops.reshape(ops.iota(shape=mask.shape, axis=a), shape=(count,)) for a in range(len(mask.shape))]
    if not along:
        return ops.full(shape=(size, 0), value=fill, dtype=INT64), found
    columns = [_compact(ops, index, places, size, found, fill) for index in along]
    return ops.stack(columns, axis=1), found


def masked_select(ops: Ops[R], x: R, mask: R, /, *, size: Dim, fill: float = 0) -> tuple[R, R]:
    """Return the elements of x where a mask of its shape is True, in row-major order, and their number.

    (size), filled up with `fill`, and an int64 scalar; more than `size` are a RangeError at run time. Gradients go to
    the selected elements. PyTorch: torch.masked_select. NumPy: x[mask]. ONNX: Compress.

    Raises:
        DtypeError: an operand of another dtype.
        RangeError: an index out of range, when it runs.
        ShapeError: an invalid argument; no such shape; operands that do not fit each other.
    """
    op = "masked_select"
    _require_shape(ops, op, mask, x.shape)
    places, found, size = _true(ops, op, mask, size)
    count = prod(x.shape)
    at = _compact(ops, ops.iota(shape=(count,)), places, size, found, -1)
    values = ops.gather_vec(ops.reshape(x, shape=(count,)), at, mode="zero")
    behind = ops.less(at, whole(ops, (size,), 0))
    return ops.select(behind, ops.full(shape=(size,), value=fill, dtype=x.dtype), values), found


# Positions ------------------------------------------------------------------------------------------------------------


def _both(x: R, idx: R) -> str:
    return f"x is {show_shape(x.shape)} and idx {show_shape(idx.shape)}"


def _same_but(ops: Ops[R], op: str, x: R, idx: R, axis: int) -> None:
    """Raise ShapeError unless idx has the shape of x except on one axis."""
    if len(idx.shape) != len(x.shape):
        raise error(ops, op, f"{_both(x, idx)}: they must have one rank")
    for other, (a, b) in enumerate(zip(x.shape, idx.shape)):
        if other != axis:
            equal_sizes(ops, op, a, b, lambda: f"{_both(x, idx)}: axis {other} differs, and only axis {axis} may")


def _require_shape(ops: Ops[R], op: str, v: R, expected: Sequence[Dim]) -> None:
    def message() -> str:
        return f"a tensor of shape {show_shape(tuple(expected))} is needed but it is {show_shape(v.shape)}"

    if len(v.shape) != len(expected):
        raise error(ops, op, message())
    for a, b in zip(v.shape, expected):
        equal_sizes(ops, op, a, b, message)


def _depth(ops: Ops[R], op: str, x: R, idx: R, batch: int) -> int:
    """Return the number of axes of x that an index of idx selects."""
    if len(idx.shape) <= batch:
        raise error(ops, op, f"{_both(x, idx)}: idx must end in an axis of indices, behind {batch} of the batch")
    k = known(ops, op, idx.shape[-1], lambda: f"{_both(x, idx)}: the last axis of idx says how many axes it names")
    if batch + k > len(x.shape):
        raise error(ops, op, f"{_both(x, idx)}: {k} indices behind {batch} axes of the batch are too many for x")
    return k


def _in_range(ops: Ops[R], op: str, idx: R, n: Dim, mode: str) -> tuple[R, R | None]:
    """Return indices as int64, checked in mode "raise"; otherwise also a mask of those in range."""
    if mode not in MODES:
        raise error(ops, op, f"mode must be one of {MODES} but is {mode!r}{nearest(mode, MODES)}")
    if idx.dtype.kind != "i":
        raise dtype_error(ops, op, f"idx must be a tensor of integers but its dtype is {idx.dtype}")
    if mode == "raise":
        # the gather checks the indices and returns them unchanged
        return ops.gather_vec(ops.iota(shape=(n,)), idx), None
    index = ops.cast(idx, dtype=INT64)
    inside = ops.logical_and(ops.less_equal(whole(ops, idx.shape, 0), index), ops.less(index, whole(ops, idx.shape, n)))
    return index, inside


def _cell_numbers(ops: Ops[R], op: str, shape: Sequence[Dim], idx: R, axis: int, mode: str) -> R:
    """Return row-major element numbers, with idx on one axis; -1 for those out of range, if allowed."""
    cells, inside = whole(ops, idx.shape, 0), None
    for other, n in enumerate(shape):
        if other == axis:
            index, inside = _in_range(ops, op, idx, n, mode)
        else:
            index = ops.iota(shape=idx.shape, axis=other)
        cells = ops.add(ops.mul(cells, whole(ops, idx.shape, n)), index)
    return cells if inside is None else ops.select(inside, cells, whole(ops, idx.shape, -1))


def _cells(ops: Ops[R], op: str, shape: Sequence[Dim], idx: R, k: int, batch: int, mode: str) -> R:
    """Return row-major numbers of the indexed entries, over batch + k axes."""
    places = idx.shape[:-1]
    cells, inside = whole(ops, places, 0), None
    for axis in range(batch + k):
        if axis < batch:
            index, here = ops.iota(shape=places, axis=axis), None
        else:
            part = ops.slice(idx, axis=len(places), start=axis - batch, length=1)
            index, here = _in_range(ops, op, ops.squeeze(part, axis=-1), shape[axis], mode)
        if here is not None:
            inside = here if inside is None else ops.logical_and(inside, here)
        cells = ops.add(ops.mul(cells, whole(ops, places, shape[axis])), index)
    return cells if inside is None else ops.select(inside, cells, whole(ops, places, -1))


# Writing --------------------------------------------------------------------------------------------------------------


def _written(ops: Ops[R], op: str, x: R, cells: R, v: R, reduce: str, mode: str) -> R:
    """Write v (m, *rest) to rows `cells` (m) of x (p, *rest)."""
    if reduce not in REDUCTIONS:
        raise error(ops, op, f"reduce must be one of {REDUCTIONS} but is {reduce!r}{nearest(reduce, REDUCTIONS)}")
    if x.dtype != v.dtype:
        raise dtype_error(ops, op, f"x and v must have one dtype but have {x.dtype} and {v.dtype}")
    if reduce == "add":
        add = ops.scatter_add_vec if len(x.shape) == 1 else ops.scatter_add_row
        return add(x, v, cells, mode=mode)
    count = cells.shape[0]
    order = ops.argsort(cells)  # groups updates of one row, in their order
    ordered = ops.gather_vec(cells, order)
    last = _ends(ops, ordered)
    combine: Callable[[R, R], R] | None = {"mul": ops.mul, "max": ops.maximum, "min": ops.minimum}.get(reduce)
    if combine is None:
        updates, numbers = v, order
    else:
        updates = _combined(ops, op, ops.gather_rows(v, order), ordered, combine)
        numbers = ops.iota(shape=(count,))
    # For each row, the number of the winning update plus one; 0 if there is none.
    one, none = whole(ops, (count,), 1), whole(ops, (count,), 0)
    rows = (x.shape[0],)
    which = ops.scatter_add_vec(whole(ops, rows, 0), ops.select(last, ops.add(numbers, one), none), ordered, mode=mode)
    which = ops.sub(which, whole(ops, rows, 1))
    new = ops.gather_rows(updates, which, mode="zero")
    hit = ops.less_equal(whole(ops, rows, 0), which)
    hit = ops.broadcast_to(ops.reshape(hit, shape=(*rows, *[1] * (len(x.shape) - 1))), shape=x.shape)
    return ops.select(hit, new if combine is None else combine(x, new), x)


def _ends(ops: Ops[R], ordered: R) -> R:
    """Return where runs of equal integers end."""
    count = ordered.shape[0]
    behind = ops.slice(ops.pad(ordered, padding=[(0, 1)], value=-2), axis=0, start=1, length=count)
    return ops.logical_not(ops.equal(ordered, behind))


def _combined(ops: Ops[R], op: str, v: R, ordered: R, combine: Callable[[R, R], R]) -> R:
    """Combine each row of v with earlier rows of the same number, in doubling steps."""
    count = known(ops, op, v.shape[0], lambda: f"updates are combined, and there are {v.shape[0]} of them")
    step = 1
    while step < count:
        length = count - step
        alike = ops.equal(
            ops.slice(ordered, axis=0, start=step, length=length), ops.slice(ordered, axis=0, start=0, length=length)
        )
        first, rest = ops.split(v, sizes=(step, length))
        alike = ops.broadcast_to(ops.reshape(alike, shape=(length, *[1] * (len(v.shape) - 1))), shape=rest.shape)
        before = ops.slice(v, axis=0, start=0, length=length)
        v = ops.concat([first, ops.select(alike, combine(before, rest), rest)], axis=0)
        step *= 2
    return v


# Masks ----------------------------------------------------------------------------------------------------------------


def _true(ops: Ops[R], op: str, mask: R, size: Dim) -> tuple[R, R, Dim]:
    """Return the number of each True element from 1 on (0 for others), their count, and the capacity."""
    if mask.dtype.kind != "b":
        raise dtype_error(ops, op, f"the mask must be of dtype bool but is {mask.dtype}; compare x with 0, or cast it")
    flat = ops.cast(ops.reshape(mask, shape=(prod(mask.shape),)), dtype=INT64)
    return ops.mul(flat, ops.cumsum(flat)), ops.reduce_sum(flat), read_dim(ops, op, "size", size)


def _compact(ops: Ops[R], values: R, places: R, size: Dim, found: R, fill: Any) -> R:
    """Move integers at numbered positions to the front, in order; others, numbered 0, are dropped."""
    room = whole(ops, (size + 1,), 0)
    kept = ops.select(ops.equal(places, zeros(ops, places)), zeros(ops, values), values)
    front = ops.slice(ops.scatter_add_vec(room, kept, places), axis=0, start=1, length=size)
    here = ops.less(ops.iota(shape=(size,)), ops.broadcast_to(found, shape=(size,)))
    return ops.select(here, front, whole(ops, (size,), fill))
