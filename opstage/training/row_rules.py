"""Rules for the batch rows in each core op: the axis of its result that holds the rows, or that it sums over them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from math import prod
from typing import Any, final

from ..ops.closed import Equation
from ..ops.types import TensorType


class TermKind(Enum):
    """How a tensor depends on the batch rows."""

    FIXED = "fixed"
    ROWS = "rows"
    SUM = "sum"
    RATIO = "ratio"
    MIXED = "mixed"


@final
@dataclass(frozen=True)
class Term:
    """The facts known about a tensor.

    data     whether it depends on no parameter, no state and no random draw
    axis     of ROWS, the axis of the rows, each of them contiguous
    outer    of ROWS, how often the rows repeat along a merged axis; 1 if they are outermost
    degree   of a SUM, the power of the number of rows by which it was multiplied: -1 for a mean
    affine   of a SUM, whether something fixed was added
    by       of a RATIO, the slot of the sum that it is divided by
    where    of MIXED, the first op that mixed rows
    """

    kind: TermKind
    data: bool = False
    axis: int = 0
    outer: int = 1
    degree: int = 0
    affine: bool = False
    by: int = -1
    where: str = ""


SUMMED = -1

RowRule = Callable[[Equation, Sequence[Term], Sequence[TensorType], TensorType], "int | None"]
"""Returns the axis of the rows in a result, `SUMMED` for a sum over them, None if rows mix or that is unknown."""


def all_along_one(equation: Equation, given: Sequence[Term], types: Any, out: TensorType) -> int | None:
    axes = {term.axis for term in given if term.kind is TermKind.ROWS}
    return axes.pop() if len(axes) == 1 and all(type_.shape == types[0].shape for type_ in types) else None


def _same(equation: Equation, given: Sequence[Term], types: Any, out: TensorType) -> int | None:
    return given[0].axis


def _broadcast(equation: Equation, given: Sequence[Term], types: Any, out: TensorType) -> int | None:
    return given[0].axis + len(out.shape) - len(types[0].shape)


def _reshaped(equation: Equation, given: Sequence[Term], types: Any, out: TensorType) -> int | None:
    """Return the axis in which the rows follow each other at the same stride as before."""
    axis, shape = given[0].axis, types[0].shape
    before = prod(shape[:axis]) * given[0].outer
    rows = shape[axis] // given[0].outer
    for i, size in enumerate(out.shape):
        ahead = prod(out.shape[:i])
        if before % ahead == 0 and size % (before // ahead) == 0:
            held = size // (before // ahead)
            if held != 1 and (held % rows == 0 or rows % held == 0):
                return i
    return None


def outer(equation: Equation, given: Sequence[Term], types: Any, out: TensorType, axis: int) -> int:
    """Return `Term.outer` of a result with rows along `axis`."""
    first = next(term for term in given if term.kind is TermKind.ROWS)
    if equation.primitive.name != "reshape":
        return first.outer
    return int(prod(types[0].shape[: first.axis]) * first.outer // prod(out.shape[:axis]))


def _permuted(equation: Equation, given: Sequence[Term], types: Any, out: TensorType) -> int | None:
    return int(equation.static["axes"].index(given[0].axis))


def _beside(equation: Equation, given: Sequence[Term], types: Any, out: TensorType) -> int | None:
    axes = {term.axis for term in given if term.kind is TermKind.ROWS}
    axis = axes.pop() if len(axes) == 1 else None
    return None if axis == equation.static["axis"] else axis


def _padded(equation: Equation, given: Sequence[Term], types: Any, out: TensorType) -> int | None:
    axis = given[0].axis
    return axis if out.shape[axis] == types[0].shape[axis] else None


def _reduced(equation: Equation, given: Sequence[Term], types: Any, out: TensorType) -> int | None:
    axes, axis = equation.static["axes"], given[0].axis
    if axis in axes:
        return SUMMED if equation.primitive.name == "reduce_sum" else None
    return axis if equation.static["keepdims"] else axis - sum(other < axis for other in axes)


def _one_axis(equation: Equation, given: Sequence[Term], types: Any, out: TensorType) -> int | None:
    axis, along = given[0].axis, equation.static.get("axis")
    if along is None or axis == along:
        return None
    return axis if len(out.shape) == len(types[0].shape) else axis - (along < axis)


def _product(equation: Equation, given: Sequence[Term], types: Any, out: TensorType) -> int | None:
    """Handle (…, m, k) and (…, k, n): batch rows in the stack of both or next to a fixed one, or rows m or n; summed
    over k."""
    (a, b), last = given, len(out.shape) - 1
    if a.kind is TermKind.ROWS and b.kind is TermKind.ROWS:
        if (a.axis, b.axis) == (last, last - 1):
            return SUMMED
        return a.axis if a.axis == b.axis < last - 1 else None
    if a.kind is TermKind.ROWS:
        return SUMMED if a.axis == last else a.axis
    return SUMMED if b.axis == last - 1 else b.axis


def images(equation: Equation, given: Sequence[Term], types: Any, out: Any) -> int | None:
    """Handle a batch of images, with rows as the first axis, and fixed kernels, scales or running statistics."""
    moving = [term for term in given if term.kind is TermKind.ROWS]
    return 0 if len(moving) == 1 and moving[0].axis == 0 else None


def _looked_up(equation: Equation, given: Sequence[Term], types: Any, out: TensorType) -> int | None:
    return given[1].axis if given[0].kind is TermKind.FIXED else None


ROW_RULES: dict[str, RowRule] = {
    "detach": _same,
    "broadcast_to": _broadcast,
    "reshape": _reshaped,
    "permute": _permuted,
    "concat": _beside,
    "slice": _beside,
    "pad": _padded,
    "reduce_sum": _reduced,
    "reduce_max": _reduced,
    "argmax": _one_axis,
    "matmul": _product,
    "bmm": _product,
    "conv": images,
    "conv_transpose": images,
    "max_pool": images,
    "avg_pool": images,
    "gather_rows": _looked_up,
}
