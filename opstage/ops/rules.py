"""What several rules share: agreement of operands, zeros and ones, sums of the terms that exist."""

from __future__ import annotations

from .dims import require_equal
from .errors import ShapeError
from .primitive import R
from .protocol import Ops
from .types import Shape, TensorType, require_same_dtype, show_shape


def same_shape(x: Shape, y: Shape, x_name: str, y_name: str) -> None:
    """Two operands must have one shape: named ops never broadcast."""
    if x is y:
        return
    if len(x) != len(y):
        raise ShapeError(
            f"{x_name} is {show_shape(x)} but {y_name} is {show_shape(y)}: ranks {len(x)} and {len(y)} differ; "
            "named ops never broadcast, use infix (x + y) or ops.broadcast_to"
        )
    for axis, (a, b) in enumerate(zip(x, y)):
        require_equal(
            a,
            b,
            lambda: (
                f"{x_name} is {show_shape(x)} but {y_name} is {show_shape(y)}: axis {axis} has {a} and {b}; "
                "named ops never broadcast, use infix (x + y) or ops.broadcast_to"
            ),
        )


def same_type(x: TensorType, y: TensorType, x_name: str = "x", y_name: str = "y") -> TensorType:
    """Two operands must agree in shape and dtype; the type they share."""
    same_shape(x.shape, y.shape, x_name, y_name)
    require_same_dtype(x, y, x_name, y_name)
    return x


def require_rank(x: TensorType, rank: int, name: str) -> None:
    """Operand `name` must have exactly `rank` axes."""
    if len(x.shape) != rank:
        raise ShapeError(f"{name} must have rank {rank} but is {show_shape(x.shape)} of rank {len(x.shape)}")


def zeros_like(ops: Ops[R], x: R) -> R:
    """Zeros of x's shape and dtype."""
    return ops.full(shape=x.shape, value=0.0, dtype=x.dtype)


def ones_like(ops: Ops[R], x: R) -> R:
    """Ones of x's shape and dtype."""
    return ops.full(shape=x.shape, value=1.0, dtype=x.dtype)


def add_all(ops: Ops[R], *terms: R | None) -> R | None:
    """The sum of the terms that are there; None when none is."""
    total: R | None = None
    for term in terms:
        if term is not None:
            total = term if total is None else ops.add(total, term)
    return total
