"""Subscripts of refs: `x[0]`, `x[:, -1]`, `x[..., ::-2]`, `x[:, None]`, `x[:, idx]`, by NumPy's rules, as other ops.

Sizes may be symbolic: slice bounds are clipped by a symbolic minimum, and an integer index that only some sizes allow
becomes a condition on them, as in every shape rule.
"""

from __future__ import annotations

import operator
from typing import Any, NamedTuple, NoReturn

import numpy as np

from .array_conversion import as_numpy
from .dims import Dim, DimExpr, Verdict, at_most, maximum, minimum, require_at_most
from .errors import ProgramError, ShapeError
from .static_arguments import InvalidStatic
from .types import show_shape


class _Cut(NamedTuple):
    """A slice of an axis with a step >= 1, optionally reversing the axis before or after it."""

    axis: int
    start: Dim
    length: Dim
    step: int
    before: bool = False
    after: bool = False


class _Plan(NamedTuple):
    """Cuts; the axis of x that a tensor indexes, with the tensor; axes of size 1 to drop; axes to add."""

    cuts: list[_Cut]
    taken: tuple[int, Any] | None
    dropped: list[int]
    added: list[int]


def subscript(x: Any, key: Any) -> Any:
    """Return `x[key]` for integers, slices, None, `...` and one integer tensor; x itself if all of it is selected.

    Integers and bounds may be negative, and sizes of shapes; a step is a nonzero integer. A tensor or list of integers
    selects entries along its axis, which its axes replace; negative integers count from the end. Raises ShapeError for
    an integer out of range and for too many entries, RangeError for one in a tensor, ProgramError for other entries.
    """
    entries = key if isinstance(key, tuple) else (key,)
    ops, refused = x.ops, ""
    try:
        cuts, taken, dropped, added = _read(x.shape, entries)
    except ShapeError as error:
        refused = error.reason
    if refused:  # still bound, so that it is located, and a check can continue
        return ops.slice(x, axis=InvalidStatic(refused, "[]"), start=0, length=0)
    for cut in cuts:
        if cut.before:
            x = _flip(ops, x, cut.axis)
        x = ops.slice(x, axis=cut.axis, start=cut.start, length=cut.length, step=cut.step)
        if cut.after:
            x = _flip(ops, x, cut.axis)
    if taken is not None:
        axis, idx = taken
        ops, x = _take(ops, x, idx, axis)
        dropped = [a if a < axis else a + len(idx.shape) - 1 for a in dropped]
    if dropped:
        x = ops.squeeze(x, axis=dropped)
    for axis in added:
        x = ops.unsqueeze(x, axis=axis)
    return x


def _flip(ops: Any, x: Any, axis: int) -> Any:
    from .arrangement import flip

    return flip(ops, x, axis=axis)


def _take(ops: Any, x: Any, idx: Any, axis: int) -> tuple[Any, Any]:
    """Take entries at indices, where negative ones count from the end; return the interpreter and the result."""
    from .arrangement import take

    if isinstance(idx, np.ndarray):
        negative = bool(idx.size) and bool((idx < 0).any())
        idx = ops.const(idx)
    else:
        negative = idx.dtype.kind != "u"
        if getattr(idx.ops, "depth", 0) > ops.depth:
            ops = idx.ops
    if negative:
        idx = ops.select(ops.less(idx, 0), ops.add(idx, x.shape[axis]), idx)
    return ops, take(ops, x, idx, axis=axis)


def refuse_assignment() -> NoReturn:
    """Raise the error for `x[…] = y`."""
    raise ProgramError(
        "assignment x[…] = y is not supported, since nothing changes in place; "
        "compute a new tensor: ops.select(mask, y, x) where "
        "a mask says which elements are new, ops.concat([x[:i], y, x[i + 1:]]) for rows in one place, "
        "ops.scatter_add_row for rows at indices"
    )


