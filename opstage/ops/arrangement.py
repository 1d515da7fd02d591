"""Reordering and repeating elements, and parts of matrices: programs over other ops, for tensors of any dtype.

All are linear in x, so their derivatives are those of their parts; sizes may be symbolic.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from .dims import Dim, DimExpr, is_one, is_zero, maximum, minimum
from .errors import nearest
from .primitive import R
from .rule_helpers import (
    at_most,
    error,
    full_like,
    known,
    read_axes,
    read_axis,
    read_count,
    read_dim,
    read_int,
    read_number,
    read_sequence,
    to_front,
    whole,
    zeros,
)
from .static_arguments import Axes
from .types import EXACT, as_dtype, show_shape

if TYPE_CHECKING:
    from .protocol import Ops


_LONGEST_LINSPACE = 1 << 24  # numbers, which a program holds as a constant: 128 MiB


def take(ops: Ops[R], x: R, idx: R, /, *, axis: int = 0, mode: str = "raise") -> R:
    """Return entries of x at integer indices of any shape along an axis, which the axes of idx replace.

    x (*a, n, *b) gives (*a, *idx, *b). A negative index is out of range, as in gather_rows: a RangeError, or zeros with
    mode="zero". PyTorch: torch.index_select. NumPy: np.take. ONNX: Gather.

    Raises:
        DtypeError: idx not an integer tensor.
        RangeError: an index out of range, when it runs.
        ShapeError: no such axis; an invalid argument.
    """
    rank, added = len(x.shape), len(idx.shape)
    axis = read_axis(ops, "take", axis, rank)
    if axis == 0:
        return ops.gather_rows(x, idx, mode=mode)
    rows = ops.gather_rows(ops.permute(x, axes=to_front(rank, axis)), idx, mode=mode)
    before = range(added, added + axis)
    return ops.permute(rows, axes=[*before, *range(added), *range(added + axis, added + rank - 1)])


def flip(ops: Ops[R], x: R, /, *, axis: Axes = None) -> R:
    """Return x with the given axes reversed, or all for None. PyTorch: torch.flip. NumPy: np.flip.

    Raises:
        ShapeError: no such axis.
    """
    for along in read_axes(ops, "flip", axis, len(x.shape)):
        size = x.shape[along]
        if not is_one(size) and not is_zero(size):
            count = ops.iota(shape=(size,))
            x = take(ops, x, ops.sub(whole(ops, (size,), size - 1), count), axis=along)
    return x


def roll(ops: Ops[R], x: R, /, *, shift: int, axis: int) -> R:
    """Shift the entries cyclically by `shift` positions along an axis.

    Entry i goes to (i + shift) mod n. PyTorch: torch.roll. NumPy: np.roll, with an axis.

    Raises:
        ShapeError: no such axis; an invalid argument.
    """
    axis = read_axis(ops, "roll", axis, len(x.shape))
    shift, size = read_int(ops, "roll", "shift", shift), x.shape[axis]
    if shift == 0 or is_zero(size):
        return x
    before = shift % size
    if is_zero(before):
        return x
    parts = (
        ops.slice(x, axis=axis, start=size - before, length=before),
        ops.slice(x, axis=axis, start=0, length=size - before),
    )
    return ops.concat(parts, axis=axis)


def tile(ops: Ops[R], x: R, /, *, repeats: Sequence[Dim]) -> R:
    """Repeat the whole tensor repeats[i] times along axis i, with leading axes added as needed.

    Size n becomes repeats · n. PyTorch: torch.tile, Tensor.repeat. NumPy: np.tile. ONNX: Tile.

    Raises:
        ShapeError: an invalid argument.
    """
    counts: list[Dim] = [read_count(ops, "tile", "a repeat", r) for r in read_sequence(ops, "tile", "repeats", repeats)]
    shape = [*[1] * (len(counts) - len(x.shape)), *x.shape]
    counts = [*[1] * (len(shape) - len(counts)), *counts]
    apart = [d for size in shape for d in (1, size)]
    spread = [d for count, size in zip(counts, shape) for d in (count, size)]
    x = ops.broadcast_to(ops.reshape(x, shape=apart), shape=spread)
    return ops.reshape(x, shape=[count * size for count, size in zip(counts, shape)])


def repeat_interleave(ops: Ops[R], x: R, /, *, repeats: int | Sequence[int], axis: int | None = None) -> R:
    """Repeat each entry along an axis in place, `repeats` times or by its own count.

    Without an axis x is flattened first. PyTorch: torch.repeat_interleave. NumPy: np.repeat.

    Raises:
        ShapeError: no such axis; an invalid argument.
    """
    op = "repeat_interleave"
    if axis is None:
        x, axis = ops.flatten(x), 0
    axis = read_axis(ops, op, axis, len(x.shape))
    size = x.shape[axis]
    if isinstance(repeats, Sequence):
        counts = [read_int(ops, op, "a repeat", r, 0) for r in repeats]
        n = known(ops, op, size, lambda: f"a repeat for each entry asks for axis {axis} of x, {show_shape(x.shape)}")
        if len(counts) != n:
            raise error(
                ops, op, f"repeats has {len(counts)} entries but axis {axis} of x, {show_shape(x.shape)}, has {n}"
            )
        if not sum(counts):
            return ops.slice(x, axis=axis, start=0, length=0)
        return take(ops, x, ops.const([i for i, c in enumerate(counts) for _ in range(c)]), axis=axis)
    count = read_int(ops, op, "repeats", repeats, 0)
    before, after = x.shape[:axis], x.shape[axis + 1 :]
    x = ops.broadcast_to(ops.unsqueeze(x, axis=axis + 1), shape=(*before, size, count, *after))
    return ops.reshape(x, shape=(*before, size * count, *after))


def moveaxis(ops: Ops[R], x: R, /, *, source: int, target: int) -> R:
    """Move one axis to another position; the others keep their order. PyTorch: torch.movedim. NumPy: np.moveaxis.

    Raises:
        ShapeError: no such axis.
    """
    rank = len(x.shape)
    source, target = read_axis(ops, "moveaxis", source, rank), read_axis(ops, "moveaxis", target, rank)
    if source == target:
        return x
    axes = [a for a in range(rank) if a != source]
    return ops.permute(x, axes=[*axes[:target], source, *axes[target:]])


def swapaxes(ops: Ops[R], x: R, /, *, first: int, second: int) -> R:
    """Exchange two axes. PyTorch: torch.transpose. NumPy: np.swapaxes.

    Raises:
        ShapeError: no such axis.
    """
    axes = list(range(len(x.shape)))
    first, second = (read_axis(ops, "swapaxes", a, len(axes)) for a in (first, second))
    axes[first], axes[second] = second, first
    return ops.permute(x, axes=axes)


def chunk(ops: Ops[R], x: R, /, *, chunks: int, axis: int = 0) -> tuple[R, ...]:
    """Split an axis into slices of ceil(n / chunks) entries; the last may be shorter, and there may be fewer.

    The size of the axis must be a number, since it determines the number of slices. PyTorch: torch.chunk.

    Raises:
        ShapeError: no such axis; an invalid argument.
    """
    axis = read_axis(ops, "chunk", axis, len(x.shape))
    chunks = read_int(ops, "chunk", "chunks", chunks, 1)
    n = known(ops, "chunk", x.shape[axis], lambda: f"chunks are counted on axis {axis} of x, {show_shape(x.shape)}")
    size = -(-n // chunks)
    if not size:
        return ops.split(x, sizes=(0,) * chunks, axis=axis)
    return ops.split(x, sizes=[min(size, n - start) for start in range(0, n, size)], axis=axis)


def unbind(ops: Ops[R], x: R, /, *, axis: int = 0) -> tuple[R, ...]:
    """Return the entries along an axis, without that axis; its size must be a number. PyTorch: torch.unbind.

    Raises:
        ShapeError: no such axis.
    """
    axis = read_axis(ops, "unbind", axis, len(x.shape))
    n = known(ops, "unbind", x.shape[axis], lambda: f"tensors are counted on axis {axis} of x, {show_shape(x.shape)}")
    return tuple(ops.squeeze(ops.slice(x, axis=axis, start=i, length=1), axis=axis) for i in range(n))


# Parts of matrices ----------------------------------------------------------------------------------------------------


def _matrix(ops: Ops[R], op: str, x: R) -> tuple[Dim, Dim]:
    if len(x.shape) < 2:
        raise error(ops, op, f"x must be a matrix, or a stack of them, but is {show_shape(x.shape)}")
    rows, columns = x.shape[-2:]
    return rows, columns


def _distance(ops: Ops[R], shape: Any) -> R:
    """Return column minus row of each element."""
    rank = len(shape)
    return ops.sub(ops.iota(shape=shape, axis=rank - 1), ops.iota(shape=shape, axis=rank - 2))


def tril(ops: Ops[R], x: R, /, *, k: Dim = 0) -> R:
    """Return the lower triangle of the last two axes: x where column - row <= k, else 0. PyTorch: torch.tril.

    Raises:
        ShapeError: an invalid argument; x of another shape.
    """
    return _triangle(ops, "tril", x, k, lower=True)


def triu(ops: Ops[R], x: R, /, *, k: Dim = 0) -> R:
    """Return the upper triangle of the last two axes: x where column - row >= k, else 0. PyTorch: torch.triu.

    Raises:
        ShapeError: an invalid argument; x of another shape.
    """
    return _triangle(ops, "triu", x, k, lower=False)


def _triangle(ops: Ops[R], op: str, x: R, k: Dim, *, lower: bool) -> R:
    shape = _matrix(ops, op, x)
    distance, bound = _distance(ops, shape), whole(ops, shape, read_dim(ops, op, "k", k))
    kept = ops.less_equal(distance, bound) if lower else ops.less_equal(bound, distance)
    return ops.select(ops.broadcast_to(kept, shape=x.shape), x, zeros(ops, x))


def eye(ops: Ops[R], rows: Dim, columns: Dim | None = None, /, *, k: int = 0, dtype: Any = None) -> R:
    """Return 1 where column - row = k, else 0, in the program's dtype unless one is given; square by default.

    PyTorch: torch.eye. NumPy: np.eye. ONNX: EyeLike.

    Raises:
        ShapeError: an invalid argument; no such shape.
        UsageError: no such dtype.
    """
    shape = (rows, rows if columns is None else columns)
    own = ops.equal(_distance(ops, shape), whole(ops, shape, read_int(ops, "eye", "k", k)))
    return ops.cast(own, dtype=ops.dtype if dtype is None else dtype)


def diagonal(ops: Ops[R], x: R, /, *, k: int = 0, first: int = 0, second: int = 1) -> R:
    """Return the elements with second index - first index = k, along a new last axis that replaces both.

    PyTorch: torch.diagonal. NumPy: np.diagonal.

    Raises:
        ShapeError: no such axis; an invalid argument.
    """
    op, rank = "diagonal", len(x.shape)
    k, first, second = read_int(ops, op, "k", k), read_axis(ops, op, first, rank), read_axis(ops, op, second, rank)
    if first == second:
        raise error(ops, op, f"first and second are both axis {first} of x, {show_shape(x.shape)}")
    rest = [a for a in range(rank) if a not in (first, second)]
    x = ops.permute(x, axes=[first, second, *rest])
    rows, columns, others = x.shape[0], x.shape[1], x.shape[2:]
    length = maximum(minimum(rows + min(k, 0), columns - max(k, 0)), 0)
    if is_zero(length):
        return zeros(ops, x, (*others, 0))
    along = ops.iota(shape=(length,))
    start = k if k >= 0 else -k * columns
    flat = ops.add(ops.mul(along, whole(ops, (length,), columns + 1)), whole(ops, (length,), start))
    picked = ops.gather_rows(ops.reshape(x, shape=(rows * columns, *others)), flat)
    return ops.permute(picked, axes=[*range(1, len(others) + 1), 0])


def diag(ops: Ops[R], x: R, /, *, k: int = 0) -> R:
    """Return a square matrix with a vector on its k-th diagonal, or the k-th diagonal of a matrix. PyTorch: torch.diag.

    Raises:
        ShapeError: an invalid argument; operands that do not fit each other.
    """
    if len(x.shape) == 2:
        return diagonal(ops, x, k=k)
    if len(x.shape) != 1:
        raise error(ops, "diag", f"x must be a vector or a matrix but is {show_shape(x.shape)}")
    k = read_int(ops, "diag", "k", k)
    n = x.shape[0] + abs(k)
    row = ops.pad(x, padding=[(max(k, 0), max(-k, 0))], value=0)  # each element is in its column
    spread = ops.broadcast_to(ops.unsqueeze(row, axis=0), shape=(n, n))
    own = ops.equal(_distance(ops, (n, n)), whole(ops, (n, n), k))
    return ops.select(own, spread, zeros(ops, spread))


def trace(ops: Ops[R], x: R, /, *, k: int = 0) -> R:
    """Return the sum of the k-th diagonal of a matrix, or of each matrix of a stack. PyTorch: torch.trace.

    Raises:
        DtypeError: x a mask.
        ShapeError: an invalid argument; x of another shape.
    """
    _matrix(ops, "trace", x)
    return ops.reduce_sum(diagonal(ops, x, k=k, first=-2, second=-1), axis=-1)


def masked_fill(ops: Ops[R], x: R, mask: R, /, *, value: float) -> R:
    """Return `value` where the mask is True, with gradient 0, else x; the mask broadcasts. PyTorch: masked_fill.

    Raises:
        DtypeError: mask not a mask.
        ShapeError: x does not broadcast to the shape; an invalid argument.
    """
    mask = ops.broadcast_to(mask, shape=x.shape)
    return ops.select(mask, full_like(ops, x, value), x)


# Constructed from sizes or vectors ------------------------------------------------------------------------------------


def meshgrid(ops: Ops[R], /, *xs: R, indexing: str = "ij") -> tuple[R, ...]:
    """Broadcast vectors along separate axes of one grid; with "xy" the first two axes are exchanged.

    PyTorch: torch.meshgrid. NumPy: np.meshgrid, whose default is "xy".

    Raises:
        ShapeError: an invalid argument; operands that do not fit each other.
    """
    if indexing not in ("ij", "xy"):
        raise error(ops, "meshgrid", f"indexing must be 'ij' or 'xy' but is {indexing!r}")
    for x in xs:
        if len(x.shape) != 1:
            raise error(ops, "meshgrid", f"each of the tensors must be a vector but one is {show_shape(x.shape)}")
    places = list(range(len(xs)))
    if indexing == "xy" and len(xs) > 1:
        places[:2] = [1, 0]
    shape: list[Dim] = [0] * len(xs)
    for x, place in zip(xs, places):
        shape[place] = x.shape[0]
    grids = []
    for x, place in zip(xs, places):
        alone = ops.reshape(x, shape=[x.shape[0] if axis == place else 1 for axis in range(len(xs))])
        grids.append(ops.broadcast_to(alone, shape=shape))
    return tuple(grids)


def arange(ops: Ops[R], start: Any, stop: Any = None, /, *, step: int = 1, dtype: Any = "int64") -> R:
    """Return start, start + step, … before stop; a single argument is stop. Integers or sizes; step is a nonzero int.

    ceil((stop - start) / step) entries, or none if that is negative. PyTorch: torch.arange. NumPy: np.arange.

    Raises:
        ShapeError: an invalid argument.
        UsageError: no such dtype.
    """
    if stop is None:
        start, stop = 0, start
    for name, value in (("start", start), ("stop", stop)):
        if not isinstance(value, (int, DimExpr)) or isinstance(value, bool):
            raise error(
                ops,
                "arange",
                f"{name} must be an integer or a size but is {value!r}; opstage.derived.linspace has fractions",
            )
    step = read_int(ops, "arange", "step", step)
    if step == 0:
        raise error(ops, "arange", "step must not be 0")
    span = stop - start if step > 0 else start - stop
    count = maximum((span + (abs(step) - 1)) // abs(step), 0)
    along = ops.iota(shape=(count,))
    if step != 1:
        along = ops.mul(along, whole(ops, (count,), step))
    if not is_zero(start):
        along = ops.add(along, whole(ops, (count,), start))
    return ops.cast(along, dtype=dtype)


def linspace(ops: Ops[R], start: float, stop: float, /, *, num: int, dtype: Any = None) -> R:
    """Return num evenly spaced numbers from start to stop inclusive, each rounded once.

    Entry i is start + i·(stop - start)/(num - 1); num = 1 gives start. PyTorch: torch.linspace. NumPy: np.linspace.

    Raises:
        ShapeError: an invalid argument.
        UsageError: no such dtype.
    """
    num = read_int(ops, "linspace", "num", num, 0)
    if num > _LONGEST_LINSPACE:
        reason = f"num must be at most {_LONGEST_LINSPACE} but is {num}: the numbers are a constant of the program; "
        raise error(ops, "linspace", reason + "more are ops.iota(shape=(num,)), cast, scaled and shifted")
    first, last = (Fraction(read_number(ops, "linspace", *end)) for end in (("start", start), ("stop", stop)))
    step = (last - first) / max(num - 1, 1)
    target = ops.dtype if dtype is None else as_dtype(dtype)
    if target == EXACT:
        return ops.const(np.array([first + step * i for i in range(num)], object), dtype=target)
    below = math.lcm(first.denominator, step.denominator)
    start_at, by = int(first * below), int(step * below)
    # Python rounds the quotient of two integers once, whatever their lengths
    return ops.const(np.fromiter(((start_at + by * i) / below for i in range(num)), np.float64, num), dtype=target)


# Padding with a tensor's own entries: reflected, repeated or wrapped around -------------------------------------------

MODES = ("constant", "edge", "reflect", "symmetric", "wrap")


def pad(ops: Ops[R], x: R, /, *, padding: Sequence[tuple[Dim, Dim]], mode: str = "constant", value: float = 0.0) -> R:
    """Pad x before and after the entries of each axis; negative amounts remove entries.

    With two cells on each side, 1 2 3 becomes 3 2 | 1 2 3 | 2 1 for "reflect", 2 1 | 1 2 3 | 3 2 for
    "symmetric", 1 1 | … | 3 3 for "edge", 2 3 | … | 1 2 for "wrap", and `value` for "constant". There can be at
    most n - 1 reflected cells, and n symmetric or wrapped ones. Gradients are summed over copies. PyTorch:
    torch.nn.functional.pad, whose "replicate" is "edge" and whose "circular" is "wrap". NumPy: np.pad.

    Raises:
        ShapeError: an invalid argument; operands that do not fit each other.
    """
    rank = len(x.shape)
    if mode not in MODES:
        raise error(ops, "pad", f"mode must be one of {MODES} but is {mode!r}{nearest(mode, MODES)}")
    entries = [read_sequence(ops, "pad", "a pair", pair) for pair in read_sequence(ops, "pad", "padding", padding)]
    pairs = [tuple(read_dim(ops, "pad", "padding", amount) for amount in pair) for pair in entries]
    if len(pairs) != rank or any(len(pair) != 2 for pair in pairs):
        raise error(ops, "pad", f"padding takes a pair (before, after) for each of the {rank} axes but is {padding!r}")
    added: list[tuple[Dim, Dim]] = []
    for axis, (before, after) in enumerate(pairs):
        less = [-amount if isinstance(amount, int) and amount < 0 else 0 for amount in (before, after)]
        if any(less):
            x = ops.slice(x, axis=axis, start=less[0], length=x.shape[axis] - less[0] - less[1])
        added.append((0 if less[0] else before, 0 if less[1] else after))
    if mode == "constant":
        return ops.pad(x, padding=added, value=value)
    for axis, (before, after) in enumerate(added):
        x = _around(ops, x, axis, before, after, mode)
    return x


def _around(ops: Ops[R], x: R, axis: int, before: Dim, after: Dim, mode: str) -> R:
    size = x.shape[axis]
    most = size - 1 if mode == "reflect" else size
    parts = []
    for amount, first in ((before, True), (after, False)):
        if is_zero(amount):
            continue

        def message(amount: Dim = amount) -> str:
            return (
                f"x is {show_shape(x.shape)}: axis {axis} has {size} entries, so mode {mode!r} has at most {most} "
                f"cells to add at an end but {amount} are asked for"
            )

        if mode == "edge":
            at_most(
                ops,
                "pad",
                1,
                size,
                lambda: f"x is {show_shape(x.shape)}: axis {axis} is empty, without an edge to repeat",
            )
            end = ops.slice(x, axis=axis, start=0 if first else size - 1, length=1)
            cells = ops.broadcast_to(end, shape=(*x.shape[:axis], amount, *x.shape[axis + 1 :]))
        else:
            at_most(ops, "pad", amount, most, message)
            skipped = 1 if mode == "reflect" else 0
            near_start = first is not (mode == "wrap")
            start = skipped if near_start else size - skipped - amount
            cells = ops.slice(x, axis=axis, start=start, length=amount)
            if mode != "wrap":
                cells = flip(ops, cells, axis=axis)
        parts.append((first, cells))
    before_x = [cells for first, cells in parts if first]
    after_x = [cells for first, cells in parts if not first]
    return ops.concat([*before_x, x, *after_x], axis=axis) if parts else x
