"""Lowering of reductions to row reductions (over trailing axes) or column sums (over leading axes), and the axis order
in which their operands are computed for that."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from ...ops.body import Body, Equation
from ...ops.primitive import Primitive
from ...ops.reduction import REDUCE_MAX, REDUCE_SUM
from . import views
from .formulas import COLUMN_SUM, ROW_MAX, ROW_SUM
from .views import whole

if TYPE_CHECKING:
    from .lowered import Lowered


_LONG = 1 << 14
"""The length from which on a sum is split into sums of parts, for several workers, unless there are many such sums."""

Place = tuple[int, bool, tuple[int, ...]]
"""A tensor's place in a program: the op it belongs to, whether it is in the backward pass, and its shape."""

_MANY_COLUMNS = 1 << 15
"""The number of columns that occupies a GPU with a thread for each column."""


def place_of(e: Equation, shape: tuple[int, ...]) -> Place:
    """Return the place of a tensor of that shape, which an equation reads or writes."""
    return e.ordinal, bool(e.backward), shape


def row_orders(body: Body) -> dict[Place, tuple[int, ...]]:
    """Return the axis orders, with reduced axes last, for tensors that an op's parts always reduce along the same,
    non-trailing axes. Sums over leading axes with few columns are excluded; these are split into parts."""
    found: dict[Place, set[tuple[int, ...]]] = {}
    greatest: set[Place] = set()
    for e in body.equations:
        if e.primitive in (REDUCE_SUM, REDUCE_MAX):
            shape: Any = body.types[e.inputs[0]].shape
            place = place_of(e, tuple(shape))
            axes = tuple([a for a in e.static["axes"] if shape[a] > 1])
            if axes:
                found.setdefault(place, set()).add(axes)
            if e.primitive is REDUCE_MAX:
                greatest.add(place)
    orders = {}
    for place, every in found.items():
        (axes, *others), (*_, shape) = every, place
        kept = tuple([a for a in range(len(shape)) if a not in axes])
        left = [a for a in kept if shape[a] > 1]
        if others or not left or left[-1] < axes[-1]:
            continue
        columns = place not in greatest and left[0] > axes[-1]
        if not columns or math.prod([shape[a] for a in left]) >= _MANY_COLUMNS:
            orders[place] = (*kept, *axes)
    return orders


def reduce(lowered: Lowered, e: Equation) -> bool:
    """Lower a sum or maximum along axes to row reductions or column sums; return False if kernels do not support it."""
    (x,), (out,) = e.inputs, e.outputs
    if x in lowered.literals:
        x = lowered.contiguous(x, e)
    kind, dtype = e.primitive, lowered.types[out].dtype
    if dtype.kind != "f":
        return False  # integers are summed in int64, on the host
    view = lowered.views[x]
    axes = [a for a in e.static["axes"] if view.shape[a] > 1]
    if not axes:
        kept_all = views.reshape(view, lowered.shape(out))  # only axes of size 1 are removed
        assert kept_all is not None
        lowered.views[out] = kept_all
        return True
    rank = len(view.shape)
    trailing = rank
    while trailing - 1 in axes or (trailing > 0 and view.shape[trailing - 1] == 1):
        trailing -= 1
    kept = [a for a in range(rank) if a not in axes]
    if trailing < rank and any(a >= trailing for a in axes):
        inner = range(trailing, rank)
        x = _trailing(lowered, x, kind, math.prod(view.shape[a] for a in inner), view.shape[:trailing], e)
        view = lowered.views[x]
        axes = [a for a in axes if a < trailing]
        kept = [a for a in kept if a < trailing]
    if axes:
        rows = kind is REDUCE_MAX or place_of(e, lowered.shape(e.inputs[0])) in lowered.orders
        leading = not rows and all(a < min((k for k in kept if view.shape[k] > 1), default=0) for a in axes)
        if leading:
            extent = math.prod(view.shape[a] for a in kept)
            total = lowered.fresh((extent,), lowered.types[x])
            x = _rows_of_one_stride(lowered, x, extent, e)
            x = lowered.emit(COLUMN_SUM, (x,), total, e, extent=extent)
        else:
            moved = lowered.seen(views.permute(view, (*kept, *axes)), lowered.types[x])
            extent = math.prod(view.shape[a] for a in axes)
            x = _trailing(lowered, moved, kind, extent, tuple(view.shape[a] for a in kept), e)
    result = views.reshape(lowered.views[x], lowered.shape(out))
    assert result is not None
    lowered.views[out] = result
    return True


def _rows_of_one_stride(lowered: Lowered, x: int, extent: int, e: Equation) -> int:
    """Return x, or a copy, such that each run of `extent` elements has one stride."""
    view = lowered.views[x]
    axes = views.merged(view.shape, view.strides)
    cuts = views.chain(views.borders(view.shape, view.strides), (1, extent))
    if cuts is not None:
        strides = views.split(axes, cuts[:-1]) or []
        inner = [c for c in cuts if c < extent]
        sizes = tuple(b // a for a, b in pairwise([*inner, extent]))[::-1]
        if len(views.merged(sizes, tuple(strides[len(strides) - len(inner) :]))) <= 1:
            return x
    return lowered.contiguous(x, e)


def _trailing(lowered: Lowered, x: int, kind: Primitive, extent: int, rows: tuple[int, ...], e: Equation) -> int:
    """Return x (*rows, …) reduced over its last `extent` elements."""
    x = _rows_of_one_stride(lowered, x, extent, e)
    primitive = ROW_SUM if kind is REDUCE_SUM else ROW_MAX
    count = math.prod(rows)
    if count <= lowered.target.few_rows and extent > _LONG:
        part = max(d for d in range(1, math.isqrt(extent) + 1) if extent % d == 0)
        cut = views.reshape(lowered.views[x], (count, part, extent // part)) if part >= 8 else None
        if cut is not None:
            partial = lowered.fresh((count, part), lowered.types[x])
            x = lowered.emit(primitive, (lowered.seen(cut, lowered.types[x]),), partial, e, extent=extent // part)
            extent = part
    total = lowered.fresh((count,), lowered.types[x])
    lowered.emit(primitive, (x,), total, e, extent=extent)
    return lowered.seen(whole(total, rows)._replace(shape=rows), lowered.types[x])