def _read(shape: Any, entries: tuple[Any, ...]) -> _Plan:
    used = sum(1 for entry in entries if entry is not None and entry is not Ellipsis)
    dots = sum(1 for entry in entries if entry is Ellipsis)
    for entry in entries:
        _require_index(entry)
    if dots > 1:
        raise ShapeError(f"x[{_show(entries)}] has {dots} times '...', which can stand there once")
    if used > len(shape):
        raise ShapeError(f"x[{_show(entries)}] names {used} axes but x is {show_shape(shape)}, which has {len(shape)}")
    _require_one_tensor(entries)
    plan = _Plan([], None, [], [])
    axis = rank = 0  # of x, and of the result
    for entry in entries if dots else (*entries, Ellipsis):
        if entry is None:
            plan.added.append(rank)
            rank += 1
        elif entry is Ellipsis:
            axis += len(shape) - used
            rank += len(shape) - used
        elif isinstance(entry, slice):
            cut = _cut(entry, shape, axis, entries)
            if cut is not None:
                plan.cuts.append(cut)
            axis += 1
            rank += 1
        elif _is_whole(entry):
            plan.cuts.append(_Cut(axis, _position(entry, shape, axis, entries), 1, 1))
            plan.dropped.append(axis)
            axis += 1
        else:
            idx = _in_range(_as_tensor(entry), shape, axis, entries)
            plan = plan._replace(taken=(axis, idx))
            axis += 1
            rank += len(idx.shape)
    return plan


def _position(entry: Any, shape: Any, axis: int, entries: tuple[Any, ...]) -> Dim:
    """Return the nonnegative position of an integer index. Raises ShapeError if it is out of range."""
    index = _as_dim(entry)
    size: Dim = shape[axis]

    def message() -> str:
        return (
            f"x[{_show(entries)}]: index {index} is out of range on axis {axis} of x, which is {show_shape(shape)}; "
            f"expected -{_bracketed(size)} <= index < {size}"
        )

    if _is_negative(index, message):
        require_at_most(-index, size, message)
        return size + index
    require_at_most(index + 1, size, message)
    return index


def _in_range(idx: Any, shape: Any, axis: int, entries: tuple[Any, ...]) -> Any:
    """Convert negative indices of an array to positions; those of a ref are checked when it runs."""
    if not isinstance(idx, np.ndarray):
        return idx
    for edge in (int(idx.min()), int(idx.max())) if idx.size else ():
        _position(edge, shape, axis, entries)
    size, idx = shape[axis], idx.astype(np.int64)
    return np.where(idx < 0, idx + size, idx) if type(size) is int else idx


def _cut(entry: slice, shape: Any, axis: int, entries: tuple[Any, ...]) -> _Cut | None:
    """Return a slice clipped as in NumPy; None if it selects the whole axis."""
    size = shape[axis]
    step = 1 if entry.step is None else _as_dim(entry.step)
    if not isinstance(step, int) or step == 0:
        raise ShapeError(
            f"x[{_show(entries)}]: the step on axis {axis} must be an integer that is not 0 but is {step}; "
            "rows in another order are taken by ops.gather_rows"
        )
    backwards = step < 0

    def bound(given: Any) -> Dim:
        value = _as_dim(given)

        def message() -> str:
            return (
                f"x[{_show(entries)}]: whether {value} counts from the start or the end of axis {axis} of x, which is "
                f"{show_shape(shape)}, depends on the sizes; it must be at least 0 for all of them"
            )

        negative = _is_negative(value, message)
        if backwards:  # entry i of x is entry -1 - i of the reversed x
            value, negative = -1 - value, not negative
        return maximum(size + value, 0) if negative else minimum(value, size)

    start = 0 if entry.start is None else bound(entry.start)
    stop = size if entry.stop is None else bound(entry.stop)
    if step == 1 and type(start) is int and start == 0 and stop is size:
        return None
    length = maximum(stop - start, 0)
    step = abs(step)
    count = length if step == 1 else (length + (step - 1)) // step
    # if sizes are numbers, cut before reversing, to move less data
    if backwards and type(size) is type(start) is type(count) is int:
        return _Cut(axis, size - 1 - start - (count - 1) * step if count else 0, count, step, after=True)
    return _Cut(axis, start, count, step, before=backwards)


