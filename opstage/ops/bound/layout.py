"""Shapes, axes and the order of elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

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
from ..dims import Dim, is_one
from ..errors import ShapeError
from ..protocol import Axes, Number, R, ShapeLike
from .calls import Calls


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
        return self._call(SWAP_ADJACENT_AT_DEPTH, (x,), {"depth": depth})

    @final
    def concat(self, xs: Sequence[R], /, *, axis: int = 0) -> R:
        if not xs:
            raise ShapeError("at least one tensor is needed", op="concat")
        return self._call(CONCAT, tuple(xs), {"axis": normalize_axis("concat", axis, len(xs[0].shape))})

    @final
    def stack(self, xs: Sequence[R], /, *, axis: int = 0) -> R:
        if not xs:
            raise ShapeError("at least one tensor is needed", op="stack")
        return self._call(STACK, tuple(xs), {"axis": normalize_axis("stack", axis, len(xs[0].shape) + 1)})

    @final
    def slice(self, x: R, /, *, axis: int, start: int, length: Dim, step: int = 1) -> R:
        axis = normalize_axis("slice", axis, len(x.shape))
        return self._call(SLICE, (x,), {"axis": axis, "start": start, "length": length, "step": step})

    @final
    def split(self, x: R, /, *, sizes: Sequence[Dim], axis: int = 0) -> tuple[R, ...]:
        axis = normalize_axis("split", axis, len(x.shape))
        total = sum(sizes)
        if total != x.shape[axis]:
            raise ShapeError(f"sizes {tuple(sizes)} add up to {total} but axis {axis} has {x.shape[axis]}", op="split")
        parts, start = [], 0
        for size in sizes:
            parts.append(self.slice(x, axis=axis, start=start, length=size))
            start += size
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
        between = tuple(interior) if interior is not None else (0,) * len(padding)
        pairs = tuple((low, high) for low, high in padding)
        return self._call(PAD, (x,), {"padding": pairs, "value": value, "interior": between})

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
