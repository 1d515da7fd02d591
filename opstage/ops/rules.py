"""Helpers shared by rules: agreement of operands, zeros and ones, sums of optional terms."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .dims import Verdict, equal, is_one, maximum, require_equal
from .errors import ShapeError
from .primitive import R
from .types import Shape, TensorType, require_same_dtype, show_shape

if TYPE_CHECKING:
    from .protocol import Ops

NO_BROADCAST = "named ops never broadcast, use infix (x + y) or ops.broadcast_to"


def same_shape(x: Shape, y: Shape, x_name: str, y_name: str, purpose: str = "") -> None:
    """Raise ShapeError unless two operands have the same shape: named ops never broadcast. `purpose` states another
    reason."""
    if x is y:
        return

    def message(why: str) -> str:
        hint = purpose or (NO_BROADCAST if _broadcast(x, y) else "they must have one shape")
        return f"{x_name} is {show_shape(x)} but {y_name} is {show_shape(y)}: {why}; {hint}"

    if len(x) != len(y):
        raise ShapeError(message(f"ranks {len(x)} and {len(y)} differ"))
    for axis, (a, b) in enumerate(zip(x, y)):
        require_equal(a, b, lambda: message(f"axis {axis} has {a} and {b}"))


def _broadcast(x: Shape, y: Shape) -> bool:
    """Return whether the shapes are compatible by NumPy's rules."""
    pairs = zip(reversed(x), reversed(y))
    return all(is_one(a) or is_one(b) or equal(a, b) is Verdict.proved for a, b in pairs)


def same_type(x: TensorType, y: TensorType, x_name: str = "x", y_name: str = "y", purpose: str = "") -> TensorType:
    """Require that two operands agree in shape and dtype; return their type."""
    same_shape(x.shape, y.shape, x_name, y_name, purpose)
    require_same_dtype(x, y, x_name, y_name)
    return x


def require_rank(x: TensorType, rank: int, name: str) -> None:
    """Raise ShapeError unless operand `name` has `rank` axes."""
    if len(x.shape) != rank:
        raise ShapeError(f"{name} must have rank {rank} but is {show_shape(x.shape)} of rank {len(x.shape)}")


def zeros_like(ops: Ops[R], x: R) -> R:
    """Return zeros of x's shape and dtype."""
    return ops.full(shape=x.shape, value=0.0, dtype=x.dtype)


def ones_like(ops: Ops[R], x: R) -> R:
    """Return ones of x's shape and dtype."""
    return ops.full(shape=x.shape, value=1.0, dtype=x.dtype)


def add_all(ops: Ops[R], *terms: R | None) -> R | None:
    """Return the sum of the terms that are not None, or None."""
    total: R | None = None
    for term in terms:
        if term is not None:
            total = term if total is None else ops.add(total, term)
    return total


def corrected_mean(ops: Ops[R], x: R, axes: tuple[int, ...]) -> R:
    """Return the mean over `axes`, kept at size 1: m + mean(x - m) for a rounded mean m.

    It is exact where all elements are equal; a mean that is rounded there makes a deviation of its error.
    """
    part = ops.detach(x)
    if 0 in axes:  # a sixteenth of a batch will do, and costs a sixteenth of a pass
        part = ops.slice(part, axis=0, start=0, length=maximum(x.shape[0] // 16, 1))
    mean = ops.reduce_mean(part, axis=axes, keepdims=True)
    apart = ops.sub(x, ops.broadcast_to(mean, shape=x.shape))
    return ops.add(mean, ops.reduce_mean(apart, axis=axes, keepdims=True))