def _is_negative(value: Dim, message: Any) -> bool:
    """Return whether an index counts from the end. If that depends on sizes, require it to be nonnegative."""
    if isinstance(value, int):
        return value < 0
    if at_most(value, -1) is Verdict.proved:
        return True
    require_at_most(0, value, message)
    return False


def _as_dim(value: Any) -> Dim:
    return value if isinstance(value, DimExpr) else operator.index(value)


def _is_whole(value: Any) -> bool:
    return isinstance(value, (int, np.integer, DimExpr)) and not isinstance(value, bool)


def _require_index(entry: Any) -> None:
    if entry is None or entry is Ellipsis or _is_whole(entry):
        return
    if isinstance(entry, slice):
        for bound in (entry.start, entry.stop, entry.step):
            if bound is not None and not _is_whole(bound):
                raise ProgramError(
                    f"a slice of a ref has integers and sizes as its bounds but has {_kind(bound)}; what differs from "
                    "value to value is taken by ops.gather_rows(x, idx), with idx a tensor of integers"
                )
        return
    dtype = getattr(_as_tensor(entry), "dtype", None)
    if isinstance(entry, (bool, np.bool_)) or getattr(dtype, "kind", None) == "b":
        raise ProgramError(
            "x[mask] has a shape that depends on values, which no program has; ops.select(mask, x, y) chooses element "
            "by element; with y = ops.full(shape=x.shape, value=0.0) the others are 0"
        )
    if getattr(dtype, "kind", None) in ("i", "u"):
        return
    raise ProgramError(
        f"a ref is indexed by integers, slices, None, ... and tensors of integers but got {_kind(entry)}"
        + ("; it is one tensor, not a dict of them" if isinstance(entry, str) else "")
    )


def _require_one_tensor(entries: tuple[Any, ...]) -> None:
    """Raise ProgramError if other entries separate index tensors: NumPy would move their axes to the front, which is
    rarely intended."""
    kinds = ["i" if _is_whole(entry) else "s" if _is_basic(entry) else "t" for entry in entries]
    if kinds.count("t") > 1:
        raise ProgramError(
            f"x[{_show(entries)}] has {kinds.count('t')} tensors of integers, of which one can stand there; "
            "x[i, j] of a matrix is ops.gather_vec(ops.flatten(x), i * x.shape[1] + j)"
        )
    if "t" in kinds and "s" in "".join(kinds).strip("s"):
        raise ProgramError(
            f"x[{_show(entries)}]: between an integer and a tensor of integers stands another entry, where NumPy moves "
            "the tensor's axes to the front; index with the integer first, and the result with the tensor"
        )


def _is_basic(entry: Any) -> bool:
    return entry is None or entry is Ellipsis or isinstance(entry, slice) or _is_whole(entry)


def _as_tensor(entry: Any) -> Any:
    """Convert a list of numbers, or another library's array, to an array; an empty one is of integers."""
    if not isinstance(entry, list) and (_is_ref(entry) or not hasattr(type(entry), "__array__")):
        return entry
    try:
        array = as_numpy(entry)
    except (TypeError, ValueError, ProgramError):  # a list of refs, or a ragged one
        if not isinstance(entry, list):
            raise
        return entry
    return array if array.size else array.astype(np.int64)


def _is_ref(entry: Any) -> bool:
    from .infix import Infix

    return isinstance(entry, Infix)


def _kind(value: Any) -> str:
    return repr(value) if isinstance(value, (str, float, bool)) else type(value).__name__


def _bracketed(size: Dim) -> str:
    return f"({size})" if isinstance(size, DimExpr) and any(c in str(size) for c in " +-*") else str(size)


def _show(entries: tuple[Any, ...]) -> str:
    return ", ".join(map(_show_entry, entries)) or "()"


def _show_entry(entry: Any) -> str:
    if entry is Ellipsis:
        return "..."
    if not isinstance(entry, slice):
        return str(entry) if entry is None or _is_whole(entry) else "idx"
    start, stop = ("" if bound is None else str(bound) for bound in (entry.start, entry.stop))
    return f"{start}:{stop}" + ("" if entry.step is None else f":{entry.step}")
