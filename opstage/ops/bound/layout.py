"""Shapes, axes and the order of elements."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, final

from ..arguments import as_shape, normalize_axes, normalize_axis
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
from ..dims import Dim, DimExpr, is_one, require_equal
from ..errors import ShapeError
from ..protocol import Axes, Number, R, ShapeLike
from ..types import show_shape
from .calls import Calls


def _dim(op: str, name: str, value: Any) -> Dim:
    """A size or position, as an int or a dim."""
    return value if isinstance(value, DimExpr) else _int(op, name, value)


def _int(op: str, name: str, value: Any) -> int:
    if not hasattr(value, "__index__") or isinstance(value, DimExpr):
        raise ShapeError(f"{name} must be an integer but is {value!r}", op=op)
    return operator.index(value)


class LayoutOps(Calls[R]):
    __slots__ = ()

    @final
    def broadcast_to(self, x: R, /, *, shape: ShapeLike) -> R:
        return self._call(BROADCAST_TO, (x,), {"shape": as_shape("broadcast_to", shape)})

    @final
    def reshape(self, x: R, /, *, shape: ShapeLike) -> R:
        return self._call(RESHAPE, (x,), {"shape": as_shape("reshape", shape, inferred=True)})

    @final
    def flatten(self, x: R, /, *, start: int = 0, end: int = -1) -> R:
        rank = max(len(x.shape), 1)
        start, end = normalize_axis("flatten", start, rank), normalize_axis("flatten", end, rank)
        return self._call(FLATTEN, (x,), {"start": start, "end": end})

    @final
    def permute(self, x: R, /, *, axes: Sequence[int]) -> R:
        return self._call(PERMUTE, (x,), {"axes": tuple(normalize_axis("permute", a, len(x.shape)) for a in axes)})

    @final
    def transpose2d(self, x: R, /) -> R:
        return self._call1(TRANSPOSE2D, x)

    @final
    def transpose3d_first_to_last(self, x: R, /) -> R:
        return self._call1(TRANSPOSE3D_FIRST_TO_LAST, x)

    @final
    def transpose3d_last_to_first(self, x: R, /) -> R:
        return self._call1(TRANSPOSE3D_LAST_TO_FIRST, x)

    @final
    def transpose3d_last_two(self, x: R, /) -> R:
        return self._call1(TRANSPOSE3D_LAST_TWO, x)

    @final
    def swap_adjacent_at_depth(self, x: R, /, *, depth: int) -> R:
        return self._call(SWAP_ADJACENT_AT_DEPTH, (x,), {"depth": _int("swap_adjacent_at_depth", "depth", depth)})

    @final
    def concat(self, xs: Sequence[R], /, *, axis: int = 0) -> R:
        refs = tuple(xs)
        if not refs:
            raise ShapeError("at least one tensor is needed", op="concat")
        return self._call(CONCAT, refs, {"axis": normalize_axis("concat", axis, len(refs[0].shape))})

    @final
    def stack(self, xs: Sequence[R], /, *, axis: int = 0) -> R:
        refs = tuple(xs)
        if not refs:
            raise ShapeError("at least one tensor is needed", op="stack")
        return self._call(STACK, refs, {"axis": normalize_axis("stack", axis, len(refs[0].shape) + 1)})

    @final
    def slice(self, x: R, /, *, axis: int, start: Dim, length: Dim, step: int = 1) -> R:
        static = {
            "axis": normalize_axis("slice", axis, len(x.shape)),
            "start": _dim("slice", "start", start),
            "length": _dim("slice", "length", length),
            "step": _int("slice", "step", step),
        }
        return self._call(SLICE, (x,), static)

    @final
    def split(self, x: R, /, *, sizes: Sequence[Dim], axis: int = 0) -> tuple[R, ...]:
        axis = normalize_axis("split", axis, len(x.shape))
        lengths = tuple(_dim("split", "a size", size) for size in sizes)
        total = sum(lengths)
        try:
            require_equal(
                total,
                x.shape[axis],
                lambda: f"sizes {show_shape(lengths)} add up to {total} but axis {axis} of x has {x.shape[axis]}",
            )
        except ShapeError as error:
            error.place("split", self.cursor.region.name)
            raise
        parts: list[R] = []
        start: Dim = 0
        for length in lengths:
            parts.append(self.slice(x, axis=axis, start=start, length=length))
            start = start + length
        return tuple(parts)

    @final
    def pad(
        self,
        x: R,
        /,
        *,
        padding: Sequence[tuple[Dim, Dim]],
        value: Number = 0.0,
        interior: Sequence[int] | None = None,
    ) -> R:
        try:
            pairs = tuple((before, after) for before, after in padding)
        except (TypeError, ValueError):
            raise ShapeError(
                f"padding must be a sequence with a pair (before, after) for each axis but is {padding!r}", op="pad"
            ) from None
        static = {
            "padding": tuple((_dim("pad", "padding", b), _dim("pad", "padding", a)) for b, a in pairs),
            "value": value,
            "interior": (0,) * len(pairs) if interior is None else tuple(_int("pad", "interior", i) for i in interior),
        }
        return self._call(PAD, (x,), static)

    @final
    def squeeze(self, x: R, /, *, axis: Axes = None) -> R:
        if axis is None:
            axes = tuple(i for i, d in enumerate(x.shape) if is_one(d))
        else:
            axes = normalize_axes("squeeze", axis, len(x.shape))
        return self._call(SQUEEZE, (x,), {"axes": axes})

    @final
    def unsqueeze(self, x: R, /, *, axis: int) -> R:
        return self._call(UNSQUEEZE, (x,), {"axis": normalize_axis("unsqueeze", axis, len(x.shape) + 1)})
