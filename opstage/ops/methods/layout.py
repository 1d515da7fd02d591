"""Shapes, axes and the order of elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..arguments import Axes, Number, ShapeLike, as_dim, as_int, as_sequence, as_shape, normalize_axes, normalize_axis
from ..calls import Calls
from ..catalogue.layout import (
    BROADCAST_TO,
    CONCAT,
    FLATTEN,
    PAD,
    PERMUTE,
    RESHAPE,
    SLICE,
    SQUEEZE,
    STACK,
    SWAP_ADJACENT_AT_DEPTH,
    TRANSPOSE2D,
    TRANSPOSE3D_FIRST_TO_LAST,
    TRANSPOSE3D_LAST_TO_FIRST,
    TRANSPOSE3D_LAST_TWO,
    UNSQUEEZE,
)
from ..dims import Dim, is_one, require_equal
from ..errors import ShapeError
from ..invalid_static import InvalidStatic
from ..primitive import R
from ..types import Shape, show_shape


def _no_tensors(op: str) -> InvalidStatic:
    return InvalidStatic("at least one tensor is needed", op)


def _adds_up(lengths: tuple[Any, ...], shape: Shape, axis: int) -> InvalidStatic | None:
    """Return an `InvalidStatic` if sizes of a split are invalid or do not add up to the axis."""
    for length in lengths:
        if isinstance(length, InvalidStatic):
            return length
    total = sum(lengths)
    try:
        require_equal(
            total,
            shape[axis],
            lambda: f"sizes {show_shape(lengths)} add up to {total} but axis {axis} of x has {shape[axis]}",
        )
    except ShapeError as error:
        return InvalidStatic(error.reason, "split")
    return None


class LayoutOps(Calls[R]):
    __slots__ = ()

    def broadcast_to(self, x: R, /, *, shape: ShapeLike) -> R:
        """x broadcast to `shape` by NumPy's rules. PyTorch: torch.broadcast_to.

        Axes are aligned at the last one, axes of size 1 repeated, leading axes added; gradients are summed over the
        copies.

        Raises:
            ShapeError: x does not broadcast to the shape; no such shape.
        """
        return self._call(BROADCAST_TO, (x,), {"shape": as_shape("broadcast_to", shape)})

    def reshape(self, x: R, /, *, shape: ShapeLike) -> R:
        """The same elements in row-major order in another shape; one size of -1 is inferred. PyTorch: torch.reshape.

        Raises:
            ShapeError: another number of elements; no such shape.
        """
        return self._call(RESHAPE, (x,), {"shape": as_shape("reshape", shape, inferred=True)})

    def flatten(self, x: R, /, *, start: int = 0, end: int = -1) -> R:
        """Axes start..end merged into one; a scalar becomes a vector of 1. PyTorch: torch.flatten.

        Raises:
            ShapeError: start behind end; no such axis.
        """
        rank = max(len(x.shape), 1)
        start, end = normalize_axis("flatten", start, rank), normalize_axis("flatten", end, rank)
        return self._call(FLATTEN, (x,), {"start": start, "end": end})

    def permute(self, x: R, /, *, axes: Sequence[int]) -> R:
        """Axes reordered: result axis i is axis axes[i] of x. PyTorch: torch.permute.

        Raises:
            ShapeError: no such axis; an invalid argument.
        """
        order = as_sequence("permute", "axes", axes)
        if not isinstance(order, InvalidStatic):
            order = tuple(normalize_axis("permute", axis, len(x.shape)) for axis in order)
        return self._call(PERMUTE, (x,), {"axes": order})

    def transpose2d(self, x: R, /) -> R:
        """(a, b) -> (b, a). PyTorch: torch.t.

        Raises:
            ShapeError: x of another shape.
        """
        return self._call1(TRANSPOSE2D, x)

    def transpose3d_first_to_last(self, x: R, /) -> R:
        """(a, b, c) -> (b, c, a). PyTorch: x.permute(1, 2, 0).

        Raises:
            ShapeError: x of another shape.
        """
        return self._call1(TRANSPOSE3D_FIRST_TO_LAST, x)

    def transpose3d_last_to_first(self, x: R, /) -> R:
        """(a, b, c) -> (c, a, b). PyTorch: x.permute(2, 0, 1).

        Raises:
            ShapeError: x of another shape.
        """
        return self._call1(TRANSPOSE3D_LAST_TO_FIRST, x)

    def transpose3d_last_two(self, x: R, /) -> R:
        """(a, b, c) -> (a, c, b). PyTorch: x.transpose(1, 2).

        Raises:
            ShapeError: x of another shape.
        """
        return self._call1(TRANSPOSE3D_LAST_TWO, x)

    def swap_adjacent_at_depth(self, x: R, /, *, depth: int) -> R:
        """Axes depth and depth + 1 exchanged. PyTorch: x.transpose(depth, depth + 1).

        Raises:
            ShapeError: no axes depth and depth + 1; an invalid argument.
        """
        return self._call(SWAP_ADJACENT_AT_DEPTH, (x,), {"depth": as_int("swap_adjacent_at_depth", "depth", depth)})

    def concat(self, xs: Sequence[R], /, *, axis: int = 0) -> R:
        """Tensors of one dtype joined along an existing axis; all other axes agree. PyTorch: torch.cat.

        Raises:
            DtypeError: dtypes differ.
            ShapeError: no tensors; axes besides the joined one differ; shapes differ; no such axis.
        """
        refs = tuple(xs)
        rank = len(refs[0].shape) if refs else 0
        return self._call(
            CONCAT, refs, {"axis": normalize_axis("concat", axis, rank) if refs else _no_tensors("concat")}
        )

    def stack(self, xs: Sequence[R], /, *, axis: int = 0) -> R:
        """Tensors of one shape and dtype joined along a new axis of the result. PyTorch: torch.stack.

        Raises:
            DtypeError: dtypes differ.
            ShapeError: no tensors; shapes differ; no such axis.
        """
        refs = tuple(xs)
        rank = len(refs[0].shape) + 1 if refs else 0
        return self._call(STACK, refs, {"axis": normalize_axis("stack", axis, rank) if refs else _no_tensors("stack")})

    def slice(self, x: R, /, *, axis: int, start: Dim, length: Dim, step: int = 1) -> R:
        """`length` entries from `start` in steps of `step` along an axis; all must exist. PyTorch: torch.narrow.

        The entries start, start + step, …, x[start:end:step]: 0 <= start and start + (length - 1)·step < n.

        Raises:
            ShapeError: entries outside x; no such axis; an invalid argument.
        """
        static = {
            "axis": normalize_axis("slice", axis, len(x.shape)),
            "start": as_dim("slice", "start", start),
            "length": as_dim("slice", "length", length),
            "step": as_int("slice", "step", step),
        }
        return self._call(SLICE, (x,), static)

    def split(self, x: R, /, *, sizes: Sequence[Dim], axis: int = 0) -> tuple[R, ...]:
        """Consecutive slices along an axis, with sizes that add up to it. PyTorch: torch.split.

        Raises:
            ShapeError: entries outside x; sizes that do not add up; no such axis; an invalid argument.
        """
        invalid = axis = normalize_axis("split", axis, len(x.shape))
        given = as_sequence("split", "sizes", sizes)
        if isinstance(given, InvalidStatic):  # the number of parts is unknown
            return (self._call(SLICE, (x,), {"axis": given, "start": 0, "step": 1, "length": 0}),)
        lengths = tuple(as_dim("split", "a size", size) for size in given)
        if not isinstance(axis, InvalidStatic):
            invalid = _adds_up(lengths, x.shape, axis)
        if isinstance(invalid, InvalidStatic):
            static = {"axis": invalid, "start": 0, "step": 1}
            return tuple(self._call(SLICE, (x,), static | {"length": length}) for length in lengths)
        parts: list[R] = []
        start: Dim = 0
        for length in lengths:
            parts.append(self.slice(x, axis=axis, start=start, length=length))
            start = start + length
        return tuple(parts)

    def pad(
        self,
        x: R,
        /,
        *,
        padding: Sequence[tuple[Dim, Dim]],
        value: Number = 0.0,
        interior: Sequence[int] | None = None,
    ) -> R:
        """Constant padding before, after and between the entries of each axis. PyTorch: torch.nn.functional.pad.

        `padding` has for each axis the numbers (before, after) of cells of `value` to add, and `interior` the number
        between adjacent entries: n becomes before + n + (n - 1)·interior + after. As jax.lax.pad.

        Raises:
            DtypeError: a number that the dtype does not hold.
            ShapeError: not an entry for each axis of x; an invalid argument.
        """
        try:
            pairs = tuple((before, after) for before, after in padding)
        except (TypeError, ValueError):
            why = f"padding must be a sequence with a pair (before, after) for each axis but is {padding!r}"
            return self._call(PAD, (x,), {"padding": InvalidStatic(why, "pad"), "value": value, "interior": ()})
        between = (0,) * len(pairs) if interior is None else as_sequence("pad", "interior", interior)
        if not isinstance(between, InvalidStatic):
            between = tuple(as_int("pad", "interior", cells) for cells in between)
        static = {
            "padding": tuple((as_dim("pad", "padding", b), as_dim("pad", "padding", a)) for b, a in pairs),
            "value": value,
            "interior": between,
        }
        return self._call(PAD, (x,), static)

    def squeeze(self, x: R, /, *, axis: Axes = None) -> R:
        """x without the given axes of size 1, or all such axes; other sizes are an error. PyTorch: torch.squeeze.

        Raises:
            ShapeError: an axis of another size than 1; no such axis.
        """
        if axis is None:
            axes = tuple(i for i, d in enumerate(x.shape) if is_one(d))
        else:
            axes = normalize_axes("squeeze", axis, len(x.shape))
        return self._call(SQUEEZE, (x,), {"axes": axes})

    def unsqueeze(self, x: R, /, *, axis: int) -> R:
        """x with a new axis of size 1, at `axis` of the result. PyTorch: torch.unsqueeze.

        Raises:
            ShapeError: no such axis.
        """
        return self._call(UNSQUEEZE, (x,), {"axis": normalize_axis("unsqueeze", axis, len(x.shape) + 1)})
