# mypy: disable-error-code=empty-body
"""Shapes, axes and the order of elements: ops that move values without computing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from .dims import exact_div, is_one, is_zero, prod, require_equal
from .errors import ShapeError
from .method import Calls
from .primitive import Context, Ints, Kind, Linearity, Primitive, R, Row, Some, Types
from .rule_helpers import require_rank
from .static_arguments import (
    Axes,
    InvalidStatic,
    ShapeLike,
    as_int,
    as_sequence,
    as_shape,
    normalize_axes,
    normalize_axis,
)
from .types import Shape, TensorType, show_shape

if TYPE_CHECKING:
    from .protocol import Ops


# Shape --------------------------------------------------------------------------------------------------------------


def _broadcast_to_shape(x: TensorType, *, shape: Shape) -> Types:
    added = len(shape) - len(x.shape)
    if added < 0:
        raise ShapeError(
            f"x is {show_shape(x.shape)} of rank {len(x.shape)}, which cannot become {show_shape(shape)} of rank "
            f"{len(shape)}: broadcasting adds axes in front and removes none"
        )
    for axis, (d, target) in enumerate(zip(x.shape, shape[added:])):
        if not is_one(d):
            require_equal(
                d,
                target,
                lambda: (
                    f"x is {show_shape(x.shape)}, which cannot become {show_shape(shape)}: axis {axis} has {d} where "
                    f"{target} is wanted; only an axis of size 1 is repeated, and axes are aligned from the last"
                ),
            )
    return (TensorType(shape, x.dtype),)


def _broadcast_to_vjp(ops: Ops[R], ctx: Context[R], cotangents: Row[R], /, *, shape: Shape) -> Some[R]:
    (g,), before = cotangents, ctx.inputs[0].shape
    added = len(shape) - len(before)
    stretched = [i for i, d in enumerate(shape) if i < added or (is_one(before[i - added]) and not is_one(d))]
    if stretched:
        g = ops.reduce_sum(g, axis=stretched, keepdims=True)
    return (ops.reshape(g, shape=before) if added else g,)


BROADCAST_TO = Primitive(
    shape=_broadcast_to_shape, vjp=_broadcast_to_vjp, jvp=Linearity.JOINT, kind=Kind.LAYOUT, view=True
)


def _reshape_shape(x: TensorType, *, shape: Shape) -> Types:
    open_axes = [axis for axis, d in enumerate(shape) if type(d) is int and d == -1]
    if not open_axes:
        require_equal(
            x.size,
            prod(shape),
            lambda: (
                f"x is {show_shape(x.shape)} with {x.size} elements but {show_shape(shape)} has {prod(shape)}; "
                "a reshape keeps their number"
            ),
        )
        return (TensorType(shape, x.dtype),)
    if len(open_axes) > 1:
        raise ShapeError(f"{show_shape(shape)} leaves {len(open_axes)} sizes open; only one entry may be -1")
    given = prod(d for axis, d in enumerate(shape) if axis != open_axes[0])
    if is_zero(given):
        raise ShapeError(f"{show_shape(shape)} has a size of 0, so -1 could be anything; write the size instead of -1")
    inferred = exact_div(
        x.size,
        given,
        lambda: (
            f"x is {show_shape(x.shape)} with {x.size} elements, which {given} does not divide; "
            f"it cannot become {show_shape(shape)} with any size instead of -1"
        ),
    )
    return (TensorType(tuple(inferred if axis == open_axes[0] else d for axis, d in enumerate(shape)), x.dtype),)


def _reshape_vjp(ops: Ops[R], ctx: Context[R], cotangents: Row[R], /, *, shape: Shape) -> Some[R]:
    return (ops.reshape(cotangents[0], shape=ctx.inputs[0].shape),)


RESHAPE = Primitive(
    "reshape", operands=("x",), shape=_reshape_shape, vjp=_reshape_vjp, jvp=Linearity.JOINT, kind=Kind.LAYOUT, view=True
)


def _anything(x: TensorType, **static: Any) -> None:
    """Accept everything: the check of an op without requirements."""


def _reshaping(name: str, shape: Callable[..., Shape], require: Callable[..., None] = _anything) -> Primitive:
    """Make a named reshape to `shape(x, **static)`; `require(x, **static)` checks its operand."""

    def rule(x: TensorType, **static: Any) -> Types:
        require(x, **static)
        return (TensorType(shape(x, **static), x.dtype),)

    def decomposition(ops: Ops[R], x: R, /, **static: Any) -> Row[R]:
        return (ops.reshape(x, shape=shape(TensorType(x.shape, x.dtype), **static)),)

    return Primitive(name, operands=("x",), shape=rule, decomposition=decomposition, kind=Kind.LAYOUT, view=True)


def _flattened(x: TensorType, *, start: int, end: int) -> Shape:
    if start > end:
        raise ShapeError(f"start={start} lies behind end={end}; axes start … end are merged, both included")
    return (*x.shape[:start], prod(x.shape[start : end + 1]), *x.shape[end + 1 :])


def _require_ones(x: TensorType, *, axes: Ints) -> None:
    for axis in axes:
        require_equal(
            x.shape[axis],
            1,
            lambda: (
                f"x is {show_shape(x.shape)}: axis {axis} has {x.shape[axis]}; only an axis of size 1 can be dropped"
            ),
        )


def _squeezed(x: TensorType, *, axes: Ints) -> Shape:
    return tuple(d for axis, d in enumerate(x.shape) if axis not in axes)


FLATTEN = _reshaping("flatten", _flattened)
SQUEEZE = _reshaping("squeeze", _squeezed, _require_ones)
UNSQUEEZE = _reshaping("unsqueeze", lambda x, *, axis: (*x.shape[:axis], 1, *x.shape[axis:]))

# Order of axes ------------------------------------------------------------------------------------------------------


def _permute_shape(x: TensorType, *, axes: Ints) -> Types:
    rank = len(x.shape)
    if sorted(axes) != list(range(rank)):
        raise ShapeError(
            f"axes {axes} must name each of the {rank} axes of x, which is {show_shape(x.shape)}, exactly once"
        )
    return (TensorType(tuple(x.shape[axis] for axis in axes), x.dtype),)


def _permute_vjp(ops: Ops[R], ctx: Context[R], cotangents: Row[R], /, *, axes: Ints) -> Some[R]:
    return (ops.permute(cotangents[0], axes=sorted(range(len(axes)), key=axes.__getitem__)),)  # the inverse


PERMUTE = Primitive(
    "permute", operands=("x",), shape=_permute_shape, vjp=_permute_vjp, jvp=Linearity.JOINT, kind=Kind.LAYOUT, view=True
)


def _permuting(axes: Callable[..., Ints], require: Callable[..., None], name: str = "") -> Primitive:
    """Make a named permutation by `axes(x, **static)`; `require(x, **static)` checks its operand."""

    def rule(x: TensorType, **static: Any) -> Types:
        require(x, **static)
        return _permute_shape(x, axes=axes(x, **static))

    def decomposition(ops: Ops[R], x: R, /, **static: Any) -> Row[R]:
        return (ops.permute(x, axes=axes(TensorType(x.shape, x.dtype), **static)),)

    operands = ("x",) if name else ()
    return Primitive(name, operands=operands, shape=rule, decomposition=decomposition, kind=Kind.LAYOUT, view=True)


def _transpose(*axes: int) -> Primitive:
    """Make a permutation by fixed axes."""
    return _permuting(lambda x: axes, lambda x: require_rank(x, len(axes), "x"))


def _require_adjacent(x: TensorType, *, depth: int) -> None:
    rank = len(x.shape)
    if not 0 <= depth < rank - 1:
        raise ShapeError(
            f"depth is {depth} but x is {show_shape(x.shape)} of rank {rank}: it must have axes depth and depth + 1"
        )


def _swapped(x: TensorType, *, depth: int) -> Ints:
    return (*range(depth), depth + 1, depth, *range(depth + 2, len(x.shape)))


TRANSPOSE2D = _transpose(1, 0)
TRANSPOSE3D_FIRST_TO_LAST = _transpose(1, 2, 0)
TRANSPOSE3D_LAST_TO_FIRST = _transpose(2, 0, 1)
TRANSPOSE3D_LAST_TWO = _transpose(0, 2, 1)
SWAP_ADJACENT_AT_DEPTH = _permuting(_swapped, _require_adjacent, "swap_adjacent_at_depth")


# The methods of Ops ------------------------------------------------------------------------------------------


class LayoutOps(Calls[R]):
    __slots__ = ()

    @BROADCAST_TO.method
    def broadcast_to(self, x: R, /, *, shape: ShapeLike) -> R:
        """Return x broadcast to `shape` by NumPy's rules. PyTorch: torch.broadcast_to.

        Axes are aligned at the last one, axes of size 1 repeated, leading axes added; gradients are summed over the
        copies.

        Raises:
            ShapeError: x does not broadcast to the shape; no such shape.
        """

    def reshape(self, x: R, /, *, shape: ShapeLike) -> R:
        """Return the same elements in row-major order in another shape; one size of -1 is inferred. PyTorch:
        torch.reshape.

        Raises:
            ShapeError: another number of elements; no such shape.
        """
        return self._call(RESHAPE, (x,), {"shape": as_shape("reshape", shape, inferred=True)})

    def flatten(self, x: R, /, *, start: int = 0, end: int = -1) -> R:
        """Return x with its axes start … end merged into one; a scalar becomes a vector of 1. PyTorch: torch.flatten.

        Raises:
            ShapeError: start behind end; no such axis.
        """
        rank = max(len(x.shape), 1)
        start, end = normalize_axis("flatten", start, rank), normalize_axis("flatten", end, rank)
        return self._call(FLATTEN, (x,), {"start": start, "end": end})

    def permute(self, x: R, /, *, axes: Sequence[int]) -> R:
        """Return x with its axes reordered: axis i of the result is axis axes[i] of x. PyTorch: torch.permute.

        Raises:
            ShapeError: no such axis; an invalid argument.
        """
        order = as_sequence("permute", "axes", axes)
        if not isinstance(order, InvalidStatic):
            order = tuple(normalize_axis("permute", axis, len(x.shape)) for axis in order)
        return self._call(PERMUTE, (x,), {"axes": order})

    @TRANSPOSE2D.method
    def transpose2d(self, x: R, /) -> R:
        """Return the transpose of a matrix: (a, b) -> (b, a). PyTorch: torch.t.

        Raises:
            ShapeError: x of another shape.
        """

    @TRANSPOSE3D_FIRST_TO_LAST.method
    def transpose3d_first_to_last(self, x: R, /) -> R:
        """Return x with its first axis last: (a, b, c) -> (b, c, a). PyTorch: x.permute(1, 2, 0).

        Raises:
            ShapeError: x of another shape.
        """

    @TRANSPOSE3D_LAST_TO_FIRST.method
    def transpose3d_last_to_first(self, x: R, /) -> R:
        """Return x with its last axis first: (a, b, c) -> (c, a, b). PyTorch: x.permute(2, 0, 1).

        Raises:
            ShapeError: x of another shape.
        """

    @TRANSPOSE3D_LAST_TWO.method
    def transpose3d_last_two(self, x: R, /) -> R:
        """Return x with its last two axes exchanged: (a, b, c) -> (a, c, b). PyTorch: x.transpose(1, 2).

        Raises:
            ShapeError: x of another shape.
        """

    def swap_adjacent_at_depth(self, x: R, /, *, depth: int) -> R:
        """Return x with the axes depth and depth + 1 exchanged. PyTorch: x.transpose(depth, depth + 1).

        Raises:
            ShapeError: no axes depth and depth + 1; an invalid argument.
        """
        return self._call(SWAP_ADJACENT_AT_DEPTH, (x,), {"depth": as_int("swap_adjacent_at_depth", "depth", depth)})

    def squeeze(self, x: R, /, *, axis: Axes = None) -> R:
        """Return x without the given axes of size 1, or all such axes; other sizes are an error. PyTorch:
        torch.squeeze.

        Raises:
            ShapeError: an axis of another size than 1; no such axis.
        """
        if axis is None:
            axes = tuple(i for i, d in enumerate(x.shape) if is_one(d))
        else:
            axes = normalize_axes("squeeze", axis, len(x.shape))
        return self._call(SQUEEZE, (x,), {"axes": axes})

    def unsqueeze(self, x: R, /, *, axis: int) -> R:
        """Return x with a new axis of size 1, at `axis` of the result. PyTorch: torch.unsqueeze.

        Raises:
            ShapeError: no such axis.
        """
        return self._call(UNSQUEEZE, (x,), {"axis": normalize_axis("unsqueeze", axis, len(x.shape) + 1)})
