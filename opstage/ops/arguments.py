"""Canonical forms of the static arguments that users write: axes, per-axis tuples, shapes.

Methods of `BoundOps` put arguments in these forms once, so that shape rules, derivative rules and kernels see
non-negative axes and full tuples only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .dims import Dim, DimExpr
from .errors import ShapeError
from .types import Shape, show_shape


def normalize_axis(op: str, axis: int, rank: int) -> int:
    """An axis in [0, rank); negative ones count from the end."""
    if not isinstance(axis, int):
        raise ShapeError(f"axis must be an int but is {axis!r}", op=op)
    if not -rank <= axis < rank:
        allowed = f"{-rank} … {rank - 1}" if rank else "no axis at all: it is a scalar"
        raise ShapeError(f"axis {axis} is out of range for a tensor of rank {rank}, which has axes {allowed}", op=op)
    return axis % rank


def normalize_axes(op: str, axis: int | Sequence[int] | None, rank: int) -> tuple[int, ...]:
    """Sorted distinct axes; None stands for all."""
    if axis is None:
        return tuple(range(rank))
    if isinstance(axis, int):
        return (normalize_axis(op, axis, rank),)
    axes = tuple(sorted(normalize_axis(op, a, rank) for a in axis))
    if len(set(axes)) != len(axes):
        raise ShapeError(f"axis {tuple(axis)} names an axis twice", op=op)
    return axes


def per_axis(op: str, name: str, value: Any, rank: int, *, least: int) -> tuple[int, ...]:
    """One int for each of `rank` spatial axes, from an int or a sequence of ints that are at least `least`."""
    values = (value,) * rank if isinstance(value, int) else tuple(value)
    if len(values) != rank:
        raise ShapeError(f"{name} has {len(values)} entries but there are {rank} spatial axes: {values}", op=op)
    for entry in values:
        if not isinstance(entry, int) or isinstance(entry, bool) or entry < least:
            raise ShapeError(f"{name} must be ints that are at least {least} but is {values}", op=op)
    return values


def as_shape(op: str, shape: Sequence[Dim], *, inferred: bool = False) -> Shape:
    """A shape of ints >= 0 and dims; with `inferred` one entry may be -1."""
    if isinstance(shape, (int, DimExpr)):
        shape = (shape,)
    result = tuple(int(d) if not isinstance(d, (int, DimExpr)) and hasattr(d, "__index__") else d for d in shape)
    for d in result:
        if not isinstance(d, (int, DimExpr)) or isinstance(d, bool):
            raise ShapeError(f"a shape holds ints and dims but is {show_shape(result)}", op=op)
        if isinstance(d, int) and d < (-1 if inferred else 0):
            raise ShapeError(f"a shape holds sizes that are at least 0 but is {show_shape(result)}", op=op)
    return result
